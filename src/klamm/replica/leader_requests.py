"""The requests of a follower to its leader besides Fetch: where an epoch ends, where the log begins and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from klamm.errors import ErrorCode
from klamm.log.leader_epoch_cache import UNDEFINED, EpochEndOffset
from klamm.model import TopicPartition
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from klamm.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from klamm.protocol.wire import Message
from klamm.replica.fetch_state import PartitionFetchState
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.partition_reader import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from klamm.replica.truncation import Reset, reset_for

MISSING = ErrorCode.UNKNOWN_SERVER_ERROR
"""The error of a partition that the leader's response leaves out."""


class LeaderConnection(Protocol):
    """A BrokerConnection to the leader."""

    def send(self, request: Message, version: int) -> asyncio.Future[Any]: ...

    def close(self) -> None: ...


async def end_offsets_for_epochs(
    connection: LeaderConnection, config: FetcherConfig, states: Sequence[PartitionFetchState]
) -> dict[TopicPartition, tuple[ErrorCode, EpochEndOffset]]:
    """Ask where the newest epoch of each of our logs ends in the leader's."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for state in states:
        topics.setdefault(state.tp.topic, []).append(
            OffsetForLeaderPartition(
                partition=state.tp.partition,
                current_leader_epoch=state.leader_epoch,
                leader_epoch=state.last_fetched_epoch,
            )
        )
    request = OffsetForLeaderEpochRequest(
        replica_id=config.broker_id,
        topics=[OffsetForLeaderTopic(topic=topic, partitions=each) for topic, each in topics.items()],
    )
    response: OffsetForLeaderEpochResponse = await connection.send(request, config.offset_for_leader_epoch_version)
    ends = {state.tp: (MISSING, UNDEFINED) for state in states}
    for topic in response.topics:
        for p in topic.partitions:
            end = EpochEndOffset(p.leader_epoch, p.end_offset)
            ends[TopicPartition(topic.topic, p.partition)] = (ErrorCode.of(p.error_code), end)
    return ends


async def resets(
    connection: LeaderConnection, config: FetcherConfig, states: Sequence[PartitionFetchState]
) -> dict[TopicPartition, Reset | ErrorCode]:
    """Return how each partition continues after OFFSET_OUT_OF_RANGE."""
    ends = await _list_offsets(connection, config, states, LATEST_TIMESTAMP)
    starts = await _list_offsets(connection, config, states, EARLIEST_TIMESTAMP)
    out: dict[TopicPartition, Reset | ErrorCode] = {}
    for state in states:
        start, end = starts[state.tp], ends[state.tp]
        if isinstance(start, ErrorCode):
            out[state.tp] = start
        elif isinstance(end, ErrorCode):
            out[state.tp] = end
        else:
            out[state.tp] = reset_for((state.log.log_start_offset, state.log.log_end_offset), start, end)
    return out


async def _list_offsets(
    connection: LeaderConnection, config: FetcherConfig, states: Sequence[PartitionFetchState], timestamp: int
) -> dict[TopicPartition, int | ErrorCode]:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for state in states:
        asked = ListOffsetsPartition(
            partition_index=state.tp.partition, current_leader_epoch=state.leader_epoch, timestamp=timestamp
        )
        topics.setdefault(state.tp.topic, []).append(asked)
    request = ListOffsetsRequest(
        replica_id=config.broker_id,
        topics=[ListOffsetsTopic(name=topic, partitions=each) for topic, each in topics.items()],
    )
    response: ListOffsetsResponse = await connection.send(request, config.list_offsets_version)
    found: dict[TopicPartition, int | ErrorCode] = {state.tp: MISSING for state in states}
    for topic in response.topics:
        for p in topic.partitions:
            error = ErrorCode.of(p.error_code)
            found[TopicPartition(topic.name, p.partition_index)] = p.offset if error == ErrorCode.NONE else error
    return found
