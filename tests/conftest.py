"""For all tests: nothing but what every kind needs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> None:
    """Tests must not find a cluster that a person works with."""
    os.environ.pop("KLAMM_BOOTSTRAP_SERVERS", None)
    # A run in the background of a shell ignores SIGINT, and so would every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cheap kinds first, so that a mistake shows early. Where several run at once, a file's tests stay together.

    Those of Spark stay together, because they share a JVM, but for the files that start Spark as a user would.
    """
    order = ["tidy", "unit", "wire", "property", "transcripts", "sim", "cluster", "clients", "spark"]
    here = Path(__file__).parent

    def kind(item: pytest.Item) -> str:
        return item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""

    def rank(item: pytest.Item) -> int:
        return order.index(kind(item)) if kind(item) in order else len(order)

    items.sort(key=rank)
    for item in items:
        shares_jvm = kind(item) == "spark" and item.path.parent.name != "cluster"
        together = "spark" if shares_jvm else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(together))
