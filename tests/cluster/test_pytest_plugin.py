"""The report of a failed test has the logs of its brokers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

A_FAILING_TEST = """\
def test_fails(klamm_cluster):
    assert klamm_cluster.bootstrap_servers == "", "on purpose"

def test_passes(klamm_cluster):
    assert klamm_cluster.bootstrap_servers
"""


def test_a_failed_test_reports_the_logs_of_its_brokers(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(A_FAILING_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "test_orders.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    (section,) = [part for part in done.stdout.split("\n---") if "klamm_cluster: log of broker 1 -" in part]
    assert "INFO" in section, "the lines of the broker's start"
