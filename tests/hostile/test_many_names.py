"""Requests of a few megabytes that name very many things, or one thing very often.

Each took seconds of the loop, or gigabytes, before it was answered: enough for a broker to lose its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from klamm.apis import (
    alter_partition_reassignments,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    find_coordinator,
    list_offsets,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
)
from klamm.apis.api_declaration import Api, at_once
from klamm.apis.slices import SLICE
from klamm.errors import ErrorCode
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest
from klamm.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
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
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from klamm.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from klamm.protocol.wire import Message
from tests.unit.coordinator.test_group_apis import GroupBroker

NAMED = 20 * SLICE
INDEXES = list(range(NAMED))
NAMES = [f"n{index}" for index in INDEXES]
BROKER = 4


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupBroker]:
    path: Path = tmp_path_factory.mktemp("broker")
    broker = GroupBroker(path)
    broker.lead("t", 2)
    broker.lead_offsets_topic()
    yield broker
    broker.close()


def of_groups(count: int, topics: list[OffsetFetchRequestTopics] | None = None) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=f"g{index}", topics=topics) for index in range(count)]
    )


LARGE: list[tuple[Api[Any, Any], Message, int]] = [
    (
        list_offsets.API,
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=i, timestamp=-1) for i in INDEXES]
                )
            ],
        ),
        9,
    ),
    (
        list_offsets.API,
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[]) for name in NAMES]),
        9,
    ),
    (
        offset_for_leader_epoch.API,
        OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic="t", partitions=[OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in INDEXES]
                )
            ]
        ),
        4,
    ),
    (
        delete_records.API,
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="t", partitions=[DeleteRecordsPartition(partition_index=i, offset=0) for i in INDEXES]
                )
            ],
            timeout_ms=0,
        ),
        2,
    ),
    (
        describe_producers.API,
        DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=INDEXES)]),
        0,
    ),
    (
        describe_log_dirs.API,
        DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=INDEXES)]),
        4,
    ),
    (find_coordinator.API, FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES), 4),
    (describe_groups.API, DescribeGroupsRequest(groups=NAMES), 5),
    (delete_groups.API, DeleteGroupsRequest(groups_names=NAMES), 2),
    (offset_fetch.API, of_groups(NAMED, []), 8),
    (
        offset_fetch.API,
        OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=INDEXES)], require_stable=False
        ),
        7,
    ),
    (
        describe_configs.API,
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=BROKER, resource_name=name) for name in NAMES]
        ),
        4,
    ),
    (
        create_topics.API,
        CreateTopicsRequest(
            topics=[
                CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
                for name in NAMES
            ],
            timeout_ms=0,
        ),
        7,
    ),
    (delete_topics.API, DeleteTopicsRequest(topic_names=NAMES, timeout_ms=0), 5),
    (
        alter_partition_reassignments.API,
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="t", partitions=[ReassignablePartition(partition_index=i, replicas=[1]) for i in INDEXES]
                )
            ],
        ),
        0,
    ),
    (
        elect_leaders.API,
        ElectLeadersRequest(
            election_type=0, topic_partitions=[TopicPartitions(topic="t", partitions=INDEXES)], timeout_ms=0
        ),
        2,
    ),
    (
        offset_commit.API,
        OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=i, committed_offset=1, committed_metadata="")
                        for i in INDEXES
                    ],
                )
            ],
        ),
        8,
    ),
    (
        offset_delete.API,
        OffsetDeleteRequest(
            group_id="s",
            topics=[
                OffsetDeleteRequestTopic(
                    name="t", partitions=[OffsetDeleteRequestPartition(partition_index=i) for i in INDEXES]
                )
            ],
        ),
        0,
    ),
]


def steps_of(handling: Any) -> tuple[int, Any]:
    """How often a handler gave the loop back, and what it returned."""
    assert isinstance(handling, GeneratorType), "answered without giving the loop back"
    steps = 0
    while True:
        try:
            next(handling)
        except StopIteration as done:
            return steps, done.value
        steps += 1


@pytest.mark.parametrize(("api", "request_", "version"), LARGE, ids=lambda value: getattr(value, "name", ""))
def test_others_are_served_between_the_slices(
    one: GroupBroker, api: Api[Any, Any], request_: Message, version: int
) -> None:
    steps, response = steps_of(one.dispatch(api, request_, version))
    if isinstance(response, asyncio.Future):
        response = one.run(response)
    if isinstance(response, GeneratorType):
        response = at_once(response)
    assert steps >= NAMED // SLICE - 2  # The first slice is done before the handler returns.
    one.as_read(response, version)


def test_a_request_of_one_slice_is_answered_at_once(one: GroupBroker) -> None:
    answer = one.dispatch(find_coordinator.API, FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES[:SLICE]), 4)
    assert [found.key for found in answer.coordinators] == NAMES[:SLICE]


class TestTheSameNameVeryOften:
    def test_groups_are_described_once(self, one: GroupBroker) -> None:
        answer = one.ask(describe_groups.API, DescribeGroupsRequest(groups=["g", "h"] * 50_000), 5)
        assert [group.group_id for group in answer.groups] == ["g", "h"]

    def test_settings_are_described_once_with_the_keys_of_all_mentions(self, one: GroupBroker) -> None:
        def resource(*keys: str) -> DescribeConfigsResource:
            return DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=keys or None)

        some = [resource("log.dirs"), resource("num.io.threads")] * 50
        (described,) = one.ask(describe_configs.API, DescribeConfigsRequest(resources=some), 4).results
        assert {entry.name for entry in described.configs} == {"log.dirs", "num.io.threads"}
        (described,) = one.ask(describe_configs.API, DescribeConfigsRequest(resources=[*some, resource()]), 4).results
        assert len(described.configs) > 100

    def test_offsets_are_fetched_once_with_the_partitions_of_all_mentions(self, one: GroupBroker) -> None:
        def group(*indexes: int) -> OffsetFetchRequestGroup:
            topics = [OffsetFetchRequestTopics(name="t", partition_indexes=indexes)] if indexes else None
            return OffsetFetchRequestGroup(group_id="s", topics=topics)

        assert one.commit(8, ("t", 0, 5), group_id="s") == [("t", 0, ErrorCode.NONE)]
        some = [group(0), group(1)] * 50
        (found,) = one.ask(offset_fetch.API, OffsetFetchRequest(groups=some), 8).groups
        assert [(p.partition_index, p.committed_offset) for p in found.topics[0].partitions] == [(0, 5), (1, -1)]
        (found,) = one.ask(offset_fetch.API, OffsetFetchRequest(groups=[*some, group()]), 8).groups
        assert [(p.partition_index, p.committed_offset) for p in found.topics[0].partitions] == [(0, 5)]

    def test_producers_are_described_once(self, one: GroupBroker) -> None:
        request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[1, 0, 1])] * 50)
        (topic,) = one.ask(describe_producers.API, request, 0).topics
        assert [partition.partition_index for partition in topic.partitions] == [1, 0]

    def test_segments_are_not_listed_for_a_partition_that_is_named_twice(self, one: GroupBroker) -> None:
        asked = ListOffsetsPartition(partition_index=0, timestamp=-1, max_num_offsets=1)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked] * 2)])
        (topic,) = one.ask(list_offsets.API, request, 0).topics
        assert [p.error_code for p in topic.partitions] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_resource_that_is_named_very_often_keeps_one_list_of_keys() -> None:
    """Before, the keys were copied at each mention: a request of 100 MB took hours, in small slices."""
    merged: dict[Any, DescribeConfigsResource] = {}
    first = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=["k0"])
    describe_configs._merge(merged, first)
    kept = first.configuration_keys
    for number in range(1, 1_000):
        again = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=[f"k{number}"])
        describe_configs._merge(merged, again)
    (found,) = merged.values()
    assert found.configuration_keys is kept and found.configuration_keys == [f"k{number}" for number in range(1_000)]
    describe_configs._merge(
        merged, DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
    )
    assert found.configuration_keys is None, "without keys, all are asked for"
