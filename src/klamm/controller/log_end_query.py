"""Asks a broker for its log ends, for an election among replicas that may have lost their tail.

It uses OffsetForLeaderEpoch of a debugging consumer: a klamm broker answers it from its disk, in any role. It is an
ordinary data request: a starting broker answers it after the controller's first UpdateMetadata, so it must not wait in
the queue of control requests.

A Kafka broker answers only as a leader, and does not learn the epoch of a partition without a leader: it would refuse
the question with UNKNOWN_LEADER_EPOCH for ever, as a klamm broker does until it has the epoch. The question is then
repeated without an epoch. A klamm broker answers it, or gives the same error; a Kafka broker gives another error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.patience import LOG_END_QUERY
from klamm.controller.config import ControllerConfig
from klamm.controller.events import ControllerEvent, LogEndsReceived
from klamm.controller.suspects import NOTHING_TO_COMPARE, LogEnd
from klamm.errors import ErrorCode, ProtocolError
from klamm.model import NO_EPOCH, BrokerEndPoints, TopicPartition
from klamm.protocol.messages.offset_for_leader_epoch import (
    DEBUGGING_CONSUMER,
    LATEST_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

log = logging.getLogger(__name__)

VERSION: Final = 4
MAX_PARTITIONS: Final = 2_000
"""Partitions per request, so that the broker serves others between two of them."""
_OF_KAFKA: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""How Kafka refuses a follower, and a partition of which it has not heard yet."""


async def ask_log_ends(
    broker: BrokerEndPoints,
    partitions: tuple[tuple[TopicPartition, int], ...],
    config: ControllerConfig,
    on_event: Callable[[ControllerEvent], object],
) -> None:
    """Repeat until the broker has answered for all partitions; the caller cancels the task if the broker is gone."""
    left, attempt = dict(partitions), 0
    while left:
        part = dict(islice(left.items(), MAX_PARTITIONS))
        try:
            ends = await _ask(broker, part, config)
        except (OSError, ProtocolError) as error:
            attempt += 1
            if attempt.bit_count() == 1:
                log.warning("asking broker %d for its log ends failed (attempt %d): %s", broker.id, attempt, error)
            await asyncio.sleep(LOG_END_QUERY.pause_s(attempt))
            continue
        attempt = 0
        if ends:
            on_event(LogEndsReceived(broker.id, broker.epoch, tuple(ends.items())))
        waiting = {tp: left.pop(tp) for tp in part}
        left |= {tp: epoch for tp, epoch in waiting.items() if tp not in ends}
        if not ends:
            await asyncio.sleep(LOG_END_QUERY.pause_s())


async def _ask(
    broker: BrokerEndPoints, partitions: Mapping[TopicPartition, int], config: ControllerConfig
) -> dict[TopicPartition, LogEnd | None]:
    endpoint = broker.endpoint(config.inter_broker_listener)
    if endpoint is None:
        raise ConnectionError(f"it has no listener named {config.inter_broker_listener}")
    connection = await BrokerConnection.connect(
        endpoint.host,
        endpoint.port,
        timeout_ms=config.socket_timeout_ms,
        client_id=f"klamm-controller-{config.broker_id}",
        request_timeout_ms=config.request_timeout_ms,
        security=config.outgoing.of(config.inter_broker_listener),
    )
    try:
        ends = await _answers(connection, partitions)
        without_epoch = {tp: NO_EPOCH for tp in partitions if tp not in ends}
        if without_epoch:
            answers = await _answers(connection, without_epoch)
            ends |= {tp: end for tp, end in answers.items() if end == NOTHING_TO_COMPARE}
    finally:
        connection.close()
    return ends


async def _answers(
    connection: BrokerConnection, partitions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, LogEnd | None]:
    response = await connection.send(build_request(partitions), VERSION)
    assert isinstance(response, OffsetForLeaderEpochResponse)
    return read_response(response)


def build_request(partitions: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for tp, epoch in partitions.items():
        asked = OffsetForLeaderPartition(partition=tp.partition, current_leader_epoch=epoch, leader_epoch=LATEST_EPOCH)
        topics.setdefault(tp.topic, []).append(asked)
    return OffsetForLeaderEpochRequest(
        replica_id=DEBUGGING_CONSUMER,
        topics=[OffsetForLeaderTopic(topic=topic, partitions=asked) for topic, asked in topics.items()],
    )


def read_response(response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, LogEnd | None]:
    """Leave out partitions whose leader epoch the broker does not know yet.

    None: the broker cannot use the log, because its directory has failed.
    """
    ends: dict[TopicPartition, LogEnd | None] = {}
    for topic in response.topics:
        for found in topic.partitions:
            if found.error_code != ErrorCode.UNKNOWN_LEADER_EPOCH:
                ends[TopicPartition(topic.topic, found.partition)] = _log_end(found)
    return ends


def _log_end(found: EpochEndOffset) -> LogEnd | None:
    if found.error_code == ErrorCode.NONE and found.end_offset >= 0:
        return LogEnd(found.leader_epoch, found.end_offset)
    is_kafka = found.error_code == ErrorCode.NONE or found.error_code in _OF_KAFKA
    return NOTHING_TO_COMPARE if is_kafka else None
