"""How brokers of klamm and of Kafka answer the question for their log ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from klamm.controller.config import ControllerConfig
from klamm.controller.events import ControllerEvent, LogEndsReceived
from klamm.controller.log_end_query import ask_log_ends
from klamm.controller.suspects import NOTHING_TO_COMPARE, LogEnd
from klamm.errors import ErrorCode
from klamm.model import NO_EPOCH, BrokerEndPoints, EndPoint, SecurityProtocol, TopicPartition
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from klamm.protocol.wire import Message
from tests.support.scripted_broker import scripted_broker

TP = TopicPartition("T", 0)
EPOCH = 7


def ask(answer: Callable[[int], EpochEndOffset]) -> tuple[LogEnd | None, list[int]]:
    """Return what the controller learns, and the epochs in its questions; `answer` gets such an epoch."""
    asked: list[int] = []
    events: list[ControllerEvent] = []

    def respond(request: Message) -> Message:
        if isinstance(request, ApiVersionsRequest):
            return ApiVersionsResponse(error_code=0, api_keys=[ApiVersion(api_key=23, min_version=0, max_version=4)])
        assert isinstance(request, OffsetForLeaderEpochRequest)
        asked.append(request.topics[0].partitions[0].current_leader_epoch)
        result = OffsetForLeaderTopicResult(topic="T", partitions=[answer(asked[-1])])
        return OffsetForLeaderEpochResponse(topics=[result])

    with scripted_broker(respond) as (host, port):
        broker = BrokerEndPoints(3, (EndPoint("PLAINTEXT", host, port, SecurityProtocol.PLAINTEXT),), None, 50)
        question = ask_log_ends(broker, ((TP, EPOCH),), ControllerConfig(0), events.append)
        asyncio.run(asyncio.wait_for(question, 60))
    (event,) = events
    assert isinstance(event, LogEndsReceived) and (event.broker_id, event.broker_epoch) == (3, 50)
    ((tp, end),) = event.log_ends
    assert tp == TP
    return end, asked


def refused(error: ErrorCode) -> EpochEndOffset:
    return EpochEndOffset(error_code=error, partition=0)


def test_a_follower_of_kafka_that_never_learns_the_epoch_has_nothing_to_compare() -> None:
    """Kafka does not apply a LeaderAndIsr without a leader, so the epoch in it stays unknown there."""

    def answer(epoch: int) -> EpochEndOffset:
        return refused(ErrorCode.NOT_LEADER_OR_FOLLOWER if epoch == NO_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH)

    assert ask(answer) == (NOTHING_TO_COMPARE, [EPOCH, NO_EPOCH])


def test_a_kafka_broker_that_has_just_started_has_nothing_to_compare() -> None:
    assert ask(lambda _: refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) == (NOTHING_TO_COMPARE, [EPOCH])


def test_a_klamm_broker_is_asked_until_it_has_the_epoch() -> None:
    """Before that, its answer without an epoch does not count: it may still append records of an older one."""
    questions: list[int] = []

    def answer(epoch: int) -> EpochEndOffset:
        questions.append(epoch)
        if epoch == NO_EPOCH and len(questions) == 2:
            return refused(ErrorCode.UNKNOWN_LEADER_EPOCH)  # there is no log yet
        if epoch == NO_EPOCH:
            return EpochEndOffset(error_code=0, partition=0, leader_epoch=6, end_offset=30)
        if len(questions) < 5:
            return refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        return EpochEndOffset(error_code=0, partition=0, leader_epoch=6, end_offset=40)

    assert ask(answer) == (LogEnd(6, 40), [EPOCH, NO_EPOCH, EPOCH, NO_EPOCH, EPOCH])


def test_a_failed_directory_is_an_answer() -> None:
    assert ask(lambda _: refused(ErrorCode.KAFKA_STORAGE_ERROR)) == (None, [EPOCH])
