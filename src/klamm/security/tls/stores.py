"""Keystores and truststores, as Kafka names them: PEM and PKCS12, in files or (PEM) in the setting itself.

The result is PEM with a decrypted key, which never leaves the process. JKS is refused: it is Java's own format.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.errors import ConfigError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"
STORE_TYPES: Final = (PEM, PKCS12, JKS)
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PKCS12_SUFFIXES: Final = (".p12", ".pfx", ".pkcs12")
_KEY_MARK: Final = b"PRIVATE KEY-----"
_CERTIFICATE_MARK: Final = b"-----BEGIN CERTIFICATE-----"


@lazy_dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate chain, both as PEM. The key is not encrypted."""

    chain: bytes
    key: Secret[bytes]


@lazy_dataclass(frozen=True, slots=True)
class StoreSource:
    """Where a store is: a file, or PEM text. `what` is the key of the setting, for errors."""

    what: str
    path: str | None = None
    kind: str | None = None
    password: Secret[str] | None = None
    text: Secret[str] | None = None
    chain_text: str | None = None
    key_password: Secret[str] | None = None


def load_key_pair(source: StoreSource) -> KeyPair:
    """Return the key and the chain of a keystore. Raises ConfigError."""
    if source.text is not None:
        pem = source.text.reveal().encode() + b"\n" + (source.chain_text or "").encode()
        return _pem_key_pair(source, pem)
    data, kind = _read(source)
    if kind == PKCS12:
        return _pkcs12_key_pair(source, data)
    return _pem_key_pair(source, data)


def load_certificates(source: StoreSource) -> bytes:
    """Return the certificates of a truststore as PEM. Raises ConfigError."""
    if source.text is not None:
        data, kind = source.text.reveal().encode(), PEM
    else:
        data, kind = _read(source)
    certificates = _pkcs12_certificates(source, data) if kind == PKCS12 else _pem_certificates(source, data)
    if not certificates:
        raise _problem(source, "it contains no certificate")
    return b"".join(map(_certificate_pem, certificates))


def _read(source: StoreSource) -> tuple[bytes, str]:
    """Return the bytes of a file and its type. A PKCS12 file is recognised under any declared type, as in Java."""
    assert source.path is not None
    try:
        data = Path(source.path).read_bytes()
    except OSError as error:
        raise _problem(source, f"it cannot be read: {error.strerror}") from None
    kind = (source.kind or "").upper()
    if data.startswith(_JKS_MAGIC) or (kind == JKS and not _looks_like_pem(data) and not _looks_like_der(data)):
        raise _problem(
            source,
            "klamm does not read JKS; convert it with keytool -importkeystore -srckeystore FILE -deststoretype PKCS12",
        )
    if kind and kind not in STORE_TYPES:
        raise _problem(source, f"{source.kind} is not a store type: expected PEM or PKCS12")
    if kind == PEM or (kind != PKCS12 and not source.path.endswith(_PKCS12_SUFFIXES) and not _looks_like_der(data)):
        return data, PEM
    return data, PKCS12


def _looks_like_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _looks_like_der(data: bytes) -> bool:
    return data[:1] == b"\x30" and not _looks_like_pem(data)


def _pem_key_pair(source: StoreSource, data: bytes) -> KeyPair:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if _KEY_MARK not in data:
        raise _problem(source, "it contains no private key")
    secret = source.key_password or source.password
    password = None if secret is None else secret.reveal().encode()
    try:
        key = load_pem_private_key(_key_block(data), password if b"ENCRYPTED" in _key_block(data) else None)
    except (ValueError, TypeError):
        raise _problem(source, "its private key cannot be read: check ssl.key.password") from None
    certificates = _pem_certificates(source, data)
    if not certificates:
        raise _problem(source, "it contains no certificate")
    return _key_pair(source, key, certificates)


def _key_block(data: bytes) -> bytes:
    """The first private key of a PEM file. A file may have certificates before and after it."""
    label_end = data.index(_KEY_MARK)
    start = data.rindex(b"-----BEGIN ", 0, label_end)
    end_mark = data.find(_KEY_MARK, label_end + len(_KEY_MARK))
    end = len(data) if end_mark < 0 else end_mark + len(_KEY_MARK)
    return data[start:end] + b"\n"


def _pem_certificates(source: StoreSource, data: bytes) -> list[Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    start = data.find(_CERTIFICATE_MARK)
    if start < 0:
        return []
    try:
        return load_pem_x509_certificates(data)
    except ValueError:
        raise _problem(source, "a certificate in it cannot be read") from None


def _pkcs12_key_pair(source: StoreSource, data: bytes) -> KeyPair:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        store = load_pkcs12(data, _password(source))
    except ValueError:
        raise _problem(source, "it cannot be opened: check its password") from None
    if store.key is None or store.cert is None:
        raise _problem(source, "it contains no private key")
    chain = [store.cert.certificate, *(extra.certificate for extra in store.additional_certs)]
    return _key_pair(source, store.key, chain)


def _pkcs12_certificates(source: StoreSource, data: bytes) -> list[Certificate]:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        store = load_pkcs12(data, _password(source))
    except ValueError:
        raise _problem(source, "it cannot be opened: check its password") from None
    own = [store.cert.certificate] if store.cert is not None else []
    return own + [extra.certificate for extra in store.additional_certs]


def _password(source: StoreSource) -> bytes | None:
    return None if source.password is None else source.password.reveal().encode()


def _key_pair(source: StoreSource, key: PrivateKeyTypes, chain: list[Certificate]) -> KeyPair:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    def public(holder: PrivateKeyTypes | Certificate) -> bytes:
        return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    own = public(key)
    leaf = next((certificate for certificate in chain if public(certificate) == own), None)
    if leaf is None:
        raise _problem(source, "its certificate does not belong to its private key")
    ordered = [leaf, *(certificate for certificate in chain if certificate is not leaf)]
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(b"".join(map(_certificate_pem, ordered)), Secret(secret))


def _certificate_pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _problem(source: StoreSource, reason: str) -> ConfigError:
    where = f" ({source.path})" if source.path is not None and source.text is None else ""
    return ConfigError(f"{source.what}{where} cannot be used: {reason}.")
