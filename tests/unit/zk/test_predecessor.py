"""Whether a session file is that of a process which is surely dead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.zk.client import predecessor
from klamm.zk.client.client_connection import SessionCredentials

CREDENTIALS = SessionCredentials(0x1234, b"0123456789abcdef")
SAVE = """
import sys
from pathlib import Path
from klamm.zk.client import predecessor
from klamm.zk.client.client_connection import SessionCredentials
predecessor.save(Path(sys.argv[1]), SessionCredentials(0x1234, b"0123456789abcdef"))
print("saved", flush=True)
sys.stdin.read()
"""


def saved_by_another(path: Path) -> subprocess.Popen[bytes]:
    """A process that wrote the file and lives until its input ends."""
    command = [sys.executable, "-c", SAVE, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"saved\n"
    return process


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """The file of a process that has ended."""
    path = tmp_path / "session"
    saved_by_another(path).communicate()
    return path


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_process_that_lives(tmp_path: Path) -> None:
    path = tmp_path / "session"
    process = saved_by_another(path)
    assert predecessor.load(path) == CREDENTIALS and path.stat().st_mode & 0o777 == 0o600
    assert not predecessor.is_of_dead_process(path)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert predecessor.is_of_dead_process(path), "it has ended, though its parent has not asked how"
    process.communicate()
    assert predecessor.is_of_dead_process(path)


def test_the_process_id_of_the_dead_is_used_again(dead: Path) -> None:
    change(dead, pid=os.getpid())
    assert predecessor.is_of_dead_process(dead)
    change(dead, started=None)
    assert not predecessor.is_of_dead_process(dead), "where start times are not known any process may be it"


def test_a_copied_directory(dead: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    copy = tmp_path.with_name("copy") / dead.name
    assert predecessor.load(copy) == CREDENTIALS and not predecessor.is_of_dead_process(copy)


@pytest.mark.parametrize("field", ["host", "boot", "device", "inode"])
def test_another_place(dead: Path, field: str) -> None:
    assert predecessor.is_of_dead_process(dead)
    change(dead, **{field: "another"})
    assert not predecessor.is_of_dead_process(dead)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"session_id": 1, "password": "00"}'])
def test_a_file_with_too_few_fields(tmp_path: Path, content: str) -> None:
    path = tmp_path / "session"
    path.write_text(content)
    assert not predecessor.is_of_dead_process(path)


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"session_id": 1e999, "password": "00"}', f'{{"session_id": {1 << 63}, "password": ""}}'],
)
def test_a_damaged_file_does_not_keep_the_broker_from_starting(tmp_path: Path, content: str) -> None:
    path = tmp_path / "session"
    path.write_text(content)
    assert predecessor.load(path) is None and not predecessor.is_of_dead_process(path)


def test_no_file(tmp_path: Path) -> None:
    assert predecessor.load(tmp_path / "none") is None and not predecessor.is_of_dead_process(tmp_path / "none")
