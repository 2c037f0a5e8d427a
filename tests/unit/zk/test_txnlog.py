"""Recovery of the embedded server: torn tails, damage, snapshots, and a process killed in the middle of writes."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.zk.model.jute import OpCode, string_bytes
from klamm.zk.model.ops import Acl, Code, Create, GetData, Id, SetAcl, SetData
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server.log_records import MAGIC, LogRecord, encode_record, frame, frames
from klamm.zk.server.main import EmbeddedZooKeeperThread
from klamm.zk.server.server import ServerOptions
from klamm.zk.server.tree_snapshot import dump_tree, load_tree
from klamm.zk.server.txnlog import DataDir, DataDirError, compact, load_snapshot, log_path, numbered, snapshot_path
from tests.unit.zk.raw_client import RawClient, create_body

START_TIMEOUT_S = 60


def record(zxid: int, path: str, session_id: int = 7) -> bytes:
    return encode_record(LogRecord(zxid, 1_000 + zxid, session_id, OpCode.CREATE, [], create_body(path, b"data")))


def session_record(zxid: int) -> bytes:
    body = (30_000).to_bytes(4, "big") + b"p" * 16
    return encode_record(LogRecord(zxid, 0, 7, OpCode.CREATE_SESSION, [], body))


def recovered(directory: Path) -> ZnodeTree:
    tree = ZnodeTree()
    data_dir = DataDir(directory)
    try:
        data_dir.recover(tree)
    finally:
        data_dir.close()
    return tree


def test_every_cut_keeps_a_prefix(tmp_path: Path) -> None:
    records = [session_record(1), *(record(n, f"/n{n}") for n in range(2, 6))]
    whole = MAGIC + b"".join(records)
    ends = [len(MAGIC)]
    for each in records:
        ends.append(ends[-1] + len(each))
    path = log_path(tmp_path, 1)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends[1:])
        assert recovered(tmp_path).last_zxid == complete
        assert path.stat().st_size == (ends[complete] if cut >= len(MAGIC) else 0)


def test_a_flipped_byte_before_the_last_record_stops_the_start(tmp_path: Path) -> None:
    """Only a damaged last record is a torn write. Changes behind any other damage were acknowledged."""
    records = [session_record(1), record(2, "/a"), record(3, "/b")]
    whole = MAGIC + b"".join(records)
    ends = list(itertools.accumulate(map(len, records), initial=len(MAGIC)))
    last = len(whole) - len(records[-1])
    for position, bit in itertools.product(range(len(whole)), (0x01, 0x40)):
        content = whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :]
        log_path(tmp_path, 1).write_bytes(content)
        if position >= last + 4:  # behind the length of the last record: it may have been a torn write
            assert recovered(tmp_path).last_zxid == 2
            continue
        damaged_at = 0 if position < len(MAGIC) else max(end for end in ends if end <= position)
        try:
            tree = recovered(tmp_path)
        except DataDirError as error:
            assert f"log.0000000000000001 is damaged at byte {damaged_at}" in str(error)
            assert f"klamm zk check {tmp_path}" in str(error)
            assert log_path(tmp_path, 1).read_bytes() == content, "the file is as it was"
        else:
            assert position >= last, "the length of the last record reaches beyond the end"
            assert tree.last_zxid == 2


def test_damage_in_a_closed_log_stops_the_start(tmp_path: Path) -> None:
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record(1) + record(2, "/a")[:-1])
    log_path(tmp_path, 3).write_bytes(MAGIC + record(3, "/b"))
    with pytest.raises(DataDirError, match=r"log\.0000000000000001 is damaged at byte"):
        recovered(tmp_path)


@pytest.mark.parametrize("begun", [MAGIC, MAGIC[:3], b"", bytes(len(MAGIC))])
def test_a_power_cut_during_a_roll(tmp_path: Path, begun: bytes) -> None:
    """The next log is there, but the old one's end never reached the disk."""
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record(1) + record(2, "/a") + record(3, "/b")[:-1])
    log_path(tmp_path, 4).write_bytes(begun)
    assert recovered(tmp_path).last_zxid == 2
    # Later changes are found again beside a snapshot, although they are past the number of that log.
    log_path(tmp_path, 3).write_bytes(MAGIC + b"".join(record(n, f"/n{n}") for n in range(3, 7)))
    compact(tmp_path, before=3)
    tree = recovered(tmp_path)
    assert tree.last_zxid == 6 and {"/a", "/n3", "/n6"} <= set(tree.nodes) and "/b" not in tree.nodes


def test_files_that_are_not_ours_are_left(tmp_path: Path) -> None:
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record(1))
    strange = [tmp_path / name for name in ("log.txt", "log.1", "snapshot.old", "log.0000000000000009.bak")]
    for path in strange:
        path.write_text("not ours")
    assert recovered(tmp_path).last_zxid == 1
    assert all(path.exists() for path in strange)


def test_a_missing_log_stops_the_start(tmp_path: Path) -> None:
    log_path(tmp_path, 3).write_bytes(MAGIC + record(3, "/b"))
    with pytest.raises(DataDirError, match=r"cannot be repeated|a log is missing"):
        recovered(tmp_path)


def test_a_damaged_snapshot_stops_the_start(tmp_path: Path) -> None:
    snapshot_path(tmp_path, 5).write_bytes(MAGIC + frame(b"nonsense"))
    with pytest.raises(DataDirError, match=r"snapshot\.0000000000000005 is damaged"):
        recovered(tmp_path)


def test_the_error_names_the_place_of_the_damage_in_a_snapshot(tmp_path: Path) -> None:
    path = snapshot_path(tmp_path, 5)
    whole = MAGIC + b"".join(map(frame, dump_tree(ZnodeTree())))
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    last = len(whole) - len(frame(b"E"))
    for content, problem in (
        (b"nonsense" + whole, "it does not begin like a snapshot"),
        (bytes(flipped), f"is damaged at byte {last} of {len(whole)}"),
        (whole[:-1], f"is damaged at byte {last} of {len(whole) - 1}"),
        (whole[:last], "its end is missing"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataDirError) as error:
            load_snapshot(path, ZnodeTree())
        assert problem in str(error.value)
    path.write_bytes(whole)
    load_snapshot(path, ZnodeTree())


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="cannot be used"):
        DataDir(tmp_path / "file")


def test_snapshots_hold_everything() -> None:
    tree = ZnodeTree()
    tree.create_session(1, 5_000, 0, b"password")
    tree.create_session(2, 6_000, 0, b"other")
    tree.write(1, Create("/a", b"x"), 5)
    tree.write(1, Create("/a/null"), 6)
    tree.write(2, Create("/a/e", ephemeral=True), 7)
    tree.write(1, SetData("/a", b"y"), 8)
    tree.write(1, SetAcl("/a", (Acl(1, "ip", "127.0.0.1"),)), 9)
    copy = ZnodeTree()
    load_tree(copy, list(dump_tree(tree)))
    assert list(dump_tree(copy)) == list(dump_tree(tree))
    assert {path: copy.stat(path) for path in copy.nodes} == {path: tree.stat(path) for path in tree.nodes}
    copy.close_session(2, 10)
    assert "/a/e" not in copy.nodes
    assert copy.write(1, Create("/a/n", sequential=True), 11).path == "/a/n0000000002"


def test_access_decisions_repeat(tmp_path: Path) -> None:
    """A write that only its author was allowed to make is made again from the log."""
    me = [Id("ip", "127.0.0.1"), Id("digest", "me:hash")]
    acl = b"\0\0\0\x01\0\0\0\x1f" + string_bytes("auth") + string_bytes("")
    body = string_bytes("/mine") + string_bytes("") + acl + b"\0\0\0\0"
    records = [
        session_record(1),
        encode_record(LogRecord(2, 5, 7, OpCode.CREATE, me, body)),
        encode_record(LogRecord(3, 6, 7, OpCode.CREATE, me, create_body("/mine/child", b""))),
    ]
    log_path(tmp_path, 1).write_bytes(MAGIC + b"".join(records))
    assert recovered(tmp_path).nodes["/mine"].acl == (Acl(31, "digest", "me:hash"),)


def test_compaction_covers_closed_logs_only(tmp_path: Path) -> None:
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record(1) + record(2, "/a"))
    for zxid, path in enumerate(("/b", "/c", "/d", "/e"), 3):
        log_path(tmp_path, zxid).write_bytes(MAGIC + record(zxid, path))
    kept = []
    data_dir = DataDir(tmp_path)
    for before in (3, 4, 5, 6):
        compact(tmp_path, before)
        data_dir.remove_covered()
        kept.append((numbered(tmp_path, "snapshot"), numbered(tmp_path, "log")))
    data_dir.close()
    assert kept == [
        ([2], [1, 3, 4, 5, 6]),
        ([2, 3], [1, 3, 4, 5, 6]),
        ([2, 3, 4], [3, 4, 5, 6]),
        ([3, 4, 5], [4, 5, 6]),
    ]
    tree = recovered(tmp_path)
    assert tree.last_zxid == 6 and {"/a", "/b", "/c", "/d", "/e"} <= set(tree.nodes)
    assert tree.read(GetData("/b")).stat.ctime == 1_003


def test_a_running_server_rolls_and_compacts(tmp_path: Path) -> None:
    server = EmbeddedZooKeeperThread(
        tmp_path, options=ServerOptions(roll_bytes=10_000), min_session_timeout_ms=40, fsync=False
    ).start()
    with RawClient(server.port) as client:
        client.connect()
        count = 0
        while len(numbered(tmp_path, "snapshot")) == 0 or numbered(tmp_path, "log")[0] == 1:
            count += 1
            assert client.create(f"/n{count}", b"x" * 500).error == Code.OK
        after = client.create("/after").zxid
    server.stop()
    tree = recovered(tmp_path)
    assert tree.last_zxid >= after
    assert {f"/n{n}" for n in range(1, count + 1)} | {"/after"} <= set(tree.nodes)


def test_a_disk_error_while_compacting_costs_nothing_but_the_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("klamm.zk.server.snapshot_process.COMPACTION_RETRY_MS", 0)
    server = EmbeddedZooKeeperThread(
        tmp_path, options=ServerOptions(roll_bytes=10_000), min_session_timeout_ms=40, fsync=False
    ).start()
    real, failures = DataDir.new_log, iter(range(2))

    def full_twice(data_dir: DataDir, first_zxid: int) -> int:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(data_dir, first_zxid)

    monkeypatch.setattr(DataDir, "new_log", full_twice)
    with RawClient(server.port) as client:
        client.connect()
        count = 0
        while len(numbered(tmp_path, "snapshot")) == 0 or numbered(tmp_path, "log")[0] == 1:
            count += 1
            assert client.create(f"/n{count}", b"x" * 500).error == Code.OK
    server.stop()
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 2 and all("cannot be compacted now: [Errno 28]" in line for line in said)
    assert {f"/n{n}" for n in range(1, count + 1)} <= set(recovered(tmp_path).nodes)


def test_a_log_that_cannot_be_begun_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = DataDir(tmp_path)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            data_dir.new_log(7)
    assert numbered(tmp_path, "log") == []
    data_dir.close()


def test_the_log_of_a_killed_server_is_on_disk_before_a_new_one_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could keep the new log and not the end of the old one: the start would refuse both."""
    log_path(tmp_path, 1).write_bytes(MAGIC + session_record(1) + record(2, "/a"))
    synced: list[tuple[str, list[int]]] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), numbered(tmp_path, "log")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    server = EmbeddedZooKeeperThread(tmp_path)
    server.start()
    server.stop()
    assert synced[0] == (str(log_path(tmp_path, 1)), [1])
    assert (str(log_path(tmp_path, 3)), [1, 3]) in synced


@contextmanager
def server_process(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "klamm.zk.server.main", "--data-dir", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        yield process, int(line.rpartition(":")[2])
    finally:
        process.kill()
        process.communicate(timeout=START_TIMEOUT_S)


@pytest.mark.parametrize("killed_after", [1, 50, 333])
def test_acknowledged_writes_survive_a_kill(tmp_path: Path, killed_after: int) -> None:
    with server_process(tmp_path) as (process, port), RawClient(port) as client:
        client.connect()
        for number in range(2_000):
            client.send(OpCode.CREATE, create_body(f"/n{number}", b"%d" % number))
        for _ in range(killed_after):
            assert client.receive().error == Code.OK
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = killed_after
        try:
            while client.receive().error == Code.OK:
                acknowledged += 1
        except EOFError:
            pass
    with server_process(tmp_path) as (process, port), RawClient(port) as again:
        again.connect(30_000, client.session_id, client.password)
        assert again.session_id == client.session_id
        there = [again.exists(f"/n{number}").error == Code.OK for number in range(2_000)]
        assert all(there[:acknowledged])
        assert there == sorted(there, reverse=True), "what was not acknowledged is a prefix too"


def test_sigterm_stops_cleanly(tmp_path: Path) -> None:
    with server_process(tmp_path) as (process, port), RawClient(port) as client:
        client.connect()
        assert client.create("/a").error == Code.OK
        process.terminate()
        assert process.wait(START_TIMEOUT_S) == 0
    content = log_path(tmp_path, 1).read_bytes()
    assert [end for end, _ in frames(content)][-1] == len(content)
