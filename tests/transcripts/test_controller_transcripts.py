"""The controller's effects, scenario by scenario: the golden sequences of the control plane as readable text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts.harness import play

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    recorded = path.read_text()
    now = play(recorded)
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(now)
    else:
        assert now == recorded
