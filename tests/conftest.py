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
    """The cheap kinds first, so that a mistake shows early."""
    order = ["tidy", "unit", "wire", "property", "transcripts", "sim", "cluster", "clients"]
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        kind = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        return order.index(kind) if kind in order else len(order)

    items.sort(key=rank)
