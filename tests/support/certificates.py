"""Certificates for tests: an authority, and keys that it signs, as files in every form that klamm reads."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_YEAR = datetime.timedelta(days=365)
_DAY = datetime.timedelta(days=1)
STORE_PASSWORD = "the word of the stores"
"""The password of PKCS12 files."""
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Issued:
    """One key with its certificate: `pem` is a keystore with both."""

    key: PrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def pem(self) -> bytes:
        return self.key_pem + self.certificate_pem

    def encrypted_pem(self, password: str) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption) + self.certificate_pem

    def pkcs12(self, password: str) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"one", self.key, self.certificate, [self.authority], encryption)


class Authority:
    """A certificate authority that lives as long as the test."""

    def __init__(self, name: str = "Test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (
            _builder(subject, subject, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def truststore(self, password: str) -> bytes:
        return pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(self.certificate, b"ca")], BestAvailableEncryption(password.encode())
        )

    def issue(
        self,
        *attributes: tuple[x509.ObjectIdentifier, str],
        names: Sequence[str] = ("localhost", "127.0.0.1", "::1"),
        ended: bool = False,
        key: PrivateKey | None = None,
    ) -> Issued:
        """Sign a certificate with this subject, by default CN=localhost, for these hosts. `ended`: it has expired.

        Without `key`, a key on an elliptic curve is made.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        named = attributes or ((NameOID.COMMON_NAME, "localhost"),)
        subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in named])
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(subject, self.certificate.subject, key, ends_in=-_DAY if ended else _YEAR)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(key, certificate, self.certificate)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    ends_in: datetime.timedelta = _YEAR,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _YEAR)
        .not_valid_after(now + ends_in)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True)
class TlsFiles:
    """The files of one broker and one client, and their authority. `ca` and `client` are PEM in every form."""

    authority: Authority
    form: str
    ca: Path
    broker: Path
    client: Path
    truststore: Path

    def new_keystore(self, *, authority: Authority | None = None) -> bytes:
        """A keystore of this form with a new key of the broker."""
        issued = (authority or self.authority).issue()
        return issued.pkcs12(STORE_PASSWORD) if self.form == "PKCS12" else issued.pem

    def settings(self) -> dict[str, object]:
        """Kafka's keys for a broker."""
        found: dict[str, object] = {
            "ssl.keystore.location": self.broker,
            "ssl.keystore.type": self.form,
            "ssl.truststore.location": self.truststore,
            "ssl.truststore.type": self.form,
        }
        if self.form == "PKCS12":
            found |= {"ssl.keystore.password": STORE_PASSWORD, "ssl.truststore.password": STORE_PASSWORD}
        return found


def write_tls_files(directory: Path, form: str = "PEM") -> TlsFiles:
    authority = Authority()
    ca, client = directory / "ca.pem", directory / "client.pem"
    ca.write_bytes(authority.pem)
    client.write_bytes(authority.issue((NameOID.COMMON_NAME, "alice"), (NameOID.ORGANIZATION_NAME, "klamm")).pem)
    if form == "PEM":
        files = TlsFiles(authority, form, ca, directory / "broker.pem", client, ca)
    else:
        files = TlsFiles(authority, form, ca, directory / "broker.p12", client, directory / "truststore.p12")
        files.truststore.write_bytes(authority.truststore(STORE_PASSWORD))
    files.broker.write_bytes(files.new_keystore())
    return files
