"""klamm's SCRAM client beside the library's server, and with names and passwords that SASLprep changes or refuses."""

from __future__ import annotations

from base64 import b64encode

import pytest
from scramp import ScramMechanism

from klamm.security.sasl.client_mechanisms import SaslCredentials, SaslFailure, sasl_client
from klamm.security.sasl.mechanisms import SCRAM, SCRAM_SHA_256
from klamm.security.sasl.new_credential import scram_text
from klamm.security.sasl.scram_client import ScramClient
from klamm.security.sasl.scram_credential import ScramCredential, parse_credential
from klamm.security.sasl.scram_exchange import ScramExchange, ScramMistake
from klamm.security.secret import Secret

ODD = ["alice", "müller", "mu\u0308ller", "ﬁne ½…™", "a\u00a0b", "🔑", 'o\'b "x"', "a=b,c=2C", "x" * 200, "User:*", "*"]


def log_in(mechanism: str, name: str, password: str, credentials: dict[str, ScramCredential]) -> str:
    """Return the name under which the broker looked for the user. Raises the errors of either side."""
    looked_up: list[str] = []

    def find(name: str) -> ScramCredential | None:
        looked_up.append(name)
        return credentials.get(name)

    server = ScramExchange(mechanism, find)
    client = sasl_client(SaslCredentials(mechanism, name, Secret(password)))
    proof = client.step(server.begin(client.first().decode())[1].encode())
    assert proof is not None
    assert client.step(server.finish(proof.decode()).encode()) is None
    return looked_up[0]


@pytest.mark.parametrize("odd", ODD)
def test_names_and_passwords_of_all_kinds(odd: str) -> None:
    """A user that was added with a name and a password logs in with exactly these."""
    known = {odd: parse_credential(scram_text(SCRAM_SHA_256, odd))}
    assert log_in(SCRAM_SHA_256, odd, odd, known) == odd
    with pytest.raises(ScramMistake):
        log_in(SCRAM_SHA_256, odd, odd + "x", known)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_login_at_the_library_s_server(mechanism: str) -> None:
    library = ScramMechanism(mechanism)
    auth_info = library.make_auth_info("alice-secret", iteration_count=4096)
    server = library.make_server(lambda _: auth_info)
    client = ScramClient(mechanism, "alice", Secret("alice-secret"))
    server.set_client_first(client.first().decode())
    server.set_client_final(client.prove(server.get_server_first().encode()).decode())
    client.verify(server.get_server_final().encode())


def server_first(
    client: ScramClient, nonce: str = "more", salt: bytes = b"sixteen bytes...", rounds: str = "4096"
) -> bytes:
    own = client.first().decode().rpartition("r=")[2]
    return f"r={own}{nonce},s={b64encode(salt).decode()},i={rounds}".encode()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nonce": ""}, "does not continue the nonce"),
        ({"rounds": "4095"}, "demands 4095 rounds"),
        ({"rounds": "999999999"}, "demands 999999999 rounds"),
        ({"rounds": "0"}, "malformed"),
        ({"rounds": "9" * 30}, "malformed"),
        ({"salt": b""}, "malformed"),
        ({"nonce": ",r=x"}, "malformed"),
    ],
)
def test_a_broker_that_is_not_honest(change: dict[str, str], problem: str) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("alice-secret"))
    with pytest.raises(ValueError, match=problem):
        client.prove(server_first(client, **change))  # type: ignore[arg-type]


def test_another_broker_s_nonce_is_refused() -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("alice-secret"))
    with pytest.raises(ValueError, match="does not continue the nonce"):
        client.prove(server_first(ScramClient(SCRAM_SHA_256, "alice", Secret("x"))))


@pytest.mark.parametrize("final", [b"v=" + b64encode(bytes(32)), b"v=", b"", b"e=other-error", b"v=AAAA,x", b"\xff"])
def test_a_broker_that_does_not_know_the_password(final: bytes) -> None:
    client = sasl_client(SaslCredentials(SCRAM_SHA_256, "alice", Secret("alice-secret")))
    own = client.first().decode().rpartition("r=")[2]
    assert client.step(f"r={own}more,s={b64encode(bytes(16)).decode()},i=4096".encode()) is not None
    with pytest.raises(SaslFailure, match="SCRAM message is not acceptable") as refused:
        client.step(final)
    assert "alice-secret" not in str(refused.value)
