"""The connection with ZooKeeper where it is not smooth: servers that stay silent, take little or talk nonsense."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from klamm.zk.client.addresses import address_of, candidates
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.client_connection import ConnectionState, SessionCredentials
from klamm.zk.client.client_requests import Read, Request, Write, set_watches
from klamm.zk.client.predecessor import end_session
from klamm.zk.client.socket_connection import SocketConnection
from klamm.zk.model import limits
from klamm.zk.model.jute import OpCode, buffer_bytes, connect_response, read_header, read_set_watches, reply
from klamm.zk.model.ops import (
    ConnectionLoss,
    Create,
    Exists,
    GetData,
    NoNode,
    SessionExpired,
    SetData,
    WatchEvent,
    ZkError,
)
from klamm.zk.server.main import EmbeddedZooKeeperThread

TIMEOUT_S = 60
LONG_MS = 60_000
OURS = "fake server"
Serve = Callable[[socket.socket], None]


class Client:
    """A connection and its reported states."""

    def __init__(self, hosts: str, timeout_ms: int = LONG_MS, credentials: SessionCredentials | None = None) -> None:
        self.states: queue.SimpleQueue[ConnectionState] = queue.SimpleQueue()
        self.connection = SocketConnection(hosts, timeout_ms, self.states.put, credentials)

    def __enter__(self) -> Client:
        self.connection.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.stop()

    def await_state(self, wanted: ConnectionState) -> None:
        while self.states.get(timeout=TIMEOUT_S) is not wanted:
            pass

    def send(self, request: Request) -> Future[Any]:
        future: Future[Any] = Future()
        self.connection.submit(request, Into(future))
        return future


class Into:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def set(self, value: Any) -> None:
        self._future.set_result(value)

    def set_exception(self, exception: ZkError) -> None:
        self._future.set_exception(exception)


@contextlib.contextmanager
def fake_server(serve: Serve, timeout_ms: int = LONG_MS) -> Iterator[str]:
    """`serve` has each connection in a thread of its own, after the session was granted."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threading.Thread(target=run, args=(connection,), name=OURS, daemon=True).start()

    def run(connection: socket.socket) -> None:
        """One that was accepted in the last moment is nobody else's to close."""
        with connection, contextlib.suppress(OSError):
            frame_of(connection)
            connection.sendall(connect_response(timeout_ms, 7, bytes(16)))
            serve(connection)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # Otherwise it would continue to accept connections, even for the next process with this number.
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(TIMEOUT_S)
        listener.close()
        for connection in connections:
            connection.close()


def frame_of(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", exactly(connection, 4))
    return exactly(connection, size)


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeperThread]:
    server = EmbeddedZooKeeperThread(tmp_path / "zookeeper", fsync=False).start()
    yield server
    server.stop()


def test_a_server_that_takes_little_gets_all_of_it_in_order() -> None:
    """More than the kernel buffers: callers do not wait, and another thread writes the rest."""
    may_read = threading.Event()
    seen: list[int] = []

    def serve(connection: socket.socket) -> None:
        assert may_read.wait(TIMEOUT_S)
        while True:
            xid, opcode, body = read_header(frame_of(connection))
            if opcode == OpCode.SET_DATA:
                seen.append(struct.unpack_from(">i", body, 10)[0])
            connection.sendall(reply(xid, xid, 0, bytes(68)))

    with fake_server(serve) as address, Client(address) as client:
        client.await_state(ConnectionState.CONNECTED)
        wanted = [struct.pack(">i", number) + bytes(500_000) for number in range(100)]
        answers = [client.send(Write(SetData("/a", data))) for data in wanted]
        assert not any(answer.done() for answer in answers)
        may_read.set()
        for answer in answers:
            assert answer.result(TIMEOUT_S).version == 0
    assert seen == list(range(100))


def test_replies_are_read_however_they_are_cut() -> None:
    """Two at once, byte by byte, and one of several megabytes."""
    large = bytes(range(256)) * 20_000

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first, second, third = (read_header(frame_of(connection))[0] for _ in range(3))
        both = b"".join(reply(xid, 1, 0, buffer_bytes(b"%d" % xid) + bytes(68)) for xid in (first, second))
        for position in range(len(both) - 10):
            connection.sendall(both[position : position + 1])
        connection.sendall(both[-10:] + reply(third, 1, 0, buffer_bytes(large) + bytes(68)))
        xid, _, _ = read_header(frame_of(connection))
        connection.sendall(reply(xid, 1, 0))

    with fake_server(serve) as address, Client(address) as client:
        answers = [client.send(Read(GetData("/a"))) for _ in range(3)]
        assert [answer.result(TIMEOUT_S)[0] for answer in answers] == [b"1", b"2", large]


def test_a_silent_server_is_given_up() -> None:
    """The session continues with the next connection."""

    def serve(connection: socket.socket) -> None:
        while frame_of(connection):
            pass

    with fake_server(serve, 500) as address, Client(address, 500) as client:
        client.await_state(ConnectionState.CONNECTED)
        with pytest.raises(ConnectionLoss):
            client.send(Read(Exists("/"))).result(TIMEOUT_S)
        client.await_state(ConnectionState.SUSPENDED)
        client.await_state(ConnectionState.CONNECTED)
        assert client.connection.session_id == 7


@pytest.mark.parametrize(
    "nonsense",
    [struct.pack(">i", -5), struct.pack(">i", 3) + b"abc", struct.pack(">i", 1 << 31 - 1), reply(99, 1, 0), b""],
    ids=["negative size", "short", "endless", "nobody's reply", "closed"],
)
def test_invalid_bytes_end_the_connection_and_fail_its_requests(nonsense: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        connection.sendall(nonsense)
        connection.close()

    with fake_server(serve) as address, Client(address) as client:
        client.await_state(ConnectionState.CONNECTED)
        with pytest.raises(ConnectionLoss):
            client.send(Read(GetData("/a"))).result(TIMEOUT_S)
        client.await_state(ConnectionState.CONNECTED)


@pytest.mark.parametrize("body", [b"", bytes(20), struct.pack(">i", 1_000)], ids=["empty", "half", "lengths that lie"])
def test_a_reply_that_cannot_be_read_fails_its_request(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    def serve(connection: socket.socket) -> None:
        while True:
            xid, _, _ = read_header(frame_of(connection))
            connection.sendall(reply(xid, 1, 0, body))

    with fake_server(serve) as address, Client(address) as client:
        client.await_state(ConnectionState.CONNECTED)
        with pytest.raises(ConnectionLoss):
            client.send(Read(GetData("/a"))).result(TIMEOUT_S)
        client.await_state(ConnectionState.SUSPENDED)
    assert "could not be read" in caplog.text


def test_a_server_that_is_not_zookeeper_is_tried_again() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = Client(f"127.0.0.1:{listener.getsockname()[1]}")
    with client, listener:
        for _ in range(3):
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            connection.close()
    assert client.states.get(timeout=TIMEOUT_S) is ConnectionState.LOST and client.states.empty()


def test_an_idle_session_is_kept_alive() -> None:
    pings: queue.SimpleQueue[int] = queue.SimpleQueue()

    def serve(connection: socket.socket) -> None:
        while True:
            xid, opcode, _ = read_header(frame_of(connection))
            if opcode == OpCode.PING:
                pings.put(xid)
            connection.sendall(reply(xid, 0, 0))

    with fake_server(serve, 600) as address, Client(address, 600):
        for _ in range(4):
            assert pings.get(timeout=TIMEOUT_S) == -2


def test_requests_wait_for_the_connection_and_none_is_taken_after_the_end(zookeeper: EmbeddedZooKeeperThread) -> None:
    client = Client(zookeeper.address)
    before = client.send(Write(Create("/a", b"x")))
    with client:
        assert before.result(TIMEOUT_S)[0] == "/a"
        assert client.send(Read(GetData("/a"))).result(TIMEOUT_S)[0] == b"x"
        with pytest.raises(NoNode):
            client.send(Read(GetData("/b"))).result(TIMEOUT_S)
        assert client.send(Read(Exists("/b"))).result(TIMEOUT_S) is None
        assert client.connection.stop() and client.connection.stop(), "it says the same again"
    with pytest.raises(ConnectionLoss):
        client.send(Read(GetData("/a"))).result(TIMEOUT_S)


def test_stopped_while_no_server_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"127.0.0.1:{listener.getsockname()[1]}")
        waiting = client.send(Read(Exists("/")))
        client.connection.start()
        accepted, _ = listener.accept()
        with accepted:
            assert not client.connection.stop()
        with pytest.raises(ConnectionLoss):
            waiting.result(TIMEOUT_S)


def test_a_session_is_taken_over_and_ended_once(zookeeper: EmbeddedZooKeeperThread) -> None:
    with Client(zookeeper.address) as client:
        client.await_state(ConnectionState.CONNECTED)
        mine = SessionCredentials(client.connection.session_id, client.connection.password)
        assert client.send(Write(Create("/e", ephemeral=True))).result(TIMEOUT_S)[0] == "/e"
        with BlockingSession(zookeeper.address, TIMEOUT_S, mine) as other:
            assert other.is_known and other.exists("/e")
        assert other.is_ended
        client.await_state(ConnectionState.LOST)
        client.await_state(ConnectionState.CONNECTED)
        assert client.connection.session_id != mine.session_id
        assert client.send(Read(Exists("/e"))).result(TIMEOUT_S) is None
    with BlockingSession(zookeeper.address, TIMEOUT_S, mine) as late:
        assert not late.is_known
    assert end_session(zookeeper.address, mine, LONG_MS)
    assert not end_session("127.0.0.1:1", mine, 100)


def test_many_large_znodes_are_read_in_parts(
    zookeeper: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`klamm cluster status` reads all topics at once; one answer with them may exceed the server's limit."""
    monkeypatch.setattr(limits, "MAX_ANSWER_BYTES", 2_500)
    with Client(zookeeper.address) as client:
        for number in range(9):
            client.send(Write(Create(f"/{number}", bytes([number]) * 1_000))).result(TIMEOUT_S)
    with BlockingSession(zookeeper.address, TIMEOUT_S) as session:
        found = session.read_many([*(f"/{number}" for number in range(9)), "/missing"])
    assert found == [*(bytes([number]) * 1_000 for number in range(9)), None]


def test_while_a_session_is_expired_requests_are_refused(zookeeper: EmbeddedZooKeeperThread) -> None:
    refused: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def on_state(state: ConnectionState) -> None:
        if state is ConnectionState.LOST and connection.has_expired:
            future: Future[Any] = Future()
            connection.submit(Read(Exists("/")), Into(future))
            refused.put(future.exception(TIMEOUT_S))

    connection = SocketConnection(zookeeper.address, LONG_MS, on_state, SessionCredentials(1, bytes(16)))
    connection.start()
    assert isinstance(refused.get(timeout=TIMEOUT_S), SessionExpired)
    connection.stop()


def test_no_change_is_missed_when_the_watches_were_set_again_only_in_part() -> None:
    """Each reply carries the server's newest zxid, also that to the first piece of many."""
    zxids: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    events: list[WatchEvent] = []
    numbers = iter(range(1, 100))
    paths = [f"/topics/topic-with-a-name-{number}" for number in range(10_000)]

    def serve(connection: socket.socket) -> None:
        number = next(numbers)
        while True:
            xid, opcode, body = read_header(frame_of(connection))
            if opcode == OpCode.SET_WATCHES:
                zxids.put((number, read_set_watches(body, second=False).relative_zxid))
                connection.sendall(reply(xid, 200, 0))
                if number == 2:
                    connection.close()
                    return
            else:
                connection.sendall(reply(xid, 100, 0, bytes(68)))

    def on_state(state: ConnectionState) -> None:
        if state is ConnectionState.CONNECTED and connection.last_zxid:
            connection.restore_watches(paths, [], [], events.append, events.append)

    with fake_server(serve) as address:
        connection = SocketConnection(address, LONG_MS, on_state)
        connection.start()
        answer: Future[Any] = Future()
        connection.submit(Read(Exists("/")), Into(answer))
        answer.result(TIMEOUT_S)
        connection.drop_connection()
        assert zxids.get(timeout=TIMEOUT_S) == (2, 100)
        assert zxids.get(timeout=TIMEOUT_S) == (3, 100)
        assert connection.last_zxid == 200
        connection.stop()


def test_watches_are_set_again_in_pieces_below_the_limit_whatever_their_length() -> None:
    data, exist, child = ([f"/{kind}/{'n' * 1_000}{number}" for number in range(1_500)] for kind in "abc")
    pieces = set_watches(7, data, exist, child)
    assert all(len(piece.serialize()) < 300_000 for piece in pieces) and len(pieces) < 100
    found = [read_set_watches(piece.serialize(), second=False) for piece in pieces]
    assert {piece.relative_zxid for piece in found} == {7}
    assert [path for piece in found for path in piece.data] == data
    assert [path for piece in found for path in piece.exist] == exist
    assert [path for piece in found for path in piece.child] == child
    assert set_watches(7, [], [], []) == []


def test_a_callback_of_the_connection_may_end_the_session_at_once(zookeeper: EmbeddedZooKeeperThread) -> None:
    connected, stopping = threading.Event(), threading.Event()

    def on_state(state: ConnectionState) -> None:
        if state is ConnectionState.CONNECTED:
            connected.set()
            assert stopping.wait(TIMEOUT_S)

    connection = SocketConnection(zookeeper.address, LONG_MS, on_state)
    join = connection._thread.join

    def joined(timeout: float | None = None) -> None:
        stopping.set()
        join(timeout)

    connection._thread.join = joined  # type: ignore[method-assign]
    connection.start()
    assert connected.wait(TIMEOUT_S)
    assert connection.stop(), "the server confirms it"


def test_a_request_that_is_repeated_at_once_waits_for_the_next_connection() -> None:
    """It is not failed once more for the same loss."""
    failures = 0
    asked: list[Future[Any]] = []

    class Again:
        def set(self, value: Any) -> None:
            asked[0].set_result(value)

        def set_exception(self, exception: ZkError) -> None:
            nonlocal failures
            failures += 1
            if failures < 1_000:
                connection.submit(Read(Exists("/")), self)

    numbers = iter(range(100))

    def serve(connection: socket.socket) -> None:
        is_first = next(numbers) == 0
        while True:
            xid, _, _ = read_header(frame_of(connection))
            if is_first:
                return connection.close()
            connection.sendall(reply(xid, 1, 0, bytes(68)))

    asked.append(Future())
    with fake_server(serve) as address:
        connection = SocketConnection(address, LONG_MS, lambda _: None)
        connection.submit(Read(Exists("/")), Again())
        connection.start()
        asked[0].result(TIMEOUT_S)
        connection.stop()
    assert failures == 1


def test_no_thread_for_the_rest_costs_the_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(connection: socket.socket) -> None:
        threading.Event().wait(TIMEOUT_S)

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name != OURS:  # the connection may be back before all is sent
            raise RuntimeError("can't start new thread")
        start(thread)

    with fake_server(serve) as address, Client(address) as client:
        client.await_state(ConnectionState.CONNECTED)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            answers = [client.send(Write(SetData("/a", bytes(500_000)))) for _ in range(100)]
        for answer in answers[:5]:
            with pytest.raises(ConnectionLoss):
                answer.result(TIMEOUT_S)
        client.await_state(ConnectionState.SUSPENDED)
        client.connection.drop_connection()


def test_the_server_that_was_lost_is_tried_last() -> None:
    """When it stays silent, the session lives only if another one is asked first."""
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()

    def serve_as(name: str) -> Serve:
        def serve(connection: socket.socket) -> None:
            seen.put(name)
            frame_of(connection)
            connection.close()

        return serve

    with fake_server(serve_as("a")) as a, fake_server(serve_as("b")) as b, Client(f"{a},{b}") as client:
        names = [seen.get(timeout=TIMEOUT_S)]
        client.await_state(ConnectionState.CONNECTED)
        for _ in range(7):
            client.connection.drop_connection()
            names.append(seen.get(timeout=TIMEOUT_S))
            client.await_state(ConnectionState.CONNECTED)
    assert names in (["a", "b"] * 4, ["b", "a"] * 4)


@pytest.mark.parametrize("bad", ["a..b:1", f"{'x' * 80}:1", "no-such-host.invalid:1"])
def test_an_invalid_name_does_not_keep_the_client_from_the_others(zookeeper: EmbeddedZooKeeperThread, bad: str) -> None:
    with Client(f"{bad},,{zookeeper.address},") as client:
        assert client.send(Read(Exists("/"))).result(TIMEOUT_S) is not None


def test_addresses() -> None:
    for bad in ("a:b", "a:0", "a:65536", "a:-1", "[::1]:x"):
        with pytest.raises(ValueError, match=r"zookeeper\.connect: .* is not an address: expected host:port"):
            address_of(bad)
    assert address_of("a:") == ("a", 2181)
    some = [("127.0.0.1", 1), ("127.0.0.2", 2), ("::1", 3)]
    named = [(address, address[0]) for address in some]
    assert sorted(candidates(some, None)) == sorted(candidates(some, ("127.0.0.9", 1))) == named
    assert [list(candidates(some, each))[2] for each in some] == named
    assert address_of("a:1") == ("a", 1)
    assert address_of(" a ") == ("a", 2181)
    assert address_of("[::1]:2182") == ("::1", 2182)
    assert address_of("[::1]") == ("::1", 2181)
