"""Attacks on the embedded ZooKeeper: others are answered, memory is bounded, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from klamm.security.certificates.certificate_store import CertificateStore
from klamm.security.failure_log import SAME_LINES
from klamm.zk.model import limits
from klamm.zk.model.jute import NOTIFICATION_XID, PING_XID, OpCode, buffer_bytes, string_bytes
from klamm.zk.model.ops import Code
from klamm.zk.server import admission
from klamm.zk.server.admission import Admission
from klamm.zk.server.main import EmbeddedZooKeeperThread
from klamm.zk.server.server import EmbeddedZooKeeper, ServerOptions
from klamm.zk.server.server_connection import FRAMES_PER_TURN, Connection
from klamm.zk.server.shared_secret import Gate
from tests.support.one_broker import ManualClock
from tests.unit.zk.raw_client import RawClient, create_body, set_watches_body

HANDSHAKE = struct.pack(">iiqiq", 45, 0, 0, 30_000, 0) + buffer_bytes(bytes(16)) + b"\0"
MULTI_END = struct.pack(">i?i", -1, True, -1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeperThread]:
    thread = EmbeddedZooKeeperThread(tmp_path, fsync=False, min_session_timeout_ms=100).start()
    yield thread
    thread.stop()


def auth(number: int) -> bytes:
    return digest(b"user%d:secret" % number)


def digest(credential: bytes) -> bytes:
    return struct.pack(">i", 0) + string_bytes("digest") + buffer_bytes(credential)


SECRET = "klamm:s3cret"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    made = CertificateStore.create(tmp_path_factory.mktemp("certificates"), 1)
    made.issue_broker("server", (), 1)
    return made


def server_context(certificates: CertificateStore) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.keystore_path("server"))
    return context


def client_of(port: int, certificates: CertificateStore, has_tls: bool) -> RawClient:
    client = RawClient(port)
    if has_tls:
        trusting = ssl.create_default_context(cafile=certificates.ca_path)
        client.socket = trusting.wrap_socket(client.socket, server_hostname="localhost")
    return client


def connection_from(host: str, port: int) -> socket.socket:
    """Connect from an address of this machine, and send nothing."""
    return socket.create_connection(("127.0.0.1", port), timeout=120, source_address=(host, 0))


def is_closed(connection: socket.socket, wait_s: float = 120) -> bool:
    connection.settimeout(wait_s)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except (TimeoutError, BlockingIOError):
        return False


def gated(directory: Path, max_connections_per_host: int = 1_000) -> EmbeddedZooKeeperThread:
    options = ServerOptions(max_connections_per_host=max_connections_per_host, gate=Gate(SECRET))
    return EmbeddedZooKeeperThread(directory, fsync=False, options=options).start()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without the secret do not end because the machine is slow."""
    monkeypatch.setattr(admission, "IDLE_TIMEOUT_MS", 3_600_000)


def prove(client: RawClient, session_id: int = 0, password: bytes = bytes(16)) -> RawClient:
    client.connect(30_000, session_id, password)
    assert client.ask(OpCode.AUTH, digest(SECRET.encode())).error == Code.OK
    return client


def ping(client: RawClient) -> int:
    client.send(OpCode.PING, xid=PING_XID)
    return client.receive().error


def multi_read(opcode: int, paths: list[str]) -> bytes:
    header = struct.pack(">i?i", opcode, False, -1)
    return b"".join(header + string_bytes(path) + b"\0" for path in paths) + MULTI_END


def test_a_flood_of_credentials_and_a_write(tmp_path: Path) -> None:
    """The write was applied and could not be logged, and the server did not start again."""
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    with RawClient(server.port) as client, RawClient(server.port) as other:
        other.connect()
        client.connect()
        try:
            for number in range(256):
                client.send(OpCode.AUTH, auth(number))
            client.send(OpCode.CREATE, create_body("/attack", b""))
            while client.receive().error == Code.OK:
                pass
        except (EOFError, ConnectionError):
            pass
        assert other.create("/after").error == Code.OK
    server.stop()
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()
    with RawClient(server.port) as client:
        assert client.connect().exists("/after").error == Code.OK
    server.stop()


def test_a_small_multi_read_of_large_znodes(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client:
        client.connect()
        client.create("/large", b"x" * 1_000_000)
        assert client.ask(OpCode.MULTI_READ, multi_read(OpCode.GET_DATA, ["/large"] * 15)).error == Code.OK
        reply = client.ask(OpCode.MULTI_READ, multi_read(OpCode.GET_DATA, ["/large"] * 690))
        assert (reply.error, reply.body) == (Code.MARSHALLING_ERROR, b"")
        assert client.exists("/large").error == Code.OK


def test_requests_of_very_many_small_operations(server: EmbeddedZooKeeperThread) -> None:
    """A request is executed in one step: a megabyte of the smallest operations held everybody up for a second."""
    assert (limits.MAX_OPERATIONS, limits.MAX_RESTORED_WATCHES) == (5_000, 25_000)
    check = struct.pack(">i?i", OpCode.CHECK, False, -1) + string_bytes("/") + struct.pack(">i", -1)
    with RawClient(server.port) as client:
        client.connect()
        for operations, expected in ((5_000, Code.OK), (5_001, Code.MARSHALLING_ERROR)):
            assert client.ask(OpCode.MULTI, check * operations + MULTI_END).error == expected
            assert client.ask(OpCode.MULTI_READ, multi_read(OpCode.GET_DATA, ["/"] * operations)).error == expected
        create = struct.pack(">i?i", OpCode.CREATE, False, -1) + create_body("/first", b"")
        assert client.ask(OpCode.MULTI, create + check * 5_000 + MULTI_END).error == Code.MARSHALLING_ERROR
        assert client.exists("/first").error == Code.NO_NODE
        paths = [f"/{number}" for number in range(25_001)]
        too_many = set_watches_body(0, paths[:9_000], paths[9_000:18_000], paths[18_000:])
        assert client.ask(OpCode.SET_WATCHES, too_many).error == Code.MARSHALLING_ERROR


def test_events_of_restored_watches_come_before_the_answer(server: EmbeddedZooKeeperThread) -> None:
    paths = [f"/{number}" for number in range(5_000)]
    with RawClient(server.port) as client:
        client.connect()
        client.send(OpCode.SET_WATCHES, set_watches_body(0, paths, [], []))
        replies = [client.receive() for _ in range(5_001)]
    assert [reply.xid for reply in replies] == [NOTIFICATION_XID] * 5_000 + [1]
    assert [reply.body[12:].decode() for reply in replies[:-1]] == paths


def test_children_without_bound(server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ANSWER_BYTES", 10_000)
    with RawClient(server.port) as client:
        client.connect()
        for number in range(10):
            client.create(f"/{number}" + "n" * 500)
        body = string_bytes("/") + b"\1"
        assert client.ask(OpCode.GET_CHILDREN, body).error == Code.OK
        reply = client.ask(OpCode.MULTI_READ, multi_read(OpCode.GET_CHILDREN, ["/"] * 1_000))
        assert (reply.error, reply.body) == (Code.MARSHALLING_ERROR, b"")
        for number in range(10, 20):
            client.create(f"/{number}" + "n" * 500)
        client.receive()
        for opcode in (OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2):
            reply = client.ask(opcode, body)
            assert (reply.error, reply.body) == (Code.MARSHALLING_ERROR, b"")


def test_silent_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False, options=ServerOptions(max_connections_per_host=20)).start()
    with ExitStack() as stack:
        first = stack.enter_context(RawClient(server.port))
        first.connect()
        silent = [stack.enter_context(RawClient(server.port)) for _ in range(40)]
        other = stack.enter_context(RawClient(server.port))
        assert other.connect().exists("/").error == Code.OK
        assert first.exists("/").error == Code.OK
        assert silent[0].is_closed()
    server.stop()


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_silent_connections_of_many_hosts_do_not_keep_others_out(
    tmp_path: Path, certificates: CertificateStore, has_tls: bool
) -> None:
    """Their number had no limit: they used up the file descriptors of a broker. A TLS handshake counts from its start,
    and the host with the most of them loses one first.
    """
    tls = server_context(certificates) if has_tls else None
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False, options=ServerOptions(max_connections=20, tls=tls)).start()
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(server.port, certificates, has_tls)).connect() for _ in range(3)]
        few = [stack.enter_context(connection_from("127.0.0.2", server.port)) for _ in range(3)]
        many = [stack.enter_context(connection_from("127.0.0.3", server.port)) for _ in range(100)]
        late = stack.enter_context(client_of(server.port, certificates, has_tls))
        assert late.connect().exists("/").error == Code.OK
        assert [client.exists("/").error for client in clients] == [Code.OK] * 3
        assert all(map(is_closed, many[:80]))
        assert not any(is_closed(connection, wait_s=0) for connection in few)
        with client_of(server.port, certificates, has_tls) as asking:
            asking.socket.sendall(b"mntr")
            answer = b"".join(iter(lambda: asking.socket.recv(4_096), b""))
        found = re.search(rb"zk_num_alive_connections\t(\d+)", answer)
        assert found is not None and int(found[1]) <= 21, "one may still be closing"
    server.stop()


def test_connections_in_use_are_never_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False, options=ServerOptions(max_connections=5)).start()
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)).connect() for _ in range(5)]
        for _ in range(50):
            with connection_from("127.0.0.2", server.port) as refused:
                assert is_closed(refused)
        assert [client.exists("/").error for client in clients] == [Code.OK] * 5
        assert clients[0].ask(OpCode.CLOSE_SESSION).error == Code.OK
        assert clients[0].is_closed()
        assert stack.enter_context(RawClient(server.port)).connect().exists("/").error == Code.OK
    server.stop()
    assert caplog.text.count("too many connections are in use") == SAME_LINES


def test_silent_connections_end(server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that send a part of a handshake; those that sent all of it stay."""
    assert admission.IDLE_TIMEOUT_MS == 10_000
    with RawClient(server.port) as client, ExitStack() as stack:
        client.connect()
        monkeypatch.setattr(admission, "IDLE_TIMEOUT_MS", 200)
        silent, slow = (stack.enter_context(RawClient(server.port)) for _ in range(2))
        with suppress(OSError):  # a machine that stood still for so long
            slow.socket.sendall(struct.pack(">i", 45) + bytes(20))
        assert silent.is_closed()
        assert slow.is_closed()
        assert client.exists("/").error == Code.OK


@pytest.mark.usefixtures("patient")
def test_strangers_with_pings_do_not_keep_brokers_out(tmp_path: Path) -> None:
    """Clients without the secret got a session, and their pings kept the connections of their host for ever."""
    server = gated(tmp_path, max_connections_per_host=20)
    with ExitStack() as stack:
        first = prove(stack.enter_context(RawClient(server.port)))
        strangers = [stack.enter_context(RawClient(server.port)).connect() for _ in range(19)]
        assert [ping(stranger) for stranger in strangers] == [Code.OK] * 19
        second = prove(stack.enter_context(RawClient(server.port)))
        assert second.create("/second").error == first.exists("/second").error == Code.OK
        assert strangers[0].is_closed()
        assert [ping(stranger) for stranger in strangers[1:]] == [Code.OK] * 18
    server.stop()


def test_strangers_with_pings_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        server = await EmbeddedZooKeeper(
            tmp_path, fsync=False, clock=clock, options=ServerOptions(gate=Gate(SECRET))
        ).start()
        pipes = [Pipe(), Pipe()]
        connections = [server._accept("127.0.0.1"), server._accept("127.0.0.1")]
        broker = connections[1]
        for connection, pipe in zip(connections, pipes, strict=True):
            connection.connection_made(pipe)
            connection.data_received(HANDSHAKE)
        broker.data_received(frame_of(OpCode.AUTH, digest(SECRET.encode())))
        for _ in range(10):
            assert not pipes[0].is_aborted
            clock.elapsed_ms += 1_000
            for connection in connections:
                connection.data_received(frame_of(OpCode.PING))
            server._timer.cancel()
            server._tick()
        assert [pipe.is_aborted for pipe in pipes] == [True, False]
        for connection in connections:
            connection.connection_lost(None)
        assert list(server.tree.sessions) == [broker.session_id]
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 300))


@pytest.mark.usefixtures("patient")
def test_strangers_use_up_no_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they write to the log: a session begins when its client has proved itself, and can be resumed."""
    monkeypatch.setattr("klamm.zk.server.server.MAX_SESSIONS", 2)
    server = gated(tmp_path)
    with ExitStack() as stack:
        first = prove(stack.enter_context(RawClient(server.port)))
        before = first.exists("/").zxid
        strangers = [stack.enter_context(RawClient(server.port)).connect() for _ in range(5)]
        assert [ping(stranger) for stranger in strangers] == [Code.OK] * 5
        assert strangers[0].ask(OpCode.CLOSE_SESSION).error == Code.OK
        assert first.exists("/").zxid == before
        second = prove(stack.enter_context(RawClient(server.port)))
        assert second.create("/ephemeral", flags=1).error == Code.OK
        with RawClient(server.port) as late:
            late.connect()
            assert late.ask(OpCode.AUTH, digest(SECRET.encode())).error == Code.THROTTLED_OP
        second.socket.close()
        again = prove(stack.enter_context(RawClient(server.port)), second.session_id, second.password)
        assert again.session_id == second.session_id and again.exists("/ephemeral").error == Code.OK
        unknown = stack.enter_context(RawClient(server.port))
        assert unknown.connect(30_000, strangers[1].session_id, strangers[1].password).session_id == 0
    server.stop()


@pytest.mark.usefixtures("patient")
def test_a_stranger_sends_no_large_request(tmp_path: Path) -> None:
    """Requests are held until they are complete, and the largest holders are closed first: brokers among them."""
    server = gated(tmp_path)
    with RawClient(server.port) as stranger, RawClient(server.port) as broker:
        stranger.connect()
        stranger.socket.sendall(struct.pack(">i", 1_000_000))
        assert stranger.is_closed()
        assert prove(broker).create("/large", b"x" * 900_000).error == Code.OK
    server.stop()


def test_refusals_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_end = Admission.log_end

    def log_in_the_same_minute(self: Admission, connection: Connection, reason: str, now_ms: int) -> None:
        log_end(self, connection, reason, 0)

    monkeypatch.setattr(Admission, "log_end", log_in_the_same_minute)
    server = gated(tmp_path)
    for _ in range(60):
        with RawClient(server.port) as stranger:
            stranger.connect()
            assert stranger.ask(OpCode.AUTH, digest(b"klamm:wrong")).error == Code.AUTH_FAILED
        with RawClient(server.port) as stranger:
            stranger.send_frame(b"nonsense")
            assert stranger.is_closed()
    server.stop()
    reasons = ("its credentials are refused", "a connect request is too short")
    assert [caplog.text.count(reason) for reason in reasons] == [20, 20]
    assert "are not logged for a minute" in caplog.text


def test_dead_sessions_whose_clients_do_not_read(
    server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their connections would wait for ever to send the last answers, and count against the host."""
    with RawClient(server.port) as client, ExitStack() as stack:
        client.connect()
        client.create("/large", b"x" * 1_000_000)
        several = [stack.enter_context(RawClient(server.port)) for _ in range(5)]
        for dead in several:
            dead.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            dead.connect(1_000)
            with suppress(OSError):  # its session has ended already, on a machine that stood still
                dead.send(OpCode.MULTI_READ, multi_read(OpCode.GET_DATA, ["/large"] * 10))
        monkeypatch.setattr(admission, "IDLE_TIMEOUT_MS", 200)
        deadline = time.monotonic() + 120
        while alive_connections(server.port) > 2:
            assert time.monotonic() < deadline, "their connections are still there"
            time.sleep(0.02)
        assert client.exists("/large").error == Code.OK


def test_a_large_first_frame_is_not_awaited(server: EmbeddedZooKeeperThread) -> None:
    with RawClient(server.port) as client:
        client.socket.sendall(struct.pack(">i", 1_000_000))
        assert client.is_closed()


def test_watches_on_long_paths(server: EmbeddedZooKeeperThread) -> None:
    long = "/" + "w" * 900_000
    with RawClient(server.port) as client:
        client.connect()
        for number in range(100):
            assert client.exists(f"{long}{number}", watch=True).error == Code.BAD_ARGUMENTS
        assert client.ask(OpCode.SET_WATCHES, set_watches_body(1, [], [long], [])).error == Code.BAD_ARGUMENTS
        assert client.create(long).error == Code.BAD_ARGUMENTS
        assert client.exists("/missing", watch=True).error == Code.NO_NODE
        assert b"zk_watch_count\t1\n" in four_letters(server.port, b"mntr")


@pytest.mark.parametrize("bound", ["MAX_WATCHES_PER_CONNECTION", "MAX_WATCHES"])
def test_watches_without_end(server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(limits, bound, 100)
    with RawClient(server.port) as client, RawClient(server.port) as other:
        client.connect()
        other.connect()
        codes = [client.exists(f"/{number}", watch=True).error for number in range(150)]
        assert codes == [Code.NO_NODE] * 100 + [Code.THROTTLED_OP] * 50
        assert client.exists("/0", watch=True).error == Code.NO_NODE, "that one is set already"
        assert client.ask(OpCode.SET_WATCHES, set_watches_body(1, [], ["/x"], [])).error == Code.THROTTLED_OP
        expected = Code.NO_NODE if bound == "MAX_WATCHES_PER_CONNECTION" else Code.THROTTLED_OP
        assert other.exists("/other", watch=True).error == expected
        assert other.exists("/other").error == Code.NO_NODE
    with RawClient(server.port) as again:
        again.connect()
        while again.exists("/again", watch=True).error != Code.NO_NODE:
            pass  # until the server has seen that the others are gone


@pytest.mark.parametrize("bound", ["MAX_WATCH_BYTES_PER_CONNECTION", "MAX_WATCH_BYTES"])
def test_watched_bytes_without_end(
    server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(limits, bound, 100_000)
    with RawClient(server.port) as client:
        client.connect()
        codes = [client.exists(f"/{number:01999d}", watch=True).error for number in range(60)]
        assert codes == [Code.NO_NODE] * 50 + [Code.THROTTLED_OP] * 10
        client.create(f"/{0:01999d}")
        assert client.receive().error == Code.OK
        assert client.exists(f"/{60:01999d}", watch=True).error == Code.NO_NODE, (
            "one was notified, and no longer counts"
        )


def test_sessions_without_end(server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.zk.server.server.MAX_SESSIONS", 5)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)).connect() for _ in range(5)]
        with RawClient(server.port) as more, pytest.raises(EOFError):
            more.connect()
        with RawClient(server.port) as again:
            again.connect(30_000, clients[0].session_id, clients[0].password)
            assert again.exists("/").error == Code.OK


def test_ephemeral_znodes_without_end(server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EPHEMERALS_PER_SESSION", 5)
    with RawClient(server.port) as client:
        client.connect()
        codes = [client.create(f"/{number}", flags=1).error for number in range(7)]
        assert codes == [Code.OK] * 5 + [Code.THROTTLED_OP] * 2
        create = struct.pack(">i?i", OpCode.CREATE, False, -1) + create_body("/more", b"", 1)
        assert client.ask(OpCode.MULTI, create + MULTI_END).error == Code.THROTTLED_OP
        assert client.create("/persistent").error == Code.OK


def test_access_lists_that_grow(server: EmbeddedZooKeeperThread) -> None:
    """`auth` stands for all identities of a connection, and each list may name it many times."""
    with RawClient(server.port) as client:
        client.connect()
        for number in range(20):
            assert client.ask(OpCode.AUTH, auth(number)).error == Code.OK
        rules = b"".join(struct.pack(">i", perms) + string_bytes("auth") + string_bytes("") for perms in range(40_000))
        body = string_bytes("/a") + buffer_bytes(b"") + struct.pack(">i", 40_000) + rules + struct.pack(">i", 0)
        assert client.ask(OpCode.CREATE, body).error == Code.INVALID_ACL
        assert client.exists("/a").error == Code.NO_NODE


def test_rules_by_address_are_parsed_once(server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation on the znode asks all of them, and a multi has thousands of operations."""
    parsed = []
    real = ipaddress.ip_network

    def counted(address: str, strict: bool = True) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        parsed.append(address)
        return real(address, strict)

    monkeypatch.setattr(ipaddress, "ip_network", counted)
    addresses = [f"10.77.{number}.0/24" for number in range(63)] + ["127.0.0.0/8"]
    rules = b"".join(struct.pack(">i", 31) + string_bytes("ip") + string_bytes(address) for address in addresses)
    with RawClient(server.port) as client:
        client.connect()
        body = string_bytes("/a") + buffer_bytes(b"") + struct.pack(">i", 64) + rules + struct.pack(">i", 0)
        assert client.ask(OpCode.CREATE, body).error == Code.OK
        change = struct.pack(">i?i", OpCode.SET_DATA, False, -1) + string_bytes("/a") + buffer_bytes(b"")
        assert client.ask(OpCode.MULTI, (change + struct.pack(">i", -1)) * 200 + MULTI_END).error == Code.OK
        assert len(parsed) <= 66


def test_rules_that_are_not_addresses_are_not_kept(server: EmbeddedZooKeeperThread) -> None:
    """Parsed addresses are cached: texts of a megabyte each would stay there after they were refused."""
    with RawClient(server.port) as client:
        client.connect()
        tracemalloc.start()
        try:
            for number in range(20):
                rule = struct.pack(">i", 31) + string_bytes("ip") + string_bytes(f"{number}." + "1" * 900_000)
                body = string_bytes("/a") + buffer_bytes(b"") + struct.pack(">i", 1) + rule + struct.pack(">i", 0)
                assert client.ask(OpCode.CREATE, body).error == Code.INVALID_ACL
            kept_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept_bytes < 9_000_000


def test_those_who_do_not_read_end_first(server: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that nobody reads are bounded over all connections, and clients that read are served."""
    monkeypatch.setattr("klamm.zk.server.server.MAX_HELD_BYTES", 20_000_000)
    with ExitStack() as stack:
        reader = stack.enter_context(RawClient(server.port))
        reader.connect()
        reader.create("/large", b"x" * 1_000_000)
        for _ in range(10):
            client = stack.enter_context(RawClient(server.port))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect()
            client.send(OpCode.MULTI_READ, multi_read(OpCode.GET_DATA, ["/large"] * 15))
        large = string_bytes("/large") + b"\0"
        assert [reader.ask(OpCode.GET_DATA, large).error for _ in range(30)] == [Code.OK] * 30
        deadline = time.monotonic() + 120
        while alive_connections(server.port) > 3:  # the reader, the one who asks, and one who does not read
            assert time.monotonic() < deadline, "those who do not read are still there"
            time.sleep(0.02)


class Pipe(asyncio.Transport):
    """A transport without a socket: whether it is read, and how many bytes were written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.is_read = True
        self.is_aborted = False
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def close(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


def frame_of(opcode: int, body: bytes = b"") -> bytes:
    return struct.pack(">iii", 8 + len(body), 1, opcode) + body


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition is the test's, and no event reports it
        await asyncio.sleep(0.001)


def test_a_pipeline_does_not_keep_others_waiting(tmp_path: Path) -> None:
    """A turn executes a few requests of a connection; meanwhile no more of them are read from its socket."""

    async def scenario() -> None:
        server = await EmbeddedZooKeeper(tmp_path, fsync=False).start()
        pipe, flood = Pipe(), server._accept("127.0.0.1")
        flood.connection_made(pipe)
        flood.data_received(HANDSHAKE)
        request = struct.pack(">ii", 1, OpCode.CREATE) + create_body("/flood-", b"", 2)
        flood.data_received((struct.pack(">i", len(request)) + request) * 2_000)
        turns = 0
        while server.received < 2_001:
            assert not pipe.is_read
            assert server.received <= 1 + FRAMES_PER_TURN * (turns + 1)
            turns += 1
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert turns >= 2_000 // FRAMES_PER_TURN and pipe.is_read
        assert server.tree.last_zxid == 2_001
        flood.connection_lost(None)
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_a_slow_disk_bounds_the_changes_that_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all connections: no further request is executed until the disk has caught up."""
    monkeypatch.setattr("klamm.zk.server.server.MAX_UNSYNCED_BYTES", 20_000)
    is_slow, finish = False, threading.Event()
    real_sync = os.fdatasync

    def slow_sync(fd: int) -> None:
        if is_slow:
            assert finish.wait(300)
        real_sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow_sync)

    async def scenario() -> None:
        nonlocal is_slow
        server = await EmbeddedZooKeeper(tmp_path).start()
        pipes = [Pipe() for _ in range(3)]
        connections = [server._accept("127.0.0.1") for _ in pipes]
        for connection, pipe in zip(connections, pipes, strict=True):
            connection.connection_made(pipe)
            connection.data_received(HANDSHAKE)
        await until(lambda: all(pipe.written for pipe in pipes))
        is_slow = True
        request = struct.pack(">ii", 1, OpCode.CREATE) + create_body("/n-", b"x" * 1_000, 2)
        for connection in connections:
            connection.data_received((struct.pack(">i", len(request)) + request) * 100)
        for _ in range(100):
            await asyncio.sleep(0)
        assert server.received - 3 <= 20_000 // 1_000 + 1
        assert not any(pipe.is_read for pipe in pipes)
        finish.set()
        await until(lambda: server.received == 303 and all(pipe.is_read for pipe in pipes))
        for connection in connections:
            connection.connection_lost(None)
        await server.stop()
        assert len(server.tree.nodes["/"].children or ()) == 301

    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_a_flood_of_dead_sessions_ends_in_slices(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = await EmbeddedZooKeeper(tmp_path, fsync=False).start()
        for number in range(1, 2_001):
            server._logged.create_session(number, 4_000, -10_000_000, b"")
        server._timer.cancel()
        server._tick()
        turns = 0
        while server.tree.sessions:
            assert len(server.tree.sessions) >= 2_000 - 200 * (turns + 1)
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 9
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_a_sasl_handshake_fails_with_an_answer(server: EmbeddedZooKeeperThread) -> None:
    for body in (buffer_bytes(b""), buffer_bytes(b"nonsense"), b"", b"\x7f\xff\xff\xff"):
        with RawClient(server.port) as client:
            client.connect()
            reply = client.ask(OpCode.SASL, body)
            assert (reply.xid, reply.error, reply.body) == (1, Code.AUTH_FAILED, b"\xff\xff\xff\xff")
            assert client.is_closed()


def test_nothing_is_executed_after_a_failed_authentication(tmp_path: Path) -> None:
    """Not even while the answer waits for the disk."""
    requests = [
        (OpCode.CREATE, create_body("/before", b"")),
        (OpCode.AUTH, struct.pack(">i", 0) + string_bytes("unknown") + buffer_bytes(b"")),
        (OpCode.CREATE, create_body("/after", b"")),
    ]
    frames = [struct.pack(">ii", xid, opcode) + body for xid, (opcode, body) in enumerate(requests, 1)]
    server = EmbeddedZooKeeperThread(tmp_path).start()
    with RawClient(server.port) as client, RawClient(server.port) as other:
        client.connect()
        client.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        assert [client.receive().error for _ in range(2)] == [Code.OK, Code.AUTH_FAILED]
        assert client.is_closed()
        other.connect()
        assert [other.exists(path).error for path in ("/before", "/after")] == [Code.OK, Code.NO_NODE]
    server.stop()


def alive_connections(port: int) -> int:
    found = re.search(rb"zk_num_alive_connections\t(\d+)", four_letters(port, b"mntr"))
    assert found is not None
    return int(found[1])


def four_letters(port: int, word: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(word)
        return b"".join(iter(lambda: connection.recv(4_096), b""))
