"""Requests that pass one check and must fail the next: an open group with a hidden topic, an open id, a hidden group.

`prepare` makes the things that the answers would show. Each request is sent once per run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.list_transactions import ListTransactionsRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from klamm.protocol.wire import Message
from klamm.sim.clients import Client
from klamm.sim.guarded.attempts import Attempt
from klamm.sim.guarded.views import OPEN

PREPARER: Final = "payer"
CREATABLE: Final = "creatable"
"""The intruder may create this topic, but not see its configuration."""
_MISSING: Final = "missing"
_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ID: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_OF_GROUP, _OF_TRANSACTION = 0, 1
_FAR: Final = 1 << 40
_NEVER_MS: Final = 900_000
"""Longer than a run: no marker of an abort reaches a log whose offsets are compared."""


async def prepare(client: Client, tp: TopicPartition, transactional_id: str) -> None:
    """Make a hidden id, an open id with a transaction on a hidden topic, and an offset of an open group."""
    initial = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=_NEVER_MS)
    await _ask(client, (_OF_TRANSACTION, transactional_id), initial, 4)
    producer = await _ask(
        client,
        (_OF_TRANSACTION, OPEN),
        InitProducerIdRequest(transactional_id=OPEN, transaction_timeout_ms=_NEVER_MS),
        4,
    )
    added = _partitions(OPEN, tp, producer.producer_id, producer.producer_epoch)
    await _ask(client, (_OF_TRANSACTION, OPEN), added, 3)
    await _ask(client, (_OF_GROUP, OPEN), _commit(tp, 0), 7)


async def _ask(client: Client, coordinator: tuple[int, str], request: Message, version: int) -> Any:
    """Ask the coordinator until it accepts the request."""
    kind, name = coordinator
    while True:
        try:
            found = await client.ask(client.any_broker(), FindCoordinatorRequest(key=name, key_type=kind), 3)
            if found.error_code == ErrorCode.NONE:
                response = await client.ask(found.node_id, request, version)
                if _error(response) == ErrorCode.NONE:
                    return response
        except OSError:
            pass
        await client.rest()


def _error(response: Any) -> int:
    if hasattr(response, "producer_id"):
        return int(response.error_code)
    if hasattr(response, "results_by_topic_v3_and_below"):
        return _of_added(response)
    return _of_partition(response)


def _commit(tp: TopicPartition, position: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=tp.partition, committed_offset=position, committed_metadata=None
    )
    return OffsetCommitRequest(group_id=OPEN, topics=[OffsetCommitRequestTopic(name=tp.topic, partitions=[partition])])


def _partitions(
    transactional_id: str, tp: TopicPartition, producer_id: int = 1, producer_epoch: int = 0
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
    )


def once(tp: TopicPartition, group: str, transactional_id: str) -> Iterator[Attempt]:
    """Requests that the controller refuses; any broker would refuse all but the creation."""
    yield Attempt(_commit(tp, _FAR), 7, _of_partition, _TOPIC)
    own: dict[str, Any] = {"transactional_id": OPEN, "producer_id": 1, "producer_epoch": 0}
    partition = TxnOffsetCommitRequestPartition(
        partition_index=tp.partition, committed_offset=_FAR, committed_metadata=None
    )
    topic = TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[partition])
    for name, error in ((group, _GROUP), (OPEN, _TOPIC)):
        yield Attempt(TxnOffsetCommitRequest(**own, group_id=name, topics=[topic]), 3, _of_partition, error)
    yield Attempt(AddOffsetsToTxnRequest(**own, group_id=group), 3, _of_whole, _GROUP)
    yield Attempt(_partitions(transactional_id, tp), 3, _of_added, _ID)
    yield Attempt(_partitions(OPEN, tp), 3, _of_added, _TOPIC)
    yield Attempt(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000), 4, _of_whole, _CLUSTER)
    missing = MetadataRequest(topics=[MetadataRequestTopic(name=_MISSING)], allow_auto_topic_creation=True)
    yield Attempt(missing, 9, lambda response: int(response.topics[0].error_code), _TOPIC)
    created = CreatableTopic(name=CREATABLE, num_partitions=1, replication_factor=1, assignments=(), configs=())
    request = CreateTopicsRequest(topics=[created], timeout_ms=1_000, validate_only=True)
    yield Attempt(request, 5, _of_configs, _TOPIC)


def of_coordinators(tp: TopicPartition, hidden_id: str) -> Iterator[Attempt]:
    """Requests for every broker: only coordinators have something to show."""
    partition = OffsetDeleteRequestPartition(partition_index=tp.partition)
    deleted = OffsetDeleteRequestTopic(name=tp.topic, partitions=[partition])
    yield Attempt(OffsetDeleteRequest(group_id=OPEN, topics=[deleted]), 0, _of_deleted, _TOPIC)
    yield Attempt(
        ListTransactionsRequest(state_filters=(), producer_id_filters=()),
        1,
        lambda response: _ID if all(each.transactional_id != hidden_id for each in response.transaction_states) else 0,
        _ID,
    )
    yield Attempt(DescribeTransactionsRequest(transactional_ids=[OPEN]), 0, _of_shown_topics, _TOPIC)


def _of_whole(response: Any) -> int:
    return int(response.error_code)


def _of_partition(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


def _of_added(response: Any) -> int:
    return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def _of_configs(response: Any) -> int:
    (topic,) = response.topics
    return int(topic.error_code or topic.topic_config_error_code)


def _of_deleted(response: Any) -> int:
    return (
        _TOPIC
        if response.error_code == ErrorCode.NOT_COORDINATOR
        else int(response.error_code) or _of_partition(response)
    )


def _of_shown_topics(response: Any) -> int:
    """The coordinator of the id describes it without an error: the topic must be absent."""
    (state,) = response.transaction_states
    if state.error_code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
        return int(state.error_code)
    return ErrorCode.NONE if state.topics else _TOPIC
