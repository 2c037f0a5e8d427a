"""CertificateStore: the files of a certificate authority in one directory, as Kafka's brokers and clients read them.

| file | content |
|---|---|
| `ca.pem`, `ca-key.pem` | the authority; brokers and clients need only `ca.pem` |
| `truststore.p12` | the authority's certificate for Java |
| `NAME.pem` | private key and certificate chain, as `ssl.keystore.type=PEM` expects them |
| `NAME-key.pem`, `NAME-cert.pem` | the same in two files, as librdkafka and Python expect them |
| `NAME.p12` | the same as PKCS12 |
| `password` | the password of the PKCS12 files |
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from klamm.errors import KlammError
from klamm.security.certificates.authority import (
    LOCAL_HOSTS,
    CertificateAuthority,
    IssuedCertificate,
    hosts_of,
    is_server,
    now_utc,
)
from klamm.security.certificates.private_files import make_private_directory, write_private

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"
TRUSTSTORE_FILE: Final = "truststore.p12"
PASSWORD_FILE: Final = "password"
_TAKEN: Final = ("ca", "truststore")
_TAKEN_ENDS: Final = ("-key", "-cert")
"""A certificate of such a name would replace a file of the authority or of another certificate."""


class CertificateStore:
    """Owns the files of one directory."""

    def __init__(self, directory: Path, authority: CertificateAuthority, password: str) -> None:
        self.directory = directory
        self.password = password
        self._authority = authority

    @classmethod
    def create(cls, directory: Path, days: int, *, replace: bool = False) -> CertificateStore:
        """Make a new authority. Without `replace`, an existing one raises KlammError."""
        existing = [name for name in (CA_FILE, CA_KEY_FILE, TRUSTSTORE_FILE) if (directory / name).exists()]
        if existing and not replace:
            raise KlammError(
                f"{directory / existing[0]} exists. Certificates of a replaced authority are no longer trusted: "
                "pass --force to replace it, or name another directory."
            )
        make_private_directory(directory)
        store = cls(directory, CertificateAuthority.create(now_utc(), days), secrets.token_urlsafe(18))
        store.write_authority()
        return store

    @classmethod
    def load(cls, directory: Path) -> CertificateStore:
        try:
            authority = CertificateAuthority.load(
                (directory / CA_FILE).read_bytes(), (directory / CA_KEY_FILE).read_bytes()
            )
            return cls(directory, authority, (directory / PASSWORD_FILE).read_text().strip())
        except OSError as error:
            raise KlammError(f"{error.filename} cannot be read: {error.strerror}.") from None

    @property
    def ca_path(self) -> Path:
        return self.directory / CA_FILE

    @property
    def truststore_path(self) -> Path:
        return self.directory / TRUSTSTORE_FILE

    def keystore_path(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def names_server(self, name: str) -> bool | None:
        """Whether the existing certificate of this name is a broker's; None if there is no certificate to read."""
        found = self._existing(name)
        return None if found is None else is_server(found)

    def hosts_of(self, name: str) -> list[str]:
        """The hosts that the existing certificate of this name has; empty without one."""
        found = self._existing(name)
        return [] if found is None else hosts_of(found)

    def _existing(self, name: str) -> x509.Certificate | None:
        _check_name(name)
        try:
            return x509.load_pem_x509_certificate(self.keystore_path(name).read_bytes())
        except (OSError, ValueError):
            return None

    def write_authority(self) -> None:
        root = self._authority.root
        trusted = pkcs12.PKCS12Certificate(root.certificate, b"ca")
        write_private(self.directory / PASSWORD_FILE, f"{self.password}\n".encode())
        write_private(self.directory / CA_KEY_FILE, root.key_pem())
        write_private(self.truststore_path, pkcs12.serialize_java_truststore([trusted], self._encryption()))
        write_private(self.ca_path, root.certificate_pem())

    def issue_broker(
        self, name: str, hosts: Sequence[str], days: int, now: datetime | None = None
    ) -> IssuedCertificate:
        """Write the certificate of a broker that is reached at localhost and at `hosts`."""
        names = (*LOCAL_HOSTS, *hosts)
        return self._write(name, self._authority.issue_broker(name, names, now or now_utc(), days))

    def issue_client(self, name: str, days: int, now: datetime | None = None) -> IssuedCertificate:
        return self._write(name, self._authority.issue_client(name, now or now_utc(), days))

    def _write(self, name: str, issued: IssuedCertificate) -> IssuedCertificate:
        _check_name(name)
        key, chain = issued.key_pem(), issued.certificate_pem()
        bundle = pkcs12.serialize_key_and_certificates(
            name.encode(), issued.key, issued.certificate, [issued.issuer], self._encryption()
        )
        write_private(self.directory / f"{name}-key.pem", key)
        write_private(self.directory / f"{name}-cert.pem", chain)
        write_private(self.directory / f"{name}.p12", bundle)
        write_private(self.keystore_path(name), key + chain)
        return issued

    def _encryption(self) -> serialization.KeySerializationEncryption:
        return serialization.BestAvailableEncryption(self.password.encode())


def _check_name(name: str) -> None:
    if not name or name.startswith(".") or "/" in name or name in _TAKEN or name.endswith(_TAKEN_ENDS):
        raise KlammError(f"{name!r} cannot be the name of a certificate file.")
