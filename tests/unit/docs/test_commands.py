"""The commands that pages and messages name exist, with their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import typer.main
from typer.core import TyperGroup

from klamm.cli.app import app
from tests.support.source_tree import ROOT, text_files

INLINE = re.compile(r"`klamm ([a-z][^`]*)`")
LINE = re.compile(r"^(?:    |\$ )?(?:[A-Z_]+=\S+ )*(?:.* \| )?klamm ([a-z][^|<>`]*)")
FENCE = re.compile(r"^```(?:sh|console|bash|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = ROOT / "docs" / "reference" / "cli.md"
"""From the commands themselves, with broken lines."""

commands = cache(partial(typer.main.get_command, app))


def mentions(path: Path) -> Iterator[str]:
    text = path.read_text()
    yield from (" ".join(found.split()) for found in INLINE.findall(text))
    if path.suffix == ".md":
        for block in FENCE.findall(text):
            lines = block.replace("\\\n", " ").splitlines()
            yield from (found.group(1) for line in lines if (found := LINE.match(line)))


def unknown_word(text: str) -> str | None:
    """Return the first word that is neither a command nor an option of the command before it."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # A quotation that ends in the next line.
        words = text.split()
    command = commands()
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name, *words = words
        several = [command.commands.get(each) for each in re.split(r"[|,/]", name) if each]
        if None in several:
            return name
        command = several[0] or command
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in words if re.match(r"-{1,2}[a-zA-Z]", word)]
    return next((word for word in given if word not in known and word != "--help"), None)


def test_named_commands_and_options_exist() -> None:
    paths = [path for path in text_files() if path.suffix in (".md", ".py") and path != GENERATED]
    found = [(path, each) for path in paths if not path.is_relative_to(ROOT / "tests") for each in mentions(path)]
    assert len(found) > 300
    wrong = [(str(path.relative_to(ROOT)), each, word) for path, each in found if (word := unknown_word(each))]
    assert not wrong


def test_an_unknown_word_is_found() -> None:
    assert unknown_word("topic create t --partitions 1 --replicas 3") == "--replicas"
    assert unknown_word("topic make t") == "make"
    assert unknown_word("quota list|describe|set|remove") is None
