"""The connection with ZooKeeper, secured: digest, SASL DIGEST-MD5, TLS, access rules, the shared secret."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from klamm.security.certificates.certificate_store import CertificateStore
from klamm.server.open_znodes import OpenZnodes, closed_acl, is_open
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.client_connection import ConnectionState
from klamm.zk.client.digest_md5 import DigestError, DigestMd5
from klamm.zk.client.socket_connection import SocketConnection
from klamm.zk.client.user_config import alter_user_settings, user_settings, users
from klamm.zk.client.zk_security import Login, ZkSecurity
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model.default_acls import READABLE_ACL, SENSITIVE_ACL, default_acl
from klamm.zk.model.ops import OPEN_ACL, Acl, AuthFailed, ConnectionLoss, Create, MultiFailed, Perms, SetData
from klamm.zk.server.main import EmbeddedZooKeeperThread, main
from klamm.zk.server.server import ServerOptions
from klamm.zk.server.shared_secret import Gate
from tests.support.real_zookeeper import RealZooKeeper
from tests.support.zk_registration import register_ephemeral
from tests.unit.zk.raw_client import RawClient

TIMEOUT_S = 60.0
KLAMM = Login("klamm", "s3cret:with colon")
STRANGER = Login("klamm", "wrong")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    store = CertificateStore.create(tmp_path_factory.mktemp("certificates"), 1)
    store.issue_broker("server", [], 1)
    store.issue_client("klamm", 1)
    return store


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, certificates: CertificateStore) -> Iterator[RealZooKeeper]:
    """A ZooKeeper with SASL on its plain port, and with TLS and certificates of clients on another one."""
    directory = tmp_path_factory.mktemp("zookeeper")
    with RealZooKeeper(directory, users={"klamm": "s3cret"}, certificates=certificates) as server:
        yield server


def context(store: CertificateStore, name: str | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=store.ca_path)
    if name is not None:
        made.load_cert_chain(store.keystore_path(name))
    return made


def served(directory: Path, **options: object) -> EmbeddedZooKeeperThread:
    return EmbeddedZooKeeperThread(directory, fsync=False, options=ServerOptions(**options)).start()  # type: ignore[arg-type]


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[EmbeddedZooKeeperThread]:
    server = served(tmp_path, gate=Gate(f"{KLAMM.username}:{KLAMM.password}"))
    yield server
    server.stop()


def acl_of(address: str, path: str, *credentials: str) -> set[tuple[int, str, str]]:
    client = KazooClient(address, auth_data=[("digest", each) for each in credentials])
    client.start(TIMEOUT_S)
    try:
        return {(each.perms, each.id.scheme, each.id.id) for each in client.get_acls(path)[0]}
    finally:
        client.stop()
        client.close()


@contextmanager
def logged_lines() -> Iterator[SimpleQueue[logging.LogRecord]]:
    """The lines that are logged meanwhile, also by the threads of a connection; `get` waits for the next one."""
    lines: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(lines)
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)


def await_refusal(address: str, security: ZkSecurity, reason: str) -> None:
    """Wait until a connection is refused for this reason, which the log names; it never becomes a session."""
    states: list[ConnectionState] = []
    connection = SocketConnection(address, 30_000, states.append, security=security)
    with logged_lines() as lines:
        connection.start()
        while reason not in lines.get().getMessage():
            pass
    connection.stop()
    assert ConnectionState.CONNECTED not in states


def test_the_rules_are_kafkas() -> None:
    assert default_acl("/consumers") is OPEN_ACL
    for path in ("/config/users", "/config/users/alice", "/config/brokers/1", "/delegation_token/tokens/x"):
        assert default_acl(path) == SENSITIVE_ACL
    for path in ("/brokers/ids/1", "/config/topics/t", "/controller", "/kafka-acl/Topic/t"):
        assert default_acl(path) == READABLE_ACL


def test_passwords_are_not_shown() -> None:
    assert "s3cret" not in repr(ZkSecurity(digest=KLAMM, sasl=KLAMM))
    with pytest.raises(ValueError, match="user:password"):
        Login.parse("s3cret")


@pytest.mark.parametrize("chroot", ["", "/kafka"])
def test_sasl_at_a_real_zookeeper(real: RealZooKeeper, chroot: str) -> None:
    """Znodes of a broker get rules for its SASL identity; nobody else may change them, or read credentials."""
    security = ZkSecurity(sasl=Login("klamm", "s3cret"), set_acl=True)

    async def scenario() -> None:
        zk = await ZkSession(real.address + chroot, 30_000, security=security).start()
        await zk.ensure_paths(["/config/users", "/brokers/ids"])
        await register_ephemeral(zk, f"/brokers/ids/{1 if chroot else 2}", b"x")
        await zk.create(Create("/config/users/alice", b"secret"))
        zk.drop_connection()  # the next connection logs in again
        await zk.read_many(["/config/users/alice"])
        await zk.set(SetData("/config/users/alice", b"more"))
        await zk.close()

    asyncio.run(scenario())
    mine = (31, "sasl", "klamm")
    assert acl_of(real.address, f"{chroot}/brokers/ids") == {mine, (1, "world", "anyone")}
    with BlockingSession(real.address + chroot, TIMEOUT_S, security=security) as session:
        assert session.get("/config/users/alice") == b"more"
    stranger = KazooClient(real.address + chroot)
    stranger.start(TIMEOUT_S)
    try:
        assert stranger.get_children("/brokers/ids") == []
        with pytest.raises(NoAuthError):
            stranger.get("/config/users/alice")
        with pytest.raises(NoAuthError):
            stranger.create("/brokers/ids/9")
    finally:
        stranger.stop()
        stranger.close()


def test_a_wrong_sasl_password(real: RealZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    wrong = ZkSecurity(sasl=Login("klamm", "wrong-password"))
    await_refusal(real.address, wrong, "SASL DIGEST-MD5")
    assert "wrong-password" not in caplog.text


def test_digest_at_a_real_zookeeper(real: RealZooKeeper) -> None:
    security = ZkSecurity(digest=KLAMM, set_acl=True)
    with BlockingSession(real.address, TIMEOUT_S, security=security) as session:
        session.write([Create("/digest", b"x"), SetData("/digest", b"y", 0)])
        assert session.get("/digest") == b"y" and "digest" in session.get_children("/")
    with pytest.raises(MultiFailed, match="NO_AUTH"), BlockingSession(real.address, TIMEOUT_S) as session:
        session.write([SetData("/digest", b"z")])


def test_tls_at_a_real_zookeeper(real: RealZooKeeper, certificates: CertificateStore) -> None:
    """The certificate of the client is its identity."""
    security = ZkSecurity(tls=context(certificates, "klamm"), set_acl=True)

    async def scenario() -> list[bytes | None]:
        zk = await ZkSession(real.secure_address, 30_000, security=security).start()
        await zk.create(Create("/tls", b"x"))
        large = b"x" * 50_000
        await asyncio.gather(*(zk.create(Create(f"/tls/{number}", large)) for number in range(20)))
        found = await zk.read_many([f"/tls/{number}" for number in range(20)])
        await zk.close()
        return [None if each is None else each[0] for each in found]

    assert asyncio.run(scenario()) == [b"x" * 50_000] * 20
    assert (31, "x509", "CN=klamm") in acl_of(real.address, "/tls")


def test_tls_to_a_server_that_is_not_trusted(
    real: RealZooKeeper, certificates: CertificateStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = CertificateStore.create(tmp_path / "other", 1)
    other.issue_client("klamm", 1)
    security = ZkSecurity(tls=context(other, "klamm"))
    await_refusal(real.secure_address, security, "certificate verify failed")


def test_tls_of_the_embedded_server(tmp_path: Path, certificates: CertificateStore) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.keystore_path("server"))
    server = served(tmp_path, tls=tls)
    try:
        with BlockingSession(
            f"localhost:{server.port}", TIMEOUT_S, security=ZkSecurity(tls=context(certificates))
        ) as session:
            session.write([Create("/a", b"x")])
            assert session.get("/a") == b"x"
        assert session.is_ended
        with pytest.raises(ConnectionLoss), BlockingSession(server.address, 0.5):
            pass
    finally:
        server.stop()


def test_the_embedded_server_requires_its_secret(
    gated: EmbeddedZooKeeperThread, caplog: pytest.LogCaptureFixture
) -> None:
    security = ZkSecurity(digest=KLAMM, set_acl=True)
    with BlockingSession(gated.address, TIMEOUT_S, security=security) as session:
        session.write([Create("/config"), Create("/config/users", b"x")])
        assert session.get("/config/users") == b"x"
    with pytest.raises(AuthFailed), BlockingSession(gated.address, TIMEOUT_S) as session:
        session.get("/config")
    await_refusal(gated.address, ZkSecurity(digest=STRANGER), "the scheme digest: ")
    assert "Compare klamm.zookeeper.digest with" in caplog.text
    credential = f"{KLAMM.username}:{KLAMM.password}"
    assert {each[1] for each in acl_of(gated.address, "/config/users", credential)} == {"digest"}


def test_a_refusal_is_an_error_once_and_the_reason_of_the_failure(
    gated: EmbeddedZooKeeperThread, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "klamm.zk.client.refusals")
    connection = SocketConnection(gated.address, 30_000, lambda _: None, security=ZkSecurity(digest=STRANGER))
    levels: list[str] = []
    with logged_lines() as lines:
        connection.start()
        while len(levels) < 3:
            line = lines.get()
            if "no session with ZooKeeper" in line.getMessage():
                levels.append(line.levelname)
    connection.stop()
    assert levels.count("ERROR") == 1 and levels[0] == "ERROR"
    timeout_s = 0.5
    while "no ZooKeeper answers" in (reason := why_no_session(gated.address, timeout_s)):
        timeout_s *= 2
    assert reason.startswith(f"ZooKeeper refuses this client at {gated.address}: the scheme digest")
    assert "klamm.zookeeper.digest" in reason


def why_no_session(address: str, timeout_s: float) -> str:
    with (
        pytest.raises(ConnectionLoss) as failed,
        BlockingSession(address, timeout_s, security=ZkSecurity(digest=STRANGER)),
    ):
        pass
    return str(failed.value)


def test_sessions_without_the_secret_do_not_stay(gated: EmbeddedZooKeeperThread) -> None:
    for _ in range(3):
        with RawClient(gated.port) as client:
            assert client.connect().exists("/").error == -115
            with pytest.raises(EOFError):
                client.read_frame()
    with socket.create_connection(("127.0.0.1", gated.port), TIMEOUT_S) as asking:
        asking.sendall(b"mntr")
        with asking.makefile("rb") as answer:
            assert b"zk_global_sessions\t0\n" in answer.read()


@pytest.mark.parametrize(("kind", "chroot"), [("embedded", ""), ("embedded", "/older"), ("real", "/older")])
def test_znodes_that_are_older_than_the_rules_are_closed(
    real: RealZooKeeper, tmp_path: Path, kind: str, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The secret of the brokers, and credentials, of a cluster that ran without `zookeeper.set.acl`."""
    embedded = served(tmp_path) if kind == "embedded" else None
    address = real.address if embedded is None else embedded.address
    secret, alice, topic = "/klamm/peer_secret", "/config/users/alice", "/config/topics/t"
    shared = "/config/brokers/1"
    everybody, mine = (31, "world", "anyone"), ZkSecurity(digest=KLAMM, set_acl=True)
    other = Acl(Perms.ALL, "digest", "other:hash")

    async def scenario() -> None:
        zk = await ZkSession(address + chroot, 30_000).start()
        await zk.ensure_paths([secret, f"{alice}/clients/c", topic, "/config/brokers"])
        await zk.create(Create(shared, b"x", acl=(other, Acl(Perms.READ, "world", "anyone"))))
        await zk.close()
        zk = await ZkSession(address + chroot, 30_000, security=mine).start()
        await OpenZnodes(zk).close()
        first = caplog.text
        caplog.clear()
        await zk.set(SetData(alice, b"mine"))
        await OpenZnodes(zk).close()
        await zk.close()
        assert "6 znodes with credentials or secrets were open to everybody" in first
        assert f"replace the passwords and {secret}" in first
        assert f"1 znodes with credentials or secrets stay open to everybody: {shared} (NO_AUTH {shared})" in first
        assert "were open" not in caplog.text and "1 znodes with credentials" in caplog.text

    try:
        asyncio.run(scenario())
        credential = f"{KLAMM.username}:{KLAMM.password}"
        closed = [secret, "/config/users", alice, f"{alice}/clients", f"{alice}/clients/c", "/config/brokers"]
        for path in closed:
            (perms, scheme, _), *others = acl_of(address, chroot + path, credential)
            assert (perms, scheme, others) == (31, "digest", [])
        assert acl_of(address, chroot + topic) == {everybody}
        with pytest.raises(MultiFailed, match="NO_AUTH"), BlockingSession(address + chroot, TIMEOUT_S) as session:
            session.write([SetData(secret, b"stolen")])
    finally:
        if embedded is not None:
            embedded.stop()


def test_rules_for_others_stay() -> None:
    other = Acl(Perms.READ, "sasl", "auditor")
    assert closed_acl((other, *OPEN_ACL)) == (*SENSITIVE_ACL, other)
    assert is_open(OPEN_ACL) and is_open(()) and not is_open((other,))


RFC_CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def test_digest_md5_refuses_other_servers() -> None:
    exchange = DigestMd5("chris", "secret", "OA6MHXh6VqTrRk")
    with pytest.raises(DigestError, match="does not know the password"):
        exchange.verify(b"")
    assert b"response=" in exchange.respond(RFC_CHALLENGE)
    with pytest.raises(DigestError, match="does not know the password"):
        exchange.verify(b"rspauth=0")
    for challenge in (b"", b'nonce="x"', b'nonce="x",algorithm=md5'):
        with pytest.raises(DigestError, match="not DIGEST-MD5"):
            exchange.respond(challenge)
    with pytest.raises(DigestError, match="auth-conf"):
        exchange.respond(b'nonce="x",algorithm=md5-sess,qop="auth-conf"')


def test_a_server_beyond_loopback_needs_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--data-dir", str(tmp_path), "--host", "0.0.0.0"])
    assert "--host 0.0.0.0 requires --secret-file" in capsys.readouterr().err


@pytest.mark.parametrize("chroot", ["", "/kafka/east"])
def test_the_first_user_is_written_before_any_broker_has_made_the_chroot(
    gated: EmbeddedZooKeeperThread, chroot: str
) -> None:
    security = ZkSecurity(digest=KLAMM, set_acl=True)
    for password in ("first", "second"):
        with BlockingSession(gated.address + chroot, TIMEOUT_S, security=security) as session:
            alter_user_settings(session, "broker", {"SCRAM-SHA-512": password})
            assert users(session) == ["broker"]
            assert user_settings(session, "broker") == {"SCRAM-SHA-512": password}
    if chroot:
        rules = acl_of(gated.address, chroot, f"{KLAMM.username}:{KLAMM.password}")
        assert (1, "world", "anyone") in rules and (31, "world", "anyone") not in rules
