"""The pages of docs/: generated ones are current, links lead somewhere, and the articles' leads name real things."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from docgen import event_table
from docgen.metric_table import METRICS
from docgen.metrics import exported_names
from docgen.pages import PAGES
from docgen.transaction_rules import RULES
from klamm.controller import events
from klamm.sim.transactions.txn_mutants import TRANSACTION_MUTANTS
from klamm.testing import LocalCluster
from tests.support.source_tree import ROOT, text_files

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_current(page: str) -> None:
    assert (ROOT / page).read_text() == PAGES[page](), "run: make docs"


@cache
def pages() -> tuple[Path, ...]:
    return tuple(path for path in text_files() if path.suffix == ".md")


def anchors(page: Path) -> set[str]:
    """As forges make them from headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def links(page: Path) -> Iterator[str]:
    text = FENCE.sub("", page.read_text())
    return (target for target in (*LINK.findall(text), *IMAGE.findall(text)) if "://" not in target)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in anchors(there), f"{target}: {there.name} has no such heading"


@pytest.mark.parametrize(
    "page", [page for page in pages() if "docs" in page.parts], ids=lambda page: str(page.relative_to(ROOT))
)
def test_named_source_files_exist(page: Path) -> None:
    """A path in code marks, such as `replica/partition.py`, is below the root or below src/klamm."""
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", FENCE.sub("", page.read_text()))
    places = (ROOT, ROOT / "src" / "klamm")
    assert not [name for name in named if not any((place / name).exists() for place in places)]


def test_the_table_has_every_event_and_its_handler() -> None:
    rows = event_table.rows()
    assert {row.event for row in rows} == {event.__name__ for event in get_args(events.ControllerEvent)}
    assert not [row.event for row in rows if not row.handlers]
    reviewed = {row.event for row in rows if "lost_tails.review" in row.handlers}
    assert {"UncleanReplicaWaitOver", "BrokerChange", "LeaderAndIsrResponseReceived"} <= reviewed


def test_every_mutant_of_transactions_belongs_to_one_rule() -> None:
    named = [name for rules in RULES.values() for rule in rules for name in rule.mutants]
    assert len(named) == len(set(named))
    assert set(named) == set(TRANSACTION_MUTANTS), "describe these in docgen/transaction_rules.py, then run: make docs"


def test_the_page_of_klamm_testing_has_every_public_name() -> None:
    named = set(re.findall(r"\w+", (ROOT / "docs/reference/testing.md").read_text()))
    assert not [name for name in vars(LocalCluster) if not name.startswith("_") and name not in named]


def test_no_metric_is_described_twice() -> None:
    names = [name for metric in METRICS for name in exported_names(metric)]
    assert len(names) == len(set(names))
