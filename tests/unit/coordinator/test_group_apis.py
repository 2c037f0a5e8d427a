"""The group APIs, every version of them through its encoding, on a broker with real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from klamm.controller.events import CreateTopics
from klamm.controller.replies import TopicResult, TopicResults
from klamm.coordinator.broker_adapters import create_group_coordinator
from klamm.errors import ErrorCode
from klamm.model import GROUP_METADATA_TOPIC
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.list_groups import ListGroupsRequest
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
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.replica.append_path import append_records
from klamm.replica.transaction_verification import append_transactional
from tests.support.one_broker import OneBroker

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}


class GroupBroker(OneBroker):
    """One broker with its group coordinator, which leads `__consumer_offsets` once that exists."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, SETTINGS)
        ids = iter(range(1, 1_000_000))
        self.last_connection = 0
        broker = self.broker
        groups = create_group_coordinator(
            config=broker.config,
            replicas=broker.replicas,
            append_records=partial(append_records, broker.replicas),
            append_transactional=partial(append_transactional, broker.replicas),
            metadata=broker.metadata,
            clock=self.clock,
            loop=self.loop,
            metrics=broker.metrics,
            new_uuid=lambda: f"{next(ids)}",
            last_connection=lambda: self.last_connection,
        )
        groups.startup()
        self.give(groups=groups)
        self.update_metadata({})

    def close(self) -> None:
        if self.loop.is_closed():
            return
        self.broker.groups.shutdown()
        self.spin()
        super().close()

    def lead_offsets_topic(self, leader_epoch: int = 0) -> None:
        self.lead(GROUP_METADATA_TOPIC, 3, leader_epoch=leader_epoch)
        self.wait_until_loaded()

    def wait_until_loaded(self) -> None:
        while self.broker.groups.list_groups()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.spin()

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.elapsed_ms += duration_ms
        self.broker.groups.advance()
        self.spin()

    def join_request(self, member_id: str = "", instance: str | None = None, **changes: Any) -> JoinGroupRequest:
        fields: dict[str, Any] = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"meta")],
        }
        return JoinGroupRequest(**{**fields, **changes})

    def join(self, version: int, **options: Any) -> JoinGroupResponse:
        response = self.ask(join_group.API, self.join_request(**options), version)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            options["member_id"] = response.member_id
            return self.ask(join_group.API, self.join_request(**options), version)
        return response

    def sync_request(self, joined: JoinGroupResponse, version: int = 5, **changes: Any) -> SyncGroupRequest:
        fields: dict[str, Any] = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
        }
        if version >= 5:
            fields |= {"protocol_type": "consumer", "protocol_name": "range"}
        return SyncGroupRequest(**{**fields, **changes})

    def stable_member(self) -> JoinGroupResponse:
        joined = self.join(9)
        assert self.ask(sync_group.API, self.sync_request(joined), 5).assignment == b"mine"
        return joined

    def commit(self, version: int, *offsets: tuple[str, int, int], **changes: Any) -> list[tuple[str, int, int]]:
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=at, committed_metadata="md")
                ],
            )
            for topic, index, at in offsets
        ]
        request = OffsetCommitRequest(**{"group_id": "g", "topics": topics, **changes})
        response = self.ask(offset_commit.API, request, version)
        return [(topic.name, p.partition_index, p.error_code) for topic in response.topics for p in topic.partitions]

    def fetch(self, version: int, topic: str | None = "t", group_id: str = "g") -> Any:
        """(error of the whole, {(topic, partition): (offset, leader epoch, metadata, error)})."""
        if version >= 8:
            asked = None if topic is None else [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=asked)])
            (group,) = self.ask(offset_fetch.API, request, version).groups
            error, topics = group.error_code, list(group.topics)
        else:
            old = None if topic is None else [OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])]
            response: Any = self.ask(offset_fetch.API, OffsetFetchRequest(group_id=group_id, topics=old), version)
            error, topics = response.error_code, response.topics
        return error, {
            (t.name, p.partition_index): (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
            for t in topics
            for p in t.partitions
        }


@pytest.fixture
def one(tmp_path: Path) -> Iterator[GroupBroker]:
    broker = GroupBroker(tmp_path)
    broker.lead("t", 2)
    yield broker
    broker.close()


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_has_the_offsets_topic_created(one: GroupBroker, version: int) -> None:
    one.controller.script = one.create_as_asked
    request = FindCoordinatorRequest(coordinator_keys=["g"]) if version >= 4 else FindCoordinatorRequest(key="g")

    def ask() -> Any:
        response = one.ask(find_coordinator.API, request, version)
        return response.coordinators[0] if version >= 4 else response

    first = ask()
    assert (first.error_code, first.node_id, first.port) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
    one.wait_until_loaded()
    found = ask()
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "host-1", 9092)
    (event,) = (e for e in one.controller.submitted if isinstance(e, CreateTopics))
    (topic,) = event.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (GROUP_METADATA_TOPIC, 3, 3)
    assert dict(topic.configs)["cleanup.policy"] == "compact"


def test_find_coordinator_asks_the_controller_once_at_a_time(one: GroupBroker) -> None:
    for _ in range(3):
        one.dispatch(find_coordinator.API, FindCoordinatorRequest(key="g"), 3)
    assert len(one.controller.submitted) == 1
    one.spin()
    one.spin()
    one.dispatch(find_coordinator.API, FindCoordinatorRequest(key="g"), 3)
    assert len(one.controller.submitted) == 2, "the controller refused: the next request asks again"


def test_find_coordinator_says_that_the_offsets_topic_needs_more_brokers(
    one: GroupBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A client waits silently and for ever: the log has to say why, but not as often as it asks."""
    refused = TopicResult(GROUP_METADATA_TOPIC, ErrorCode.INVALID_REPLICATION_FACTOR)
    one.controller.script = lambda event: TopicResults((refused,))
    for _ in range(3):
        response = one.ask(find_coordinator.API, FindCoordinatorRequest(key="g"), 3)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "offsets.topic.replication.factor is 3, live brokers: 1" in str(response.error_message)
        one.spin()
    (said,) = caplog.records
    assert (said.levelname, said.getMessage()) == ("WARNING", response.error_message)
    one.clock.elapsed_ms += 300_000
    one.ask(find_coordinator.API, FindCoordinatorRequest(key="g"), 3)
    one.spin()
    assert len(caplog.records) == 2


def test_find_coordinator_asks_again_after_a_failure(one: GroupBroker) -> None:
    """A controller that fails, however it fails, must not leave the offsets topic uncreated for ever."""
    asked: list[asyncio.Future[Any]] = []

    def submit(event: Any, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        assert timeout_ms is not None, "the answer must come in the end"
        asked.append(one.loop.create_future())
        return asked[-1]

    one.controller.submit = submit  # type: ignore[method-assign]
    for n in (1, 2):
        one.ask(find_coordinator.API, FindCoordinatorRequest(key="g"), 3)
        assert len(asked) == n
        asked[-1].set_exception(OSError("the controller is gone")) if n == 1 else asked[-1].cancel()
        one.spin()
    assert not one.broker.topic_creation.is_under_way(GROUP_METADATA_TOPIC)


def test_find_coordinator_echoes_every_key_and_knows_no_share_groups(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    found = one.ask(find_coordinator.API, FindCoordinatorRequest(coordinator_keys=["a", "b", "a"]), 4).coordinators
    assert [(c.key, c.error_code) for c in found] == [("a", 0), ("b", 0), ("a", 0)]
    request = FindCoordinatorRequest(coordinator_keys=["x"], key_type=2)
    assert one.ask(find_coordinator.API, request, 6).coordinators[0].error_code == ErrorCode.INVALID_REQUEST


def test_find_coordinator_knows_a_new_leader_before_the_metadata(one: GroupBroker) -> None:
    """LeaderAndIsr arrives first. A client that receives the dead broker once more may wait for it for ever."""
    partitions = {GROUP_METADATA_TOPIC: [0, 1, 2]}
    one.update_metadata(partitions, leader=3, replicas=(1, 2, 3), isr=(1, 2, 3), brokers=(1, 2, 3))
    for leader, leader_epoch in ((1, 1), (2, 2)):
        one.leader_and_isr(partitions, leader=leader, leader_epoch=leader_epoch, replicas=(1, 2, 3), isr=(1, 2))
        assert one.ask(find_coordinator.API, FindCoordinatorRequest(key="g"), 2).node_id == leader
    one.update_metadata(partitions, leader=1, leader_epoch=3, replicas=(1, 2, 3), isr=(1, 2), brokers=(1, 2))
    assert one.ask(find_coordinator.API, FindCoordinatorRequest(key="g"), 2).node_id == 1, "the newer one counts"


def test_find_coordinator_of_a_partition_without_a_reachable_leader(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    response = one.ask(find_coordinator.API, FindCoordinatorRequest(key="g"), 2, listener="OTHER")
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(10))
def test_join_group(one: GroupBroker, version: int) -> None:
    one.lead_offsets_topic()
    joined = one.join(version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == "test-1"
    assert [(m.member_id, m.metadata) for m in joined.members] == [("test-1", b"meta")]
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    refused = one.ask(join_group.API, one.join_request(session_timeout_ms=1), version)
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert refused.protocol_name == (None if version >= 7 else "")


def test_before_v1_the_rebalance_timeout_is_the_session_timeout(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    one.join(0)
    waiting = one.dispatch(join_group.API, one.join_request(), 0)
    one.pass_ms(9_999)
    assert not waiting.done()
    one.pass_ms(1)
    assert waiting.result().error_code == ErrorCode.NONE


def test_a_waiting_join_is_a_future_and_may_be_cancelled(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    first = one.stable_member()
    waiting = one.dispatch(join_group.API, one.join_request(), 3)
    assert not waiting.done()
    gone = one.dispatch(join_group.API, one.join_request(), 3)
    gone.cancel()
    one.ask(join_group.API, one.join_request(first.member_id), 9)
    assert one.run(waiting).generation_id == 2
    assert gone.cancelled()


@pytest.mark.parametrize("version", range(6))
def test_sync_group(one: GroupBroker, version: int) -> None:
    one.lead_offsets_topic()
    joined = one.join(9)
    synced = one.ask(sync_group.API, one.sync_request(joined, version), version)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    assert synced.protocol_name == ("range" if version >= 5 else None)
    wrong = one.ask(sync_group.API, one.sync_request(joined, version, generation_id=9), version)
    assert wrong.error_code == ErrorCode.ILLEGAL_GENERATION


def test_sync_group_requires_the_protocol_name_from_v5_on(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    joined = one.join(9)
    request = one.sync_request(joined, protocol_name=None)
    assert one.ask(sync_group.API, request, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(one: GroupBroker, version: int) -> None:
    one.lead_offsets_topic()
    joined = one.stable_member()
    for member_id, error in ((joined.member_id, ErrorCode.NONE), ("who", ErrorCode.UNKNOWN_MEMBER_ID)):
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
        assert one.ask(heartbeat.API, request, version).error_code == error


@pytest.mark.parametrize("version", range(6))
def test_leave_group(one: GroupBroker, version: int) -> None:
    one.lead_offsets_topic()
    member_id = one.stable_member().member_id

    def leave() -> tuple[int, list[tuple[str, int]]]:
        if version >= 3:
            request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
        else:
            request = LeaveGroupRequest(group_id="g", member_id=member_id)
        response = one.ask(leave_group.API, request, version)
        return response.error_code, [(m.member_id, m.error_code) for m in response.members]

    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert leave() == ((0, [(member_id, 0)]) if version >= 3 else (0, []))
    assert leave() == ((0, [(member_id, unknown)]) if version >= 3 else (unknown, []))


@pytest.mark.parametrize("version", range(10))
def test_offsets_are_committed_and_fetched(one: GroupBroker, version: int) -> None:
    one.lead_offsets_topic()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert one.commit(version, ("t", 0, 7), ("t", 5, 1), ("none", 0, 1)) == [
        ("t", 0, 0),
        ("t", 5, unknown),
        ("none", 0, unknown),
    ]
    expected = {("t", 0): (7, -1, "md", 0), ("t", 1): (-1, -1, "", 0)}
    assert one.fetch(version) == (0, expected)
    if version >= 2:
        assert one.fetch(version, topic=None) == (0, {("t", 0): (7, -1, "md", 0)})


def test_nothing_but_unknown_topics_needs_no_coordinator(one: GroupBroker) -> None:
    assert one.commit(9, ("none", 0, 1)) == [("none", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


@pytest.mark.parametrize("version", range(10))
def test_offsets_without_a_coordinator(one: GroupBroker, version: int) -> None:
    not_here = ErrorCode.NOT_COORDINATOR
    assert one.commit(version, ("t", 0, 7)) == [("t", 0, not_here)]
    if version < 2:
        assert one.fetch(version)[1] == {("t", 0): (-1, -1, "", not_here), ("t", 1): (-1, -1, "", not_here)}
    else:
        assert one.fetch(version) == (not_here, {})


def test_a_member_commits_with_its_generation_and_leader_epochs(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    member_id = one.stable_member().member_id
    identity = {"member_id": member_id, "generation_id_or_member_epoch": 1}
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_leader_epoch=4, committed_metadata=None
    )
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    request = OffsetCommitRequest(group_id="g", topics=topics, **identity)  # type: ignore[arg-type]
    one.ask(offset_commit.API, request, 9)
    assert one.fetch(5)[1]["t", 0] == (3, 4, "", 0)
    assert one.commit(9, ("t", 0, 1), member_id=member_id, generation_id_or_member_epoch=2) == [("t", 0, 22)]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("retention_ms", [2**63 - 1, -(2**63)])
def test_any_retention_time_can_be_stored(one: GroupBroker, version: int, retention_ms: int) -> None:
    one.lead_offsets_topic()
    assert one.commit(version, ("t", 0, 7), retention_time_ms=retention_ms) == [("t", 0, 0)]
    assert one.fetch(5)[1]["t", 0][0] == 7


def test_retention_time_of_old_versions(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    one.commit(2, ("t", 0, 7), retention_time_ms=1_000)
    one.commit(2, ("t", 1, 8))
    one.pass_ms(600_000)
    one.spin()
    assert one.fetch(9, topic=None)[1].keys() == {("t", 1)}


def test_everything_survives_a_restart(one: GroupBroker, tmp_path: Path) -> None:
    one.lead_offsets_topic()
    member_id = one.stable_member().member_id
    one.commit(9, ("t", 0, 42), member_id=member_id, generation_id_or_member_epoch=1)
    for i in range(30):
        one.commit(9, ("t", 1, i), group_id=f"simple-{i}")
    one.close()
    again = GroupBroker(tmp_path)
    try:
        again.lead("t", 2, leader_epoch=1)
        again.leader_and_isr({GROUP_METADATA_TOPIC: [0, 1, 2]}, leader_epoch=1)
        again.update_metadata({GROUP_METADATA_TOPIC: [0, 1, 2]}, leader_epoch=1)
        again.wait_until_loaded()
        assert again.fetch(9)[1]["t", 0] == (42, -1, "md", 0)
        assert [again.fetch(9, group_id=f"simple-{i}")[1]["t", 1][0] for i in range(30)] == list(range(30))
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
        assert again.ask(heartbeat.API, request, 4).error_code == ErrorCode.NONE
    finally:
        again.close()


@pytest.mark.parametrize("version", range(6))
def test_list_and_describe_groups(one: GroupBroker, version: int) -> None:
    one.lead_offsets_topic()
    member_id = one.stable_member().member_id
    listed = one.ask(list_groups.API, ListGroupsRequest(), version)
    (group,) = listed.groups
    assert (listed.error_code, group.group_id, group.protocol_type) == (0, "g", "consumer")
    assert (group.group_state, group.group_type) == (
        "Stable" if version >= 4 else "",
        "classic" if version >= 5 else "",
    )
    described = one.ask(describe_groups.API, DescribeGroupsRequest(groups=["g", "none"]), version).groups
    assert [(d.group_id, d.group_state, d.protocol_data) for d in described] == [
        ("g", "Stable", "range"),
        ("none", "Dead", ""),
    ]
    (member,) = described[0].members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"meta", b"mine")
    assert described[0].authorized_operations == -(1 << 31)


def test_authorized_operations_and_filters(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    one.stable_member()
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    assert one.ask(describe_groups.API, request, 5).groups[0].authorized_operations == 0b101001000
    assert one.ask(list_groups.API, ListGroupsRequest(states_filter=["Empty"]), 4).groups == []
    assert one.ask(list_groups.API, ListGroupsRequest(types_filter=["share"]), 5).groups == []


@pytest.mark.parametrize("version", range(3))
def test_delete_groups(one: GroupBroker, version: int) -> None:
    one.lead_offsets_topic()
    one.commit(9, ("t", 0, 1), group_id="simple")
    one.stable_member()
    response = one.ask(delete_groups.API, DeleteGroupsRequest(groups_names=["simple", "g", "none"]), version)
    assert {r.group_id: r.error_code for r in response.results} == {
        "simple": ErrorCode.NONE,
        "g": ErrorCode.NON_EMPTY_GROUP,
        "none": ErrorCode.GROUP_ID_NOT_FOUND,
    }


def test_offset_delete(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    one.commit(9, ("t", 0, 1), ("t", 1, 2))

    def delete(group_id: str) -> Any:
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 7)]
        topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions)]
        response = one.ask(offset_delete.API, OffsetDeleteRequest(group_id=group_id, topics=topics), 0)
        return response.error_code, [(p.partition_index, p.error_code) for t in response.topics for p in t.partitions]

    assert delete("g") == (0, [(0, 0), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)])
    assert one.fetch(9, topic=None)[1].keys() == {("t", 1)}
    assert delete("none") == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_a_deleted_topic_takes_its_offsets_along(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    one.commit(9, ("t", 0, 1))
    one.update_metadata({"t": [0, 1]}, leader=-2, leader_epoch=-2)
    one.spin()
    assert one.fetch(9, topic=None) == (0, {})


def test_losing_the_offsets_partition_redirects_all_members(one: GroupBroker) -> None:
    one.lead_offsets_topic()
    first = one.stable_member()
    waiting = one.dispatch(join_group.API, one.join_request(), 3)
    one.leader_and_isr(
        {GROUP_METADATA_TOPIC: [0, 1, 2]}, leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2), partition_epoch=1
    )
    assert one.run(waiting).error_code == ErrorCode.NOT_COORDINATOR
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=first.member_id)
    assert one.ask(heartbeat.API, request, 4).error_code == ErrorCode.NOT_COORDINATOR
