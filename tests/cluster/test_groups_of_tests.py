"""make test runs two processes: each file's tests stay in one of them, and all of those that share Spark's session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
FOUR_TESTS = """\
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test(number, request):
    with open("ran", "a") as file:
        print(request.path.parent.name, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_a_group_runs_in_one_process_and_the_longest_first(tmp_path: Path) -> None:
    for directory in ("clients", "cluster", "spark/source", "spark/table"):
        path = tmp_path / "tests" / directory / f"test_in_{directory.replace('/', '_')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(FOUR_TESTS)
    shutil.copy(CONFTEST, tmp_path / "tests")
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "16 passed" in done.stdout, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    processes = {name: {worker for at, worker in ran if at == name} for name, _ in ran}
    assert len(processes) == 4 and all(len(of_file) == 1 for of_file in processes.values()), processes
    assert processes["source"] == processes["table"] == {"gw0"}, "the longest group is the first to be given away"
