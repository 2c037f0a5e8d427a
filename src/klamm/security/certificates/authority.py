"""CertificateAuthority: signs certificates of brokers and clients. No I/O: time is an argument."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from klamm.errors import KlammError
from klamm.lazy_dataclass import lazy_dataclass

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW: Final = timedelta(hours=1)
"""Certificates are valid from this long before now on, because clocks differ."""
_LONGEST_NAME: Final = 64


@lazy_dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate with its private key and the certificate of its issuer."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    issuer: x509.Certificate

    @property
    def name(self) -> str:
        return str(self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    def certificate_pem(self) -> bytes:
        """The certificate and its issuer's, the order in which TLS sends a chain."""
        chain = [self.certificate] if self.certificate == self.issuer else [self.certificate, self.issuer]
        return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain)

    def key_pem(self) -> bytes:
        """The private key in PKCS#8, without a password."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


class CertificateAuthority:
    """Issues certificates. Keys are ECDSA on P-256: every TLS library has it, and a handshake takes a millisecond."""

    def __init__(self, root: IssuedCertificate) -> None:
        self.root = root

    @classmethod
    def create(cls, now: datetime, days: int, name: str = "klamm test CA") -> CertificateAuthority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        public = key.public_key()
        usage = _key_usage(key_cert_sign=True, crl_sign=True)
        certificate = (
            _builder(subject, subject, public, now, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(IssuedCertificate(certificate, key, certificate))

    @classmethod
    def load(cls, certificate_pem: bytes, key_pem: bytes) -> CertificateAuthority:
        """Raises KlammError if the texts are not an authority of this kind."""
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            key = serialization.load_pem_private_key(key_pem, None)
        except (ValueError, TypeError) as error:
            raise KlammError(f"The certificate authority cannot be read: {error}.") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise KlammError("The key of the certificate authority is not an EC key.")
        if key.public_key() != certificate.public_key():
            raise KlammError("The key does not belong to the certificate of the authority.")
        return cls(IssuedCertificate(certificate, key, certificate))

    def issue_broker(self, name: str, hosts: Sequence[str], now: datetime, days: int) -> IssuedCertificate:
        """Issue a certificate for servers at `hosts`. It is also a client's, because brokers connect to brokers."""
        return self._issue(name, hosts, (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH), now, days)

    def issue_client(self, name: str, now: datetime, days: int) -> IssuedCertificate:
        """Issue a certificate that proves a name, `User:CN=<name>` to a broker."""
        return self._issue(name, (), (ExtendedKeyUsageOID.CLIENT_AUTH,), now, days)

    def _issue(
        self, name: str, hosts: Sequence[str], usages: Sequence[x509.ObjectIdentifier], now: datetime, days: int
    ) -> IssuedCertificate:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.root.certificate
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.root.key.public_key())
        builder = (
            _builder(_name(name), issuer.subject, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority_key, critical=False)
        )
        if hosts:
            names = [alternative_name(host) for host in dict.fromkeys(hosts)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return IssuedCertificate(builder.sign(self.root.key, hashes.SHA256()), key, issuer)


def alternative_name(host: str) -> x509.GeneralName:
    """The subject alternative name of an IP address or a DNS name. Raises KlammError if `host` is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        ascii_name = host.encode("idna").decode("ascii") if not host.isascii() else host
        if not host or any(character in host for character in " /:,@\t\n"):
            raise ValueError
        return x509.DNSName(ascii_name)
    except ValueError:
        raise KlammError(f"{host!r} is not a host name or an IP address.") from None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and addresses of a certificate, in its order."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def is_server(certificate: x509.Certificate) -> bool:
    """Whether clients accept the certificate from a server."""
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return ExtendedKeyUsageOID.SERVER_AUTH in usages


def now_utc() -> datetime:
    return datetime.now(UTC)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    if days < 1:
        raise KlammError(f"A certificate cannot be valid for {days} days.")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    if not 0 < len(text) <= _LONGEST_NAME:
        raise KlammError(f"The name of a certificate has 1 to {_LONGEST_NAME} characters, not {len(text)}.")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
