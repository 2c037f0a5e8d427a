"""The SASL exchange as a broker sees it, in the manner of Kafka's SaslAuthenticatorTest."""

from __future__ import annotations

import contextlib
import hmac
import itertools
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode, ProtocolError
from klamm.model import SecurityProtocol
from klamm.network.gate import Answer, auth_bytes_of, mechanism_of
from klamm.protocol.frames import RequestHeader, decode_request_header, encode_request_header
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.wire import Message, decode, encode_bytes
from klamm.security.listener_security import ANONYMOUS
from klamm.security.sasl.mechanisms import FOR_CLIENTS, KLAMM_PEER, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from klamm.security.sasl.scram_credential import salted_password
from tests.unit.security import sasl_peer
from tests.unit.security.sasl_model import ModelledPeer, Step, login
from tests.unit.security.sasl_peer import START_MS, Peer, client_of, unsigned_token

GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism "


@pytest.mark.parametrize("mechanism", FOR_CLIENTS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_mechanism_authenticates(mechanism: str, version: int) -> None:
    peer = Peer()
    assert peer.log_in(mechanism, version=version).error_code == ErrorCode.NONE
    assert not peer.gate.is_closed and peer.context.principal == "User:alice"
    assert peer.metadata() is None, "a request passes"
    assert peer.security.counts.succeeded == 1 and peer.context.peer_broker_id is None


@pytest.mark.parametrize(
    ("mechanism", "user", "password", "message"),
    [
        (PLAIN, "alice", "wrong", "Authentication failed: Invalid username or password"),
        (PLAIN, "nobody", "nothing", "Authentication failed: Invalid username or password"),
        (PLAIN, "", "x", "Authentication failed: username not specified"),
        (PLAIN, "alice", "", "Authentication failed: password not specified"),
        (SCRAM_SHA_256, "alice", "wrong", GENERAL + SCRAM_SHA_256),
        (SCRAM_SHA_512, "nobody", "nothing", GENERAL + SCRAM_SHA_512),
    ],
)
def test_wrong_credentials_are_refused_with_kafkas_words(
    mechanism: str, user: str, password: str, message: str
) -> None:
    peer = Peer()
    response = peer.log_in(mechanism, user, password)
    assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, message)
    assert peer.gate.is_closed and peer.context.principal == ANONYMOUS and peer.security.counts.failed == 1


@pytest.mark.parametrize("version", [0, 1])
def test_nothing_is_answered_after_a_failure(version: int) -> None:
    """A client may send more before it learns of the failure."""
    peer = Peer()
    peer.handshake(PLAIN, version)
    peer.send_bytes(b"x") if version == 0 else peer.authenticate(b"x")
    for send in (peer.metadata, peer.api_versions, lambda: peer.authenticate(b"\0alice\0alice-secret")):
        with pytest.raises(ProtocolError, match="has failed"):
            send()
    assert peer.context.principal == ANONYMOUS and peer.security.counts.failed == 1


def test_an_unknown_mechanism_is_answered_with_the_known_ones() -> None:
    peer = Peer()
    answer = peer.send(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert answer is not None and answer.problem is not None
    response = answer.message
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM  # type: ignore[union-attr]
    assert list(response.mechanisms) == list(FOR_CLIENTS)  # type: ignore[union-attr]


def test_api_versions_may_come_first() -> None:
    peer = Peer()
    assert peer.api_versions() is None, "it passes to its handler"
    assert peer.log_in(PLAIN).error_code == ErrorCode.NONE


@pytest.mark.parametrize("steps", ["metadata", "authenticate", "versions metadata", "handshake metadata",
                                   "handshake versions", "handshake handshake"])  # fmt: skip
def test_requests_out_of_order_end_the_connection(steps: str) -> None:
    peer = Peer()
    *before, last = steps.split()
    actions: dict[str, Callable[[], Answer | None]] = {
        "metadata": peer.metadata,
        "versions": peer.api_versions,
        "authenticate": lambda: peer.send(SaslAuthenticateRequest(auth_bytes=b"x"), 1),
        "handshake": lambda: peer.send(SaslHandshakeRequest(mechanism=PLAIN), 1),
    }
    for step in before:
        actions[step]()
    answer = actions[last]()
    assert answer is not None and answer.problem is not None and "Unexpected Kafka request" in answer.problem
    assert peer.gate.is_closed and peer.security.counts.failed == 1


def test_bare_tokens_follow_a_handshake_of_version_0() -> None:
    peer = Peer()
    assert peer.handshake(SCRAM_SHA_256, version=0).error_code == ErrorCode.NONE
    client = client_of(SCRAM_SHA_256)
    first = peer.send_bytes(client.first())
    assert first is not None and first.token is not None and first.message is None
    token = client.step(first.token)
    assert token is not None
    last = peer.send_bytes(token)
    assert last is not None and last.token is not None and client.step(last.token) is None
    assert peer.context.principal == "User:alice" and peer.security.counts.without_reauthentication == 1


@pytest.mark.parametrize(("version", "is_bare"), [(0, False), (1, True)])
def test_a_client_cannot_change_the_form_of_its_tokens(version: int, is_bare: bool) -> None:
    """The handshake decides it: bare after version 0, in requests after version 1. The right password does not help."""
    peer = Peer()
    assert peer.handshake(PLAIN, version=version).error_code == ErrorCode.NONE
    token = client_of(PLAIN).first()
    if is_bare:
        with contextlib.suppress(ProtocolError):
            peer.send_bytes(token)
    else:
        peer.authenticate(token)
    assert peer.gate.is_closed and peer.context.principal == ANONYMOUS


def test_a_bad_bare_token_is_not_answered() -> None:
    peer = Peer()
    peer.handshake(PLAIN, version=0)
    answer = peer.send_bytes(b"\0alice\0wrong")
    assert answer is not None and answer.token is None and answer.problem is not None


@pytest.mark.parametrize("version", [3, 99, -1])
def test_an_unknown_version_ends_the_connection(version: int) -> None:
    frame = b"\0\x11" + version.to_bytes(2, "big", signed=True) + b"\0\0\0\1\xff\xff\0\5PLAIN"
    with pytest.raises(ProtocolError):
        Peer().send_bytes(frame)


def test_another_authorization_id_is_refused() -> None:
    peer = Peer()
    peer.handshake(PLAIN)
    response = peer.authenticate(b"bob\0alice\0alice-secret")
    assert "authorization id that is different" in response.error_message
    peer = Peer()
    peer.handshake(SCRAM_SHA_256)
    response = peer.authenticate(b"n,a=bob,n=alice,r=abcdef")
    assert "authorization id that is different" in response.error_message


@pytest.mark.parametrize(("message", "count"), [(b"", 1), (b"alice", 1), (b"\0alice", 2), (b"\0a\0b\0c", 4)])
def test_plain_needs_three_parts(message: bytes, count: int) -> None:
    peer = Peer()
    peer.handshake(PLAIN)
    assert peer.authenticate(message).error_message == f"Invalid SASL/PLAIN response: expected 3 tokens, got {count}"


def test_a_replayed_scram_proof_is_refused() -> None:
    """The broker's own nonce makes the proof of one exchange useless in another."""
    peer, client = Peer(), client_of(SCRAM_SHA_256)
    first = client.first()
    peer.handshake(SCRAM_SHA_256)
    proof = client.step(bytes(peer.authenticate(first).auth_bytes))
    assert proof is not None and peer.authenticate(proof).error_code == ErrorCode.NONE
    other = Peer()
    other.handshake(SCRAM_SHA_256)
    other.authenticate(first)
    assert other.authenticate(proof).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def final_message(nonce: str, server_first: str) -> bytes:
    """The last message of a SCRAM client with this nonce, by RFC 5802."""
    salted = salted_password(SCRAM_SHA_256, sasl_peer.PASSWORDS["alice"], sasl_peer.SALT, 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c=biws,r={nonce}"
    signature = hmac.digest(sha256(key).digest(), f"n=alice,r=own,{server_first},{bare}".encode(), "sha256")
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    return f"{bare},p={b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("nonce", "error"),
    [
        ("{whole}", ErrorCode.NONE),
        ("own{whole}", ErrorCode.NONE),
        ("ownown{whole}", ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("other{whole}", ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("own", ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("ownown", ErrorCode.SASL_AUTHENTICATION_FAILED),
    ],
)
def test_the_nonce_is_checked_as_in_kafka_3(nonce: str, error: ErrorCode) -> None:
    """librdkafka before 2.6.1 repeats its own part of the nonce. kcat of Debian 12 has such a librdkafka."""
    peer = Peer()
    peer.handshake(SCRAM_SHA_256)
    server_first = bytes(peer.authenticate(b"n,,n=alice,r=own").auth_bytes).decode()
    whole = server_first.split(",")[0].removeprefix("r=")
    final = final_message(nonce.format(whole=whole), server_first)
    assert peer.authenticate(final).error_code == error


def test_a_credential_of_another_mechanism_does_not_serve() -> None:
    """Downgrade: a user with a SHA-512 credential only cannot log in with SHA-256."""
    peer = Peer()
    missing = sasl_peer.CREDENTIALS.pop((SCRAM_SHA_256, "bob"))
    try:
        assert peer.log_in(SCRAM_SHA_256, "bob").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    finally:
        sasl_peer.CREDENTIALS[SCRAM_SHA_256, "bob"] = missing
    assert Peer().log_in(SCRAM_SHA_512, "bob").error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "token",
    [
        unsigned_token("alice", expires_s=START_MS // 1000 - 31),
        unsigned_token("alice", nbf=START_MS // 1000 + 60),
        unsigned_token(""),
        unsigned_token("alice", exp="never"),
        "not.a.token",
        "",
    ],
)
def test_a_bad_token_is_refused_in_two_steps(token: str) -> None:
    """RFC 7628: the broker sends a JSON error, the client acknowledges it, then the exchange fails."""
    peer = Peer()
    peer.handshake(OAUTHBEARER)
    response = peer.authenticate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    assert response.error_code == ErrorCode.NONE and b"invalid_token" in bytes(response.auth_bytes)
    assert peer.gate.is_closed
    assert peer.security.counts.failed == 1 and peer.gate.refusal, "the client may leave without the second step"
    last = peer.authenticate(b"\x01")
    assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and "invalid_token" in last.error_message
    assert peer.security.counts.failed == 1


@pytest.mark.parametrize("then", ["a token", "another request"])
def test_the_reason_for_refusing_a_token_is_for_the_log_only(then: str) -> None:
    peer = Peer()
    peer.handshake(OAUTHBEARER)
    first = peer.authenticate(
        f"n,,\x01auth=Bearer {unsigned_token('alice', nbf=START_MS // 1000 + 60)}\x01\x01".encode()
    )
    last = peer.metadata() if then == "another request" else peer.send(SaslAuthenticateRequest(auth_bytes=b"\x01"), 1)
    assert last is not None and last.problem == "the token is not valid yet"
    assert b"not valid yet" not in bytes(first.auth_bytes)
    assert last.message is None or "not valid yet" not in last.message.error_message  # type: ignore[attr-defined]
    assert peer.security.counts.failed == 1


def test_a_bad_token_of_the_old_protocol_counts_once() -> None:
    """After version 0 of the handshake, tokens are frames of their own, and an error is not answered."""
    peer = Peer()
    peer.handshake(OAUTHBEARER, 0)
    answer = peer.send_bytes(b"n,,\x01auth=Bearer not.a.token\x01\x01")
    assert answer is not None and b"invalid_token" in (answer.token or b"") and answer.problem is None
    assert peer.security.counts.failed == 1
    last = peer.send_bytes(b"\x01")
    assert last is not None and last.token is None and last.problem == "the token is malformed"
    assert peer.security.counts.failed == 1


def test_a_bad_token_counts_in_a_session_too() -> None:
    peer = Peer(sasl=sasl_peer.settings({OAUTHBEARER: 60_000}))
    peer.log_in(OAUTHBEARER)
    peer.now_ms += 2_000
    peer.handshake(OAUTHBEARER)
    peer.authenticate(b"n,,\x01auth=Bearer not.a.token\x01\x01")
    peer.authenticate(b"\x01")
    assert (peer.security.counts.failed, peer.security.counts.failed_again) == (0, 1)


# Sessions (KIP-368).


def test_a_session_has_the_shorter_of_both_lifetimes() -> None:
    peer = Peer(sasl=sasl_peer.settings({OAUTHBEARER: 7_200_000, PLAIN: 5_000}))
    assert peer.log_in(OAUTHBEARER).session_lifetime_ms == 3_600_000
    other = Peer(sasl=sasl_peer.settings({OAUTHBEARER: 60_000, PLAIN: 5_000}))
    assert other.log_in(OAUTHBEARER).session_lifetime_ms == 60_000
    third = Peer(sasl=sasl_peer.settings({PLAIN: 5_000}))
    assert third.log_in(PLAIN).session_lifetime_ms == 5_000
    assert Peer().log_in(PLAIN).session_lifetime_ms == 0


def with_session(mechanism: str = PLAIN) -> Peer:
    peer = Peer(sasl=sasl_peer.settings(dict.fromkeys(FOR_CLIENTS, 5_000)))
    assert peer.log_in(mechanism).error_code == ErrorCode.NONE
    peer.now_ms += 4_000
    return peer


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_client_may_authenticate_again(has_expired: bool) -> None:
    peer = with_session(SCRAM_SHA_512)
    if has_expired:
        peer.gate.expire()
    assert peer.log_in(SCRAM_SHA_512).session_lifetime_ms == 5_000
    counts = peer.security.counts
    assert (counts.succeeded, counts.succeeded_again, counts.expired) == (1, 1, 0) and not peer.gate.is_closed


def test_a_request_after_the_session_ends_the_connection() -> None:
    peer = with_session()
    peer.gate.expire()
    with pytest.raises(ProtocolError, match="its session has ended"):
        peer.metadata()
    assert peer.security.counts.expired == 1


def test_a_session_that_ends_during_a_proof_of_a_broker_stays_ended() -> None:
    peer = with_session()
    assert peer.handshake(KLAMM_PEER).error_code == ErrorCode.NONE
    client = sasl_peer.client_of(KLAMM_PEER, "12")
    first = peer.authenticate(client.first())
    peer.gate.expire()
    last = client.step(bytes(first.auth_bytes))
    assert last is not None and peer.authenticate(last).error_code == ErrorCode.NONE
    with pytest.raises(ProtocolError, match="its session has ended"):
        peer.metadata()
    renewed = with_session()
    renewed.gate.expire()
    assert renewed.log_in(PLAIN).error_code == renewed.log_in(KLAMM_PEER, "12").error_code == ErrorCode.NONE
    assert not renewed.gate.is_closed


def test_the_user_cannot_change() -> None:
    peer = with_session()
    response = peer.log_in(PLAIN, "bob")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert peer.context.principal == "User:alice" and peer.gate.is_closed and peer.security.counts.failed_again == 1


def test_the_mechanism_cannot_change() -> None:
    peer = with_session()
    assert peer.handshake(SCRAM_SHA_256).error_code == ErrorCode.NONE, "as in Kafka, the next step is refused"
    response = peer.authenticate(b"n,,n=alice,r=abc")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "is not supported for re-authentication of mechanism 'PLAIN'" in response.error_message


def test_a_failure_names_the_reauthentication() -> None:
    peer = with_session(SCRAM_SHA_256)
    message = peer.log_in(SCRAM_SHA_256, password="wrong").error_message
    assert message == GENERAL.replace("during authentication", "during re-authentication") + SCRAM_SHA_256


def test_authentication_again_within_a_second_is_out_of_place() -> None:
    """The handshake passes to its handler, which answers ILLEGAL_SASL_STATE."""
    peer = with_session()
    assert peer.log_in(PLAIN).error_code == ErrorCode.NONE
    peer.now_ms += 999
    assert peer.handshake(PLAIN) is None and not peer.gate.is_closed
    peer.now_ms += 1
    assert peer.log_in(PLAIN).error_code == ErrorCode.NONE


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_wall_clock_that_is_moved_does_not_change_when_a_client_may_authenticate_again(hours: int) -> None:
    peer = with_session()
    assert peer.log_in(PLAIN).error_code == ErrorCode.NONE
    peer.corrected_ms = hours * 3_600_000
    peer.now_ms += 999
    assert peer.handshake(PLAIN) is None
    peer.now_ms += 1
    assert peer.log_in(PLAIN).error_code == ErrorCode.NONE


def test_without_sessions_a_second_handshake_is_out_of_place() -> None:
    peer = Peer()
    peer.log_in(PLAIN)
    peer.now_ms += 60_000
    assert peer.handshake(PLAIN) is None and peer.authenticate(b"\0alice\0alice-secret") is None
    assert not peer.gate.is_closed


def test_requests_during_an_authentication_again_end_the_connection() -> None:
    peer = with_session()
    peer.handshake(PLAIN)
    answer = peer.metadata()
    assert answer is not None and answer.problem is not None and peer.gate.is_closed


# Brokers.


@pytest.mark.parametrize("protocol", [SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT])
def test_a_broker_proves_its_id(protocol: SecurityProtocol) -> None:
    peer = Peer(protocol)
    if protocol is SecurityProtocol.SASL_PLAINTEXT:
        peer.log_in(PLAIN)
    principal = peer.context.principal
    assert peer.log_in(KLAMM_PEER, "12").error_code == ErrorCode.NONE
    assert peer.context.peer_broker_id == 12 and peer.context.principal == principal and not peer.gate.is_closed


def test_a_proof_is_not_an_authentication() -> None:
    peer = Peer(SecurityProtocol.SASL_PLAINTEXT)
    assert peer.handshake(KLAMM_PEER).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert peer.gate.is_closed and peer.context.peer_broker_id is None


@pytest.mark.parametrize(
    ("broker", "secret"),
    [("12", "another secret"), ("alice", None), ("-1", None), ("2147483648", None), ("1" * 500, None)],
)
def test_a_forged_proof_is_refused(broker: str, secret: str | None) -> None:
    peer = Peer(SecurityProtocol.PLAINTEXT)
    response = peer.log_in(KLAMM_PEER, broker, secret)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert peer.context.peer_broker_id is None and peer.gate.is_closed


def test_other_mechanisms_are_out_of_place_without_sasl() -> None:
    peer = Peer(SecurityProtocol.PLAINTEXT)
    assert peer.handshake(PLAIN) is None and not peer.gate.is_closed


# Fuzzing.

USERS = st.sampled_from(["alice", "bob"])
STEPS = st.one_of(
    st.tuples(st.just("handshake"), st.sampled_from([*FOR_CLIENTS, KLAMM_PEER, "GSSAPI", ""]), st.integers(0, 1)),
    st.tuples(
        st.just("authenticate"),
        st.one_of(st.binary(max_size=200), st.sampled_from([b"\0alice\0wrong", b"n,,n=alice,r=abc", b"n,,\x01\x01"])),
        st.integers(0, 2),
    ),
    st.tuples(st.just("token"), USERS, st.integers(0, 2)),
    st.tuples(st.just("frame"), st.binary(max_size=60), st.just(0)),
    st.tuples(st.sampled_from(["metadata", "versions", "wait", "expire"]), st.just(b""), st.just(0)),
)
LOGINS = st.builds(login, st.sampled_from([*FOR_CLIENTS, KLAMM_PEER]), USERS, st.integers(0, 1))
WAIT: Step = ("wait", b"", 0)
EXPIRE: Step = ("expire", b"", 0)
METADATA: Step = ("metadata", b"", 0)


def take_all(steps: list[Step], protocol: SecurityProtocol, max_reauth_ms: int) -> ModelledPeer:
    """Take the steps until the broker closes the connection; after each, the gate must be as the model says."""
    peer = ModelledPeer(protocol, max_reauth_ms)
    peer.check()
    for step in steps:
        try:
            peer.take(step)
        except ProtocolError:
            break
        finally:
            peer.check()
    return peer


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(STEPS.map(lambda step: [step]), LOGINS), max_size=12).map(
        lambda found: list(itertools.chain.from_iterable(found))
    ),
    st.sampled_from(list(SecurityProtocol)),
    st.sampled_from([0, 5_000]),
)
def test_no_sequence_opens_a_gate_without_credentials(
    steps: list[Step], protocol: SecurityProtocol, max_reauth_ms: int
) -> None:
    """Whatever a peer sends: no principal, no broker id and no request beyond ApiVersions without the right tokens.

    There is no other exception. Sessions end, are renewed, and end during an exchange or a proof of a broker.
    """
    take_all(steps, protocol, max_reauth_ms)


@pytest.mark.parametrize(
    ("steps", "is_open"),
    [
        (login(SCRAM_SHA_256), True),
        ([*login(SCRAM_SHA_256), EXPIRE], False),
        ([*login(SCRAM_SHA_256), EXPIRE, METADATA], False),
        ([*login(PLAIN), WAIT, *login(PLAIN)], True),
        ([*login(PLAIN), EXPIRE, *login(PLAIN, version=0)], True),
        ([*login(PLAIN), WAIT, *login(PLAIN, "bob")], False),
        ([*login(PLAIN), WAIT, *login(SCRAM_SHA_512)], False),
        ([*login(OAUTHBEARER), *login(KLAMM_PEER)], True),
        ([*login(PLAIN), *login(KLAMM_PEER)[:2], EXPIRE, *login(KLAMM_PEER)[2:]], False),
        ([*login(PLAIN), WAIT, *login(PLAIN)[:1], EXPIRE, *login(PLAIN)[1:]], True),
        ([*login(PLAIN), WAIT, *login(PLAIN)[:1], ("authenticate", b"\0alice\0wrong", 1)], False),
    ],
)
def test_the_model_of_a_gate_reaches_sessions_and_proofs(steps: list[Step], is_open: bool) -> None:
    """The states that the sequences above must meet."""
    assert take_all(steps, SecurityProtocol.SASL_PLAINTEXT, 5_000).is_open == is_open


def _read_by_schema(request: type[Message], frame: bytes, version: int) -> Any:
    try:
        if version not in request.VERSIONS:
            return None
        message: Any = decode(request, version, frame, decode_request_header(frame)[1])[0]
    except ProtocolError:
        return None
    return message.mechanism if isinstance(message, SaslHandshakeRequest) else bytes(message.auth_bytes)


def _read(function: Callable[[bytes, int], object], frame: bytes, version: int) -> object:
    try:
        return function(frame, version)
    except ProtocolError:
        return None


@settings(max_examples=400)
@given(data=st.data())
def test_sasl_requests_are_read_as_the_schema_says(data: st.DataObject) -> None:
    """The gate reads usual requests in a shorter way. It must find the same in every frame, or refuse it too."""
    request, read, version = data.draw(
        st.sampled_from(
            [
                *((SaslHandshakeRequest(mechanism=SCRAM_SHA_256), mechanism_of, version) for version in (0, 1)),
                *((SaslAuthenticateRequest(auth_bytes=b"n,,n=a,r=b"), auth_bytes_of, v) for v in (0, 1, 2)),
            ]
        )
    )
    client_id = data.draw(st.sampled_from(["client", "", None, "kl\u00e4mm"]))
    frame = bytearray(encode_request_header(RequestHeader(request.KEY, version, 7, client_id)))
    frame += encode_bytes(request, version)
    for _ in range(data.draw(st.integers(0, 3))):
        where = data.draw(st.integers(2, len(frame) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "add"]))
        if kind == "set":
            frame[where] = data.draw(st.sampled_from([0, 1, 4, 0x7F, 0x80, 0xFF]))
        elif kind == "cut":
            del frame[max(where, 10) :]
        else:
            frame += bytes([data.draw(st.integers(0, 255))])
    whole = bytes(frame)
    sent_version = int.from_bytes(whole[2:4], "big", signed=True)
    assert _read(read, whole, sent_version) == _read_by_schema(type(request), whole, sent_version)


@pytest.mark.parametrize("version", [-1, 3])
def test_an_unknown_version_of_a_token_is_refused(version: int) -> None:
    frame = encode_request_header(RequestHeader(SaslAuthenticateRequest.KEY, version, 7, "client"))
    with pytest.raises(ProtocolError, match=f"version {version}"):
        auth_bytes_of(frame + b"\0\0\0\x01x", version)
