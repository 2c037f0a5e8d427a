"""Further requests that must be refused, each sent once per run, and requests that show the rules of decisions.

They are not among the requests that the intruder repeats: a run sends them at one moment, so that the repeated ones
keep their share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages import alter_configs, incremental_alter_configs
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.describe_acls import DescribeAclsRequest
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from klamm.protocol.messages.sync_group import SyncGroupRequest
from klamm.security.acl.bindings import AclOperation, PatternType, Permission, ResourceType
from klamm.sim.guarded.attempts import Attempt, of_cluster

HIDDEN_PREFIX: Final = "hidden-"
"""Topics with this prefix are denied to the intruder by one entry."""
SHOWN: Final = "shown"
"""The intruder may describe this topic, although it is denied to write."""
UNREADABLE: Final = "unreadable"
"""The entries of this topic cannot be decoded: until they are repaired, nobody may use it."""
_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ID: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_OF_TOPIC: Final = 2
_OF_BROKER: Final = 4


def once(tp: TopicPartition, group: str, transactional_id: str, broker_id: int) -> Iterator[Attempt]:
    yield from _of_topics(tp)
    yield from _of_configs(tp, broker_id)
    yield from _of_groups(tp, group)
    yield from _of_transactions(group, transactional_id)
    yield from _of_operators()
    yield from _of_rules()


def _first(name: str) -> Callable[[Any], int]:
    """Read the error of the first element of an array."""
    return lambda response: int(getattr(response, name)[0].error_code)


def _whole(response: Any) -> int:
    return int(response.error_code)


def _of_topics(tp: TopicPartition) -> Iterator[Attempt]:
    created = CreatableTopic(name=tp.topic, num_partitions=1, replication_factor=1, assignments=(), configs=())
    yield Attempt(CreateTopicsRequest(topics=[created], timeout_ms=1_000), 5, _first("topics"), _TOPIC)
    yield Attempt(DeleteTopicsRequest(topic_names=[tp.topic], timeout_ms=1_000), 4, _first("responses"), _TOPIC)
    grown = CreatePartitionsTopic(name=tp.topic, count=50, assignments=None)
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=1_000, validate_only=False)
    yield Attempt(request, 2, _first("results"), _TOPIC)


def _of_configs(tp: TopicPartition, broker_id: int) -> Iterator[Attempt]:
    for kind, name, key, error in (
        (_OF_TOPIC, tp.topic, "retention.ms", _TOPIC),
        (_OF_BROKER, str(broker_id), "log.retention.ms", _CLUSTER),
    ):
        described = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        yield Attempt(DescribeConfigsRequest(resources=[described]), 4, _first("results"), error)
        replaced = alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[alter_configs.AlterableConfig(name=key, value="1")]
        )
        request = alter_configs.AlterConfigsRequest(resources=[replaced], validate_only=False)
        yield Attempt(request, 2, _first("responses"), error)
        change = incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value="1")
        changed = incremental_alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[change]
        )
        increment = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)
        yield Attempt(increment, 1, _first("responses"), error)


def _of_groups(tp: TopicPartition, group: str) -> Iterator[Attempt]:
    member: dict[str, Any] = {"group_id": group, "generation_id": 1, "member_id": "c1"}
    yield Attempt(SyncGroupRequest(**member, assignments=()), 3, _whole, _GROUP)
    yield Attempt(HeartbeatRequest(**member), 3, _whole, _GROUP)
    yield Attempt(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4, _first("coordinators"), _GROUP)
    yield Attempt(DescribeGroupsRequest(groups=[group]), 5, _first("groups"), _GROUP)
    partition = OffsetDeleteRequestPartition(partition_index=tp.partition)
    topic = OffsetDeleteRequestTopic(name=tp.topic, partitions=[partition])
    yield Attempt(OffsetDeleteRequest(group_id=group, topics=[topic]), 0, _whole, _GROUP)


def _of_transactions(group: str, transactional_id: str) -> Iterator[Attempt]:
    own: dict[str, Any] = {"transactional_id": transactional_id, "producer_id": 1, "producer_epoch": 0}
    yield Attempt(AddOffsetsToTxnRequest(**own, group_id=group), 3, _whole, _ID)
    described = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    yield Attempt(described, 0, _first("transaction_states"), _ID)


def _of_operators() -> Iterator[Attempt]:
    every: dict[str, Any] = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": Permission.ANY,
    }
    yield Attempt(DeleteAclsRequest(filters=[DeleteAclsFilter(**every)]), 2, _first("filter_results"), _CLUSTER)
    yield of_cluster(DescribeAclsRequest(**every), 2)
    entity = EntityData(entity_type="client-id", entity_name=None)
    slowed = EntryData(entity=[entity], ops=[OpData(key="producer_byte_rate", value=1.0, remove=False)])
    yield Attempt(AlterClientQuotasRequest(entries=[slowed], validate_only=False), 1, _first("entries"), _CLUSTER)


def _of_rules() -> Iterator[Attempt]:
    """A prefix denies, a wildcard that allows others denies, and a denied operation implies nothing.

    Entries that cannot be decoded deny what the wildcard allows.
    """
    yield _metadata(f"{HIDDEN_PREFIX}1", _TOPIC)
    yield _metadata(UNREADABLE, _TOPIC)
    yield _metadata(SHOWN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    described = DescribeTransactionsRequest(transactional_ids=["of-nobody"])
    yield Attempt(described, 0, _first("transaction_states"), _ID)


def _metadata(topic: str, expected: ErrorCode) -> Attempt:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return Attempt(request, 9, _first("topics"), expected)
