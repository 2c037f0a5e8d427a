"""Checks of new key material before a broker uses it: a bad certificate must not cut the cluster apart."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from klamm.errors import ConfigError
from klamm.security.tls.stores import KeyPair

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def check_trusted(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Shake hands in memory. Raises ConfigError if the broker would not trust its own certificate.

    `host` is the name in advertised.listeners, by which the controller and other brokers connect.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        connecting = client.wrap_bio(to_client, to_server, server_side=False, server_hostname=host)
    except ValueError:  # The client looks at the name before the handshake.
        raise ConfigError(
            f"no broker can connect to {host!r}, the name in advertised.listeners: it is not a host."
        ) from None
    sides = [connecting, server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        for _ in range(10):
            sides = [side for side in sides if not _advance(side)]
            if not sides:
                return
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason or "unknown reason"
        raise ConfigError(_unusable(str(reason), host)) from None
    raise ConfigError("the TLS handshake of this broker with itself does not end.")


def _unusable(reason: str, host: str) -> str:
    if "mismatch" in reason:
        return (
            f"its certificate is not for {host}, the name in advertised.listeners by which brokers connect to each "
            "other: issue one that has this name (klamm tls issue --broker --host NAME), or advertise another."
        )
    if "expired" in reason:
        return (
            "its certificate has expired, so brokers could not connect to each other: issue a new one "
            "(klamm tls issue --broker)."
        )
    if "purpose" in reason:
        return (
            f"its certificate is not a broker's ({reason}), so neither clients nor brokers could connect: issue it "
            "with --broker (klamm tls issue DIR NAME --broker)."
        )
    return (
        f"its own truststore does not accept its certificate ({reason}), so brokers could not connect to each "
        "other: add the certificate that signs brokers to ssl.truststore.location."
    )


def _advance(side: ssl.SSLObject) -> bool:
    """Return whether this side has finished."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def check_successor(old: KeyPair, new: KeyPair, *, allows_subject: bool, allows_names: bool) -> None:
    """Raises ConfigError if a new certificate is of another subject, or lacks names of the old one."""
    before, after = _leaf(old), _leaf(new)
    if not allows_subject and before.subject != after.subject:
        raise ConfigError(
            f"the new certificate is of {after.subject.rfc4514_string()}, the old one of "
            f"{before.subject.rfc4514_string()}: set ssl.allow.dn.changes to allow it."
        )
    if not allows_names and not _names(before) <= _names(after):
        missing = ", ".join(sorted(_names(before) - _names(after)))
        raise ConfigError(
            f"the new certificate lacks the names {missing}: issue one that has them (klamm tls issue --broker --host "
            "NAME), or set ssl.allow.san.changes to allow it."
        )


def _leaf(pair: KeyPair) -> Certificate:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(pair.chain)


def _names(certificate: Certificate) -> set[str]:
    from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName

    try:
        found = certificate.extensions.get_extension_for_class(SubjectAlternativeName)
    except ExtensionNotFound:
        return set()
    return {str(getattr(name, "value", name)) for name in found.value}
