"""`klamm zk check` and `klamm zk repair`: what they show, what they keep, what they refuse, and their exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.output import Failure
from klamm.zk.server.log_records import MAGIC
from klamm.zk.server.txnlog import DamagedError, DataDir, log_path, numbered, snapshot_path
from tests.unit.zk.test_recovery import flip, record, recovered, session_record, three_snapshots


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["zk", *map(str, arguments)])
    if isinstance(done.exception, Failure):
        return 1, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name != "lock"}


def test_whole_files(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    before = contents(tmp_path)
    code, output = run("check", tmp_path)
    assert code == 0
    assert "A start recovers everything up to change 0x9." in output
    assert re.search(r"log\.0{15}8 +whole +0x8 +0x9 ", output)
    code, output = run("repair", tmp_path)
    assert code == 0 and "No repair is needed." in output
    assert contents(tmp_path) == before


def test_as_json(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    code, output = run("check", tmp_path, "--json")
    whole = json.loads(output)
    assert (code, whole["recovered"], whole["problem"], whole["is_damaged"]) == (0, "0x9", None, False)
    assert {file["state"] for file in whole["files"]} == {"whole"} and run("repair", tmp_path, "--json") == (0, output)
    log_path(tmp_path, 8).write_bytes(MAGIC + b"".join(record(zxid) for zxid in range(8, 20)))
    flip(log_path(tmp_path, 8), len(MAGIC) + 2 * len(record(8)) + 30)
    code, output = run("repair", tmp_path, "--json")
    broken = json.loads(output)
    assert (code, broken["recovered"], broken["is_damaged"]) == (4, None, True) and broken["problem"]
    assert broken["choices"][0] == {
        "zxid": "0x9",
        "snapshot": "0x7",
        "time_ms": broken["choices"][0]["time_ms"],
        "lost_changes": 10,
    }
    assert run("repair", tmp_path, "--json", "--to", "0x9") == (1, "--json cannot be combined with --to.")


def test_an_unfinished_write_is_not_damage(tmp_path: Path) -> None:
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record() + record(2)[:-1])
    before = contents(tmp_path)
    code, output = run("check", tmp_path)
    assert code == 0 and "unfinished" in output and "up to change 0x1." in output
    assert "It cuts off the last record of log.0000000000000001, whose write was not finished." in output
    assert contents(tmp_path) == before, "only a start cuts it off"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    log_path(tmp_path, 1).mkdir()
    for command in ("check", "repair"):
        assert run(command, tmp_path) == (1, f"{log_path(tmp_path, 1)} cannot be read: Is a directory.")


def test_a_damaged_snapshot_that_is_not_needed(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    flip(snapshot_path(tmp_path, 7), 60)
    code, output = run("check", tmp_path)
    assert code == 3
    assert re.search(r"snapshot\.0{15}7 +damaged", output) and "up to change 0x9." in output


def test_a_damaged_end_of_a_closed_log(tmp_path: Path) -> None:
    """Not a write that a start cuts off, although it looks like one; a start does not need that log."""
    three_snapshots(tmp_path)
    flip(log_path(tmp_path, 6), len(MAGIC) + len(record(6)) + 30)
    code, output = run("check", tmp_path)
    assert code == 3 and re.search(r"log\.0{15}6 +damaged", output) and "up to change 0x9." in output


def test_a_damaged_log(tmp_path: Path) -> None:
    """The choices are shown; the one that is taken keeps every file, and no zxid is used twice."""
    three_snapshots(tmp_path)
    log_path(tmp_path, 8).write_bytes(MAGIC + b"".join(record(zxid) for zxid in range(8, 20)))
    flip(log_path(tmp_path, 8), len(MAGIC) + 2 * len(record(8)) + 30)
    before = contents(tmp_path)
    code, output = run("check", tmp_path)
    assert code == 4
    assert re.search(r"A start fails: .*log\.0{15}8 is damaged at byte \d+, after change 0x9", output)
    assert f"`klamm zk repair {tmp_path}` shows the states that can be recovered." in output
    code, output = run("repair", tmp_path)
    assert code == 4
    assert "0x9  from snapshot.0000000000000007 and the logs after it" in output
    assert "Lost: 10 changes, 0xa to 0x13." in output and f"klamm zk repair {tmp_path} --to 0x9" in output
    assert contents(tmp_path) == before
    code, output = run("repair", tmp_path, "--to", "0x9")
    assert code == 0 and f"The old files are in {tmp_path / 'backup-1'}." in output
    assert contents(tmp_path / "backup-1") == before
    tree = recovered(tmp_path)
    assert tree.last_zxid > 0x13
    assert {"/n8", "/n9"} <= set(tree.nodes) and "/n10" not in tree.nodes
    assert run("check", tmp_path)[0] == 0


def test_backups_on_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies are on disk before the originals are removed."""
    three_snapshots(tmp_path)
    before = contents(tmp_path)
    steps: list[str] = []
    real_sync, real_unlink = os.fsync, Path.unlink

    def sync(fd: int) -> None:
        steps.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        real_sync(fd)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        steps.append("unlink")
        real_unlink(path, missing_ok)

    def no_links(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "unlink", unlink)
    assert run("repair", tmp_path, "--to", "0x9")[0] == 0
    assert contents(tmp_path / "backup-1") == before
    assert {f"backup-1/{name}" for name in before} <= set(steps[: steps.index("unlink")])


def test_a_log_whose_end_cannot_be_read(tmp_path: Path) -> None:
    """How many changes are lost is not known, so the bytes are named."""
    three_snapshots(tmp_path)
    records = [record(zxid) for zxid in range(8, 20)]
    garbage = b"\xa5" * sum(map(len, records[4:]))
    log_path(tmp_path, 8).write_bytes(MAGIC + b"".join(records[:4]) + garbage)
    lost = f"Lost: all changes in the last {len(garbage)} bytes of log.0000000000000008."
    code, output = run("repair", tmp_path)
    assert code == 4 and "0xb  from snapshot.0000000000000007" in output and lost in output
    code, output = run("repair", tmp_path, "--to", "0xb")
    assert code == 0 and lost in output
    assert recovered(tmp_path).last_zxid >= 0x13


def test_damage_in_the_middle_and_at_the_end(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    records = [record(zxid) for zxid in range(8, 20)]
    log_path(tmp_path, 8).write_bytes(MAGIC + b"".join(records)[:-20])
    flip(log_path(tmp_path, 8), len(MAGIC) + len(records[0]) + 30)
    cut = len(records[-1]) - 20
    output = run("repair", tmp_path)[1]
    assert f"Lost: 10 changes, 0x9 to 0x12 and all changes in the last {cut} bytes of log.0000000000000008." in output


def test_one_lost_change(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    flip(snapshot_path(tmp_path, 7), 60)
    flip(log_path(tmp_path, 6), len(MAGIC) + len(record(6)) + 30)
    log_path(tmp_path, 8).write_bytes(MAGIC)
    assert "0x6  from snapshot.0000000000000005" in run("repair", tmp_path)[1]
    assert "Lost: change 0x7." in run("repair", tmp_path)[1]


def test_a_repair_that_loses_nothing(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    code, output = run("repair", tmp_path, "--to", "0x9")
    assert code == 0 and "in the state after change 0x9. Lost: nothing." in output


def test_records_in_a_znode_are_not_lost_changes(tmp_path: Path) -> None:
    """Bytes of a client that look like a record with a zxid far beyond."""
    three_snapshots(tmp_path)
    records = [record(8), record(9), record(10, record(0x7000_0000)), record(11)]
    log_path(tmp_path, 8).write_bytes(MAGIC + b"".join(records))
    for damaged in (0, 2):
        content = log_path(tmp_path, 8).read_bytes()
        flip(log_path(tmp_path, 8), len(MAGIC) + len(b"".join(records[:damaged])) + 20)
        assert re.search(r"Lost: \d changes, 0x[8a] to 0xb\.", run("repair", tmp_path)[1])
        log_path(tmp_path, 8).write_bytes(content)


def test_an_older_snapshot_can_be_chosen(tmp_path: Path) -> None:
    """The newest snapshot is damaged, and so is a log that the older one needs."""
    three_snapshots(tmp_path)
    flip(snapshot_path(tmp_path, 7), 60)
    flip(log_path(tmp_path, 6), 40)
    with pytest.raises(DamagedError):
        recovered(tmp_path)
    code, output = run("repair", tmp_path)
    assert code == 4 and "0x5  from snapshot.0000000000000005" in output and "Lost: 4 changes, 0x6 to 0x9." in output
    assert run("repair", tmp_path, "--to", "5")[0] == 0
    assert "/n5" in recovered(tmp_path).nodes and "/n6" not in recovered(tmp_path).nodes


def test_states_that_cannot_be_had(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    before = contents(tmp_path)
    assert run("repair", tmp_path, "--to", "0x42") == (
        1,
        f"The repair failed: the state after change 0x42 cannot be recovered from {tmp_path}.",
    )
    assert run("repair", tmp_path, "--to", "newest")[0] == 1
    assert contents(tmp_path) == before
    assert not (tmp_path / "backup-1").exists()


def test_nothing_is_left(tmp_path: Path) -> None:
    snapshot_path(tmp_path, 5).write_bytes(b"nonsense, and more of it")
    log_path(tmp_path, 6).write_bytes(MAGIC + record(6))
    code, output = run("repair", tmp_path)
    assert code == 4 and "restore the directory from a copy" in output


def test_a_directory_that_a_server_uses(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    data_dir = DataDir(tmp_path)
    before = contents(tmp_path)
    code, output = run("check", tmp_path)
    assert code == 0 and "A server uses this directory" in output
    for options in ([], ["--to", "0x9"]):
        assert run("repair", tmp_path, *options) == (1, f"{tmp_path} is in use by a server: stop it first.")
    data_dir.close()
    assert contents(tmp_path) == before and numbered(tmp_path, "snapshot") == [3, 5, 7]


@pytest.mark.parametrize("command", ["check", "repair"])
def test_directories_of_others(tmp_path: Path, command: str) -> None:
    assert run(command, tmp_path) == (1, f"{tmp_path} holds no files of an embedded ZooKeeper.")
    assert run(command, tmp_path / "none") == (1, f"{tmp_path / 'none'} is not a directory.")
    assert list(tmp_path.iterdir()) == []
