"""Child processes: a failed start is reported, and no child outlives its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.local.processes import ChildProcess, with_bytecode_cache


def child(tmp_path: Path, code: str) -> ChildProcess:
    """A module of its own in `tmp_path`, which is ready when it has written the file `ready`."""
    module = tmp_path / "klamm_test_child.py"
    module.write_text(textwrap.dedent(code))
    ready = tmp_path / "ready"
    return ChildProcess("The child", "klamm_test_child", [str(ready)], tmp_path / "child.log", ready.exists)


@pytest.fixture(autouse=True)
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


READY_THEN_WAIT = """
    import pathlib, signal, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pathlib.Path(sys.argv[1]).touch()
    while True:
        signal.pause()
"""


def test_a_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    process = child(tmp_path, "raise SystemExit('the disk is gone')")
    process.spawn()
    with pytest.raises(KlammError, match=r"(?s)The child ended with code 1 while starting.*the disk is gone"):
        process.wait_ready(time.monotonic() + 60)


def test_stop_pause_resume_and_start_again(tmp_path: Path) -> None:
    process = child(tmp_path, READY_THEN_WAIT)
    for _ in range(2):
        process.spawn()
        process.wait_ready(time.monotonic() + 60)
        process.pause()
        process.pause()  # the second one finds it paused
        assert (process.is_running, process.is_paused) == (True, True)
        process.stop(60)
        assert (process.is_running, process.has_crashed) == (False, False)


def test_a_killed_process_is_not_a_crash(tmp_path: Path) -> None:
    process = child(tmp_path, READY_THEN_WAIT)
    process.spawn()
    process.wait_ready(time.monotonic() + 60)
    process.kill()
    assert (process.is_running, process.has_crashed) == (False, False)


def test_a_child_has_its_own_process_group_in_its_parents_session(tmp_path: Path) -> None:
    """Ctrl-C does not reach it, and Linux shares the cores between all processes of the session alike."""
    process = child(tmp_path, READY_THEN_WAIT)
    process.spawn()
    try:
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) == os.getsid(0)
    finally:
        process.discard()


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "klamm_test_child.py").write_text(textwrap.dedent(READY_THEN_WAIT))
    parent = f"""
import os, pathlib, signal, time
from klamm.local.processes import ChildProcess
ready = pathlib.Path({str(tmp_path / "ready")!r})
process = ChildProcess("x", "klamm_test_child", [str(ready)], pathlib.Path({str(tmp_path / "log")!r}), ready.exists)
process.spawn()
process.wait_ready(time.monotonic() + 60)
process.pause()
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, timeout=100)
    pid = int(done.stdout)
    deadline = time.monotonic() + 60
    while _is_alive(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """A zombie counts as dead: whoever adopted it has not looked yet."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def test_bytecode_goes_to_the_users_cache_when_it_may_not_go_beside_the_source(tmp_path: Path) -> None:
    env = {"PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    changed = with_bytecode_cache(env)
    assert changed == {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPYCACHEPREFIX": str(tmp_path / "klamm" / "bytecode")}
    assert with_bytecode_cache({"A": "1"}) == {"A": "1"}
    assert with_bytecode_cache({"PYTHONDONTWRITEBYTECODE": "1", "HOME": "/dev/null"}) == {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/dev/null",
    }
