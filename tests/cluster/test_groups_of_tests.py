"""make test runs two processes: each file's tests stay in one of them, and all of those that share Spark's session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = ROOT / "tests" / "conftest.py"
FOUR_TESTS = """\
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test(number, request):
    with open("ran", "a") as file:
        print(request.path.parent.name, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def run(directory: Path, processes: int) -> list[list[str]]:
    """(directory of the test, process) in the order in which they ran."""
    command = [sys.executable, "-m", "pytest", "-n", str(processes), "--dist", "loadgroup", "--no-loadscope-reorder"]
    done = subprocess.run([*command, "tests"], cwd=directory, capture_output=True, text=True)
    assert "16 passed" in done.stdout, done.stdout + done.stderr
    lines = (directory / "ran").read_text().splitlines()
    (directory / "ran").unlink()
    return [line.split() for line in lines]


def test_a_group_runs_in_one_process_and_the_longest_first(tmp_path: Path) -> None:
    for directory in ("clients", "cluster", "spark/source", "spark/table"):
        path = tmp_path / "tests" / directory / f"test_in_{directory.replace('/', '_')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(FOUR_TESTS)
    shutil.copy(CONFTEST, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    ran = run(tmp_path, 2)
    processes = {name: {worker for at, worker in ran if at == name} for name, _ in ran}
    assert len(processes) == 4 and all(len(of_file) == 1 for of_file in processes.values()), processes
    assert processes["source"] == processes["table"]
    # Which of two processes is ready first, and so has the first group, is not for us to say: one has all in order.
    in_order = [name for name, _ in run(tmp_path, 1)]
    assert set(in_order[:8]) == {"source", "table"}, "the longest group is the first to be given away"
