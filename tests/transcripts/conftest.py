"""`pytest tests/transcripts --rewrite` writes what happens now into the transcripts; review the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite transcripts instead of comparing them")
