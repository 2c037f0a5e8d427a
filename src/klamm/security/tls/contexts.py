"""TLS contexts of both sides, from settings that hold everything in memory."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from klamm.errors import ConfigError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.secret import Secret
from klamm.security.tls.cipher_suites import openssl_suites
from klamm.security.tls.stores import KeyPair

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""Older versions are broken; Kafka's default does not have them either."""


@lazy_dataclass(frozen=True, slots=True)
class TlsSettings:
    """One side of TLS. `trusted` is PEM; None means the system's certificates for a client, nobody for a server."""

    key_pair: KeyPair | None = None
    trusted: bytes | None = None
    client_auth: str = "none"
    checks_hostname: bool = True
    checks_certificate: bool = True
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a listener. Raises ConfigError."""
    if settings.key_pair is None:
        raise ConfigError("ssl.keystore.location is missing: a TLS listener needs a key and a certificate.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context, settings)
    _use_key_pair(context, settings.key_pair)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if settings.client_auth == "none":
        return context
    if settings.trusted is None:
        raise ConfigError(
            f"ssl.client.auth is {settings.client_auth}, but ssl.truststore.location is missing: set it to the "
            "certificate that signs clients."
        )
    context.load_verify_locations(cadata=settings.trusted.decode())
    context.verify_mode = ssl.CERT_REQUIRED if settings.client_auth == "required" else ssl.CERT_OPTIONAL
    return context


@lru_cache(maxsize=16)
def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a client; equal settings share one. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context, settings)
    context.check_hostname = settings.checks_hostname and settings.checks_certificate
    if not settings.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
    elif settings.trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(cadata=settings.trusted.decode())
    if settings.key_pair is not None:
        _use_key_pair(context, settings.key_pair)
    return context


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.protocols if name not in VERSIONS]
    if unknown or not settings.protocols:
        raise ConfigError(
            f"ssl.enabled.protocols cannot have {', '.join(unknown) or 'no value'}: expected TLSv1.2, TLSv1.3."
        )
    versions = {VERSIONS[name] for name in settings.protocols}
    if settings.cipher_suites:
        suites = openssl_suites(settings.cipher_suites)
        versions &= {version for version, is_usable in _usable(suites.older, suites.has_tls13) if is_usable}
        if not versions:
            raise ConfigError("ssl.cipher.suites has no suite for any version in ssl.enabled.protocols.")
        try:
            if suites.older:
                context.set_ciphers(suites.older)
        except ssl.SSLError:
            raise ConfigError("ssl.cipher.suites names no suite that OpenSSL has.") from None
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _usable(older: str, has_tls13: bool) -> list[tuple[ssl.TLSVersion, bool]]:
    return [(ssl.TLSVersion.TLSv1_2, bool(older)), (ssl.TLSVersion.TLSv1_3, has_tls13)]


def _use_key_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Set the certificate of a new context. Raises ConfigError.

    A context keeps one certificate per type of key, so a second call might not replace the first certificate.
    """
    with _as_file(pair.chain) as chain, _as_file(pair.key) as key:
        try:
            context.load_cert_chain(chain, key)
        except ssl.SSLError as error:
            raise ConfigError(f"OpenSSL refuses the certificate or key: {error.reason or 'unknown reason'}.") from None


@contextmanager
def _as_file(data: bytes | Secret[bytes]) -> Iterator[str]:
    """A file in memory: OpenSSL reads keys from files only, and a decrypted key must not reach a disk."""
    handle = os.memfd_create("klamm-tls", os.MFD_CLOEXEC)
    try:
        os.write(handle, data.reveal() if isinstance(data, Secret) else data)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
