"""The memory that clients can make the coordinator use is bounded, with Kafka's error codes."""

from __future__ import annotations

from klamm.coordinator.config import GroupConfig
from klamm.coordinator.memory import MEMBER_COST, members_bytes
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from tests.unit.coordinator.harness import Harness

LIMIT = 100_000


def bounded(**settings: int) -> Harness:
    return Harness(GroupConfig(initial_rebalance_delay_ms=0, **settings)).start()


def held(harness: Harness) -> int:
    return sum(map(members_bytes, harness.manager.groups()))


def test_members_of_all_groups_together_are_bounded_by_bytes() -> None:
    harness = bounded(members_max_bytes=LIMIT)
    errors = []
    for number in range(50):
        joined = harness.join(group_id=f"g{number}", protocols=(("range", bytes(9_000)),), version=3)
        errors.append(joined.value.error)
        assert held(harness) <= LIMIT
    assert errors.count(ErrorCode.NONE) == LIMIT // (9_000 + MEMBER_COST + 10)
    assert set(errors) == {ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED}


def test_pending_member_ids_are_bounded_and_lapse() -> None:
    harness = bounded(members_max_bytes=LIMIT)
    errors = [harness.join(client_id="c" * 8_000, version=4).value.error for _ in range(50)]
    assert errors[-1] is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert 0 < held(harness) <= LIMIT
    harness.pass_ms(20_000)
    assert harness.join(client_id="c" * 8_000, version=4).value.error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_member_that_does_not_grow_may_always_join_again() -> None:
    harness = bounded(members_max_bytes=LIMIT)
    first = harness.join(protocols=(("range", bytes(90_000)),), version=3).value
    assert harness.join(group_id="other", protocols=(("range", bytes(20_000)),), version=3).value.error
    for _ in range(20):
        again = harness.join(first.member_id, protocols=(("range", bytes(90_000)),), version=3)
        assert again.value.error is ErrorCode.NONE


def test_a_subscription_that_no_log_could_hold_is_refused() -> None:
    harness = bounded(record_max_bytes=1_000)
    refused = harness.join(protocols=(("range", bytes(1_001)),), version=3).value
    assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert held(harness) == 0


def test_assignments_that_no_log_could_hold_are_not_encoded() -> None:
    harness = bounded(record_max_bytes=1_000)
    leader = harness.join(version=3).value
    before = dict(harness.log.end_offsets)
    answer = harness.sync(leader.member_id, leader.generation_id, {leader.member_id: bytes(2_000)})
    assert answer.value.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert harness.log.end_offsets == before
    assert held(harness) < 2_000


def test_metadata_of_offsets_is_bounded_in_all_and_plain_offsets_are_taken() -> None:
    harness = bounded(offset_metadata_total_bytes=10_000)
    errors = []
    for number in range(20):
        tp = TopicPartition("t", number)
        errors.append(harness.commit(1, tp=tp, metadata="m" * 1_000).value[tp])
    assert errors == [ErrorCode.NONE] * 10 + [ErrorCode.OFFSET_METADATA_TOO_LARGE] * 10
    last = TopicPartition("t", 19)
    assert harness.commit(7, tp=last).value[last] is ErrorCode.NONE
    harness.commit(8, tp=TopicPartition("t", 0))
    harness.pass_ms(2_000)  # Counted again: one of the metadata is gone.
    assert harness.commit(9, tp=last, metadata="m" * 1_000).value[last] is ErrorCode.NONE
    successor = harness.restart()
    assert sum(group.offsets.metadata_bytes for group in successor.manager.groups()) == 10_000
