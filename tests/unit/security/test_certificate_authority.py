"""`klamm tls`: the files of a certificate authority, checked by OpenSSL and by Java."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.errors import KlammError
from klamm.security.certificates.authority import CertificateAuthority
from klamm.security.certificates.certificate_store import CertificateStore
from klamm.security.certificates.private_files import write_private

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["tls", *map(str, arguments)])
    if isinstance(done.exception, KlammError):
        return 1, str(done.exception)
    return done.exit_code, done.output


def modes(directory: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str | None:
    """Return the name in the client's certificate as the server sees it, None if it has none."""
    ours, theirs = socket.socketpair()
    seen: list[object] = []

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                seen.append(connection.getpeercert())
                connection.sendall(b"x")
        except ssl.SSLError:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as connection:
            assert connection.recv(1) == b"x"
    finally:
        ours.close()
        thread.join()
        theirs.close()
    subject = seen[0].get("subject") if isinstance(seen[0], dict) else None
    return None if not subject else str(subject[0][0][1])


def contexts(directory: Path, client: str | None = None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=directory / "ca.pem")
    server.load_cert_chain(directory / "broker.pem")
    server.verify_mode = ssl.CERT_REQUIRED if client else ssl.CERT_OPTIONAL
    trusting = ssl.create_default_context(cafile=directory / "ca.pem")
    if client:
        trusting.load_cert_chain(directory / f"{client}-cert.pem", directory / f"{client}-key.pem")
    return server, trusting


def test_init_makes_private_files_that_openssl_accepts(tmp_path: Path) -> None:
    directory = tmp_path / "certificates"
    code, output = run("init", directory, "--host", "broker.example", "--host", "192.0.2.7", "--client", "alice")
    assert code == 0, output
    assert f"ssl.keystore.location={directory}/broker.pem" in output and "security.protocol=SSL" in output
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700 and modes(directory) == {0o600}
    for host in ("localhost", "127.0.0.1", "::1", "broker.example", "192.0.2.7"):
        assert handshake(*contexts(directory, "alice"), host) == "alice"
    assert handshake(*contexts(directory), "localhost") is None
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(*contexts(directory), "other.example")


def test_a_client_certificate_is_not_a_servers(tmp_path: Path) -> None:
    run("init", tmp_path / "c")
    server, client = contexts(tmp_path / "c")
    server.load_cert_chain(tmp_path / "c" / "client.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "localhost")


def test_init_does_not_replace_an_authority(tmp_path: Path) -> None:
    run("init", tmp_path)
    before = (tmp_path / "ca.pem").read_bytes()
    code, message = run("init", tmp_path)
    assert code == 1 and "--force" in message and (tmp_path / "ca.pem").read_bytes() == before
    assert run("init", tmp_path, "--force")[0] == 0
    assert (tmp_path / "ca.pem").read_bytes() != before


def test_an_invalid_host_writes_nothing(tmp_path: Path) -> None:
    code, message = run("init", tmp_path / "c", "--host", "not a host")
    assert (code, message) == (1, "'not a host' is not a host name or an IP address.")
    assert not (tmp_path / "c").exists()


def test_issue_uses_the_authority(tmp_path: Path) -> None:
    run("init", tmp_path)
    assert run("issue", tmp_path, "bob")[0] == 0
    assert handshake(*contexts(tmp_path, "bob"), "localhost") == "bob"
    assert run("issue", tmp_path, "broker", "--broker", "--host", "later.example")[0] == 0
    assert handshake(*contexts(tmp_path, "bob"), "later.example") == "bob"
    assert run("issue", tmp_path, "bob", "--host", "x")[1].startswith("--host requires --broker")
    assert "ca.pem cannot be read" in run("issue", tmp_path / "absent", "bob")[1]
    assert "cannot be the name" in run("issue", tmp_path, "../bob")[1]


def test_a_certificate_is_replaced_only_by_one_of_its_kind(tmp_path: Path) -> None:
    run("init", tmp_path, "--client", "admin")
    before = (tmp_path / "broker.pem").read_bytes(), (tmp_path / "admin.pem").read_bytes()
    code, message = run("issue", tmp_path, "broker")
    assert code == 1 and "is the certificate of a broker: pass --broker to replace it" in message
    code, message = run("issue", tmp_path, "admin", "--broker")
    assert code == 1 and "is the certificate of a client: omit --broker" in message
    assert ((tmp_path / "broker.pem").read_bytes(), (tmp_path / "admin.pem").read_bytes()) == before
    assert run("issue", tmp_path, "admin")[0] == run("issue", tmp_path, "broker", "--broker")[0] == 0
    assert "choose another name" in run("init", tmp_path / "new", "--client", "broker")[1]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["ca", "ca-key", "truststore", "broker-key", "broker-cert"])
def test_a_certificate_does_not_replace_other_files(tmp_path: Path, name: str) -> None:
    run("init", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, message = run("issue", tmp_path, name)
    assert code == 1 and "cannot be the name of a certificate file" in message
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_new_certificate_keeps_the_hosts_of_the_old_one(tmp_path: Path) -> None:
    _, output = run("init", tmp_path, "--host", "broker.example", "--host", "192.0.2.7", "--host", "2001:db8::1")
    assert "Hosts of the brokers: localhost, 127.0.0.1, ::1, broker.example, 192.0.2.7, 2001:db8::1." in output
    _, output = run("issue", tmp_path, "broker", "--broker", "--days", 90)
    assert "Its hosts are localhost, 127.0.0.1, ::1, broker.example, 192.0.2.7, 2001:db8::1." in output
    for host in ("localhost", "broker.example", "192.0.2.7", "2001:db8::1"):
        assert handshake(*contexts(tmp_path), host) is None
    _, output = run("issue", tmp_path, "broker", "--broker", "--host", "other.example")
    assert "Its hosts are localhost, 127.0.0.1, ::1, other.example." in output
    (tmp_path / "new.pem").write_text("not a certificate")
    assert "Its hosts are localhost, 127.0.0.1, ::1." in run("issue", tmp_path, "new", "--broker")[1]


def test_java_reads_the_pkcs12_files(tmp_path: Path) -> None:
    store = CertificateStore.create(tmp_path, 1)
    store.issue_broker("broker", ["broker.example"], 1)
    for name, kind in (("broker", "PrivateKeyEntry"), ("truststore", "trustedCertEntry")):
        store_file, password = str(tmp_path / f"{name}.p12"), str(tmp_path / "password")
        command = ["keytool", "-list", "-keystore", store_file, "-storepass:file", password]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        assert kind in listed.stdout


def test_certificates_end_when_they_should() -> None:
    authority = CertificateAuthority.create(NOW, 10)
    issued = authority.issue_client("alice", NOW, 3)
    assert issued.name == "alice"
    assert issued.certificate.not_valid_after_utc == NOW + timedelta(days=3)
    assert issued.certificate.not_valid_before_utc < NOW
    issued.certificate.verify_directly_issued_by(authority.root.certificate)
    with pytest.raises(KlammError, match="0 days"):
        authority.issue_client("alice", NOW, 0)
    with pytest.raises(KlammError, match="1 to 64 characters"):
        authority.issue_client("a" * 65, NOW, 1)


def test_an_authority_needs_its_own_key() -> None:
    one, other = CertificateAuthority.create(NOW, 1).root, CertificateAuthority.create(NOW, 1).root
    with pytest.raises(KlammError, match="does not belong"):
        CertificateAuthority.load(one.certificate_pem(), other.key_pem())
    with pytest.raises(KlammError, match="cannot be read"):
        CertificateAuthority.load(b"", other.key_pem())


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    write_private(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
