"""The client's core: correlation, versions and deadlines, without a socket; and the blocking shell against one."""

from __future__ import annotations

import socket
import struct
import threading
from time import monotonic

import pytest

from klamm.client.blocking_connection import BlockingConnection, NotKafkaError, ask_once
from klamm.client.client_errors import AllRefusedError, ClientError, UnreachableError
from klamm.client.cluster_transactions import Transactions
from klamm.client.connection_pool import ClientConfig
from klamm.client.exchange import Exchange, Pending
from klamm.client.patience import (
    DRIVER_CALL,
    LOG_END_QUERY,
    VIEWER_TRANSACTIONS,
    Deadline,
    Patience,
    planning,
    repeated_for,
)
from klamm.client.versions import Negotiation
from klamm.errors import KlammError, ProtocolError
from klamm.protocol.frames import decode_request_header
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.wire import encode
from tests.support.frames import encode_response_frame

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


@pytest.mark.parametrize("version", HeartbeatRequest.VERSIONS)
def test_requests_are_framed_with_growing_correlation_ids(version: int) -> None:
    exchange: Exchange[Pending] = Exchange("me")
    for number in range(3):
        body = encode(HEARTBEAT, version)
        head, size = exchange.begin(Pending(HeartbeatRequest.KEY, version), body)
        frame = b"".join((head, *body))
        assert struct.unpack(">i", frame[:4]) == (size,) == (len(frame) - 4,)
        header, position = decode_request_header(frame[4:])
        assert header == (HeartbeatRequest.KEY, version, number, "me")
        assert frame[4 + position :] == b"".join(body)


def test_only_the_next_response_matches() -> None:
    exchange: Exchange[Pending] = Exchange(None)
    first, second = Pending(12, 4), Pending(12, 4)
    for pending in (first, second):
        exchange.begin(pending, encode(HEARTBEAT, 4))
    responses = [b"".join(encode_response_frame(n, HeartbeatResponse(error_code=n), 4))[4:] for n in range(2)]
    with pytest.raises(ProtocolError, match="response 1 arrived, expected 0"):
        exchange.match(responses[1])
    assert exchange.match(responses[0])[:3] == (first, HeartbeatResponse, 4)
    assert exchange.match(responses[1])[0] is second
    with pytest.raises(ProtocolError, match="without a request"):
        exchange.match(responses[1])


@pytest.mark.parametrize("keys", [[], [ApiVersion(api_key=18, min_version=0, max_version=2)]])
def test_a_broker_that_does_not_know_our_api_versions_is_asked_in_version_0(keys: list[ApiVersion]) -> None:
    negotiation = Negotiation("klamm")
    assert (negotiation.version, negotiation.request.client_software_name) == (3, "klamm")
    negotiation.receive(ApiVersionsResponse(error_code=35, api_keys=keys))
    assert (negotiation.version, negotiation.result) == (0, None)
    known = [ApiVersion(api_key=12, min_version=0, max_version=2)]
    negotiation.receive(ApiVersionsResponse(error_code=0, api_keys=known))
    assert negotiation.result is not None
    assert negotiation.result.highest(HeartbeatRequest) == 2
    assert negotiation.result.highest(HeartbeatRequest, limit=1) == 1
    with pytest.raises(ConnectionError, match="serves ApiVersionsRequest in versions 0 to -1 only"):
        negotiation.result.highest(ApiVersionsRequest)
    with pytest.raises(ConnectionError, match="rejected ApiVersions"):
        negotiation.receive(ApiVersionsResponse(error_code=35, api_keys=[]))


def test_no_request_may_take_longer_than_the_call() -> None:
    time = Time()
    deadline = Deadline(Patience(10_000, request_ms=4_000), time)
    assert deadline.request_ms == 4_000
    time.now = 7.0
    assert deadline.request_ms == 3_000 and not deadline.has_passed
    assert deadline.pause_s("offsets", OSError("reset"), was_reached=True) == 0.1
    time.now = 10.0
    assert deadline.request_ms == 1
    with pytest.raises(ClientError, match=r"did not return offsets within 10000 ms: reset\."):
        deadline.pause_s("offsets", OSError("reset"), was_reached=True)


def test_the_last_attempt_begins_early_enough_to_end_in_time() -> None:
    time = Time()
    call = repeated_for(Patience(10_000, request_ms=4_000), 6_000)
    deadline = Deadline(call, time)
    assert call.deadline_ms == 10_000

    def state_at(seconds: float) -> tuple[bool, float]:
        time.now = seconds
        return deadline.may_repeat, deadline.request_ms

    assert [state_at(seconds) for seconds in (0.0, 6.0, 8.0)] == [(True, 4_000), (False, 4_000), (False, 2_000)]
    assert not Deadline(VIEWER_TRANSACTIONS, time).may_repeat


def test_a_question_about_transactions_ends_at_its_deadline() -> None:
    """The broker accepts the connection and answers nothing: `request_ms` alone would let each step wait a minute."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = ClientConfig((silent.getsockname(),), client_id="test")
        began = monotonic()
        with pytest.raises(UnreachableError):
            Transactions(config, Patience(100, request_ms=60_000)).describe("tx")
        assert monotonic() - began < 50


def test_only_a_cluster_that_was_never_reached_and_refuses_is_given_up_early() -> None:
    time = Time()
    deadline = Deadline(DRIVER_CALL, time)
    time.now = 6.0
    deadline.pause_s("metadata", AllRefusedError("no broker answers"), was_reached=True)
    deadline.pause_s("metadata", ConnectionError("silence"), was_reached=False)
    with pytest.raises(UnreachableError, match=r"kafka\.bootstrap\.servers"):
        deadline.pause_s("metadata", AllRefusedError("no broker answers"), was_reached=False)
    time.now = 60.0
    with pytest.raises(UnreachableError):
        deadline.pause_s("metadata", ConnectionError("silence"), was_reached=False)


def test_a_step_of_the_planner_has_one_deadline() -> None:
    assert planning(Patience(60_000), retries=3, interval_ms=10).deadline_ms == 240_030


def test_back_off_grows_to_its_limit_where_there_is_one() -> None:
    assert [LOG_END_QUERY.pause_s(attempt) for attempt in (0, 1, 3, 30)] == [0.1, 0.2, 0.8, 5.0]
    assert [Patience(None, backoff_ms=50).pause_s(attempt) for attempt in (0, 9)] == [0.05, 0.05]


def serve_once(answer: bytes) -> tuple[str, int]:
    """Listen on loopback; answer the first request with these bytes and close."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as peer:
            peer.recv(65536)
            peer.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    host, port = server.getsockname()
    return host, port


def test_one_request_over_a_connection_of_its_own() -> None:
    address = serve_once(b"".join(encode_response_frame(0, HeartbeatResponse(error_code=27), 4)))
    assert ask_once(address, HEARTBEAT, 4, HeartbeatResponse, 30.0).error_code == 27


def test_the_connection_and_the_response_share_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock says that the connection took all of an hour, so the silent peer gets the least time."""
    time = Time()
    monkeypatch.setattr("klamm.client.blocking_connection.SystemClock", lambda: time)
    connect = socket.create_connection

    def slowly(address: tuple[str, int], timeout: float) -> socket.socket:
        time.now += timeout
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", slowly)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        ask_once(silent.getsockname(), HEARTBEAT, 4, HeartbeatResponse, 3600.0)


def test_a_peer_that_does_not_speak_kafkas_protocol() -> None:
    with pytest.raises(KlammError, match=r"127\.0\.0\.1:\d+ does not speak Kafka's protocol"):
        ask_once(serve_once(struct.pack(">ii", 4, 99)), HEARTBEAT, 4, HeartbeatResponse, 30.0)
    with BlockingConnection(serve_once(struct.pack(">i", -1)), client_id="test") as connection:
        with pytest.raises(NotKafkaError):
            connection.ask(HEARTBEAT, HeartbeatResponse, 4)
        assert connection.is_closed


def test_a_peer_that_hangs_up() -> None:
    with pytest.raises(ConnectionResetError):
        ask_once(serve_once(b"\x00\x00"), HEARTBEAT, 4, HeartbeatResponse, 30.0)
