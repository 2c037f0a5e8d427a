"""ARCHITECTURE.md is true: what it names exists, and it leaves no package out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.source_tree import ROOT, SOURCE, modules
from tests.tidy.test_layers import LAYERS, SPARK_MAY_IMPORT

TEXT = (ROOT / "ARCHITECTURE.md").read_text()
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#]+)\)")
_FILE = re.compile(r"[\w./*]+\.(?:py|js)")
_CAMEL = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
_PLACEHOLDER = "x.py"
"""Stands for the file of one API."""
NOT_OURS = {"ZooKeeper", "PrepareCommit", "CompleteCommit", "HandlerPool", "AddPartitions"}
"""The product, states of a transaction, and names that are shortened in pictures."""


def blocks() -> Iterator[str]:
    """The paragraphs, and each row of a table by itself."""
    for paragraph in re.sub(r"^```\n.*?^```$", "", TEXT, flags=re.M | re.S).split("\n\n"):
        rows = paragraph.strip().splitlines()
        if rows and rows[0].startswith("|"):
            yield from rows[2:]
        else:
            yield paragraph


def places(block: str) -> set[Path]:
    """The directories that a block names, alone or as part of a path, and all that are below them."""
    found = set()
    for code in _CODE.findall(block):
        if code.startswith("/"):  # a znode
            continue
        for start in (SOURCE, ROOT):
            path = start / code
            folder = path if path.is_dir() else path.parent
            if "/" in code and folder.is_dir() and folder != start:
                found.add(folder)
            elif start is SOURCE and path.is_dir():
                found.add(path)
    return found


def missing_files(block: str) -> list[str]:
    """Files without a directory must be in a directory that the same block names."""
    missing = []
    for code in _CODE.findall(block):
        if not _FILE.fullmatch(code) or Path(code).name == _PLACEHOLDER:
            continue
        if "*" in code:
            exists = any(SOURCE.glob(code))
        elif "/" in code:
            exists = any((start / code).is_file() for start in (SOURCE, ROOT)) or any(
                (place / code).is_file() for place in places(block)
            )
        else:
            exists = (SOURCE / code).is_file() or any(any(place.rglob(code)) for place in places(block))
        if not exists:
            missing.append(code)
    return missing


def test_the_files_exist() -> None:
    assert [f"{block.strip()[:60]}: {missing}" for block in blocks() if (missing := missing_files(block))] == []


def test_a_file_that_does_not_exist_is_found() -> None:
    assert missing_files("`controller/election.py`, `elections.py`; `controller/nothing.py`, `segment.py`") == [
        "controller/nothing.py",
        "segment.py",
    ]


def test_the_links_lead_somewhere() -> None:
    assert [link for link in _LINK.findall(TEXT) if not (ROOT / link).is_file()] == []


def test_every_package_has_a_row() -> None:
    rows = TEXT.split("## Packages")[1].split("Imports go one way")[0]
    named = {
        code.split("/")[0]
        for line in rows.splitlines()
        for code in _CODE.findall(line.split("|")[1:2][0] if "|" in line else "")
    }
    parts = {path.stem for path in SOURCE.iterdir() if path.suffix in ("", ".py") and path.name[:2] != "__"}
    assert parts - named == set()
    assert named - parts == set()


def test_the_layers_are_those_that_are_checked() -> None:
    block = TEXT.split("Imports go one way")[1].split("```")[1]
    upper, spark = block.strip().split("\nspark imports ")
    layers = [frozenset(layer.strip(" {}\n").split()) for layer in upper.split("->")]
    assert layers == list(LAYERS)
    named = set(re.split(r",\s*|\s+and\s+", spark.split(".")[0])) - {"the first group"}
    assert named == SPARK_MAY_IMPORT - LAYERS[0]


@cache
def definitions() -> frozenset[str]:
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for module in modules() for node in ast.walk(module.tree) if isinstance(node, kinds))


def test_the_classes_exist() -> None:
    known = definitions()
    words = {word for word in _CAMEL.findall(TEXT)} - NOT_OURS
    assert sorted(word for word in words if word not in known and f"{word}Request" not in known) == []


def test_the_functions_exist() -> None:
    calls = {code.split("(")[0].split(".")[-1] for code in _CODE.findall(TEXT) if code.endswith(")")}
    named = {code for code in _CODE.findall(TEXT) if re.fullmatch(r"[a-z]+_[a-z_]+", code)}
    files = {module.path.stem for module in modules()}
    assert (
        sorted((calls | named) - definitions() - files - {"format", "__consumer_offsets", "__transaction_state"}) == []
    )
