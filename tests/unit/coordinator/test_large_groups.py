"""Large groups and commits: their batches are built off the loop, and the order of the log stays right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import join_group, sync_group
from klamm.apis.api_declaration import at_once
from klamm.coordinator import consumer_protocol
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.group_metadata_manager import DELETION_COST, OFFSETS_PER_PART, WORK_PER_SLICE
from klamm.coordinator.group_writer import ENTRY_COST, INLINE_BYTES
from klamm.coordinator.offset_records import (
    GroupKey,
    OffsetAndMetadata,
    OffsetKey,
    UnknownKey,
    decode_group_value,
    decode_key,
)
from klamm.coordinator.transactional_offsets import OFFSETS_PER_SLICE
from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.model import GROUP_METADATA_TOPIC, TopicPartition
from klamm.protocol.messages.join_group import JoinGroupRequestProtocol
from klamm.protocol.messages.sync_group import SyncGroupRequestAssignment, SyncGroupResponse
from klamm.protocol.wire import encode
from klamm.waiting import begin
from tests.unit.coordinator.harness import GROUP, START_MS, Harness
from tests.unit.coordinator.test_group_apis import GroupBroker

LARGE = b"a" * (INLINE_BYTES + 1)
T0 = TopicPartition("t", 0)
LIVE = OffsetAndMetadata(1, commit_timestamp_ms=START_MS)
EXPIRED = OffsetAndMetadata(1, expire_timestamp_ms=START_MS)


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
    committed = harness.commit_all(offsets, "other")
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
    harness.commit_all(offsets)
    harness.log.holds_builds = True
    deleted = harness.coordinator.delete_groups([GROUP])
    assert harness.log.builds and not deleted.done
    harness.log.finish_builds()
    assert deleted.value == {GROUP: ErrorCode.NONE} and harness.manager.get(GROUP) is None
    assert [record.value for record in harness.log.records(0)[len(offsets) :]] == [None] * len(offsets)


def subscription(names: list[str]) -> bytes:
    raw = [name.encode() for name in names]
    return b"\0\1" + len(raw).to_bytes(4, "big") + b"".join(len(name).to_bytes(2, "big") + name for name in raw)


def join_large(harness: Harness, names: list[str]) -> str:
    joined = harness.join(version=0, protocols=(("range", subscription(names)),))
    harness.pass_ms(0)
    harness.sync(joined.value.member_id, joined.value.generation_id, {})
    assert harness.state() is GroupState.STABLE
    return joined.value.member_id


def test_a_join_does_not_read_the_subscription_and_expiry_reads_it_in_slices(harness: Harness) -> None:
    names = [f"topic-{number}" for number in range(5_000)]
    join_large(harness, names)
    assert sum(1 for _ in harness.manager.expire_offsets()) >= len(names) // 1_000
    assert sum(1 for _ in harness.manager.expire_offsets()) < 5, "it is read once"
    assert harness.group.subscribed_topics == frozenset(names)


class TestExpiry:
    """Groups and offsets that expire at once are deleted in slices."""

    def expiring(self, harness: Harness) -> Iterator[int]:
        """Yield the number of records that each slice wrote."""
        before = len(harness.log.records(0))
        for _ in harness.manager.expire_offsets():
            now = len(harness.log.records(0))
            yield now - before
            before = now

    def test_many_groups(self, harness: Harness) -> None:
        groups = [f"group-{number}" for number in range(100)]
        for group in groups:
            harness.commit_all({T0: EXPIRED}, group)
        written = list(self.expiring(harness))
        assert sum(written) == len(groups) and max(written) <= WORK_PER_SLICE // DELETION_COST
        assert not any(map(harness.manager.get, groups)) and not any(map(harness.restart().manager.get, groups))

    def test_the_offsets_of_one_group(self, harness: Harness) -> None:
        offsets = {TopicPartition("t", i): EXPIRED for i in range(5 * OFFSETS_PER_PART)}
        harness.commit_all(offsets)
        written = list(self.expiring(harness))
        assert sum(written) == len(offsets) and max(written) <= OFFSETS_PER_PART
        assert harness.manager.get(GROUP) is None and harness.restart().manager.get(GROUP) is None

    def test_an_offset_that_is_committed_meanwhile_stays(self, harness: Harness) -> None:
        offsets = {TopicPartition("t", i): EXPIRED for i in range(5 * OFFSETS_PER_PART)}
        harness.commit_all(offsets)
        job = harness.manager.expire_offsets()
        next(job)
        last, first = list(offsets)[-1], next(iter(offsets))
        harness.commit_all({first: replace(LIVE, offset=7), last: replace(LIVE, offset=8)})
        for _ in job:
            pass
        assert (harness.committed(first), harness.committed(last)) == (7, 8)
        loaded = harness.restart().group.offsets.committed
        assert {tp: entry.value.offset for tp, entry in loaded.items()} == {first: 7, last: 8}

    def test_groups_that_had_offsets_of_deleted_partitions(self, harness: Harness) -> None:
        offsets = {TopicPartition("t", i): LIVE for i in range(OFFSETS_PER_PART)}
        groups = [f"group-{number}" for number in range(10)]
        for group in groups:
            harness.commit_all(offsets, group)
        harness.commit_all({T0: LIVE, TopicPartition("u", 0): LIVE}, "other")
        before = len(harness.log.records(0))
        written: list[int] = []
        for _ in harness.manager.remove_deleted_partitions(tp for tp in offsets if tp != T0):
            written.append(len(harness.log.records(0)) - before - sum(written))
        assert max(written) <= OFFSETS_PER_PART
        assert [harness.committed(T0, group) for group in (*groups, "other")] == [LIVE.offset] * 11
        assert harness.committed(TopicPartition("u", 0), "other") == LIVE.offset
        assert [harness.committed(TopicPartition("t", 1), group) for group in groups] == [None] * 10


def many_offsets(count: int, offset: int = 1) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition("t", i): OffsetAndMetadata(offset, metadata="m") for i in range(count)}


COMMITTED = 5 * OFFSETS_PER_SLICE


class TestLargeCommits:
    """Offsets are checked in slices, written as one batch, and committed in slices."""

    def commit(self, harness: Harness, offsets: dict[TopicPartition, OffsetAndMetadata], **who: Any) -> Any:
        given = {"member_id": "", "group_instance_id": None, "generation_id": -1} | who
        return harness.coordinator.commit_offsets(GROUP, offsets=offsets, **given)

    def test_offsets_are_checked_and_committed_in_slices_and_written_at_once(self, harness: Harness) -> None:
        offsets = many_offsets(COMMITTED)
        checking = self.commit(harness, offsets)
        slices = [len(harness.log.records(0)) for _ in range(COMMITTED // OFFSETS_PER_SLICE - 1) if not next(checking)]
        assert slices == [0] * 4
        committed = at_once(checking)
        assert len(harness.log.partitions[0]) == 1 and not committed.done
        (job,) = harness.scheduler.jobs
        group = harness.group.offsets
        visible = [len(group.committed)]
        for _ in job:
            visible.append(len(group.committed))
            assert len(group.pending) == COMMITTED - len(group.committed), "unstable until its turn"
        assert visible == [1_000, 2_000, 3_000, 4_000, 5_000]
        assert committed.value == dict.fromkeys(offsets, ErrorCode.NONE)
        assert group.metadata_bytes == COMMITTED and not group.removed_meanwhile

    def test_the_generation_counts_that_the_group_has_at_the_commit(self, harness: Harness) -> None:
        (member, *_), generation = harness.stable_group()
        checking = self.commit(harness, many_offsets(COMMITTED), member_id=member, generation_id=generation)
        next(checking)
        harness.join(member, protocols=(("range", b"other"),))
        harness.sync(member, harness.group.generation_id, {})
        committed = at_once(checking)
        assert set(committed.value.values()) == {ErrorCode.ILLEGAL_GENERATION}
        assert harness.committed() is None

    def test_a_commit_that_is_refused_at_once_is_not_looked_at(self, harness: Harness) -> None:
        committed = begin(self.commit(harness, many_offsets(COMMITTED), generation_id=3))
        assert isinstance(committed, Deferred) and set(committed.value.values()) == {ErrorCode.ILLEGAL_GENERATION}

    def test_offsets_of_a_failed_write_do_not_stay_pending(self, harness: Harness) -> None:
        harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
        committed = at_once(self.commit(harness, many_offsets(COMMITTED)))
        harness.scheduler.run_jobs()
        assert set(committed.value.values()) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert harness.group.offsets.is_empty and not harness.group.offsets.removed_meanwhile

    def test_tombstones_and_later_commits_win_over_one_that_is_under_way(self, harness: Harness) -> None:
        offsets = many_offsets(COMMITTED)
        first, last = TopicPartition("t", 0), TopicPartition("t", COMMITTED - 1)
        committed = at_once(self.commit(harness, offsets))
        assert harness.committed(first) == 1 and harness.committed(last) is None
        deleted = harness.delete_offsets([first, last])
        newer = harness.commit(7, tp=TopicPartition("t", COMMITTED - 2))
        harness.scheduler.run_jobs()
        assert deleted.value == dict.fromkeys([first, last], ErrorCode.NONE)
        assert newer.done and committed.done and not harness.group.offsets.pending
        for reload in (False, True):
            now = harness.restart() if reload else harness
            assert now.committed(first) is None and now.committed(last) is None
            assert now.committed(TopicPartition("t", COMMITTED - 2)) == 7
            assert now.committed(TopicPartition("t", 1)) == 1

    def test_a_group_is_deleted_while_its_offsets_are_committed(self, harness: Harness) -> None:
        committed = at_once(self.commit(harness, many_offsets(COMMITTED)))
        deleted = harness.coordinator.delete_groups([GROUP])
        harness.scheduler.run_jobs()
        assert committed.done and deleted.value == {GROUP: ErrorCode.NONE}
        assert harness.manager.get(GROUP) is None and harness.restart().manager.get(GROUP) is None


class TestLargeDeletions:
    """OffsetDelete reads subscriptions and looks at partitions in slices."""

    NAMES = tuple(f"topic-{number}" for number in range(5_000))

    def deleting(self, harness: Harness, topics: list[str]) -> Any:
        return harness.coordinator.delete_offsets(GROUP, [TopicPartition(topic, 0) for topic in topics])

    def test_a_subscription_is_read_in_slices(self, harness: Harness) -> None:
        member_id = join_large(harness, list(self.NAMES))
        for topic in ("topic-7", "other"):
            harness.commit(1, tp=TopicPartition(topic, 0), member_id=member_id, generation_id=1)
        deleting = self.deleting(harness, ["topic-7", "other"])
        for _ in range(len(self.NAMES) // 1_000):
            next(deleting)
        deleted = at_once(deleting).value
        assert list(deleted.values()) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]

    def test_partitions_are_looked_at_in_slices(self, harness: Harness) -> None:
        harness.commit(1, tp=TopicPartition("topic-7", 0))
        deleting = self.deleting(harness, list(self.NAMES))
        for _ in range(len(self.NAMES) // OFFSETS_PER_SLICE - 1):
            next(deleting)
        assert set(at_once(deleting).value.values()) == {ErrorCode.NONE}

    def test_the_subscription_counts_that_the_group_has_at_the_deletion(self, harness: Harness) -> None:
        member_id = join_large(harness, list(self.NAMES))
        other = TopicPartition("other", 0)
        harness.commit(1, tp=other, member_id=member_id, generation_id=1)
        deleting = self.deleting(harness, ["other"])
        next(deleting)
        harness.join(member_id, protocols=(("range", subscription(["other"])),))
        harness.sync(member_id, harness.group.generation_id, {})
        assert at_once(deleting).value == {other: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        assert harness.committed(other) == 1

    def test_a_group_with_too_many_topics_is_subscribed_to_all(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumer_protocol, "MAX_TOPICS", 2_000)
        member_id = join_large(harness, list(self.NAMES))
        other = TopicPartition("other", 0)
        harness.commit(1, tp=other, member_id=member_id, generation_id=1)
        deleting = self.deleting(harness, ["other"])
        assert next(deleting) is next(deleting) is None
        assert at_once(deleting).value == {other: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        assert harness.group.subscribed_topics is None


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
