"""Nothing is applied that cannot be logged: a change is encoded, logged and only then takes effect."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.zk.model.jute import OpCode, buffer_bytes, string_bytes
from klamm.zk.model.ops import Code, Create, Delete, NotLogged, SetAcl, SetData, ZkError
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server import log_records
from klamm.zk.server.log_records import LogRecord
from klamm.zk.server.main import EmbeddedZooKeeperThread
from klamm.zk.server.server import EmbeddedZooKeeper
from klamm.zk.server.tree_snapshot import dump_tree
from tests.unit.zk.raw_client import RawClient, create_body


def full(zxid: int) -> None:
    raise NotLogged(message="no more")


def broken(zxid: int) -> None:
    raise KeyError("a defect")


CHANGES: dict[str, Callable[[ZnodeTree, Callable[[int], None]], object]] = {
    "create": lambda tree, log: tree.write(1, Create("/b"), 5, journal=log),
    "set": lambda tree, log: tree.write(1, SetData("/a", b"new"), 5, journal=log),
    "delete": lambda tree, log: tree.write(1, Delete("/a/e"), 5, journal=log),
    "set acl": lambda tree, log: tree.write(1, SetAcl("/a", Create("/").acl), 5, journal=log),
    "multi": lambda tree, log: tree.multi(1, [SetData("/a", b"new"), Delete("/a/e")], 5, journal=log),
    "close": lambda tree, log: tree.close_session(1, 5, journal=log),
    "open": lambda tree, log: tree.create_session(2, 5_000, 5, b"", journal=log),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("log", [full, broken])
def test_a_change_that_is_not_logged_is_not_made(change: str, log: Callable[[int], None]) -> None:
    tree = ZnodeTree()
    tree.create_session(1, 5_000, 0, b"password")
    tree.write(1, Create("/a", b"x"), 1)
    tree.write(1, Create("/a/e", ephemeral=True), 2)
    tree.watches.data.add("/a", 9)
    before = list(dump_tree(tree))
    with pytest.raises((NotLogged, KeyError)):
        CHANGES[change](tree, log)
    assert list(dump_tree(tree)) == before
    assert tree.take_events() == []
    seen: list[int] = []
    CHANGES[change](tree, seen.append)
    assert seen == [4] and tree.last_zxid == 4


def test_the_log_is_written_before_the_change_is_visible() -> None:
    tree = ZnodeTree()
    tree.create_session(1, 5_000, 0)

    def note(zxid: int) -> None:
        seen.append((zxid, tree.last_zxid))

    seen: list[tuple[int, int]] = []
    tree.write(1, Create("/a"), 1, journal=note)
    with pytest.raises(ZkError):
        tree.write(1, Create("/a"), 2, journal=note)
    assert seen == [(2, 1)], "and a change that is refused is not logged"


def test_a_record_that_no_reader_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_records, "MAX_RECORD_BYTES", 1_000)
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    with RawClient(server.port) as client:
        client.connect()
        assert client.create("/large", b"x" * 1_000).error == Code.MARSHALLING_ERROR
        assert client.exists("/large").error == Code.NO_NODE
        assert client.create("/after", b"x" * 500).error == Code.OK
    server.stop()
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    with RawClient(server.port) as client:
        assert client.connect().exists("/after").error == Code.OK
    server.stop()


def test_a_server_that_cannot_encode_stops_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[OSError] = []
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False, on_failure=failures.append).start()
    real = log_records.encode_record

    def defective(record: LogRecord) -> bytes:
        if b"/unlucky" in record.body:
            raise struct.error("a defect")
        return real(record)

    monkeypatch.setattr("klamm.zk.server.database.encode_record", defective)
    with RawClient(server.port) as client:
        client.connect()
        assert client.create("/before").error == Code.OK
        client.send(OpCode.CREATE, create_body("/unlucky", b""))
        assert client.is_closed()
    server.stop()
    assert len(failures) == 1 and "a change cannot be encoded" in str(failures[0])
    assert any("the log cannot be written" in line.getMessage() for line in caplog.records)
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    with RawClient(server.port) as client:
        client.connect()
        assert [client.exists(path).error for path in ("/before", "/unlucky")] == [Code.OK, Code.NO_NODE]
    server.stop()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_nothing_is_applied_after_the_disk_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Neither a client's change nor the end of a session, although both are found valid."""

    def fail(fd: int) -> None:
        raise error

    async def scenario() -> None:
        server = await EmbeddedZooKeeper(tmp_path).start()
        server._logged.create_session(7, 30_000, 0, b"")
        monkeypatch.setattr(os, "fdatasync", fail)
        await server.failed.wait()
        assert isinstance(server.failure, OSError)
        with pytest.raises(NotLogged):
            server._logged.write(7, OpCode.CREATE, create_body("/a", b""), 0, ())
        with pytest.raises(NotLogged):
            server._logged.close_session(7, 0)
        assert 7 in server.tree.sessions and "/a" not in server.tree.nodes
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_identities_are_bounded(tmp_path: Path) -> None:
    """By count and by size; a client that has too many gets AUTH_FAILED, and its connection ends."""
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    for credential in (b"%d:secret", b"u" * 1_500 + b"%d:secret"):
        with RawClient(server.port) as client:
            client.connect()
            codes: list[int] = []
            while not codes or codes[-1] == Code.OK:
                body = struct.pack(">i", 0) + string_bytes("digest") + buffer_bytes(credential % len(codes))
                codes.append(client.ask(OpCode.AUTH, body).error)
                assert len(codes) < 300
            assert codes[-1] == Code.AUTH_FAILED
            assert client.is_closed()
    server.stop()
