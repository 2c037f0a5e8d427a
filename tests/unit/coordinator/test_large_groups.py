"""Large groups and commits: their batches are built off the loop, and the order of the log stays right."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import join_group, sync_group
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.group_writer import ENTRY_COST, INLINE_BYTES
from klamm.coordinator.offset_records import (
    GroupKey,
    OffsetAndMetadata,
    OffsetKey,
    UnknownKey,
    decode_group_value,
    decode_key,
)
from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.model import GROUP_METADATA_TOPIC, TopicPartition
from klamm.protocol.messages.join_group import JoinGroupRequestProtocol
from klamm.protocol.messages.sync_group import SyncGroupRequestAssignment, SyncGroupResponse
from klamm.protocol.wire import encode
from tests.unit.coordinator.harness import GROUP, Harness
from tests.unit.coordinator.test_group_apis import GroupBroker

LARGE = b"a" * (INLINE_BYTES + 1)
T0 = TopicPartition("t", 0)


@pytest.fixture
def harness() -> Harness:
    return Harness().start()


def sync_large(harness: Harness) -> tuple[str, Any]:
    member_id, joined = harness.dynamic_member()
    harness.pass_ms(0)
    return member_id, harness.sync(member_id, joined.value.generation_id, {member_id: LARGE})


def keys(harness: Harness) -> list[GroupKey | OffsetKey | UnknownKey]:
    return [decode_key(record.key or b"") for record in harness.log.records(0)]


def test_a_large_group_is_built_off_the_loop_and_later_writes_wait_behind_it(harness: Harness) -> None:
    harness.log.holds_builds = True
    member_id, synced = sync_large(harness)
    assert len(harness.log.builds) == 1 and not synced.done and keys(harness) == []
    commits = [harness.commit(offset, group_id="other") for offset in (1, 2)]
    assert not any(commit.done for commit in commits), "a later batch of the partition does not overtake"
    assert harness.committed(group_id="other") is None
    again = harness.sync(member_id, 1, {member_id: b"second"})
    assert len(harness.log.builds) == 1, "no second change while the first is being stored"
    harness.log.finish_builds()
    assert synced.value.error is ErrorCode.REBALANCE_IN_PROGRESS and again.value.assignment == LARGE
    assert [commit.value for commit in commits] == [{T0: ErrorCode.NONE}] * 2
    assert keys(harness) == [GroupKey(GROUP), OffsetKey("other", T0), OffsetKey("other", T0)]
    stored = decode_group_value(harness.log.records(0)[0].value or b"")
    assert stored.members[0].assignment == LARGE and harness.committed(group_id="other") == 2
    small = harness.commit(3, group_id="other")
    assert small.done and not harness.log.builds, "the queue is gone"


def test_batches_that_are_built_out_of_order_are_appended_in_order(harness: Harness) -> None:
    harness.log.holds_builds = True
    sync_large(harness)
    offsets = {TopicPartition("t", i): OffsetAndMetadata(i) for i in range(INLINE_BYTES // ENTRY_COST + 1)}
    committed = harness.coordinator.commit_offsets("other", "", None, -1, offsets)
    assert len(harness.log.builds) == 2, "a large commit is built off the loop, too"
    built, work = harness.log.builds.pop()
    built.complete(work())
    assert keys(harness) == [] and not committed.done
    harness.log.finish_builds()
    assert keys(harness) == [GroupKey(GROUP), *(OffsetKey("other", tp) for tp in offsets)]
    assert set(committed.value.values()) == {ErrorCode.NONE}


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_batch_of_an_earlier_term_is_not_appended(harness: Harness, comes_back: bool) -> None:
    harness.log.holds_builds = True
    _, synced = sync_large(harness)
    commit = harness.commit(7, group_id="other")
    harness.manager.on_resignation(0, 1)
    assert synced.value.error is ErrorCode.NOT_COORDINATOR
    if comes_back:
        harness.manager.on_election(0, 2)
        harness.scheduler.run_jobs()
    harness.log.finish_builds()
    assert commit.value == {T0: ErrorCode.NOT_COORDINATOR} and keys(harness) == []
    if comes_back:
        assert harness.commit(8, group_id="other").value == {T0: ErrorCode.NONE}
        assert harness.committed(group_id="other") == 8


def test_a_batch_that_cannot_be_built_fails_its_write_alone(harness: Harness) -> None:
    harness.log.holds_builds = True
    _, synced = sync_large(harness)
    commit = harness.commit(7, group_id="other")
    harness.log.finish_builds(fails=True)
    assert synced.value.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert harness.state() is GroupState.PREPARING_REBALANCE
    assert commit.value == {T0: ErrorCode.NONE} and keys(harness) == [OffsetKey("other", T0)]


def test_tombstones_of_a_large_group_are_built_off_the_loop(harness: Harness) -> None:
    offsets = {TopicPartition("t", i): OffsetAndMetadata(i) for i in range(3 * INLINE_BYTES // ENTRY_COST)}
    harness.coordinator.commit_offsets(GROUP, "", None, -1, offsets)
    harness.log.holds_builds = True
    deleted = harness.coordinator.delete_groups([GROUP])
    assert harness.log.builds and not deleted.done
    harness.log.finish_builds()
    assert deleted.value == {GROUP: ErrorCode.NONE} and harness.manager.get(GROUP) is None
    assert [record.value for record in harness.log.records(0)[len(offsets) :]] == [None] * len(offsets)


def test_a_join_does_not_read_the_subscription_and_expiry_reads_it_in_slices(harness: Harness) -> None:
    count = 5_000
    names = [f"topic-{number}".encode() for number in range(count)]
    subscription = b"\0\1" + count.to_bytes(4, "big") + b"".join(len(n).to_bytes(2, "big") + n for n in names)
    joined = harness.join(version=0, protocols=(("range", subscription),))
    harness.pass_ms(0)
    harness.sync(joined.value.member_id, 1, {})
    assert harness.state() is GroupState.STABLE
    assert sum(1 for _ in harness.manager.expire_offsets()) >= count // 1_000
    assert sum(1 for _ in harness.manager.expire_offsets()) < 5, "it is read once"
    assert harness.group.is_subscribed_to("topic-4999") and not harness.group.is_subscribed_to("topic-5000")


class CountingWorker(ThreadPoolExecutor):
    def __init__(self) -> None:
        super().__init__(1)
        self.count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        return super().submit(fn, *args, **kwargs)


def test_large_metadata_and_assignments_are_copied_and_stored_in_the_worker(tmp_path: Path) -> None:
    one = GroupBroker(tmp_path)
    one.topic_configs[GROUP_METADATA_TOPIC] = LogConfig(max_message_bytes=10 * len(LARGE))
    worker = CountingWorker()
    one.broker.replicas.record_checks.start(worker)
    one.lead_offsets_topic()
    protocols = [JoinGroupRequestProtocol(name="range", metadata=LARGE)]
    joined = one.join(0, protocols=protocols)
    assert (joined.error_code, joined.members[0].metadata, worker.count) == (0, LARGE, 1)
    refused = one.join_request(protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(9 << 20))])
    assert one.ask(join_group.API, refused, 0).error_code == ErrorCode.UNKNOWN_SERVER_ERROR and worker.count == 1
    given = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=LARGE)]
    synced = one.ask(sync_group.API, one.sync_request(joined, assignments=given), 5)
    assert (synced.error_code, synced.assignment, worker.count) == (0, LARGE, 3)
    one.close()


def test_a_large_assignment_is_not_copied_into_its_response() -> None:
    parts = encode(SyncGroupResponse(error_code=0, assignment=LARGE), 5)
    assert any(part is LARGE for part in parts)
