"""Checks of new key material before a broker uses it: a bad certificate must not cut the cluster apart."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from klamm.errors import ConfigError
from klamm.security.tls.stores import KeyPair

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def check_trusted(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Shake hands in memory. Raises ConfigError if the broker would not trust its own certificate.

    The host name is not checked: it depends on the address by which another broker connects.
    """
    checks_hostname, client.check_hostname = client.check_hostname, False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    client.check_hostname = checks_hostname
    try:
        for _ in range(10):
            sides = [side for side in sides if not _advance(side)]
            if not sides:
                return
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason or "unknown reason"
        raise ConfigError(
            f"its own truststore does not accept its certificate ({reason}), so brokers could not connect to each "
            "other: add the certificate that signs brokers to ssl.truststore.location."
        ) from None
    raise ConfigError("the TLS handshake of this broker with itself does not end.")


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
        raise ConfigError(f"the new certificate lacks the names {missing}: set ssl.allow.san.changes to allow it.")


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
