"""`klamm simulate`: options that would be ignored beside each other are refused, by name; transcripts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.output import Failure
from klamm.sim import cluster_runner


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ("--transcript", "--transcript requires --seed."),
        ("-s 1 -n 5", "--seed runs one seed and cannot be combined with --seeds."),
        ("-s 1 --first 5", "--seed runs one seed and cannot be combined with --first."),
        ("-s 1 -j 2", "--seed runs one seed and cannot be combined with --jobs."),
        ("--level 2 -j 2", "--jobs is for --level 1 only: a run of level 2 is one process."),
        ("--mutant no_controller_fence -j 2", "--jobs cannot be used with --mutant: a mutant lives in one process."),
        ("--mutant foo", "There is no mutant 'foo' of level 1. There are: "),
        ("--level 2 --aim foo --mutant bar", "--aim cannot be used with --mutant: a mutant runs the scenario "),
        ("--aim foo", "--aim requires --level 2, alone or with --transactions."),
        ("--aim foo --level 2 --guarded", "--aim requires --level 2, alone or with --transactions."),
        ("--aim foo --level 2", "There is no aimed scenario 'foo'. There are: false broker epoch, "),
        ("--aim foo --level 2 --transactions", "There is no aimed scenario 'foo'. There are: repeated end, "),
        ("--view", "--view requires --seed."),
        ("--view -s 1 --level 2", "--view is for --level 1 without a mutant."),
        ("--view -s 1 --transactions", "--transactions requires --level 2."),
        ("--view -s 1 --transcript", "--view cannot be combined with --transcript."),
        ("--mutant foo --level 2", "There is no mutant 'foo' of level 2. There are: high_watermark_too_early, "),
    ],
)
def test_refused_arguments(options: str, reported: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *options.split()])
    assert done.exit_code == 1 and isinstance(done.exception, Failure)
    assert str(done.exception).startswith(reported)


@pytest.mark.parametrize("level", [1, 2])
def test_a_seed_without_violations_prints_its_transcript_on_request(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_runner, "FAULTS_S", 0.5)
    command = ["simulate", "--level", str(level), "--seed", "0", "--brokers", "1"]
    brief, reported = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--transcript"]))
    assert (brief.exit_code, reported.exit_code) == (0, 0), reported.exception
    assert brief.output.startswith(f"seed 0 with 1 {'whole ' if level == 2 else ''}brokers: nothing is wrong")
    assert reported.output.endswith(brief.output)
    assert "/controller" in reported.output.removesuffix(brief.output)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_log_lines_of_simulated_brokers_stay_off_the_terminal(jobs: str) -> None:
    """In a process of its own: pytest handles the log lines of this one."""
    command = [sys.executable, "-m", "klamm.cli.main", "simulate", "--seeds", "3", "--jobs", jobs]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3 seeds, ")
    assert done.stderr == ""
