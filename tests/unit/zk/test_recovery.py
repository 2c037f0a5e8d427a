"""Damage in the embedded server's files: what a start may cut off, what it recovers from, and when it refuses."""

from __future__ import annotations

import errno
import logging
import os
import random
import stat
from pathlib import Path

import pytest

from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import Id, RequestTooLarge
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server import log_records
from klamm.zk.server.inspection import FileState, inspect
from klamm.zk.server.log_records import MAGIC, LogRecord, decode_record, encode_record, frame, frames
from klamm.zk.server.tree_snapshot import dump_tree
from klamm.zk.server.txnlog import DamagedError, DataDir, DataDirError, compact, log_path, numbered, snapshot_path
from tests.unit.zk.raw_client import create_body


def record(zxid: int, data: bytes = b"data") -> bytes:
    body = create_body(f"/n{zxid}", data)
    return encode_record(LogRecord(zxid, 1_000 + zxid, 7, OpCode.CREATE, [], body))


def session_record() -> bytes:
    body = (30_000).to_bytes(4, "big") + b"p" * 16
    return encode_record(LogRecord(1, 0, 7, OpCode.CREATE_SESSION, [], body))


def recovered(directory: Path) -> ZnodeTree:
    tree = ZnodeTree()
    data_dir = DataDir(directory)
    try:
        data_dir.recover(tree)
    finally:
        data_dir.close()
    return tree


def three_snapshots(directory: Path) -> None:
    """Snapshots of changes 3, 5 and 7, a log between any two, and one behind with changes 8 and 9."""
    log_path(directory, 1).write_bytes(MAGIC + session_record() + record(2) + record(3))
    for first in (4, 6, 8):
        log_path(directory, first).write_bytes(MAGIC + record(first) + record(first + 1))
    for before in (4, 6, 8):
        compact(directory, before)
    log_path(directory, 1).unlink()
    assert numbered(directory, "snapshot") == [3, 5, 7]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def test_a_damaged_snapshot_falls_back_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    three_snapshots(tmp_path)
    whole = list(dump_tree(recovered(tmp_path)))
    for damaged in (7, 5):
        flip(snapshot_path(tmp_path, damaged), 60)
        caplog.clear()
        assert list(dump_tree(recovered(tmp_path))) == whole
        warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert any(f"snapshot.{damaged:016x} is damaged" in line and "older snapshot" in line for line in warned)
    flip(snapshot_path(tmp_path, 3), 60)
    with pytest.raises(DamagedError, match="no older snapshot is whole"):
        recovered(tmp_path)


def refuse_to_read(monkeypatch: pytest.MonkeyPatch, refused: Path) -> None:
    """As a disk with a bad sector does; the error names no file."""
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path == refused:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)


def test_a_snapshot_that_the_disk_refuses_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three_snapshots(tmp_path)
    refuse_to_read(monkeypatch, snapshot_path(tmp_path, 7))
    assert recovered(tmp_path).last_zxid == 9
    report = inspect(tmp_path)
    assert (report.recovered, [file.name for file in report.files if file.state is FileState.DAMAGED]) == (
        9,
        ["snapshot.0000000000000007"],
    )


def test_a_log_that_the_disk_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three_snapshots(tmp_path)
    refuse_to_read(monkeypatch, log_path(tmp_path, 8))
    with pytest.raises(DataDirError, match=r"log\.0{15}8 cannot be read: Input/output error"):
        recovered(tmp_path)


def test_a_log_that_a_snapshot_covers_is_not_cut(tmp_path: Path) -> None:
    """It looks like the last one, because the next one was only begun; an older snapshot may need it."""
    three_snapshots(tmp_path)
    log_path(tmp_path, 8).write_bytes(MAGIC)
    flip(log_path(tmp_path, 6), len(MAGIC) + len(record(6)) + 30)
    before = log_path(tmp_path, 6).read_bytes()
    assert recovered(tmp_path).last_zxid == 7
    assert log_path(tmp_path, 6).read_bytes() == before


@pytest.mark.parametrize("last_log", ["begun", "missing"])
def test_logs_must_reach_the_newest_snapshot(tmp_path: Path, last_log: str) -> None:
    """Change 7 is in a snapshot, so it was on disk: the damage at the end of the log before is not a torn write."""
    three_snapshots(tmp_path)
    flip(snapshot_path(tmp_path, 7), 60)
    if last_log == "begun":
        log_path(tmp_path, 8).write_bytes(MAGIC)
    else:
        log_path(tmp_path, 8).unlink()
    flip(log_path(tmp_path, 6), len(MAGIC) + len(record(6)) + 30)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DamagedError, match=r"log\.0{15}6 is damaged at byte \d+"):
        recovered(tmp_path)
    log_path(tmp_path, 6).unlink()
    with pytest.raises(DamagedError, match=r"snapshot\.0{15}7 is damaged, and the logs end with change 0x5|a log is"):
        recovered(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"} == {
        path: content for path, content in before.items() if path != log_path(tmp_path, 6)
    }


def test_without_a_snapshot_all_logs_are_replayed(tmp_path: Path) -> None:
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record() + record(2))
    log_path(tmp_path, 3).write_bytes(MAGIC + record(3))
    compact(tmp_path, before=3)
    flip(snapshot_path(tmp_path, 2), 30)
    assert recovered(tmp_path).last_zxid == 3


def test_a_new_snapshot_replaces_a_damaged_one(tmp_path: Path) -> None:
    three_snapshots(tmp_path)
    flip(snapshot_path(tmp_path, 7), 60)
    compact(tmp_path, before=8)
    flip(snapshot_path(tmp_path, 5), 60)
    flip(snapshot_path(tmp_path, 3), 60)
    assert recovered(tmp_path).last_zxid == 9


def test_a_flipped_byte_in_a_large_log_stops_the_start(tmp_path: Path) -> None:
    path = log_path(tmp_path, 1)
    records = [session_record(), *(record(zxid, os.urandom(3_000)) for zxid in range(2, 402))]
    whole = MAGIC + b"".join(records)
    for position in (len(whole) // 2, len(MAGIC) + len(records[0]) + 1, len(whole) - 3_300):
        content = whole[:position] + bytes([whole[position] ^ 0x80]) + whole[position + 1 :]
        path.write_bytes(content)
        with pytest.raises(DamagedError, match=rf"{path} is damaged at byte \d+, after change .*klamm zk repair"):
            recovered(tmp_path)
        assert path.read_bytes() == content


@pytest.mark.parametrize("size", [512, 4_096])
def test_a_zeroed_block_stops_the_start(tmp_path: Path, size: int) -> None:
    """Zeros have the CRC of nothing: they are not a record all the same."""
    path = log_path(tmp_path, 1)
    whole = MAGIC + session_record() + b"".join(record(zxid, b"x" * 100) for zxid in range(2, 102))
    path.write_bytes(whole[:1_024] + bytes(size) + whole[1_024 + size :])
    with pytest.raises(DamagedError, match="is damaged at byte"):
        recovered(tmp_path)


def test_zeros_at_the_end(tmp_path: Path) -> None:
    """A page of them may be a lost write; more would be records that were acknowledged."""
    path = log_path(tmp_path, 1)
    whole = MAGIC + session_record() + record(2)
    path.write_bytes(whole + bytes(4_096))
    assert recovered(tmp_path).last_zxid == 2
    assert path.read_bytes() == whole
    path.write_bytes(whole + bytes(4_097))
    with pytest.raises(DamagedError):
        recovered(tmp_path)


def test_two_damaged_records_at_the_end_are_not_a_torn_write(tmp_path: Path) -> None:
    path = log_path(tmp_path, 1)
    whole = MAGIC + session_record() + record(2) + record(3)
    path.write_bytes(whole)
    flip(path, len(whole) - 1)
    flip(path, len(whole) - len(record(3)) - 1)
    with pytest.raises(DamagedError, match="after change 0x1 "):
        recovered(tmp_path)


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"])
def test_garbage_over_two_records_is_not_a_torn_write(tmp_path: Path, length: bytes) -> None:
    """It looks like a record that the file does not hold completely; an unfinished write begins as it should."""
    whole = MAGIC + session_record() + record(2) + record(3)
    start = len(whole) - 2 * len(record(3))
    log_path(tmp_path, 1).write_bytes(whole[:start] + length + b"\xa5" * (len(record(3)) + 20) + whole[-60:])
    with pytest.raises(DamagedError, match="after change 0x1 "):
        recovered(tmp_path)


def test_a_log_with_a_damaged_head_is_not_emptied(tmp_path: Path) -> None:
    path = log_path(tmp_path, 1)
    path.write_bytes(b"klammzk2" + session_record() + record(2))
    with pytest.raises(DamagedError, match="damaged at byte 0"):
        recovered(tmp_path)
    assert path.read_bytes() == b"klammzk2" + session_record() + record(2)


def test_missing_snapshots_stop_the_start(tmp_path: Path) -> None:
    """An empty log that was begun at change 8 proves that there were seven changes."""
    log_path(tmp_path, 8).write_bytes(MAGIC)
    with pytest.raises(DamagedError, match="a log is missing"):
        recovered(tmp_path)


def test_a_log_that_holds_changes_is_never_overwritten(tmp_path: Path) -> None:
    log_path(tmp_path, 5).write_bytes(MAGIC + record(5))
    data_dir = DataDir(tmp_path)
    with pytest.raises(DataDirError, match="not overwritten"):
        data_dir.new_log(5)
    data_dir.close()
    assert log_path(tmp_path, 5).read_bytes() == MAGIC + record(5)


def test_writer_and_reader_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_records, "MAX_RECORD_BYTES", 1_000)
    largest = frame(b"x" * 1_000)
    assert [payload for _, payload in frames(MAGIC + largest)] == [b"x" * 1_000]
    for payload in (b"x" * 1_001, b""):
        with pytest.raises(RequestTooLarge):
            frame(payload)


def test_identities_beyond_the_count_byte_are_refused() -> None:
    me = [Id("digest", f"{n}:x") for n in range(256)]
    whole = encode_record(LogRecord(1, 0, 7, OpCode.CREATE, me[:255], b"body"))
    assert decode_record(whole[8:]).auth == me[:255]
    with pytest.raises(RequestTooLarge, match="256 identities"):
        encode_record(LogRecord(1, 0, 7, OpCode.CREATE, me, b"body"))


def test_a_snapshot_that_could_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record() + record(2, b"x" * 2_000))
    log_path(tmp_path, 3).write_bytes(MAGIC)
    monkeypatch.setattr("klamm.zk.server.txnlog.frame", lambda payload: frame(payload)[:-1])
    with pytest.raises(DataDirError, match="damaged"):
        compact(tmp_path, before=3)
    assert numbered(tmp_path, "snapshot") == []


def test_files_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    data_dir = DataDir(directory)
    os.close(data_dir.new_log(1))
    data_dir.close()
    log_path(directory, 1).write_bytes(MAGIC + session_record())
    log_path(directory, 2).write_bytes(MAGIC)
    compact(directory, before=2)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes.pop("log.0000000000000002") == 0o666 & ~_umask(), "it was written by the test"
    assert set(modes) == {"lock", "log.0000000000000001", "snapshot.0000000000000001"}
    assert set(modes.values()) == {0o600}


def test_files_of_earlier_versions_become_private(tmp_path: Path) -> None:
    ours = [log_path(tmp_path, 1), tmp_path / "lock"]
    ours[0].write_bytes(MAGIC + session_record())
    ours[1].touch()
    foreign = tmp_path / "notes.txt"
    foreign.touch()
    for path in (*ours, foreign):
        path.chmod(0o644)
    recovered(tmp_path)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (*ours, foreign)] == [0o600, 0o600, 0o644]


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("snapshot", ["whole", "missing", "damaged"])
def test_files_of_the_first_format(tmp_path: Path, snapshot: str) -> None:
    """`first_format.txt` was written before records had limits: sessions, a create by an identity, a multi."""
    for line in Path(__file__).with_name("first_format.txt").read_text().splitlines():
        name, content = line.split()
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    if snapshot == "missing":
        snapshot_path(tmp_path, 4).unlink()
    elif snapshot == "damaged":
        flip(snapshot_path(tmp_path, 4), 100)
    tree = recovered(tmp_path)
    assert tree.last_zxid == 7 and len(tree.sessions) == 1
    assert {path: node.data for path, node in tree.nodes.items() if "zookeeper" not in path} == {
        "/": b"",
        "/a": b"two",
        "/b": b"x",
        "/mine": b"",
        "/mine/s-0000000000": b"",
    }
    (owner,) = tree.sessions
    assert tree.nodes["/mine/s-0000000000"].ephemeral_owner == owner
    assert [acl.scheme for acl in tree.nodes["/mine"].acl] == ["digest"]


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_is_recovered_from_or_refused(tmp_path: Path, seed: int) -> None:
    """One damaged place anywhere costs at most the last record of the last log; nothing is cut off without need."""
    rng = random.Random(seed)
    three_snapshots(tmp_path)
    log_path(tmp_path, 8).write_bytes(MAGIC + b"".join(record(zxid, rng.randbytes(90)) for zxid in range(8, 30)))
    path = rng.choice(sorted(tmp_path.glob("*.0*")))
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content))
    size = rng.choice((1, 1, 16, 200))
    block = rng.choice((bytes, rng.randbytes))(len(content[start : start + size]))
    content[start : start + size] = block
    path.write_bytes(content)
    try:
        tree = recovered(tmp_path)
    except DamagedError as error:
        assert error.problem in inspect(tmp_path).problem
        assert path.read_bytes() == content
    else:
        assert tree.last_zxid >= 28
        assert {f"/n{zxid}" for zxid in range(2, 29)} <= set(tree.nodes)
