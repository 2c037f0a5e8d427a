"""Every flight of a TLS handshake, damaged in thousands of ways: no client gets the identity of another one."""

from __future__ import annotations

import ssl
from random import Random
from typing import Final

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from klamm.model import SecurityProtocol
from klamm.security.listener_security import ListenerSecurity
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.stores import KeyPair
from tests.support.certificates import Authority, Issued
from tests.support.tls_flights import Side, damage

AUTHORITY: Final = Authority()
BROKER: Final = AUTHORITY.issue()
ALICE: Final = AUTHORITY.issue((NameOID.ORGANIZATION_NAME, "klamm"), (NameOID.COMMON_NAME, "alice"))
CASES: Final = 120
"""Per flight, version of TLS and kind of client: about a millisecond each."""
MOST_FLIGHTS: Final = 8


def settings(issued: Issued | None, protocol: str, client_auth: str = "none") -> TlsSettings:
    pair = None if issued is None else KeyPair(issued.certificate_pem, Secret(issued.key_pem))
    return TlsSettings(pair, AUTHORITY.pem, client_auth, protocols=(protocol,))


class Handshake:
    """A handshake whose flight number `damaged` does not arrive as it was sent; None damages nothing."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, damaged: int | None, rng: Random) -> None:
        self.client, self.server = Side(client, is_server=False), Side(server, is_server=True)
        self.flights = 0
        self.is_changed = False
        flight, sides = self.client.receive(b""), (self.server, self.client)
        while flight and self.flights < MOST_FLIGHTS:
            sent = damage(rng, flight) if self.flights == damaged else flight
            self.is_changed |= sent != flight
            flight = sides[self.flights % 2].receive(sent)
            self.flights += 1

    def passes_data(self) -> bool:
        """Whether both sides have finished and understand each other."""
        if not (self.client.is_finished and self.server.is_finished):
            return False
        self.server.receive(self.client.write(b"to the server"))
        self.client.receive(self.server.write(b"to the client"))
        return (self.server.read(), self.client.read()) == (b"to the server", b"to the client")


@pytest.mark.parametrize("certificate", [None, ALICE], ids=["without-certificate", "with-certificate"])
@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_a_damaged_flight_ends_the_handshake_or_changes_nothing(protocol: str, certificate: Issued | None) -> None:
    asks = "none" if certificate is None else "required"
    client = client_context(settings(certificate, protocol))
    server = server_context(settings(BROKER, protocol, asks))
    good = Handshake(client, server, None, Random(0))
    assert good.passes_data() and good.flights >= 3
    expected = good.server.peer_certificate
    refused = 0
    for flight in range(good.flights):
        for case in range(CASES):
            rng = Random(f"{protocol} {asks} {flight} {case}")
            tried = Handshake(client, server, flight, rng)
            if not tried.is_changed:
                continue
            where = f"{protocol}, flight {flight}, case {case}"
            if tried.server.is_finished:
                assert tried.server.peer_certificate == expected, where
            if tried.client.is_finished:
                assert tried.client.peer_certificate == good.client.peer_certificate, where
            refused += not tried.passes_data()
    assert refused > CASES * good.flights * 0.8, "most damage must be noticed"


def test_a_server_that_requires_a_certificate_never_finishes_without_one() -> None:
    """The client sends none, or one of another authority, and its flights are damaged besides."""
    stranger = Authority("another").issue((NameOID.COMMON_NAME, "alice"))
    for protocol in ("TLSv1.2", "TLSv1.3"):
        server = server_context(settings(BROKER, protocol, "required"))
        for certificate in (None, stranger):
            client = client_context(settings(certificate, protocol))
            for case in range(CASES):
                rng = Random(f"{protocol} {case}")
                tried = Handshake(client, server, rng.choice((None, 0, 1, 2)), rng)
                assert not tried.server.is_finished, (protocol, case)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")  # odd, but still accepted
def test_a_damaged_certificate_does_not_break_the_mapping_of_names() -> None:
    """OpenSSL may accept encodings that the parser of names refuses: that must be a refusal, not a crash."""
    der = ALICE.certificate.public_bytes(Encoding.DER)
    listener = ListenerSecurity(SecurityProtocol.SSL)
    assert listener.principal_of(der) == "User:CN=alice,O=klamm"
    for case in range(2000):
        rng = Random(case)
        data = bytearray(der)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        name = listener.principal_of(bytes(data))
        assert name is None or name.startswith("User:")
