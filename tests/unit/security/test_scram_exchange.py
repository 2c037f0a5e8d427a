"""ScramExchange beside the library's own server: the same messages are accepted, with the same answers."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Iterator

import pytest
from scramp import ScramClient, ScramException, ScramMechanism
from scramp.utils import saslprep

from klamm.security.sasl.mechanisms import SCRAM, SCRAM_SHA_256
from klamm.security.sasl.scram_credential import ScramCredential, credential_of
from klamm.security.sasl.scram_exchange import MAX_FIRST_CHARS, MAX_NAME_CHARS, ScramExchange, ScramMistake
from tests.unit.security import sasl_peer

CHARACTERS = ["a", "n", "r", "m", "c", "p", "x", "Z", "=", ",", "\0", " ", "=2C", "=3D", "=2", "~", "!", "\x7f", "\n"]
CHARACTERS += [
    "é",
    "\u00a0",
    "\u00ad",
    "\u200b",
    "\u0627",
    "\u1160",
    "\ue000",
    "\ufffd",
    "ﬁ",
    "²",
    ",x=1",
    ",m=1",
    ",y",
]
MALFORMED = [
    "",
    ",",
    ",,",
    "n,,",
    "n,,n=alice",
    "n,,r=own",
    "n,,r=own,n=alice",
    "n,,n=alice,r=",
    "n,,n=,r=own",
    "n,,n=alice,r=own,",
    "n,,m=1,n=alice,r=own",
    "n,,n=alice,r=own,n=bob",
    "n,,n=alice,r=own,x=1,x=2",
    "n,,n=alice,r=own,é=1",
    "n,,n=alice,r=own,tokenauth=true",
    "n,,n=al=ice,r=own",
    "p=tls-unique,,n=alice,r=own",
    "p,,n=alice,r=own",
    "N,,n=alice,r=own",
    "n,,n=alice,r=o\x7fwn",
]


def prepared(name: str) -> str | None:
    """The name after SASLprep, as the library looks it up; None if it refuses the name."""
    try:
        return str(saslprep(name)) or None
    except ScramException:
        return None


class Both:
    """One exchange on either side, with the same part of the nonce."""

    def __init__(self, mechanism: str) -> None:
        self._mechanism = mechanism
        self.names: list[str] = []
        self._ours = ScramExchange(mechanism, self._find)
        self._library = ScramMechanism(mechanism).make_server(self._find_for_library)

    def _find(self, name: str) -> ScramCredential | None:
        """Every name has the password of Alice, so that more exchanges reach their end."""
        self.names.append(name)
        return sasl_peer.CREDENTIALS[self._mechanism, "alice"]

    def _find_for_library(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        found = self._find(name)
        assert found is not None
        return found.salt, found.stored_key, found.server_key, found.iterations

    def begin(self, text: str) -> str | None:
        """Return the common answer; None if both refuse the message."""
        try:
            ours: str | None = self._ours.begin(text)[1]
        except ScramMistake:
            ours = None
        if ours is not None:
            client_nonce = next(part for part in text.split(",")[2:] if part.startswith("r="))[2:]
            own = ours.split(",")[0][2:].removeprefix(client_nonce)
            self._library = ScramMechanism(self._mechanism).make_server(self._find_for_library, s_nonce=own)
        try:
            self._library.set_client_first(text)
            library: str | None = self._library.get_server_first()
        except ScramException:
            library = None
        if library is None and ours is not None and prepared(self.names[-1]) is None:
            return None  # The library refuses the name only, which SASLprep forbids.
        assert ours == library, text
        assert [prepared(name) for name in self.names[::2]] == self.names[1::2], text
        return ours

    def finish(self, text: str) -> str | None:
        try:
            ours: str | None = self._ours.finish(text)
        except ValueError:
            ours = None
        try:
            self._library.set_client_final(text)
            library: str | None = self._library.get_server_final()
        except ScramException:
            library = None
        assert ours == library, text
        return ours


def damaged(text: str, seed: str, count: int) -> Iterator[str]:
    """The text with one or two characters inserted, replaced or left out."""
    source = random.Random(seed)
    for _ in range(count):
        characters = list(text)
        for _ in range(source.choice((1, 1, 2))):
            at = source.randrange(len(characters))
            characters[at : at + source.choice((0, 1))] = source.choice((*CHARACTERS, ""))
        yield "".join(characters)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_login_with_the_library_s_client(mechanism: str) -> None:
    both = Both(mechanism)
    client = ScramClient([mechanism], "alice", sasl_peer.PASSWORDS["alice"])
    first = both.begin(client.get_client_first())
    client.set_server_first(first)
    last = both.finish(client.get_client_final())
    client.set_server_final(last)
    assert both.names == ["alice", "alice"]


def test_damaged_first_messages() -> None:
    texts = [*MALFORMED, *damaged("n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL", "first", 1500)]
    texts += damaged("y,,n=al=2Cice,r=own,x=1", "second", 1500)
    accepted = sum(Both(SCRAM_SHA_256).begin(text) is not None for text in texts if text.split(",")[1:2] in ([], [""]))
    assert len(texts) // 10 < accepted < len(texts) * 9 // 10, "both outcomes occur often"


@pytest.fixture
def quick_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash the password once: every login below has the same salt."""
    import scramp.core

    salted = scramp.core.hi(ScramMechanism(SCRAM_SHA_256).hf, b"alice-secret", sasl_peer.SALT, 4096)
    monkeypatch.setattr(scramp.core, "hi", lambda *_: salted)
    assert credential_of(SCRAM_SHA_256, salted, sasl_peer.SALT, 4096) == sasl_peer.CREDENTIALS[SCRAM_SHA_256, "alice"]


@pytest.mark.usefixtures("quick_hashing")
def test_damaged_final_messages() -> None:
    outcomes = set()
    for number in range(400):
        both = Both(SCRAM_SHA_256)
        client = ScramClient([SCRAM_SHA_256], "alice", "alice-secret")
        client.set_server_first(both.begin(client.get_client_first()))
        final = client.get_client_final()
        text = final if number % 10 == 0 else next(damaged(final, str(number), 1))
        outcomes.add(both.finish(text) is not None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("change", ["c=biws,", "c=eSws,", "c=bixhPWJvYiw=,", "c=bix,"])
@pytest.mark.usefixtures("quick_hashing")
def test_the_header_of_the_first_message_is_bound(change: str) -> None:
    """A proof is refused if the final message repeats another header than the first one had."""
    both = Both(SCRAM_SHA_256)
    client = ScramClient([SCRAM_SHA_256], "alice", "alice-secret")
    client.set_server_first(both.begin(client.get_client_first()))
    answer = both.finish(client.get_client_final().replace("c=biws,", change))
    assert (answer is not None) == (change == "c=biws,")


def test_a_long_first_message_is_refused() -> None:
    """A name of 260,000 characters fits into a frame."""
    looked_up: list[str] = []

    def find(name: str) -> ScramCredential | None:
        looked_up.append(name)
        return sasl_peer.CREDENTIALS[SCRAM_SHA_256, "alice"]

    longest = "é" * MAX_NAME_CHARS
    ScramExchange(SCRAM_SHA_256, find).begin(f"n,,n={longest},r=x")
    long = "x" * MAX_FIRST_CHARS
    for text in (f"n,,n={longest}é,r=x", f"n,,n=alice,r={long}", f"n,a={long},n=alice,r=x", f"n,,n=alice,r=x,e={long}"):
        with pytest.raises(ScramMistake, match="too long"):
            ScramExchange(SCRAM_SHA_256, find).begin(text)
    assert looked_up == [longest]


def test_a_second_message_of_the_same_kind_is_refused() -> None:
    exchange = ScramExchange(SCRAM_SHA_256, lambda _: sasl_peer.CREDENTIALS[SCRAM_SHA_256, "alice"])
    with pytest.raises(ScramMistake):
        exchange.finish("c=biws,r=own,p=AAAA")
    exchange.begin("n,,n=alice,r=own")
    with pytest.raises(ScramMistake):
        exchange.begin("n,,n=alice,r=own")


@pytest.mark.parametrize(
    ("salt", "iterations"), [(b"too short", 4096), (sasl_peer.SALT, 4095), (sasl_peer.SALT, 10**8)]
)
def test_a_credential_outside_of_the_limits_does_not_serve(salt: bytes, iterations: int) -> None:
    found = credential_of(SCRAM_SHA_256, bytes(32), salt, iterations)
    with pytest.raises(ScramMistake):
        ScramExchange(SCRAM_SHA_256, lambda _: found).begin("n,,n=alice,r=own")


def test_an_authorization_id_is_part_of_the_bound_header() -> None:
    exchange = ScramExchange(SCRAM_SHA_256, lambda _: sasl_peer.CREDENTIALS[SCRAM_SHA_256, "alice"])
    authorization_id, first = exchange.begin("n,a=alice,n=alice,r=own")
    assert authorization_id == "alice"
    nonce = first.split(",")[0]
    for header in ("n,,", "n,a=bob,"):
        with pytest.raises(ScramMistake, match="binding"):
            exchange.finish(f"c={b64encode(header.encode()).decode()},{nonce},p=AAAA")
