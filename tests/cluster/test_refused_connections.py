"""Brokers and clients whose settings of security do not fit: both sides report why, and what to do."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from klamm.client.connection_problems import Listener, Problem, examine, find_listener
from klamm.local.ports import ReservedPort
from klamm.model import SecurityProtocol, parse_host_port
from klamm.security.client_security import ClientSecurity
from tests.support.certificates import Authority, Issued
from tests.support.raw_client import eventually
from tests.support.secured_cluster import ALICE, SecuredCluster, secured_cluster

TIMEOUT_S = 30.0
MECHANISMS = "PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512 or OAUTHBEARER"
SASL_SSL = f"security.protocol=SASL_SSL with sasl.mechanism={MECHANISMS}"
USERS: dict[str, Any] = {"sasl.mechanism": "PLAIN", "sasl.username": ALICE[0], "sasl.password": ALICE[1]}
HERE = "in the file of --command-config"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    listeners = "SASL_SSL://localhost:0,SSL://localhost:0,PLAINTEXT://localhost:0,SASL_PLAINTEXT://localhost:0"
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{ALICE[0]}="{ALICE[1]}";'
    extra = {"listeners": listeners, "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas}
    with secured_cluster(tmp_path_factory.mktemp("refused"), extra=extra) as running:
        yield running


class Case(NamedTuple):
    """A client's settings, the listener that it uses, its sentences, and the line of the broker's log."""

    listener: str
    settings: dict[str, Any]
    reason: str
    advice: str
    logged: str


CASES = {
    "wrong password": Case(
        "SASL_SSL",
        {"security.protocol": "SASL_SSL", **USERS, "sasl.password": "wrong"},
        "Invalid username or password",
        f"Check the user and the password {HERE}",
        "Invalid username or password",
    ),
    "unknown user of SCRAM": Case(
        "SASL_SSL",
        {"security.protocol": "SASL_SSL", **USERS, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "secretive"},
        "invalid credentials with SASL mechanism SCRAM-SHA-512",
        f"Check the user and the password {HERE}",
        "no user of that name has a password for this mechanism",
    ),
    "SASL without TLS": Case(
        "SASL_SSL",
        {"security.protocol": "SASL_PLAINTEXT", **USERS},
        f"expects {SASL_SSL}, and this client has security.protocol=SASL_PLAINTEXT",
        f"Set {SASL_SSL} {HERE}",
        "the peer does not use TLS. Compare its security.protocol with this listener",
    ),
    "nothing at SASL_SSL": Case(
        "SASL_SSL",
        {"security.protocol": "PLAINTEXT"},
        f"expects {SASL_SSL}, and this client has security.protocol=PLAINTEXT",
        f"Set {SASL_SSL} {HERE}",
        "the peer does not use TLS",
    ),
    "TLS at PLAINTEXT": Case(
        "PLAINTEXT",
        {"security.protocol": "SSL"},
        "expects security.protocol=PLAINTEXT, and this client has security.protocol=SSL",
        f"Set security.protocol=PLAINTEXT {HERE}",
        "It begins a TLS handshake: the listener does not use TLS",
    ),
    "SASL at PLAINTEXT": Case(
        "PLAINTEXT",
        {"security.protocol": "SASL_PLAINTEXT", **USERS},
        "The broker refused to begin with PLAIN: ILLEGAL_SASL_STATE",
        f"The listener has no SASL: set security.protocol=PLAINTEXT or SSL {HERE}",
        "",
    ),
    "no SASL": Case(
        "SASL_PLAINTEXT",
        {"security.protocol": "PLAINTEXT"},
        "expects security.protocol=SASL_PLAINTEXT with sasl.mechanism=",
        f"Set security.protocol=SASL_PLAINTEXT with sasl.mechanism={MECHANISMS} {HERE}",
        "Unexpected Kafka request of type 3 during SASL handshake",
    ),
    "no certificate": Case(
        "SSL",
        {"security.protocol": "SSL"},
        "requires a certificate of its clients",
        f"Set ssl.keystore.location {HERE}",
        "the peer has no certificate, and ssl.client.auth is required",
    ),
    "a foreign certificate": Case(
        "SSL",
        {"security.protocol": "SSL", "ssl.keystore.location": "foreign.pem", "ssl.keystore.type": "PEM"},
        "does not trust the certificate of this client",
        "Use an unexpired certificate of an authority in the broker's ssl.truststore.location",
        "ssl.truststore.location does not accept the peer's certificate",
    ),
    "a foreign authority": Case(
        "SASL_SSL",
        {"security.protocol": "SASL_SSL", **USERS, "ssl.ca.location": "foreign-ca.pem"},
        "is not trusted",
        f"Set ssl.truststore.location {HERE} to the certificate of the authority that issued it",
        "the peer refuses the certificate of this broker",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_both_sides_report_the_reason(cluster: SecuredCluster, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    foreign = Authority("Foreign CA")
    (tmp_path / "foreign-ca.pem").write_bytes(foreign.pem)
    (tmp_path / "foreign.pem").write_bytes(foreign.issue().pem)
    settings = {"ssl.ca.location": str(cluster.files.ca), **case.settings}
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    path.chmod(0o600)
    before = len(cluster.brokers[0].log)
    servers = cluster.bootstrap(case.listener)
    said = refusal(tmp_path, "-b", servers, "--command-config", path.name)
    assert re.search(rf"do not accept each other: .*{re.escape(case.reason)}", said), said
    assert said.endswith(f". {case.advice}."), said
    assert str(case.settings.get("sasl.password")) not in said
    eventually(lambda: case.logged in cluster.brokers[0].log[before:], f"the broker logs {case.logged!r}")
    assert "secretive" not in cluster.brokers[0].log, "a name that is not a user's may be a password"


def refusal(directory: Path, *arguments: str) -> str:
    """Return the report of a refused command, which examines a listener for 3 s: a slow machine may need more tries."""
    command = [sys.executable, "-m", "klamm.cli.main", "topic", "list", *arguments]
    said = ""
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=os.environ, timeout=120)
        assert done.returncode == 1
        said = " ".join(done.stderr.split())
        if "do not accept each other" in said:
            break
    return said


def test_without_a_file_the_command_names_the_option(cluster: SecuredCluster, tmp_path: Path) -> None:
    said = refusal(tmp_path, "-b", cluster.bootstrap())
    assert f"Set {SASL_SSL} in a file, and pass it with --command-config." in said


def test_listeners_are_recognized(cluster: SecuredCluster) -> None:
    found = {
        name: find_listener(parse_host_port(cluster.bootstrap(name)), TIMEOUT_S)
        for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    }
    mechanisms = tuple(MECHANISMS.split(" or "))
    assert found == {
        "PLAINTEXT": Listener(SecurityProtocol.PLAINTEXT),
        "SSL": Listener(SecurityProtocol.SSL, needs_certificate=True),
        "SASL_PLAINTEXT": Listener(SecurityProtocol.SASL_PLAINTEXT, mechanisms),
        "SASL_SSL": Listener(SecurityProtocol.SASL_SSL, mechanisms),
    }


@contextmanager
def tls_server(directory: Path, issued: Issued) -> Iterator[tuple[str, int]]:
    """A server that shakes hands and closes: enough for a client that looks at certificates."""
    keystore = directory / "server.pem"
    keystore.write_bytes(issued.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError):  # a client that does not like the certificate leaves
                context.wrap_socket(accepted, server_side=True).close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield ("127.0.0.1", listening.getsockname()[1])
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.mark.parametrize(
    ("of_certificate", "reason", "advice"),
    [
        ({"names": ("broker-1.example",)}, "IP address mismatch, certificate is not valid for '127.0.0.1'", "--host"),
        ({"ended": True}, "certificate has expired", "Issue a new certificate for the broker: klamm tls issue"),
    ],
)
def test_certificates_that_do_not_fit(tmp_path: Path, of_certificate: dict[str, Any], reason: str, advice: str) -> None:
    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    security = ClientSecurity.from_properties({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})
    with tls_server(tmp_path, authority.issue(**of_certificate)) as address:
        found = examine(address, security, TIMEOUT_S)
    assert isinstance(found, Problem) and reason in found.reason and advice in found.advice


def test_silence_is_not_a_refusal() -> None:
    port = ReservedPort()
    with pytest.raises(ConnectionRefusedError):
        examine(("127.0.0.1", port.number), ClientSecurity(), TIMEOUT_S)
    port.close()


def test_an_address_that_ends_every_connection_is_not_a_refusal() -> None:
    """A relay whose broker is dead: it looked like a listener with TLS that requires a certificate."""
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def end_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    relay.accept()[0].close()

        thread = threading.Thread(target=end_all)
        thread.start()
        try:
            address = relay.getsockname()
            assert find_listener(address, TIMEOUT_S) is None
            with pytest.raises(OSError):
                examine(address, ClientSecurity(), TIMEOUT_S)
        finally:
            relay.shutdown(socket.SHUT_RDWR)
            thread.join()
