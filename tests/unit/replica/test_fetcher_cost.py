"""The cost of a fetcher's round follows what changed, not the number of partitions that wait: counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchResponse, PartitionData
from klamm.protocol.wire import Message
from klamm.replica import fetcher as fetcher_module
from klamm.replica.fetch_session_handler import FetchSessionHandler
from klamm.replica.fetch_state import DelayedStates, PartitionFetchState
from klamm.replica.fetcher import ReplicaFetcher
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.replication_quota import UNLIMITED, ReplicationQuotaManager, ReplicationQuotas
from tests.support.one_broker import OneBroker

MANY = 40
TOPICS = ("a", "b")


class NothingNew:
    """A leader that has no records."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.count = 0

    def send(self, request: Message, version: int) -> asyncio.Future[Any]:
        self.count += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        future.set_result(FetchResponse(session_id=7, responses=()))
        return future

    def close(self) -> None:
        return None


class Follower:
    """Follows many partitions of two topics with one fetcher, which is moved by hand."""

    def __init__(self, tmp_path: Path) -> None:
        self.one = OneBroker(tmp_path, broker_id=2)
        self.begin()
        for topic in TOPICS:
            self.one.leader_and_isr({topic: list(range(MANY))}, leader=1, replicas=(1, 2), isr=(1, 2))

    def begin(self, backoff_ms: int = 0) -> None:
        """A new fetcher without partitions, and quotas that throttle nothing."""
        replicas = self.one.broker.replicas
        clock = self.one.clock  # It stands still: a quota forgets bytes after some seconds.
        replicas.quotas = ReplicationQuotas(clock, MetricsRegistry(clock))
        self.quota = replicas.quotas.follower
        self.quota.record(1_000)
        self.leader = NothingNew(self.one.loop)

        async def connect(_: int) -> NothingNew:
            return self.leader

        self.fetcher = ReplicaFetcher(
            "fetcher",
            1,
            FetcherConfig(broker_id=2, max_wait_ms=0, backoff_ms=backoff_ms),
            replicas=replicas,
            connect=connect,
            broker_epoch=lambda: 1,
            loop=self.one.loop,
        )

    def add(self, topic: str, indexes: range) -> list[PartitionFetchState]:
        partitions = self.one.broker.replicas.partitions
        some = [PartitionFetchState(partitions[TopicPartition(topic, i)], truncates_on_fetch=True) for i in indexes]
        for state in some:
            state.is_truncating = False
        self.fetcher.add(some)
        return some

    def round(self) -> None:
        self.one.loop.run_until_complete(self.fetcher.do_work())

    def hold_back(self) -> None:
        self.one.loop.run_until_complete(self.fetcher._hold_back())

    def is_asked(self, state: PartitionFetchState) -> bool:
        return self.fetcher._session.is_asked_for(state)


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    made = Follower(tmp_path)
    yield made
    made.one.close()


def per_turn(follower: Follower, begin: Callable[[], Any], counter: list[Any]) -> list[int]:
    """How much the counter grows in each turn of the loop until the work is done."""
    loop, grown = follower.one.loop, []
    work = loop.create_task(begin())
    while not work.done():
        before = len(counter)
        loop.call_soon(loop.stop)
        loop.run_forever()
        grown.append(len(counter) - before)
    work.result()
    return grown


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    real = getattr(owner, name)
    calls: list[Any] = []

    def counting(self: Any, argument: Any) -> Any:
        calls.append(argument)
        return real(self, argument)

    monkeypatch.setattr(owner, name, counting)
    return calls


class TestDelays:
    def test_rounds_do_not_look_at_all_delayed_partitions(
        self, follower: Follower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        follower.begin(backoff_ms=3_600_000)
        states = follower.add("a", range(MANY))
        for state in states[1:]:
            state.failures = 16
            follower.fetcher._delay(state)
        due: Any = vars(PartitionFetchState)["due"]
        looked_at: list[PartitionFetchState] = []

        def counted(state: PartitionFetchState) -> float:
            looked_at.append(state)
            wanted: float = due.__get__(state)
            return wanted

        monkeypatch.setattr(PartitionFetchState, "due", property(counted, due.__set__))
        for _ in range(3):
            follower.round()
        assert follower.leader.count == 3 and not looked_at
        seconds = follower.fetcher._seconds_to_next()
        assert seconds is not None and seconds > 60 and len(looked_at) <= 1

    def test_many_delays_that_end_together_take_several_turns(
        self, follower: Follower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetcher_module, "PARTITIONS_PER_SLICE", 10)
        states = follower.add("a", range(MANY))
        for state in states:
            follower.fetcher._delay(state)
        put = count_calls(monkeypatch, FetchSessionHandler, "put")
        grown = per_turn(follower, follower.fetcher.do_work, put)
        assert put == states and max(grown) == 10

    def test_their_order_and_those_that_leave(self, follower: Follower) -> None:
        delayed = DelayedStates()
        states = follower.add("a", range(4))
        for state, due in zip(states, (3.0, 1.0, 2.0, 1.0), strict=True):
            state.due = due
            delayed.put(state)
        assert delayed.next_due() == 1.0 and delayed.pop_due(0.5) is None
        assert delayed.pop_due(1.5) is states[1], "the one that was put first"
        delayed.remove(states[3].tp)
        assert delayed.pop_due(1.5) is None and delayed.next_due() == 2.0
        (again,) = follower.add("a", range(2, 3))
        again.due = 9.0
        delayed.remove(again.tp)
        delayed.put(again)
        assert [delayed.pop_due(5.0), delayed.pop_due(5.0), delayed.pop_due(9.0)] == [states[0], None, again]
        assert delayed.next_due() is None and delayed.pop_due(100.0) is None


class TestThrottling:
    def exceed(self, follower: Follower) -> None:
        follower.quota.limit = 0

    def test_only_new_partitions_are_checked_while_the_quota_is_exceeded(
        self, follower: Follower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        follower.quota.throttle("a", None)
        follower.add("a", range(MANY - 1))
        states = follower.add("b", range(MANY))
        self.exceed(follower)
        checked = count_calls(monkeypatch, ReplicationQuotaManager, "is_throttled")
        follower.round()
        assert len(follower.fetcher._throttled) == MANY - 1 and all(map(follower.is_asked, states))
        assert len(checked) == 2 * MANY - 1
        checked.clear()
        for _ in range(3):
            follower.round()
        assert follower.leader.count == 4 and not checked, "nothing is new"
        (new,) = follower.add("a", range(MANY - 1, MANY))
        follower.round()
        assert checked == [new.tp] and new.tp in follower.fetcher._throttled
        checked.clear()
        follower.quota.throttle("b", frozenset())
        follower.round()
        assert not checked, "no throttle has changed"
        follower.quota.throttle("b", frozenset({3}))
        follower.round()
        assert set(checked) == {*follower.fetcher.states} and not follower.is_asked(states[3])

    def test_many_are_held_back_and_released_in_several_turns(
        self, follower: Follower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetcher_module, "PARTITIONS_PER_SLICE", 10)
        follower.quota.throttle("a", None)
        states = follower.add("a", range(MANY))
        self.exceed(follower)
        removed = count_calls(monkeypatch, FetchSessionHandler, "remove")
        grown = per_turn(follower, follower.fetcher._hold_back, removed)
        assert removed == [state.tp for state in states] and max(grown) == 10
        follower.quota.limit = UNLIMITED
        put = count_calls(monkeypatch, FetchSessionHandler, "put")
        grown = per_turn(follower, follower.fetcher._hold_back, put)
        assert put == states and max(grown) == 10 and not follower.fetcher._throttled

    def test_the_same_partitions_are_held_back_as_if_all_were_checked(self, follower: Follower) -> None:
        @settings(max_examples=60, deadline=None)
        @given(st.data())
        def run(data: st.DataObject) -> None:
            follower.begin()
            self.any_changes(follower, data)
            follower.fetcher.remove_metrics()

        run()

    def any_changes(self, follower: Follower, data: st.DataObject) -> None:
        fetcher, quota = follower.fetcher, follower.quota
        indexes = st.integers(0, 1)
        steps = st.sampled_from(["throttle", "limit", "add", "remove", "fail", "lag", "catch up"])
        quota.limit = 0
        quota.throttle("a", None)
        for topic in TOPICS:
            follower.add(topic, range(2))
        for step in data.draw(st.lists(steps, min_size=20, max_size=40)):
            tp = TopicPartition(data.draw(st.sampled_from(TOPICS)), data.draw(indexes))
            state = fetcher.states.get(tp)
            is_asked = state is not None and follower.is_asked(state)
            match step:
                case "throttle":
                    quota.throttle(tp.topic, data.draw(st.none() | st.frozensets(indexes)))
                case "limit":
                    quota.limit = data.draw(st.sampled_from([0, UNLIMITED]))
                case "add":
                    follower.add(tp.topic, range(tp.partition, tp.partition + 1))
                case "remove":
                    fetcher.remove([tp])
                case "fail" if state is not None and is_asked:
                    fetcher._on_partition(state, answer(tp, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
                case "lag" | "catch up" if state is not None and is_asked:
                    fetcher._on_partition(state, answer(tp, high_watermark=5 * (step == "lag")))
            if data.draw(st.integers(0, 3)):
                follower.one.loop.run_until_complete(fetcher._end_delays())
                follower.hold_back()
                self.check(follower)

    def check(self, follower: Follower) -> None:
        fetcher, quota = follower.fetcher, follower.quota
        lagging = {state.tp for state in fetcher.states.values() if state.lag}
        wanted = {tp for tp in lagging if quota.is_exceeded and quota.is_throttled(tp)}
        assert {*fetcher._throttled} == wanted
        assert {tp for tp, state in fetcher.states.items() if not follower.is_asked(state)} == wanted


def answer(tp: TopicPartition, *, error: ErrorCode = ErrorCode.NONE, high_watermark: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=tp.partition,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=0,
        aborted_transactions=None,
        records=None,
    )
