"""The embedded server as its clients meet it: sessions, order, limits, restarts."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.zk.model.jute import NOTIFICATION_XID, PING_XID, OpCode, buffer_bytes, string_bytes
from klamm.zk.model.ops import Code, EventType
from klamm.zk.server.main import EmbeddedZooKeeperThread, main
from klamm.zk.server.server import EmbeddedZooKeeper, ServerOptions
from klamm.zk.server.txnlog import DataDirError
from tests.unit.zk.raw_client import RawClient, create_body, set_watches_body


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeperThread]:
    thread = EmbeddedZooKeeperThread(tmp_path, fsync=False, min_session_timeout_ms=100).start()
    yield thread
    thread.stop()


def test_timeouts_are_negotiated(server: EmbeddedZooKeeperThread) -> None:
    for asked, given in ((1, 100), (5_000, 5_000), (1 << 30, 40_000)):
        with RawClient(server.port) as client:
            assert client.connect(asked).timeout_ms == given


def test_silent_sessions_end_and_their_znodes_go(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as silent, RawClient(server.port) as other:
        silent.connect(1_000)
        other.connect(30_000)
        silent.create("/e", flags=1)
        assert other.exists("/e", watch=True).error == Code.OK
        event = other.receive()
        assert event.xid == NOTIFICATION_XID
        assert struct.unpack_from(">ii", event.body) == (EventType.DELETED, 3)
        assert silent.is_closed()
        with RawClient(server.port) as again:
            again.connect(100, silent.session_id, silent.password)
            assert (again.session_id, again.timeout_ms) == (0, 0)
            assert again.is_closed()


def test_pings_keep_a_session(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client:
        client.connect(30_000)
        client.send(OpCode.PING, xid=PING_XID)
        assert client.receive()[::2] == (PING_XID, 0)


def test_a_session_continues_over_a_new_connection(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as first, RawClient(server.port) as second:
        first.connect()
        first.create("/e", flags=1)
        second.connect(30_000, first.session_id, first.password)
        assert second.session_id == first.session_id
        assert first.is_closed()
        assert second.exists("/e").error == Code.OK


def test_a_wrong_password_ends_nothing(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as owner, RawClient(server.port) as thief:
        owner.connect()
        thief.connect(30_000, owner.session_id, b"x" * 16)
        assert thief.session_id == 0
        assert owner.exists("/").error == Code.OK


def test_a_client_from_the_future_is_refused(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client, pytest.raises(EOFError):
        client.connect(last_zxid=1 << 40)


def test_close_session_is_answered_then_the_connection_ends(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client, RawClient(server.port) as other:
        client.connect()
        client.create("/e", flags=1)
        assert client.ask(OpCode.CLOSE_SESSION).error == Code.OK
        assert client.is_closed()
        assert other.connect().exists("/e").error == Code.NO_NODE


def test_own_event_comes_before_own_reply(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client:
        client.connect()
        client.exists("/a", watch=True)
        client.send(OpCode.CREATE, create_body("/a", b""))
        assert [client.receive().xid for _ in range(2)] == [NOTIFICATION_XID, 2]


def test_pipelined_requests_are_answered_in_order(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client:
        client.connect()
        for number in range(3_000):
            client.send(OpCode.CREATE, create_body(f"/{number}", b"x"))
        assert [client.receive()[::2] for _ in range(3_000)] == [(number + 1, 0) for number in range(3_000)]


def test_set_watches(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client, RawClient(server.port) as again:
        client.connect()
        client.create("/a")
        seen = client.create("/b").zxid
        client.ask(OpCode.SET_DATA, string_bytes("/b") + buffer_bytes(b"new") + struct.pack(">i", -1))
        again.connect(30_000, client.session_id, client.password)
        again.send(OpCode.SET_WATCHES, set_watches_body(seen, ["/a", "/b"], ["/c"], ["/a"]))
        event, reply = again.receive(), again.receive()
        assert (event.xid, reply.error) == (NOTIFICATION_XID, 0)
        assert event.body == struct.pack(">ii", EventType.DATA_CHANGED, 3) + string_bytes("/b")
        again.send(OpCode.CREATE, create_body("/a/x", b""))
        assert again.receive().body == struct.pack(">ii", EventType.CHILDREN_CHANGED, 3) + string_bytes("/a")


@pytest.mark.parametrize("opcode", [17, 19, 21, 103, 106, 107, 999])
def test_missing_operations_are_unimplemented(server: EmbeddedZooKeeperThread, opcode: int) -> None:
    with RawClient(server.port) as client:
        assert client.connect().ask(opcode, b"whatever").error == Code.UNIMPLEMENTED
        assert client.exists("/").error == Code.OK


NO_BODY = (OpCode.PING, OpCode.CLOSE_SESSION, OpCode.RECONFIG, OpCode.AUTH, OpCode.SASL)
BODIES = [o for o in OpCode if o not in NO_BODY]


@pytest.mark.parametrize("body", [b"", b"\x7f\xff\xff\xff", b"\0\0\0\x02\xff"])
def test_unreadable_bodies_get_an_error(server: EmbeddedZooKeeperThread, body: bytes) -> None:
    with RawClient(server.port) as client:
        client.connect()
        for opcode in BODIES:
            assert client.ask(opcode, body).error in (Code.MARSHALLING_ERROR, Code.UNIMPLEMENTED), opcode


def test_random_bodies_are_answered(server: EmbeddedZooKeeperThread) -> None:
    rng = random.Random(7)
    with RawClient(server.port) as client:
        client.connect()
        for _ in range(2_000):
            body = b"".join(rng.choice((b"\0", b"\0\0\0\x01", b"\0\0\0\x02/a", rng.randbytes(3))) for _ in range(9))
            assert client.ask(rng.choice(BODIES), body).error in set(Code)


@pytest.mark.parametrize(
    "start", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x03abc", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_bytes_of_other_protocols_are_cut_off(server: EmbeddedZooKeeperThread, start: bytes) -> None:
    with RawClient(server.port) as client:
        client.socket.sendall(start)
        assert client.is_closed()


def test_frames_beyond_the_limit_end_the_connection(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client:
        client.connect()
        assert client.create("/big", b"x" * 1_000_000).error == Code.OK
        client.socket.sendall(struct.pack(">i", 1 << 20))
        assert client.is_closed()


def test_authentication(server: EmbeddedZooKeeperThread) -> None:
    def auth(scheme: str) -> bytes:
        return struct.pack(">i", 0) + string_bytes(scheme) + buffer_bytes(b"user:secret")

    with RawClient(server.port) as client:
        assert client.connect().ask(OpCode.AUTH, auth("digest")).error == Code.OK
        acl = struct.pack(">ii", 1, 31) + string_bytes("auth") + string_bytes("")
        body = string_bytes("/mine") + buffer_bytes(b"") + acl + struct.pack(">i", 0)
        assert client.ask(OpCode.CREATE, body).error == Code.OK
        with RawClient(server.port) as other:
            other.connect()
            assert other.ask(OpCode.GET_DATA, string_bytes("/mine") + b"\0").error == Code.NO_AUTH
        assert client.ask(OpCode.AUTH, auth("nonsense")).error == Code.AUTH_FAILED
        assert client.is_closed()


def test_four_letter_words(server: EmbeddedZooKeeperThread) -> None:
    def ask(word: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4_096), b""))

    assert ask(b"ruok") == b"imok"
    assert b"Mode: standalone" in ask(b"srvr")
    assert b"Clients:" in ask(b"stat")
    assert b"zk_znode_count\t4\n" in ask(b"mntr")
    assert b"zookeeper.version=3.9" in ask(b"envi")


def test_connections_of_a_host_are_limited(tmp_path: Path) -> None:
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False, options=ServerOptions(max_connections_per_host=2)).start()
    with RawClient(server.port) as first, RawClient(server.port) as second:
        first.connect()
        second.connect()
        with RawClient(server.port) as third:
            assert third.is_closed()
    server.stop()


def test_a_reader_that_does_not_read_stops_being_read(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client:
        client.connect()
        client.create("/big", b"x" * 1_000_000)
        body = struct.pack(">ii", 1, OpCode.GET_DATA) + string_bytes("/big") + b"\0"
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while True:
                client.socket.sendall((struct.pack(">i", len(body)) + body) * 1_000)
        with RawClient(server.port) as other:
            assert other.connect().exists("/big").error == Code.OK


def test_sessions_and_znodes_survive_a_restart(tmp_path: Path) -> None:
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    with RawClient(server.port) as client:
        client.connect()
        client.create("/kept", b"x")
        zxid = client.create("/e", flags=1).zxid
        server.stop()
        assert client.is_closed()
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    with RawClient(server.port) as again:
        again.connect(30_000, client.session_id, client.password, last_zxid=zxid)
        assert again.session_id == client.session_id
        assert again.exists("/e").error == again.exists("/kept").error == Code.OK
        assert again.ask(OpCode.CLOSE_SESSION).error == Code.OK
    with RawClient(server.port) as other:
        assert other.connect().exists("/e").error == Code.NO_NODE
        assert other.session_id > client.session_id
    server.stop()


def test_a_second_server_is_refused_with_a_sentence(
    server: EmbeddedZooKeeperThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataDirError, match="in use by another server"):
        EmbeddedZooKeeperThread(tmp_path).start()
    assert main(["--data-dir", str(tmp_path), "--port", "0"]) == 1
    assert "in use by another server" in capsys.readouterr().err


def test_nothing_is_answered_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the writer's reply nor another client's read of the new znode leaves before the sync is over."""
    server = EmbeddedZooKeeperThread(tmp_path).start()
    with RawClient(server.port) as writer, RawClient(server.port) as reader:
        writer.connect()
        reader.connect()
        syncing, finish = threading.Event(), threading.Event()
        real_sync = os.fdatasync

        def slow_sync(fd: int) -> None:
            syncing.set()
            assert finish.wait(120)
            real_sync(fd)

        monkeypatch.setattr(os, "fdatasync", slow_sync)
        writer.send(OpCode.CREATE, create_body("/a", b""))
        assert syncing.wait(120)
        reader.send(OpCode.EXISTS, string_bytes("/a") + b"\0")
        for client in (writer, reader):
            client.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.socket.recv(1)
            client.socket.settimeout(120)
        finish.set()
        assert writer.receive().error == reader.receive().error == Code.OK
    server.stop()


def test_a_failing_disk_ends_the_server_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedZooKeeperThread(tmp_path).start()
    with RawClient(server.port) as client:
        client.connect()

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fdatasync", full)
        client.send(OpCode.CREATE, create_body("/a", b""))
        assert client.is_closed()
    server.stop()


def test_a_paused_server_does_not_blame_its_clients(tmp_path: Path) -> None:
    class JumpingClock:
        def __init__(self) -> None:
            self.seconds = 0.0

        def now_ms(self) -> int:
            return 1_000_000 + int(self.seconds * 1_000)

        def monotonic(self) -> float:
            return self.seconds

    async def scenario() -> None:
        clock = JumpingClock()
        server = await EmbeddedZooKeeper(tmp_path, fsync=False, clock=clock).start()
        server.tree.create_session(7, 4_000, 0)
        server._timer.cancel()
        clock.seconds = 3_600
        server._tick()
        assert 7 in server.tree.sessions
        for _ in range(3):
            clock.seconds += 2
            server._timer.cancel()
            server._tick()
        assert 7 not in server.tree.sessions
        await server.stop()

    asyncio.run(scenario())
