"""Cost follows the change: counted, not timed, on a broker with many partitions."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import fetch, fetch_context, stop_replica
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log import append_as_leader
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from klamm.protocol.wire import Message
from klamm.replica import delayed_fetch, fetch_path, fetch_session_handler, fetcher, replica_manager, state_change
from klamm.replica.delete_records import delete_records
from klamm.replica.fetch_session_handler import FetchSessionHandler
from klamm.replica.fetch_state import PartitionFetchState
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.partition import Partition
from klamm.replica.state_change import SLICE_S
from tests.support.isr_passes import shrink_isrs
from tests.support.one_broker import OneBroker, batch
from tests.unit.apis.test_fetch import ID, request, values

MANY = 60
STATE: dict[str, Any] = {"topic_id": ID, "replicas": (1, 2), "isr": (1, 2)}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.update_metadata({"t": range(MANY)}, brokers=(1, 2), **STATE)
    yield broker
    broker.close()


@pytest.fixture
def leader(one: OneBroker) -> OneBroker:
    """Leads many partitions; the follower has all records."""
    assert one.leader_and_isr({"t": range(MANY)}, **STATE).error_code == 0
    one.ask(fetch.API, request(dict.fromkeys(range(MANY), 0), replica_id=2), 12)
    return one


def test_a_partition_registers_no_metric_and_all_its_gauges_are_shown(one: OneBroker) -> None:
    metrics = one.broker.metrics
    registered: list[str] = []
    register = metrics.register

    def count_one(group: str, type_: str, name: str, *rest: Any) -> Any:
        registered.append(f"{group}:{type_}:{name}")
        return register(group, type_, name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "register", count_one)
        assert one.leader_and_isr({"t": range(MANY)}, **STATE).error_code == 0
    assert len(registered) < MANY, "a start with very many partitions must not pay for each of them"
    values = dict(line.rsplit(" ", 1) for line in metrics.exposition().splitlines() if "cluster_partition_" in line)
    names = ("underreplicated", "underminisr", "atminisr", "insyncreplicascount", "replicascount")
    expected = dict(zip((*names, "laststableoffsetlag"), ("0", "0", "0", "2", "2", "0"), strict=True))
    for name, value in expected.items():
        for index in range(MANY):
            assert values[f'kafka_cluster_partition_{name}{{topic="t",partition="{index}"}}'] == value
    one.broker.replicas.drop(TopicPartition("t", 3))
    assert 'topic="t",partition="3"' not in metrics.exposition()


def partition(one: OneBroker, index: int) -> Partition:
    return one.broker.replicas.partitions[TopicPartition("t", index)]


def append(one: OneBroker, index: int) -> None:
    result = partition(one, index).append_records_to_leader(batch(b"x" * 100), 1, elapsed_ms(one.clock))
    assert not isinstance(result, ErrorCode) and result.error == 0
    one.broker.replicas.complete_after_append(TopicPartition("t", index))


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The first arguments of all calls from now on."""
    real: Callable[..., Any] = getattr(owner, name)
    calls: list[Any] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[0])
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return calls


class TestShrinking:
    def pass_later(self, one: OneBroker, ms: int = 15_001) -> None:
        one.clock.elapsed_ms += ms
        shrink_isrs(one.broker.replicas)

    def test_only_written_and_lagging_partitions_are_checked(
        self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted: list[int] = []
        leader.broker.replicas.isr_change_listener = lambda p, isr: wanted.append(p.topic_partition.partition)
        self.pass_later(leader)
        looked_at = count_calls(monkeypatch, Partition, "isr_to_shrink_to")
        asked = count_calls(monkeypatch, Partition, "has_lagging_follower")
        self.pass_later(leader)
        assert asked == looked_at == [], "nothing was written since"
        for index in (3, 7, 9):
            partition(leader, index).on_follower_fetch(2, 0, 0, elapsed_ms(leader.clock), -1)
            append(leader, index)
        partition(leader, 7).on_follower_fetch(2, 1, 0, elapsed_ms(leader.clock), -1)
        self.pass_later(leader)
        assert len(asked) == 3 and looked_at == [partition(leader, 3), partition(leader, 9)]
        assert wanted == []
        self.pass_later(leader)
        self.pass_later(leader)
        assert wanted == [3, 9, 3, 9], "it asks until the ISR is another one"
        assert len(asked) == 7, "what has caught up is not looked at again"

    def test_many_that_lag_are_looked_at_in_slices(self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        """After an election that is every partition of the broker."""
        monkeypatch.setattr(replica_manager, "PARTITIONS_PER_SLICE", 10)
        wanted: list[int] = []
        leader.broker.replicas.isr_change_listener = lambda p, isr: wanted.append(p.topic_partition.partition)
        for index in range(MANY):
            append(leader, index)
        self.pass_later(leader)
        self.pass_later(leader)
        wanted.clear()
        asked = count_calls(monkeypatch, Partition, "has_lagging_follower")
        leader.clock.elapsed_ms += 15_001
        steps = leader.broker.replicas.isr_pass()
        assert steps is not None
        seen = [0, len(asked)]
        for _ in steps:
            seen.append(len(asked))
            leader.broker.replicas.drop(TopicPartition("t", MANY - 1))  # comes and goes while others are looked at
        assert [after - before for before, after in pairwise(seen)] == [10] * (MANY // 10 - 1) + [9]
        assert wanted == list(range(MANY - 1))

    def test_a_follower_that_goes_back_is_found(self, leader: OneBroker) -> None:
        wanted: list[int] = []
        leader.broker.replicas.isr_change_listener = lambda p, isr: wanted.append(p.topic_partition.partition)
        append(leader, 5)
        partition(leader, 5).on_follower_fetch(2, 1, 0, elapsed_ms(leader.clock), -1)
        self.pass_later(leader)
        assert not leader.broker.replicas.lagging
        partition(leader, 5).on_follower_fetch(2, 0, 0, elapsed_ms(leader.clock), -1)
        for _ in range(3):
            self.pass_later(leader)
        assert wanted[:1] == [5]

    def test_a_partition_that_is_lost_is_forgotten(self, leader: OneBroker) -> None:
        append(leader, 5)
        append(leader, 6)
        leader.stop_replica("t", 5)
        leader.leader_and_isr({"t": [6]}, leader=2, leader_epoch=1, **STATE)
        self.pass_later(leader)
        assert not leader.broker.replicas.lagging


class TestBrokersThatComeAndGo:
    def test_only_partitions_with_records_that_are_not_committed_are_looked_at(
        self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader.clock.elapsed_ms += 15_001
        shrink_isrs(leader.broker.replicas)
        append(leader, 3)
        looked_at = count_calls(monkeypatch, Partition, "maybe_increment_high_watermark")
        leader.update_metadata({}, brokers=(1,))
        assert looked_at == [partition(leader, 3)]

    def test_many_of_them_are_looked_at_in_slices(self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replica_manager, "PARTITIONS_PER_SLICE", 10)
        for index in range(MANY):
            append(leader, index)
            partition(leader, index).commit_isr((1,), 0, 1, elapsed_ms(leader.clock))
        looked_at = count_calls(monkeypatch, Partition, "maybe_increment_high_watermark")
        seen = [0]

        def note() -> None:
            seen.append(len(looked_at))
            if len(looked_at) < MANY:
                leader.loop.call_soon(note)

        leader.loop.call_soon(note)
        leader.update_metadata({}, brokers=(1,))
        while seen[-1] < MANY:
            leader.spin()
        assert max(after - before for before, after in pairwise(seen)) <= 20, "in every turn of the loop"
        assert {partition(leader, index).log.high_watermark for index in range(MANY)} == {1}  # type: ignore[union-attr]

    def test_no_request_waits_for_a_follower_that_is_gone(self, leader: OneBroker) -> None:
        """It is not in sync, but was about to be: it held the high watermark back."""
        append(leader, 3)
        partition(leader, 3).commit_isr((1,), 0, 1, elapsed_ms(leader.clock))
        log = partition(leader, 3).log
        assert log is not None and (log.high_watermark, log.log_end_offset) == (0, 1)
        for _ in range(2):
            leader.clock.elapsed_ms += 1_000
            shrink_isrs(leader.broker.replicas)
        assert log.high_watermark == 0
        leader.update_metadata({}, brokers=(1,))
        assert log.high_watermark == 1

    def test_deletions_of_records_do_not_wait_for_it_either(self, leader: OneBroker) -> None:
        append(leader, 3)
        leader.ask(fetch.API, request({3: 1}, replica_id=2, log_start_offset=0), 12)
        waiting = delete_records(leader.broker.replicas, {TopicPartition("t", 3): 1}, 60_000)
        assert isinstance(waiting, asyncio.Future) and not waiting.done()
        leader.update_metadata({}, brokers=(1,))
        assert waiting.done()


class TestFetchSessions:
    """Partitions that stand still cost a session nothing, whether its reader waits or not."""

    @pytest.mark.parametrize("replica_id", [2, -1], ids=["follower", "consumer"])
    def test_a_fetch_looks_at_what_changed(
        self, leader: OneBroker, replica_id: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ask(epoch: int, offsets: dict[int, int], session_id: int, **fields: Any) -> Any:
            asked = request(offsets, replica_id=replica_id, session_id=session_id, session_epoch=epoch, **fields)
            return leader.dispatch(fetch.API, asked, 12)

        session_id = ask(0, dict.fromkeys(range(MANY), 0), 0).session_id
        read = count_calls(monkeypatch, fetch_path, "_read")
        looked_at = count_calls(monkeypatch, delayed_fetch, "readable_log")
        waiting = ask(1, {}, session_id, max_wait_ms=60_000)
        assert isinstance(waiting, asyncio.Future) and read == []
        assert leader.broker.replicas.fetch_purgatory.watched == 1, "not one watcher per partition"
        append(leader, 17)
        partition(leader, 17).on_follower_fetch(2, 1, 0, elapsed_ms(leader.clock), -1)
        leader.broker.replicas.complete_after_high_watermark(TopicPartition("t", 17))
        leader.spin()
        assert waiting.done() and len(read) == 1 and 1 <= len(looked_at) <= 2
        assert not isinstance(ask(2, {17: 1}, session_id), asyncio.Future)
        assert len(read) == 2
        ask(3, {}, session_id)
        assert len(read) <= 3, "at most the one that was named before"
        ask(4, {}, session_id)
        assert len(read) <= 3

    def test_a_large_session_ends_when_it_is_used_by_another_reader(
        self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All partitions would have to be looked at: a client that changes between readers would hold the loop."""
        asked = request(dict.fromkeys(range(MANY), 0), session_epoch=0)
        session_id = leader.ask(fetch.API, asked, 12).session_id
        monkeypatch.setattr(fetch_context, "SLICE", MANY - 1)
        again = request({}, session_id=session_id, session_epoch=1)
        assert leader.ask(fetch.API, again, 12).error_code == 0
        changed = request({}, session_id=session_id, session_epoch=2, isolation_level=1)
        read = count_calls(monkeypatch, fetch_path, "_read")
        assert leader.ask(fetch.API, changed, 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert read == [] and len(leader.broker.fetch_sessions) == 0

    def test_a_follower_in_sync_stays_so_by_the_fetches_of_its_session(self, leader: OneBroker) -> None:
        asked = request(dict.fromkeys(range(MANY), 0), replica_id=2, session_epoch=0, log_start_offset=0)
        session_id = leader.ask(fetch.API, asked, 12).session_id
        wanted: list[int] = []
        leader.broker.replicas.isr_change_listener = lambda p, isr: wanted.append(p.topic_partition.partition)
        for epoch in range(1, 8):
            leader.clock.elapsed_ms += 10_000
            leader.ask(fetch.API, request({}, replica_id=2, session_id=session_id, session_epoch=epoch), 12)
            shrink_isrs(leader.broker.replicas)
        last_ms = elapsed_ms(leader.clock)
        append(leader, 5)
        leader.clock.elapsed_ms += 20_000
        shrink_isrs(leader.broker.replicas)
        assert wanted == [] and partition(leader, 5).remotes[2].last_caught_up_time_ms == last_ms
        leader.clock.elapsed_ms += 20_000
        shrink_isrs(leader.broker.replicas)
        assert wanted == [5], "its last fetch was before the append"


class TestCaughtUpFollowers:
    def ask(self, leader: OneBroker, offsets: dict[int, int], **fields: Any) -> Any:
        return leader.ask(fetch.API, request(offsets, replica_id=2, **fields), 12)

    def test_an_idle_partition_is_not_read_but_counts_as_caught_up(
        self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = count_calls(monkeypatch, fetch_path, "read_records")
        append(leader, 17)
        leader.clock.elapsed_ms += 1_000
        epoch = partition(leader, 0).leader_epoch
        self.ask(leader, dict.fromkeys(range(MANY), 0), current_leader_epoch=epoch)
        assert read == [partition(leader, 17)]
        caught_up = {partition(leader, index).remotes[2].last_caught_up_time_ms for index in range(MANY) if index != 17}
        assert caught_up == {elapsed_ms(leader.clock)}

    @pytest.mark.parametrize("change", ("epoch of the log", "epoch of the leader", "a step back"))
    def test_a_partition_whose_follower_or_epoch_changed_is_checked(self, leader: OneBroker, change: str) -> None:
        append(leader, 5)
        self.ask(leader, {5: 1})
        assert leader.leader_and_isr({"t": [5]}, leader_epoch=1, partition_epoch=1, **STATE).error_code == 0
        append(leader, 5)
        self.ask(leader, {5: 2})
        assert partition(leader, 5).leader_epoch == 1 and partition(leader, 5).log.high_watermark == 2  # type: ignore[union-attr]
        current, last, offset = {
            "epoch of the log": (1, 0, 2),
            "epoch of the leader": (0, 1, 2),
            "a step back": (1, 0, 1),
        }[change]
        answer = self.ask(leader, {5: offset}, current_leader_epoch=current, last_fetched_epoch=last)
        (data,) = answer.responses[0].partitions
        diverging = data.diverging_epoch and (data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
        seen = (data.error_code, diverging, len(values(data)))
        assert (
            seen
            == {
                "epoch of the log": (0, (0, 1), 0),
                "epoch of the leader": (ErrorCode.FENCED_LEADER_EPOCH, None, 0),
                "a step back": (0, None, 1),
            }[change]
        )


class TestParkedFetches:
    def park(self, leader: OneBroker, **fields: Any) -> asyncio.Future[Any]:
        asked = request(dict.fromkeys(range(MANY), 0), replica_id=2, max_wait_ms=30_000, **fields)
        waiting = leader.dispatch(fetch.API, asked, 12)
        assert isinstance(waiting, asyncio.Future)
        return waiting

    def test_only_the_partition_that_moved_is_looked_at_and_read(
        self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waiting = self.park(leader)
        looked_at = count_calls(monkeypatch, delayed_fetch, "readable_log")
        read = count_calls(monkeypatch, fetch_path, "read_records")
        append(leader, 17)
        assert looked_at == read == [partition(leader, 17)]
        leader.spin()
        assert waiting.done()
        answered = leader.as_read(leader.run(waiting), 12)
        found = {p.partition_index: values(p) for t in answered.responses for p in t.partitions if values(p)}
        assert found == {17: [b"x" * 100]}
        assert sum(len(t.partitions) for t in answered.responses) == MANY

    def test_the_bytes_of_several_appends_add_up(self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        waiting = self.park(leader, min_bytes=400)
        looked_at = count_calls(monkeypatch, delayed_fetch, "readable_log")
        for index in (1, 2, 1):
            leader.spin()
            assert not waiting.done()
            append(leader, index)
        leader.spin()
        assert waiting.done() and len(looked_at) == 3
        answered = leader.as_read(leader.run(waiting), 12)
        found = {p.partition_index: len(values(p)) for t in answered.responses for p in t.partitions if values(p)}
        assert found == {1: 2, 2: 1}

    def test_a_partition_asked_for_twice_is_answered_once_as_by_kafka(self, leader: OneBroker) -> None:
        asked = request({4: 0}, replica_id=2, max_wait_ms=30_000)
        asked.topics[0].partitions = [*asked.topics[0].partitions] * 2
        waiting = leader.dispatch(fetch.API, asked, 12)
        append(leader, 4)
        answered = leader.as_read(leader.run(waiting), 12)
        assert [len(values(p)) for t in answered.responses for p in t.partitions] == [1]

    def test_lost_leadership_is_reported(self, leader: OneBroker) -> None:
        waiting = self.park(leader)
        leader.leader_and_isr({"t": [8]}, leader=2, leader_epoch=1, **STATE)
        answered = leader.run(waiting)
        errors = {p.partition_index: p.error_code for t in answered.responses for p in t.partitions if p.error_code}
        assert errors == {8: ErrorCode.NOT_LEADER_OR_FOLLOWER}


class TestSlices:
    """The clock moves by a millisecond whenever it is read: a slice has few partitions."""

    PER_SLICE = int(SLICE_S * 1000) + 1

    @pytest.fixture
    def sliced(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> OneBroker:
        ticks = count()
        monkeypatch.setattr(one.clock, "monotonic", lambda: next(ticks) / 1000)
        monkeypatch.setattr(one, "ask", one.dispatch)  # the answer, or a future of it
        return one

    def test_the_loop_runs_between_slices(self, sliced: OneBroker) -> None:
        reported: list[int] = []
        sliced.broker.replicas.leadership_listeners.append(lambda led, followed: reported.append(len(led)))
        answer: Any = sliced.leader_and_isr({"t": range(MANY)}, **STATE)
        assert isinstance(answer, asyncio.Future)
        seen = []
        while not answer.done():
            seen.append(len(sliced.broker.replicas.partitions))
            sliced.spin()
        assert len(seen) > 1 and seen == sorted(seen)
        assert sum(reported) == MANY and max(reported) <= self.PER_SLICE
        codes = [p.error_code for t in answer.result().topics for p in t.partition_errors]
        assert codes == [0] * MANY
        assert sliced.broker.replicas.counters.leader_count == MANY

    def test_the_loop_runs_while_many_replicas_are_stopped(
        self, sliced: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state_change, "STOPS", 5)
        sliced.run(sliced.leader_and_isr({"t": range(MANY)}, **STATE))  # type: ignore[arg-type]
        reported: list[int] = []
        sliced.broker.replicas.leadership_listeners.append(lambda led, followed: reported.append(len(followed)))
        states = [
            StopReplicaPartitionState(partition_index=index, leader_epoch=-1, delete_partition=True)
            for index in range(MANY)
        ]
        request = StopReplicaRequest(
            controller_id=1,
            controller_epoch=sliced.controller_epoch,
            topic_states=[StopReplicaTopicState(topic_name="t", partition_states=states)],
        )
        answer = sliced.dispatch(stop_replica.API, request, 4)
        again: Any = sliced.leader_and_isr({"t": [0]}, leader_epoch=9, **STATE)
        seen = []
        while not answer.done():
            seen.append(len(sliced.broker.replicas.partitions))
            assert not again.done()
            sliced.spin()
        assert len(seen) > 1 and seen == sorted(seen, reverse=True)
        assert sum(reported) == MANY and max(reported) == 5
        assert [error.error_code for error in answer.result().partition_errors] == [0] * MANY
        sliced.run(again)
        assert len(sliced.broker.replicas.partitions) == len(sliced.broker.logs.logs) == 1

    def test_no_other_control_request_comes_between(self, sliced: OneBroker) -> None:
        """Each is handled as if the long request were one step: the newer controller's request is applied after it."""
        first: Any = sliced.leader_and_isr({"t": range(MANY)}, **STATE)
        sliced.controller_epoch = 2
        stopped: Any = sliced.stop_replica("t", MANY - 1)
        updated: Any = sliced.update_metadata({"t": [0]}, leader=2, brokers=(1, 2), **STATE)
        second: Any = sliced.leader_and_isr({"t": range(MANY - 1)}, leader=2, leader_epoch=1, **STATE)
        sliced.controller_epoch = 1
        stale: Any = sliced.leader_and_isr({"t": [0]}, leader_epoch=5, **STATE)
        order = []
        # The newer controller is confirmed already: requests of the deposed one are refused without waiting.
        assert stale.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        for name, answer in (("1st", first), ("stop", stopped), ("md", updated), ("2nd", second)):
            assert isinstance(answer, asyncio.Future)
            answer.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
        while not first.done():
            assert sliced.broker.replicas.controller_epoch == 1
            assert all(p.is_leader for p in sliced.broker.replicas.partitions.values())
            assert not stopped.done() and not updated.done()
            sliced.spin()
        sliced.run(second)
        assert [name for name in order if name != "md"] == ["1st", "stop", "2nd"] and "md" in order
        assert [p.error_code for p in first.result().topics[0].partition_errors] == [0] * MANY
        assert stopped.result().partition_errors[0].error_code == updated.result().error_code == 0
        hosted = sliced.broker.replicas.partitions
        assert len(hosted) == MANY - 1 and not any(p.is_leader for p in hosted.values())

    def test_a_broker_that_stops_does_not_continue(self, sliced: OneBroker) -> None:
        answer: Any = sliced.leader_and_isr({"t": range(MANY)}, **STATE)
        sliced.broker.replicas.shutdown()
        before = len(sliced.broker.replicas.partitions)
        assert sliced.run(answer).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        sliced.spin()
        assert len(sliced.broker.replicas.partitions) == before < MANY

    def test_a_failure_in_a_later_slice_is_the_partitions(
        self, sliced: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The controller gets an error and continues; every retry would get the same error."""
        answer: Any = sliced.leader_and_isr({"t": range(MANY)}, **STATE)

        def fail(*args: Any) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(sliced.broker.replicas, "host", fail)
        done = sliced.run(answer)
        assert done.error_code == 0
        codes = [error.error_code for topic in done.topics for error in topic.partition_errors]
        assert len(codes) == MANY and set(codes) == {ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR}
        monkeypatch.undo()
        assert sliced.stop_replica("t", MANY - 1).error_code == 0, "later requests are served"


class TestFailedDirectories:
    """The partitions of a failed directory go offline in slices."""

    @pytest.fixture
    def failed(self, leader: OneBroker, monkeypatch: pytest.MonkeyPatch) -> tuple[OneBroker, Iterator[None]]:
        monkeypatch.setattr(replica_manager, "OFFLINE_PER_SLICE", 10)
        return leader, leader.broker.replicas.log_dir_failure_pass(leader.log_dirs[0])

    def test_other_work_has_its_turn_in_between(self, failed: tuple[OneBroker, Iterator[None]]) -> None:
        one, steps = failed
        replicas = one.broker.replicas
        reported: list[int] = []
        replicas.leadership_listeners.append(lambda led, followed: reported.append(len(followed)))
        seen = [len(replicas.partitions) for _ in steps]
        assert seen == list(range(MANY - 10, -1, -10)) and reported == [10] * (MANY // 10)
        assert len(replicas.offline) == MANY and not replicas.partitions

    def test_a_directory_that_comes_back_keeps_the_partitions_that_are_left(
        self, failed: tuple[OneBroker, Iterator[None]]
    ) -> None:
        one, steps = failed
        replicas = one.broker.replicas
        next(steps)
        replicas.on_log_dir_revival("another")
        next(steps)
        replicas.on_log_dir_revival(one.log_dirs[0])
        assert len(list(steps)) == MANY // 10 - 2
        assert len(replicas.partitions) == MANY - 20 and not replicas.offline

    def test_a_partition_whose_log_was_loaded_again_starts_again(
        self, failed: tuple[OneBroker, Iterator[None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would use its failed log until the next leader epoch."""
        one, steps = failed
        monkeypatch.setattr(one, "_on_dir_failure", lambda log_dir: None)
        replicas, logs = one.broker.replicas, one.broker.logs
        cut, *_, other = reversed(replicas.partitions)
        for tp in (cut, other):
            for _ in range(3):
                assert append_as_leader(logs.logs[tp], batch(b"a" * 5_000), 0).error is ErrorCode.NONE
            logs.logs[tp].flush()
        assert logs.logs[cut].truncate_to(0) is ErrorCode.NONE  # Its index files keep the entries.
        logs.failed(one.log_dirs[0], OSError(errno.ENOSPC, "No space left on device"), "testing")
        next(steps)
        assert logs.passes.revival() == 1
        replicas.on_log_dir_revival(one.log_dirs[0])
        for _ in steps:
            pass
        assert len(replicas.partitions) == MANY - 11 and cut not in replicas.partitions and not replicas.offline
        one.leader_and_isr({"t": range(MANY)}, **STATE)
        one.spin()
        assert {tp: partition.log for tp, partition in replicas.partitions.items()} == dict(logs.logs)
        assert len(replicas.partitions) == MANY
        result = replicas.partitions[cut].append_records_to_leader(batch(b"b"), 1, 0)
        assert not isinstance(result, ErrorCode) and result.error is ErrorCode.NONE


class Leader:
    """Answers every partition that a follower names, without records."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.asked: list[FetchRequest] = []

    def send(self, request: Message, version: int) -> asyncio.Future[Any]:
        assert isinstance(request, FetchRequest)
        self.asked.append(request)
        answer: asyncio.Future[Any] = self._loop.create_future()
        answer.set_result(self._answer(request))
        return answer

    def _answer(self, request: FetchRequest) -> FetchResponse:
        return FetchResponse(
            session_id=7,
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[
                        PartitionData(
                            partition_index=p.partition, error_code=0, high_watermark=0, log_start_offset=0, records=b""
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    def close(self) -> None: ...


class TestFollowersOfMany:
    """A follower that connects names every partition and is answered every one: other work has its turn in between."""

    @pytest.fixture
    def follower(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> OneBroker:
        monkeypatch.setattr(fetch_session_handler, "PARTITIONS_PER_SLICE", 10)
        monkeypatch.setattr(fetcher, "PARTITIONS_PER_SLICE", 10)
        assert one.leader_and_isr({"t": range(MANY)}, leader=2, **STATE).error_code == 0
        return one

    def states(self, one: OneBroker) -> list[PartitionFetchState]:
        partitions = one.broker.replicas.partitions.values()
        return [PartitionFetchState(partition, truncates_on_fetch=True) for partition in partitions]

    def test_requests_are_built_and_answers_taken_in_slices(
        self, follower: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader = Leader(follower.loop)

        async def connect(broker_id: int) -> Leader:
            return leader

        copying = fetcher.ReplicaFetcher(
            "f",
            2,
            FetcherConfig(broker_id=1),
            replicas=follower.broker.replicas,
            connect=connect,
            broker_epoch=lambda: 1,
            loop=follower.loop,
        )
        states = self.states(follower)
        for state in states:
            state.is_truncating = False
        copying.add(states)
        built = count_calls(monkeypatch, FetchSessionHandler, "_partition")
        taken = count_calls(monkeypatch, Partition, "append_records_to_follower")
        round_ = follower.loop.create_task(copying.do_work())
        seen = [(0, 0)]

        def note() -> None:
            seen.append((len(built), len(taken)))
            if taken:
                copying.remove([TopicPartition("t", MANY - 1)])
            if not round_.done():
                follower.loop.call_soon(note)

        follower.loop.call_soon(note)
        follower.run(round_)
        seen.append((len(built), len(taken)))
        assert seen[-1] == (MANY, MANY - 1), "one was given up meanwhile"
        steps = [(now[0] - before[0], now[1] - before[1]) for before, now in pairwise(seen)]
        assert max(max(step) for step in steps) <= 10, "in every turn of the loop"
        assert sum(len(topic.partitions) for topic in leader.asked[0].topics) == MANY

    def test_partitions_may_come_and_go_while_a_request_is_built(self, follower: OneBroker) -> None:
        session = FetchSessionHandler(FetcherConfig(broker_id=1))
        states = self.states(follower)
        first, last, late = states[0], states[-1], states[-2]
        for state in states:
            if state is not late:
                session.put(state)
        steps = session.building(0)
        next(steps)
        session.remove(first.tp)
        session.remove(last.tp)
        session.put(late)
        with pytest.raises(StopIteration) as done:
            while True:
                next(steps)
        named = {p.partition for topic in done.value.value.request.topics for p in topic.partitions}
        assert named == set(range(MANY)) - {late.tp.partition, last.tp.partition}
        assert session.asked("t", ID, first.tp.partition) is None
        session.on_response(ErrorCode.NONE, 7)
        request, _ = session.build(0)
        assert [p.partition for topic in request.topics for p in topic.partitions] == [late.tp.partition]
        assert [list(topic.partitions) for topic in request.forgotten_topics_data] == [[first.tp.partition]]

    def test_a_session_begins_with_some_partitions_and_each_request_adds_others(
        self, follower: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One request with all of them takes too long to encode."""
        monkeypatch.setattr(fetch_session_handler, "NEW_PARTITIONS", 25)
        session = FetchSessionHandler(FetcherConfig(broker_id=1))
        states = self.states(follower)
        for state in states:
            session.put(state)
        built = [session.build(500).request]
        session.on_response(ErrorCode.NONE, 7)
        for state in states[:25]:
            session.put(state)  # an answer moved them: the leader must not read them again at the old position
        built.append(session.build(500).request)
        session.on_response(ErrorCode.NONE, 7)
        built.append(session.build(500).request)
        session.on_response(ErrorCode.NONE, 7)
        assert [(named(request), request.max_wait_ms) for request in built] == [
            ([*range(25)], 0),
            ([*range(25), *range(25, 50)], 0),
            ([*range(50, MANY)], 500),
        ]
        assert named(session.build(500).request) == []
        session.reset()
        assert len(named(session.build(500).request)) == 25, "a new session begins in the same way"

    def begun(
        self, follower: OneBroker, monkeypatch: pytest.MonkeyPatch, session_id: int
    ) -> tuple[FetchSessionHandler, list[PartitionFetchState]]:
        """A handler whose first request, for 20 of all partitions, was answered with `session_id`."""
        for name in ("NEW_PARTITIONS", "CHANGED_PARTITIONS", "FORGOTTEN_PARTITIONS"):
            monkeypatch.setattr(fetch_session_handler, name, 20)
        session = FetchSessionHandler(FetcherConfig(broker_id=1))
        states = self.states(follower)
        for state in states:
            session.put(state)
        assert named(session.build(500).request) == [*range(20)]
        session.on_response(ErrorCode.NONE, session_id)
        return session, states

    def test_a_leader_without_room_for_sessions_is_asked_for_partitions_in_turn(
        self, follower: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session, states = self.begun(follower, monkeypatch, 0)
        seen = []
        for _ in range(MANY // 20):
            request = session.build(500).request
            assert len(named(request)) == 20 and request.max_wait_ms == 500 * 20 // MANY
            seen += named(request)
            session.on_response(ErrorCode.NONE, 0)
        assert sorted(seen) == [*range(MANY)] and seen[:20] == [*range(20, 40)]
        session.put(states[seen[-1]])
        session.put(states[seen[0]])
        assert named(session.build(500).request) == [seen[-1], *seen[:20]], "partitions with records come every time"
        session.on_response(ErrorCode.NONE, 7)
        later = [named(session.build(500).request)]
        while later[-1]:
            session.on_response(ErrorCode.NONE, 7)
            later.append(named(session.build(500).request))
        assert sorted([seen[-1], *seen[:20], *itertools.chain(*later)]) == [*range(MANY)], "a session names the others"

    def test_without_a_session_few_partitions_are_named_at_once(self, follower: OneBroker) -> None:
        session = FetchSessionHandler(FetcherConfig(broker_id=1))
        for state in self.states(follower):
            session.put(state)
        for _ in range(3):
            request = session.build(500).request
            assert (len(named(request)), request.max_wait_ms) == (MANY, 500)
            session.on_response(ErrorCode.NONE, 0)

    def test_changed_partitions_that_do_not_fit_are_forgotten_and_added_again(
        self, follower: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The leader must not send records again for a position of which it does not know that it is outdated."""
        monkeypatch.setattr(fetch_session_handler, "PARTITIONS_PER_SLICE", 10)
        session, states = self.begun(follower, monkeypatch, 7)
        while named(session.build(500).request):
            session.on_response(ErrorCode.NONE, 7)
        session.on_response(ErrorCode.NONE, 7)
        for state in states:
            session.put(state)
        steps = session.building(500)
        slices = 0
        while True:
            try:
                next(steps)
                slices += 1
            except StopIteration as done:
                request = done.value.request
                break
        assert slices >= (MANY - 20) // 10, "partitions are taken out in slices, too"
        held = set(range(MANY))
        for _ in range(3 * MANY // 20):
            gone = forgotten(request)
            assert len(named(request)) <= 40 and len(gone) <= 20 and not {*gone} & {*named(request)}
            held = (held | {*named(request)}) - {*gone}
            for number in held - {*named(request)}:
                tp = states[number].tp
                assert session.asked(tp.topic, states[number].topic_id, tp.partition) in (None, states[number])
            session.on_response(ErrorCode.NONE, 7)
            if request.max_wait_ms:
                break
            request = session.build(500).request
        assert held == {*range(MANY)} and request.max_wait_ms == 500
        assert not named(session.build(500).request)
        for state in states:
            assert session.asked(state.tp.topic, state.topic_id, state.tp.partition) is state

    def test_many_removed_partitions_are_forgotten_by_several_requests(
        self, follower: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session, states = self.begun(follower, monkeypatch, 7)
        while named(session.build(500).request):
            session.on_response(ErrorCode.NONE, 7)
        session.on_response(ErrorCode.NONE, 7)
        for state in states[:60]:
            session.remove(state.tp)
        built = [session.build(500).request]
        session.on_response(ErrorCode.NONE, 7)
        session.put(states[59])
        for _ in range(2):
            built.append(session.build(500).request)
            session.on_response(ErrorCode.NONE, 7)
        assert [(forgotten(request), named(request), request.max_wait_ms) for request in built] == [
            ([*range(20)], [], 0),
            ([*range(20, 40)], [59], 0),
            ([*range(40, 59)], [], 500),
        ]

    def test_a_partition_that_is_put_back_does_not_wait_behind_new_ones(
        self, follower: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The leader's session still has its old position."""
        monkeypatch.setattr(fetch_session_handler, "NEW_PARTITIONS", 25)
        session = FetchSessionHandler(FetcherConfig(broker_id=1))
        states = self.states(follower)
        for state in states:
            session.put(state)
        session.build(0)
        session.on_response(ErrorCode.NONE, 7)
        session.remove(states[3].tp)
        session.put(states[3])
        request = session.build(0).request
        assert named(request) == [3, *range(25, 50)] and not request.forgotten_topics_data


def named(request: FetchRequest) -> list[int]:
    return [p.partition for topic in request.topics for p in topic.partitions]


def forgotten(request: FetchRequest) -> list[int]:
    return [partition for topic in request.forgotten_topics_data for partition in topic.partitions]
