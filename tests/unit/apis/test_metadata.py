from __future__ import annotations

import asyncio
import gc
import itertools
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.apis import api_versions, describe_cluster, metadata, missing_topics
from klamm.controller import events
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID
from klamm.protocol.chunked import CHUNK
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tests.support.one_broker import OneBroker

ID = UUID(int=5)


def named(*names: str, **fields: bool) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


def only(response: MetadataResponse) -> MetadataResponseTopic:
    assert len(response.topics) == 1
    return response.topics[0]


@pytest.mark.parametrize("version", range(0, 13))
def test_brokers_topics_and_leaders_in_every_version(one: OneBroker, version: int) -> None:
    one.update_metadata({"t": [1, 0]}, topic_id=ID, leader_epoch=4, replicas=(1, 2), isr=(1,), brokers=(1, 2))
    response = one.ask(metadata.API, named("t"), version)
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(1, "host-1", 9092), (2, "host-2", 9092)]
    topic = only(response)
    assert (topic.name, topic.error_code) == ("t", 0)
    assert [(p.partition_index, p.leader_id, p.error_code) for p in topic.partitions] == [(0, 1, 0), (1, 1, 0)]
    assert topic.partitions[0].replica_nodes == [1, 2] and topic.partitions[0].isr_nodes == [1]
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_id == ("test-cluster" if version >= 2 else None)
    assert topic.partitions[0].leader_epoch == (4 if version >= 7 else -1)
    assert topic.topic_id == (ID if version >= 10 else ZERO_UUID)


def test_all_topics_in_order(one: OneBroker) -> None:
    for name in ("b", "a", "__consumer_offsets"):
        one.update_metadata({name: [0]})
    for request, version in ((MetadataRequest(topics=[]), 0), (MetadataRequest(topics=None), 1)):
        response = one.ask(metadata.API, request, version)
        assert [t.name for t in response.topics] == ["__consumer_offsets", "a", "b"]
        assert [t.is_internal for t in response.topics] == [version == 1, False, False]
    assert list(one.ask(metadata.API, MetadataRequest(topics=[]), 1).topics) == []


def test_topics_by_id(one: OneBroker) -> None:
    one.update_metadata({"t": [0]}, topic_id=ID)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=ID)])
    assert only(one.ask(metadata.API, request, 12)).name == "t"
    unknown = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=UUID(int=9))])
    topic = only(one.ask(metadata.API, unknown, 12))
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, UUID(int=9))


class TestLeadersThatCannotBeReached:
    def code(self, one: OneBroker, version: int, listener: str = "PLAINTEXT") -> tuple[int, int]:
        topic = only(one.ask(metadata.API, named("t"), version, listener=listener))
        return topic.partitions[0].error_code, topic.partitions[0].leader_id

    def test_a_dead_leader(self, one: OneBroker) -> None:
        one.update_metadata({"t": [0]}, leader=3, replicas=(3, 1), isr=(3,))
        for version in (1, 5, 6, 12):
            assert self.code(one, version) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        one.update_metadata({"t": [0]}, leader=-1, leader_epoch=1, replicas=(3, 1), isr=(3,))
        assert self.code(one, 12) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

    def test_a_live_leader_without_the_listener(self, one: OneBroker) -> None:
        one.update_metadata({"t": [0]}, leader=1)
        assert self.code(one, 5, "OTHER") == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert self.code(one, 6, "OTHER") == (ErrorCode.LISTENER_NOT_FOUND, -1)

    def test_v0_hides_brokers_it_does_not_list(self, one: OneBroker) -> None:
        one.update_metadata({"t": [0]}, replicas=(1, 9), isr=(1, 9))
        topic = only(one.ask(metadata.API, named("t"), 0))
        partition = topic.partitions[0]
        assert partition.error_code == ErrorCode.REPLICA_NOT_AVAILABLE and partition.leader_id == 1
        assert partition.replica_nodes == [1] and partition.isr_nodes == [1]
        assert only(one.ask(metadata.API, named("t"), 1)).partitions[0].replica_nodes == [1, 9]


class TestAutoCreation:
    def test_a_missing_topic_is_asked_for_and_is_there_next_time(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        first = only(one.ask(metadata.API, named("t"), 12))
        assert first.error_code == 0 or first.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert only(one.ask(metadata.API, named("t"), 12)).error_code == 0
        assert one.controller.submitted == [events.CreateTopics((events.CreatableTopic("t"),))]

    def test_while_it_is_on_its_way_the_leader_is_not_available(self, one: OneBroker) -> None:
        one.controller.script = lambda event: TopicResults((TopicResult("t"),))
        assert only(one.ask(metadata.API, named("t"), 12)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        one.controller.script = lambda event: TopicResults((TopicResult("t", ErrorCode.TOPIC_ALREADY_EXISTS),))
        assert only(one.ask(metadata.API, named("t"), 12)).error_code == ErrorCode.LEADER_NOT_AVAILABLE

    def test_a_creation_that_fails_reports_the_reason(self, one: OneBroker) -> None:
        failed = TopicResult("t", ErrorCode.INVALID_REPLICATION_FACTOR)
        one.controller.script = lambda event: TopicResults((failed,))
        assert only(one.ask(metadata.API, named("t"), 12)).error_code == ErrorCode.INVALID_REPLICATION_FACTOR

    def test_a_broker_that_is_not_the_controller_cannot_ask(self, one: OneBroker) -> None:
        assert only(one.ask(metadata.API, named("t"), 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_controller_that_does_not_answer(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        """ZooKeeper is unreachable: the client gets a retriable error, and its next request is not another event."""
        monkeypatch.setattr(missing_topics, "WAIT_MS", 1)
        asked: list[asyncio.Future[TopicResults]] = []

        def submit(event: events.Event[Any], timeout_ms: int | None = None) -> asyncio.Future[Any]:
            asked.append(one.loop.create_future())
            return asked[-1]

        one.controller.submit = submit  # type: ignore[method-assign]
        for _ in range(3):
            assert only(one.ask(metadata.API, named("t"), 12)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert len(asked) == 1
        asked[0].set_result(TopicResults((TopicResult("t", ErrorCode.INVALID_REPLICATION_FACTOR),)))
        one.spin()
        assert only(one.ask(metadata.API, named("t"), 12)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert len(asked) == 2, "with the first answered the next request asks again"
        asked[1].set_exception(OSError("nobody learns of it"))
        one.spin()

    def test_the_transaction_topic_is_made_with_its_own_settings(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        answer = only(one.ask(metadata.API, named("__transaction_state"), 12))
        assert answer.error_code == ErrorCode.NONE and answer.is_internal
        (event,) = one.controller.submitted
        assert isinstance(event, events.CreateTopics)
        (topic,) = event.topics
        assert (topic.name, topic.num_partitions) == ("__transaction_state", 50)
        assert ("cleanup.policy", "compact") in topic.configs

    def test_names_that_cannot_be(self, one: OneBroker) -> None:
        for name in ("a b", "", "..", "x" * 250):
            assert only(one.ask(metadata.API, named(name), 12)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert one.controller.submitted == []

    def test_the_request_or_the_configuration_may_forbid_it(self, one: OneBroker, tmp_path: Path) -> None:
        request = named("t", allow_auto_topic_creation=False)
        assert only(one.ask(metadata.API, request, 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        other = OneBroker(tmp_path / "other", {"auto.create.topics.enable": "false"})
        assert only(other.ask(metadata.API, named("t"), 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert one.controller.submitted == other.controller.submitted == []
        other.close()

    def test_the_offsets_topic_is_compacted(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        one.ask(metadata.API, named("__consumer_offsets"), 12)
        event = one.controller.submitted[0]
        assert isinstance(event, events.CreateTopics)
        assert event.topics[0].num_partitions == 50 and ("cleanup.policy", "compact") in event.topics[0].configs


def test_operations_are_returned_only_on_request(one: OneBroker) -> None:
    one.update_metadata({"t": [0]})
    quiet = one.ask(metadata.API, named("t"), 8)
    assert quiet.cluster_authorized_operations == only(quiet).topic_authorized_operations == -(1 << 31)
    reported = one.ask(
        metadata.API,
        named("t", include_cluster_authorized_operations=True, include_topic_authorized_operations=True),
        8,
    )
    assert reported.cluster_authorized_operations == 8096 and only(reported).topic_authorized_operations == 3576


@pytest.mark.parametrize("version", [0, 1])
def test_describe_cluster(one: OneBroker, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = one.ask(describe_cluster.API, request, version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, "test-cluster", 1)
    assert [(b.broker_id, b.host, b.port) for b in response.brokers] == [(1, "host-1", 9092)]
    assert response.cluster_authorized_operations == 8096


def test_describe_cluster_is_for_brokers(one: OneBroker) -> None:
    for kind, error in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
        request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=kind)
        assert one.ask(describe_cluster.API, request, 1).error_code == error


@pytest.mark.parametrize("version", range(0, 5))
def test_api_versions_lists_what_is_declared(one: OneBroker, version: int) -> None:
    from klamm.apis import ALL

    request = ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.0")
    response = one.ask(api_versions.API, request, version)
    listed = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert response.error_code == 0 and listed == {api.key: api.versions for api in ALL}
    expected = "librdkafka" if version >= 3 else "unknown"
    assert one.last_context.client_software_name == expected


def test_api_versions_requires_a_proper_software_name(one: OneBroker) -> None:
    for name, number in (("", "1"), ("a b", "1"), ("ok", "-1"), ("ok", "1 ")):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=number)
        assert one.ask(api_versions.API, request, 3).error_code == ErrorCode.INVALID_REQUEST


def test_no_dictionary_of_a_request_with_many_names_becomes_large(one: OneBroker) -> None:
    """A set of 500,000 names moves all of them in one step of 10 ms when it grows."""
    names = [MetadataRequestTopic(name=f"nothing-{number}") for number in range(15 * CHUNK)]
    steps = one.dispatch(metadata.API, MetadataRequest(topics=names, allow_auto_topic_creation=False), 12)
    before = set(map(id, large_collections()))
    for number in itertools.count(1):
        if next(steps, steps) is steps:
            break
        if number % 30 == 0:
            assert not [len(each) for each in large_collections() if id(each) not in before]


def large_collections() -> list[dict[Any, Any] | set[Any]]:
    return [each for each in gc.get_objects() if type(each) in (dict, set) and len(each) > 6 * CHUNK]
