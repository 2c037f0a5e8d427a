"""Requests of the intruder that would show something, move replicas between disks, or write in a foreign transaction.

Each is sent once per run, like those of `more_attempts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from klamm.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from klamm.protocol.messages.list_groups import ListGroupsRequest
from klamm.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.sim.guarded.attempts import Attempt, of_cluster

_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ID: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
OPEN: Final = "open-to-everyone"
"""A group without entries and a transactional id that everyone may write.

The intruder may use them, but not together with resources of others. A topic of this name has no entries of its own.
"""


def once(tp: TopicPartition, transactional_id: str) -> Iterator[Attempt]:
    yield of_cluster(DescribeLogDirsRequest(topics=None), 4)
    yield of_cluster(DescribeUserScramCredentialsRequest(users=None), 0)
    yield of_cluster(DescribeClientQuotasRequest(components=(), strict=False), 1)
    yield of_cluster(ListPartitionReassignmentsRequest(topics=None), 0)
    moved = AlterReplicaLogDirTopic(name=tp.topic, partitions=[tp.partition])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/elsewhere", topics=[moved])])
    yield Attempt(request, 2, lambda response: response.results[0].partitions[0].error_code, _CLUSTER)
    described = TopicRequest(name=tp.topic, partition_indexes=[tp.partition])
    yield Attempt(
        DescribeProducersRequest(topics=[described]),
        0,
        lambda response: response.topics[0].partitions[0].error_code,
        _TOPIC,
    )
    yield Attempt(MetadataRequest(topics=None), 9, lambda response: _hidden(response, tp.topic), _TOPIC)
    yield _in_transaction(transactional_id)


def offsets(tp: TopicPartition) -> Attempt:
    """The offsets that an open group has in a hidden topic. Only the coordinator of the group reaches this check."""
    asked = OffsetFetchRequestTopics(name=tp.topic, partition_indexes=[tp.partition])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=OPEN, topics=[asked])])
    return Attempt(request, 8, _error_of_offset, _TOPIC)


def _error_of_offset(response: Any) -> int:
    group = response.groups[0]
    return _TOPIC if group.error_code else int(group.topics[0].partitions[0].error_code)


def deleted_by_id(topic_id: UUID) -> Attempt:
    """The id of a topic must not lead to its name."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=1_000)
    return Attempt(request, 6, _error_without_name, _TOPIC)


def _error_without_name(response: Any) -> int:
    (answer,) = response.responses
    return int(answer.error_code) if answer.name is None else ErrorCode.NONE


def groups(hidden: str) -> Attempt:
    """A list of all groups has no error: the group must be absent."""
    return Attempt(
        ListGroupsRequest(),
        4,
        lambda response: ErrorCode.NONE if any(group.group_id == hidden for group in response.groups) else _GROUP,
        _GROUP,
    )


def _hidden(response: Any, topic: str) -> int:
    """A list of all topics has no error: the topic must be absent."""
    return ErrorCode.NONE if any(shown.name == topic for shown in response.topics) else _TOPIC


def _in_transaction(transactional_id: str) -> Attempt:
    batch = build_batch(
        [Record(timestamp=0, value=b"forged")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    data = TopicProduceData(name=OPEN, partition_data=[PartitionProduceData(index=0, records=batch)])
    return Attempt(
        ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1_000, topic_data=[data]),
        9,
        lambda response: response.responses[0].partition_responses[0].error_code,
        _ID,
    )
