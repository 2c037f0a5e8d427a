from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import fetch, produce
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.model import TopicPartition
from klamm.replica.partition import Partition
from tests.support.isr_passes import shrink_isrs
from tests.support.one_broker import OneBroker, batch
from tests.unit.apis.test_fetch import ID, request
from tests.unit.apis.test_produce import only as produced
from tests.unit.apis.test_produce import request as produce_request

TP = TopicPartition("t", 0)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    yield broker
    broker.close()


def led(one: OneBroker, isr: tuple[int, ...] = (1, 2, 3), **state: Any) -> Partition:
    one.leader_and_isr({"t": [0]}, replicas=(1, 2, 3), isr=isr, **state)
    return one.broker.replicas.partitions[TP]


def append(one: OneBroker, partition: Partition, *values: bytes) -> None:
    result = partition.append_records_to_leader(batch(*values), 1, elapsed_ms(one.clock))
    assert not isinstance(result, ErrorCode) and result.error == 0


def test_the_high_watermark_is_the_lowest_end_of_the_in_sync_replicas(one: OneBroker) -> None:
    partition = led(one)
    append(one, partition, b"a", b"b", b"c")
    assert partition.log is not None and partition.log.high_watermark == 0
    assert not partition.on_follower_fetch(2, 3, 0, elapsed_ms(one.clock), -1)
    assert partition.on_follower_fetch(3, 1, 0, elapsed_ms(one.clock), -1)
    assert partition.log.high_watermark == 1
    assert partition.on_follower_fetch(3, 3, 0, elapsed_ms(one.clock), -1)
    assert partition.log.high_watermark == 3
    assert not partition.on_follower_fetch(3, 2, 0, elapsed_ms(one.clock), -1)
    assert partition.log.high_watermark == 3


def test_replication_is_awaited_up_to_the_present_end_of_the_log(one: OneBroker) -> None:
    replicas = one.broker.replicas
    assert replicas.await_replication(TP, 1_000) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = led(one, isr=(1, 2))
    assert replicas.await_replication(TP, 1_000) is ErrorCode.NONE
    append(one, partition, b"a")
    replicated = replicas.await_replication(TP, 1_000)
    assert isinstance(replicated, asyncio.Future) and not replicated.done()
    append(one, partition, b"b")
    assert partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)
    replicas.complete_after_high_watermark(TP)
    assert replicated.result() is ErrorCode.NONE
    assert replicas.await_replication(TP, 0) is ErrorCode.REQUEST_TIMED_OUT
    lost = replicas.await_replication(TP, 1_000)
    assert isinstance(lost, asyncio.Future)
    one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=9, replicas=(1, 2, 3), isr=(1, 2))
    assert lost.result() is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_replication_is_awaited_by_in_sync_replicas_only_even_if_they_are_too_few(one: OneBroker) -> None:
    """No election among them can lose the records, so a coordinator need not wait for the others."""
    one.topic_configs["t"] = LogConfig(min_insync_replicas=2)
    partition, replicas = led(one, isr=(1, 2)), one.broker.replicas
    append(one, partition, b"a")
    replicated = replicas.await_replication(TP, 1_000)
    assert isinstance(replicated, asyncio.Future) and not replicated.done()
    assert partition.commit_isr((1,), partition.leader_epoch, 1, elapsed_ms(one.clock))
    replicas.complete_after_high_watermark(TP)
    assert partition.log is not None and partition.log.high_watermark == 0
    assert replicated.result() is ErrorCode.NONE


@pytest.mark.parametrize("isr", [(1, 2), (1, 2, 3)])
def test_the_fetch_of_the_last_in_sync_replica_ends_the_wait_for_replication(
    one: OneBroker, isr: tuple[int, ...]
) -> None:
    """With (1, 2) the high watermark stands still, because `min.insync.replicas` is not reached."""
    one.topic_configs["t"] = LogConfig(min_insync_replicas=3)
    partition, replicas = led(one, isr=isr, topic_id=ID), one.broker.replicas
    append(one, partition, b"a")
    replicated = replicas.await_replication(TP, 30_000)
    assert isinstance(replicated, asyncio.Future)
    for offset in range(2):
        for follower in isr[1:]:
            assert not replicated.done()
            one.ask(fetch.API, request({0: offset}, replica_id=follower), 12)
    assert replicated.done() and replicated.result() is ErrorCode.NONE
    assert partition.log is not None and partition.log.high_watermark == (1 if len(isr) == 3 else 0)


def test_fetches_below_the_minimum_do_not_check_the_producers_that_wait(
    one: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their high watermark stands still, and thousands may wait. A new coordinator is still woken."""
    one.topic_configs["t"] = LogConfig(min_insync_replicas=3)
    partition, replicas = led(one, topic_id=ID), one.broker.replicas
    waiting = [one.dispatch(produce.API, produce_request(batch(b"a")), 9) for _ in range(20)]
    assert replicas.produce_purgatory.size == len(waiting)
    assert partition.commit_isr((1, 2), partition.leader_epoch, 1, elapsed_ms(one.clock))
    replicas.complete_after_high_watermark(TP)
    replicated = replicas.await_replication(TP, 30_000)
    assert isinstance(replicated, asyncio.Future)

    checks = 0
    original = Partition.check_enough_replicas

    def counted(partition: Partition, required_offset: int) -> ErrorCode | None:
        nonlocal checks
        checks += 1
        return original(partition, required_offset)

    monkeypatch.setattr(Partition, "check_enough_replicas", counted)
    for offset in (0, 10, len(waiting)):
        assert not replicated.done()
        one.ask(fetch.API, request({0: offset}, replica_id=2), 12)
    assert replicated.done() and replicated.result() is ErrorCode.NONE
    assert checks == 0 and replicas.produce_purgatory.size == len(waiting)
    assert partition.commit_isr((1, 2, 3), partition.leader_epoch, 2, elapsed_ms(one.clock))
    one.ask(fetch.API, request({0: len(waiting)}, replica_id=3), 12)
    assert {produced(one.run(each)).error_code for each in waiting} == {ErrorCode.NONE}
    assert replicas.produce_purgatory.watched == 0


def test_a_lagging_member_is_to_be_removed_and_then_no_longer_waited_for(one: OneBroker) -> None:
    partition = led(one)
    append(one, partition, b"a")
    one.clock.elapsed_ms += 20_000
    partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)
    assert partition.isr_to_shrink_to(elapsed_ms(one.clock)) is None
    one.clock.elapsed_ms += 20_000
    partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)
    wanted = partition.isr_to_shrink_to(elapsed_ms(one.clock))
    assert wanted == (1, 2)
    partition.propose_isr(wanted)
    assert partition.maximal_isr == (1, 2, 3) and partition.isr_to_shrink_to(elapsed_ms(one.clock)) is None
    assert partition.log is not None and partition.log.high_watermark == 0
    assert partition.commit_isr(wanted, 0, 1, elapsed_ms(one.clock))
    assert partition.log.high_watermark == 1 and partition.isr == (1, 2)


def test_the_task_that_shrinks_asks_for_every_lagging_partition(one: OneBroker) -> None:
    append(one, led(one), b"a")
    wanted: list[tuple[int, ...]] = []
    one.broker.replicas.isr_change_listener = lambda partition, isr: wanted.append(isr)
    for _ in range(2):
        shrink_isrs(one.broker.replicas)
        one.clock.elapsed_ms += 15_001
    assert wanted == []
    shrink_isrs(one.broker.replicas)
    assert wanted == [(1,)]


def test_a_wall_clock_that_is_moved_keeps_no_follower_in_sync(one: OneBroker) -> None:
    partition = led(one, isr=(1, 2))
    append(one, partition, b"a")
    partition.on_follower_fetch(2, 0, 0, elapsed_ms(one.clock), -1)
    wanted: list[tuple[int, ...]] = []
    one.broker.replicas.isr_change_listener = lambda partition, isr: wanted.append(isr)
    one.clock.corrected_ms = -3 * 3_600_000
    for _ in range(3):
        shrink_isrs(one.broker.replicas)
        one.clock.elapsed_ms += 15_001
    assert wanted == [(1,)]


def test_a_wall_clock_that_is_moved_removes_no_follower(one: OneBroker) -> None:
    partition = led(one, isr=(1, 2))
    append(one, partition, b"a")
    one.broker.replicas.isr_change_listener = lambda partition, isr: pytest.fail("the follower is in sync")
    for hours in (3, 6, 0):
        one.clock.corrected_ms = hours * 3_600_000
        for _ in range(2):  # the first pass after a pause lets the followers fetch
            one.clock.elapsed_ms += 10_000
            shrink_isrs(one.broker.replicas)
        partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)


def test_a_wall_clock_that_is_moved_does_not_confirm_the_leader(one: OneBroker) -> None:
    """Another broker may lead when the followers have been silent for longer than a session (decision 0042)."""
    partition, replicas = led(one, isr=(1, 2)), one.broker.replicas
    for _ in range(2):
        partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)
    assert replicas.is_confirmed_leader(TP, 10_000)
    one.clock.corrected_ms = -3 * 3_600_000
    one.clock.elapsed_ms += 10_001
    assert not replicas.is_confirmed_leader(TP, 10_000)


def test_a_leader_that_stood_still_itself_lets_its_followers_fetch_first(one: OneBroker) -> None:
    append(one, led(one), b"a")
    wanted: list[tuple[int, ...]] = []
    one.broker.replicas.isr_change_listener = lambda partition, isr: wanted.append(isr)
    one.clock.elapsed_ms += 60_000
    shrink_isrs(one.broker.replicas)
    assert wanted == []
    shrink_isrs(one.broker.replicas)
    assert wanted == [(1,)]


def test_no_request_waits_for_a_follower_that_is_gone(one: OneBroker) -> None:
    one.update_metadata({}, brokers=(1, 2, 3))
    partition = led(one, isr=(1, 2))
    partition.on_follower_fetch(3, 0, 0, elapsed_ms(one.clock), -1)
    append(one, partition, b"a")
    partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)
    assert partition.log is not None and partition.log.high_watermark == 0
    one.update_metadata({}, brokers=(1, 2))
    assert partition.log.high_watermark == 1


def test_the_high_watermark_is_looked_at_again_by_every_fetch(one: OneBroker) -> None:
    one.update_metadata({}, brokers=(1, 2, 3))
    partition = led(one, isr=(1, 2))
    partition.on_follower_fetch(3, 0, 0, elapsed_ms(one.clock), -1)
    append(one, partition, b"a")
    partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)
    one.clock.elapsed_ms += 30_001
    assert partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)


def test_a_growing_isr_counts_at_once_for_the_high_watermark(one: OneBroker) -> None:
    partition = led(one, isr=(1, 2))
    append(one, partition, b"a", b"b")
    partition.on_follower_fetch(2, 2, 0, elapsed_ms(one.clock), -1)
    assert partition.isr_to_expand_to(3) is None
    partition.on_follower_fetch(3, 2, 0, elapsed_ms(one.clock), -1)
    wanted = partition.isr_to_expand_to(3)
    assert wanted == (1, 2, 3) and partition.isr_to_expand_to(2) is None and partition.isr_to_expand_to(9) is None
    partition.propose_isr(wanted)
    append(one, partition, b"c")
    partition.on_follower_fetch(2, 3, 0, elapsed_ms(one.clock), -1)
    assert partition.log is not None and partition.log.high_watermark == 2
    partition.reject_isr()
    one.clock.elapsed_ms += 30_001
    assert partition.maybe_increment_high_watermark(elapsed_ms(one.clock))
    assert partition.log.high_watermark == 3


def test_an_answer_for_another_epoch_is_not_taken(one: OneBroker) -> None:
    partition = led(one, leader_epoch=4, partition_epoch=7)
    assert not partition.commit_isr((1,), 3, 8, 0) and not partition.commit_isr((1,), 4, 6, 0)
    assert partition.isr == (1, 2, 3)
    partition.propose_isr((1, 2))
    led(one, leader_epoch=5, partition_epoch=8)
    assert partition.pending_isr is None and partition.isr == (1, 2, 3)


def test_below_min_insync_replicas_nothing_is_committed(one: OneBroker) -> None:
    one.topic_configs["t"] = LogConfig(min_insync_replicas=2)
    partition = led(one, isr=(1,))
    append(one, partition, b"a")
    assert partition.log is not None and partition.log.high_watermark == 0
    result = partition.append_records_to_leader(batch(b"a"), -1, elapsed_ms(one.clock))
    assert result == ErrorCode.NOT_ENOUGH_REPLICAS


def test_below_min_insync_replicas_a_record_that_is_there_is_not_refused(one: OneBroker) -> None:
    """Else its producer, which never heard of its first success, may write it again under another epoch."""
    one.topic_configs["t"] = LogConfig(min_insync_replicas=2)
    partition = led(one)
    sent = [batch(b"%d" % n, producer_id=1, producer_epoch=0, base_sequence=n) for n in range(3)]
    assert partition.append_records_to_leader(sent[0], -1, elapsed_ms(one.clock)).error == 0  # type: ignore[union-attr]
    partition = led(one, isr=(1,), leader_epoch=1, partition_epoch=1)
    again = partition.append_records_to_leader(sent[0], -1, elapsed_ms(one.clock))
    assert not isinstance(again, ErrorCode) and again.is_duplicate and (again.base_offset, again.last_offset) == (0, 0)
    assert partition.check_enough_replicas(again.last_offset + 1) is None, "it waits until enough have it"
    for other in (sent[1], sent[2], batch(b"0"), b"", b"x" * 100):
        assert partition.append_records_to_leader(other, -1, elapsed_ms(one.clock)) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log is not None and partition.log.log_end_offset == 1
    partition = led(one, isr=(1, 2), leader_epoch=2, partition_epoch=2)
    partition.on_follower_fetch(2, 1, 0, elapsed_ms(one.clock), -1)
    partition.on_follower_fetch(3, 1, 0, elapsed_ms(one.clock), -1)
    assert partition.check_enough_replicas(again.last_offset + 1) == ErrorCode.NONE


def test_a_new_leadership_forgets_the_progress_of_followers(one: OneBroker) -> None:
    partition = led(one)
    append(one, partition, b"a")
    for follower in (2, 3):
        partition.on_follower_fetch(follower, 1, 0, elapsed_ms(one.clock), -1)
    one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2, 3), isr=(1, 2, 3))
    assert not partition.is_leader and partition.isr == ()
    assert partition.append_records_to_leader(batch(b"b"), 1, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    led(one, leader_epoch=2)
    assert {remote.log_end_offset for remote in partition.remotes.values()} == {-1}
    assert partition.leader_epoch_start_offset == 1
    append(one, partition, b"b")
    assert partition.log is not None and partition.log.high_watermark == 1
    assert partition.log.leader_epochs.latest_epoch == 2


def test_gauges_follow_every_change(one: OneBroker) -> None:
    counters = one.broker.replicas.counters
    one.topic_configs["t"] = LogConfig(min_insync_replicas=2)

    def counted() -> tuple[int, int, int, int]:
        return (
            counters.leader_count,
            counters.under_replicated_partitions,
            counters.under_min_isr_partition_count,
            counters.at_min_isr_partition_count,
        )

    led(one)
    assert counted() == (1, 0, 0, 0)
    led(one, isr=(1, 2), leader_epoch=1)
    assert counted() == (1, 1, 0, 1)
    led(one, isr=(1,), leader_epoch=2)
    assert counted() == (1, 1, 1, 0)
    one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=3, replicas=(1, 2, 3), isr=(2,))
    assert counted() == (0, 0, 0, 0) and len(one.broker.replicas.partitions) == 1
    text = one.broker.metrics.exposition()
    assert "kafka_server_replicamanager_partitioncount" in text.lower()


def test_a_failed_disk_leaves_the_partition_as_it_was(one: OneBroker) -> None:
    partition = led(one)
    log_dir = one.tmp_path / "logs" / "t-0"
    for file in log_dir.iterdir():
        file.unlink()
    log_dir.rmdir()
    response = one.leader_and_isr({"t": [0]}, leader_epoch=1, replicas=(1, 2, 3), isr=(1, 2, 3), version=4)
    assert response.partition_errors[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.leader_epoch == 0
    one.spin()
    assert one.broker.replicas.partition_or_error(TP) == ErrorCode.KAFKA_STORAGE_ERROR
