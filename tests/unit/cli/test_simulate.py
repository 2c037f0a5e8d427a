"""`klamm simulate`: options that would be ignored beside each other are refused, by name; transcripts."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.output import Failure
from klamm.sim import cluster_runner


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--transcript", "--transcript requires --seed."),
        ("-s 1 -n 5", "--seed runs one seed and cannot be combined with --seeds, or --seed."),
        ("-s 1 --first 5", "--seed runs one seed and cannot be combined with --first, or --seed."),
        ("-s 1 -j 2", "--seed runs one seed and cannot be combined with --jobs, or --seed."),
        ("--level 2 -j 2", "--jobs is for --level 1 only: a run of level 2 is one process."),
        ("--mutant no_controller_fence -j 2", "--jobs cannot be used with --mutant: a mutant lives in one process."),
        ("--mutant foo", "There is no mutant 'foo' of level 1. There are: "),
        ("--mutant foo --level 2", "There is no mutant 'foo' of level 2. There are: high_watermark_too_early, "),
    ],
)
def test_what_is_refused(options: str, told: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *options.split()])
    assert done.exit_code == 1 and isinstance(done.exception, Failure)
    assert str(done.exception).startswith(told)


@pytest.mark.parametrize("level", [1, 2])
def test_a_seed_that_is_well_tells_its_transcript_when_asked(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_runner, "FAULTS_S", 0.5)
    command = ["simulate", "--level", str(level), "--seed", "0", "--brokers", "1"]
    brief, told = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--transcript"]))
    assert (brief.exit_code, told.exit_code) == (0, 0), told.exception
    assert brief.output.startswith(f"seed 0 with 1 {'whole ' if level == 2 else ''}brokers: nothing is wrong")
    assert told.output.endswith(brief.output)
    assert "/controller" in told.output.removesuffix(brief.output)
