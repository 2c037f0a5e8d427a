"""Names as long as a string can be. Answers quote them, or build ids from them, and must still fit their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from klamm.errors import ErrorCode
from klamm.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
)
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient

LONGEST = "n" * 32_767
TOPIC = "t"
SET, APPEND = 0, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as started:
        started.create_topic(TOPIC)
        yield started
        assert "Traceback" not in started.logs(1).read_text()


@pytest.fixture
def broker(cluster: LocalCluster) -> RawClient:
    return RawClient(cluster.port(1))


def created(broker: RawClient, name: str, *configs: tuple[str, str]) -> int:
    topic = CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )
    return broker.ask(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse).topics[0].error_code


def altered(broker: RawClient, type_: int, name: str, key: str, value: str, operation: int = SET) -> int:
    config = AlterableConfig(name=key, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=type_, resource_name=name, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    return broker.ask(request, 1, IncrementalAlterConfigsResponse).responses[0].error_code


def described(broker: RawClient, type_: int, name: str) -> int:
    resource = DescribeConfigsResource(resource_type=type_, resource_name=name, configuration_keys=None)
    return broker.ask(DescribeConfigsRequest(resources=[resource]), 4, DescribeConfigsResponse).results[0].error_code


def quota(broker: RawClient) -> int:
    entry = EntryData(entity=[EntityData(entity_type=LONGEST, entity_name="x")], ops=())
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    return broker.ask(request, 1, AlterClientQuotasResponse).entries[0].error_code


def reassigned(broker: RawClient) -> int:
    partition = ReassignablePartition(partition_index=0, replicas=[1] * 20_000)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=TOPIC, partitions=[partition])])
    answer = broker.ask(request, 0, AlterPartitionReassignmentsResponse)
    return answer.responses[0].partitions[0].error_code


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda broker: created(broker, LONGEST), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda broker: created(broker, "new", (LONGEST, "x")), ErrorCode.INVALID_CONFIG),
        (lambda broker: created(broker, "new", ("retention.ms", LONGEST)), ErrorCode.INVALID_CONFIG),
        (lambda broker: altered(broker, 2, TOPIC, LONGEST, "x"), ErrorCode.INVALID_CONFIG),
        (lambda broker: altered(broker, 2, TOPIC, "retention.ms", LONGEST), ErrorCode.INVALID_CONFIG),
        (lambda broker: altered(broker, 2, LONGEST, "retention.ms", "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda broker: altered(broker, 4, LONGEST, "retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (lambda broker: described(broker, 2, LONGEST), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda broker: described(broker, 4, LONGEST), ErrorCode.INVALID_REQUEST),
        (quota, ErrorCode.INVALID_REQUEST),
        (reassigned, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_an_error_that_quotes_a_name_is_answered(
    broker: RawClient, ask: Callable[[RawClient], int], expected: ErrorCode
) -> None:
    assert ask(broker) == expected


def test_a_list_does_not_grow_beyond_what_an_answer_can_hold(broker: RawClient) -> None:
    """Otherwise the topic could not be described again."""
    key = "leader.replication.throttled.replicas"
    codes = [
        altered(broker, 2, TOPIC, key, ",".join(f"{index}:1" for index in range(first, first + 3_000)), APPEND)
        for first in (0, 3_000, 6_000)
    ]
    assert codes == [0, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_CONFIG]
    assert described(broker, 2, TOPIC) == 0
