"""Fetch requests that name very many partitions, and sessions that make the broker remember them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from types import GeneratorType
from typing import Any
from uuid import UUID

import pytest

from klamm.apis import fetch, fetch_context
from klamm.apis.api_declaration import at_once
from klamm.apis.fetch_context import SLICE
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.memory_files import MemoryFiles
from klamm.model import TopicPartition
from klamm.protocol.chunked import CHUNK, SpreadDict
from klamm.protocol.messages.fetch import FetchRequest, ForgottenTopic
from klamm.replica import delayed_fetch, fetch_path
from klamm.replica.fetch_session import FetchSession, FetchSessionCache, SessionPartition, size_bytes_of
from klamm.replica.partition_reader import PartitionFetch
from tests.support.one_broker import OneBroker, batch
from tests.unit.apis.test_fetch import ID, only, request, values

HOSTED = 3
NAMED = 20 * SLICE


@pytest.fixture
def one() -> Iterator[OneBroker]:
    broker = OneBroker(Path("/broker"), files=MemoryFiles())
    broker.lead("t", HOSTED, topic_id=ID)
    yield broker
    broker.close()


def many(count: int = NAMED, **fields: Any) -> FetchRequest:
    return request(dict.fromkeys(range(count), 0), **fields)


def append(one: OneBroker, index: int) -> None:
    partition = one.broker.replicas.partitions[TopicPartition("t", index)]
    partition.append_records_to_leader(batch(b"x"), 1, elapsed_ms(one.clock))
    one.broker.replicas.complete_after_append(partition.topic_partition)


def large_dictionaries() -> list[dict[Any, Any]]:
    return [each for each in gc.get_objects() if type(each) is dict and len(each) > 6 * CHUNK]


class TestLargeRequests:
    @pytest.mark.parametrize("version", [12, 17])
    def test_others_are_served_between_the_slices(
        self, one: OneBroker, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read_per_step: list[int] = []
        real = fetch_path.read_all

        def counted(replicas: Any, params: Any, partitions: Any, limit: Any = None) -> Any:
            read_per_step.append(len(partitions))
            return real(replicas, params, partitions, limit)

        for module in (fetch, delayed_fetch):
            monkeypatch.setattr(module, "read_all", counted)
        append(one, 1)
        waiting = one.begin(fetch.API, many(max_wait_ms=60_000), version)
        served = 0
        while not waiting.done():
            assert values(only(one.ask(fetch.API, request({1: 0}), version))) == [b"x"]
            served += 1
            one.spin()
        assert served >= NAMED // SLICE // 2 and max(read_per_step) <= SLICE
        rows = [p for topic in one.as_read(waiting.result(), version).responses for p in topic.partitions]
        assert [p.partition_index for p in rows] == list(range(NAMED))
        assert values(rows[1]) == [b"x"] and rows[HOSTED].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_the_first_fetch_of_a_session_is_followed_by_cheap_ones(self, one: OneBroker) -> None:
        first = one.ask(fetch.API, many(session_epoch=0), 12)
        assert first.session_id and len(first.responses[0].partitions) == NAMED
        forgotten = request({}, session_id=first.session_id, session_epoch=1)
        forgotten.forgotten_topics_data = [ForgottenTopic(topic="t", topic_id=ID, partitions=range(HOSTED, NAMED))]
        assert one.ask(fetch.API, forgotten, 12).error_code == 0
        asked = request({}, session_id=first.session_id, session_epoch=2, max_wait_ms=60_000)
        waiting = one.dispatch(fetch.API, asked, 12)
        assert isinstance(waiting, asyncio.Future)
        append(one, 2)
        assert values(only(one.as_read(one.run(waiting), 12))) == [b"x"]

    def test_a_partition_named_many_times_is_held_and_answered_once(self, one: OneBroker) -> None:
        asked = request({0: 0}, max_wait_ms=60_000)
        asked.topics[0].partitions = [*asked.topics[0].partitions] * (3 * SLICE)
        waiting = one.begin(fetch.API, asked, 12)
        for _ in range(8 * SLICE):
            one.spin()
            if one.broker.replicas.fetch_purgatory.size:
                break
        assert not waiting.done()
        assert len(one.broker.replicas.partitions[TopicPartition("t", 0)].readers) == 1
        append(one, 0)
        answered = one.run(waiting)
        assert sum(len(topic.partitions) for topic in answered.responses) == 1
        assert not any(p.readers for p in one.broker.replicas.partitions.values()), "nothing is left behind"

    def test_a_change_between_the_slices_is_not_missed(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch_context, "SLICE", 1)
        monkeypatch.setattr(fetch, "SLICE", 1)
        waiting = one.begin(fetch.API, many(HOSTED, max_wait_ms=60_000), 12)
        while not one.broker.replicas.partitions[TopicPartition("t", 0)].readers:
            one.loop.run_until_complete(asyncio.sleep(0))
        append(one, 0)
        answered = one.run(waiting)
        assert any(p.records for topic in answered.responses for p in topic.partitions)

    def test_a_topic_that_is_created_again_during_an_answer_is_not_read(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader asked for another topic of that name, by its id."""
        self.make_steps_small(monkeypatch)
        parked = at_once(one.dispatch(fetch.API, many(HOSTED, max_wait_ms=60_000, min_bytes=100_000), 17))
        append(one, 0)
        append(one, 1)
        one.stop_replica("t", 2)
        answering = one.run(parked)
        self.create_again(one)
        append(one, 1)
        (topic,) = at_once(answering).responses
        found = {row.partition_index: (row.error_code, bool(row.records)) for row in topic.partitions}
        assert found[1] == (ErrorCode.INCONSISTENT_TOPIC_ID, False)

    def test_a_topic_that_is_created_again_during_an_answer_is_reported_next_time(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The session must not take the new partitions for those that its reader knows."""
        self.make_steps_small(monkeypatch)
        steps = one.dispatch(fetch.API, many(HOSTED, session_epoch=0), 17)
        while not one.broker.replicas.partitions[TopicPartition("t", HOSTED - 1)].readers:
            next(steps)
        self.create_again(one)
        session_id = at_once(steps).session_id
        again = one.ask(fetch.API, request({}, session_id=session_id, session_epoch=1), 17)
        errors = [row.error_code for topic in again.responses for row in topic.partitions]
        assert errors == [ErrorCode.INCONSISTENT_TOPIC_ID] * HOSTED

    def test_a_wait_does_not_double_the_limit_of_the_response(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.make_steps_small(monkeypatch)
        size = len(batch(b"x"))
        for _ in range(3):
            append(one, 0)
        asked = many(HOSTED, max_wait_ms=60_000, min_bytes=4 * size, max_bytes=5 * size)
        parked = at_once(one.dispatch(fetch.API, asked, 12))
        for _ in range(9):
            append(one, 1)
        (topic,) = at_once(one.run(parked)).responses
        assert [len(row.records or b"") for row in topic.partitions] == [3 * size, 2 * size, 0]

    def test_a_topic_id_that_becomes_known_between_the_slices_is_still_refused(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The request was resolved when the id was unknown. The client asks again after this error."""
        self.make_steps_small(monkeypatch)
        new = UUID(int=ID.int + 5)
        steps = one.dispatch(fetch.API, many(HOSTED, topic="new", topic_id=new), 17)
        next(steps)
        one.lead("new", HOSTED, topic_id=new)
        (topic,) = at_once(steps).responses
        assert {row.error_code for row in topic.partitions} == {ErrorCode.UNKNOWN_TOPIC_ID}
        (topic,) = one.ask(fetch.API, many(HOSTED, topic="new", topic_id=new), 17).responses
        assert {row.error_code for row in topic.partitions} == {ErrorCode.NONE}

    def make_steps_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name in ((fetch, "SLICE"), (fetch_context, "SLICE"), (fetch, "LARGE_READS")):
            monkeypatch.setattr(module, name, 1)
        monkeypatch.setattr(delayed_fetch, "LARGE_READS", 1)

    def create_again(self, one: OneBroker) -> None:
        for index in range(HOSTED):
            one.stop_replica("t", index)
        one.lead("t", HOSTED, topic_id=UUID(int=ID.int + 1))

    def test_a_session_that_ends_between_the_slices_leaves_nothing_behind(self, one: OneBroker) -> None:
        hosted_last = dict.fromkeys(reversed(range(NAMED)), 0)
        waiting = one.begin(fetch.API, request(hosted_last, session_epoch=0), 12)
        cache = one.broker.fetch_sessions
        while not any(session.reader for session in cache):
            one.loop.run_until_complete(asyncio.sleep(0))
        for session in list(cache):
            cache.remove(session.id)
        while cache.size_bytes:
            cache.resume(0, 0, False)
        assert not waiting.done()
        one.run(waiting)
        assert not any(p.readers for p in one.broker.replicas.partitions.values())

    @pytest.mark.parametrize("epoch", [-1, 0])
    def test_a_fetch_whose_client_has_gone_leaves_nothing_behind(self, one: OneBroker, epoch: int) -> None:
        whole = len(list(one.dispatch(fetch.API, many(2 * SLICE, session_epoch=epoch), 12)))
        was_watched = 0
        for steps_taken in range(1, whole):
            steps = one.dispatch(fetch.API, many(2 * SLICE, session_epoch=epoch), 12)
            for _ in range(steps_taken):
                next(steps)
            was_watched += self.is_watched(one)
            steps.close()
            for session in list(one.broker.fetch_sessions):
                assert not session.waiting
                one.broker.fetch_sessions.remove(session.id)
            while one.broker.fetch_sessions.size_bytes:
                one.broker.fetch_sessions.resume(0, 0, False)
            assert not self.is_watched(one)
        assert was_watched

    def test_a_parked_fetch_whose_client_has_gone_leaves_nothing_behind(self, one: OneBroker) -> None:
        one.lead("u", SLICE + 1, topic_id=ID)
        steps = one.dispatch(fetch.API, many(SLICE + 1, topic="u", max_wait_ms=60_000), 12)
        parked = at_once(steps)
        assert isinstance(parked, asyncio.Future) and self.is_watched(one)
        partition = one.broker.replicas.partitions[TopicPartition("u", 7)]
        partition.append_records_to_leader(batch(b"x"), 1, elapsed_ms(one.clock))
        one.broker.replicas.complete_after_append(partition.topic_partition)
        answering = one.run(parked)
        assert isinstance(answering, GeneratorType), "many partitions are answered in steps"
        answering.close()
        assert not self.is_watched(one)

    def test_few_partitions_are_put_into_order_per_step(self) -> None:
        """A pass of the collector would visit the elements of all the new lists."""
        fetch = PartitionFetch(0, 1)
        partitions = [SessionPartition(None, ID, number, fetch, place=-number) for number in range(NAMED)]
        steps, left = fetch_context.in_order(partitions), NAMED
        while partitions:
            next(steps)
            assert 0 < left - len(partitions) <= SLICE
            left = len(partitions)
        assert [each.place for each in at_once(steps)] == list(range(1 - NAMED, 1))

    def is_watched(self, one: OneBroker) -> bool:
        return any(partition.readers for partition in one.broker.replicas.partitions.values())

    @pytest.mark.parametrize("epoch", [-1, 0])
    def test_no_dictionary_of_a_fetch_becomes_large(self, one: OneBroker, epoch: int) -> None:
        """A dictionary of 100,000 keys moves all of them in one step of several milliseconds when it grows."""
        before = set(map(id, large_dictionaries()))
        steps = one.dispatch(fetch.API, many(15 * CHUNK, session_epoch=epoch), 12)
        for number in count(1):
            if next(steps, steps) is steps:
                break
            if number % 50 == 0:
                assert not [len(each) for each in large_dictionaries() if id(each) not in before]

    def test_a_session_of_unknown_topics_is_looked_through_in_steps(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are looked at with each request: their topics may be known by now."""
        asked = many(session_epoch=0)
        asked.topics[0].topic_id = UUID(int=987_654)
        session_id = one.ask(fetch.API, asked, 17).session_id
        (session,) = one.broker.fetch_sessions
        assert len(session.changed) == NAMED
        looked_up = 0
        real = one.broker.metadata.topic_name

        def look_up(topic_id: UUID) -> str | None:
            nonlocal looked_up
            looked_up += 1
            return real(topic_id)

        monkeypatch.setattr(one.broker.metadata, "topic_name", look_up)
        steps = one.dispatch(fetch.API, request({}, session_id=session_id, session_epoch=1), 17)
        total = most = looked_up
        while True:
            looked_up = 0
            try:
                next(steps)
            except StopIteration as done:
                response = done.value
                break
            total += looked_up
            most = max(most, looked_up)
        assert total >= NAMED and most <= 2 * SLICE
        assert sum(len(topic.partitions) for topic in response.responses) == NAMED

    def test_partitions_are_answered_in_turn(self, one: OneBroker) -> None:
        """Those that were served go last, in large sessions too."""
        one.lead("u", SLICE + 2, topic_id=ID)
        first = one.ask(fetch.API, many(SLICE + 2, topic="u", session_epoch=0), 12)
        (session,) = one.broker.fetch_sessions
        places = {partition.index: partition.place for partition in session.partitions.values()}
        last = max(places, key=lambda index: places[index])
        session.move_to_end(next(p for p in session.partitions.values() if p.index == 0))
        for partition in session.partitions.values():
            session.mark(partition)
            partition.high_watermark = -1
        again = one.ask(fetch.API, request({}, session_id=first.session_id, session_epoch=1), 12)
        answered = [p.partition_index for topic in again.responses for p in topic.partitions]
        assert answered == [*range(1, SLICE + 2), 0] and last == SLICE + 1


class TestManySessions:
    PARTITIONS = 100

    @pytest.fixture
    def cache(self, one: OneBroker) -> FetchSessionCache:
        """Room for ten sessions of a hundred partitions."""
        room = 10 * size_bytes_of(1, self.PARTITIONS)
        cache = FetchSessionCache(1000, one.clock, Random(1), one.broker.metrics, max_bytes=room)
        one.give(fetch_sessions=cache)
        return cache

    def test_the_memory_of_sessions_is_bounded(self, one: OneBroker, cache: FetchSessionCache) -> None:
        ids = [one.ask(fetch.API, many(self.PARTITIONS, session_epoch=0), 12).session_id for _ in range(50)]
        assert sum(map(bool, ids)) == len(cache) == 10 and cache.partition_count == 10 * self.PARTITIONS
        assert cache.size_bytes == 10 * size_bytes_of(1, self.PARTITIONS)
        follower = one.ask(fetch.API, many(self.PARTITIONS, session_epoch=0, replica_id=2), 12)
        assert follower.session_id and len(cache) == 10, "a follower takes the place of a consumer"

    def test_a_session_cannot_grow_beyond_it(self, one: OneBroker, cache: FetchSessionCache) -> None:
        ids = [one.ask(fetch.API, many(self.PARTITIONS, session_epoch=0), 12).session_id for _ in range(10)]
        grown = request({self.PARTITIONS: 0}, session_id=ids[0], session_epoch=1)
        assert one.ask(fetch.API, grown, 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert len(cache) == 9

    def test_ended_sessions_are_released(self, one: OneBroker, cache: FetchSessionCache) -> None:
        one.lead("u", self.PARTITIONS, topic_id=ID)
        last = 0
        for _ in range(200):
            asked = many(self.PARTITIONS, topic="u", session_epoch=0, session_id=last)
            last = one.ask(fetch.API, asked, 12).session_id
            assert last
        hosted = one.broker.replicas.partitions.values()
        assert sum(len(p.readers) for p in hosted) <= 10 * self.PARTITIONS
        assert cache.size_bytes <= 10 * size_bytes_of(1, self.PARTITIONS)


def test_a_large_session_is_copied_in_steps() -> None:
    """A list of 200,000 partitions takes 5 ms and more."""
    session = FetchSession(7, is_privileged=False, uses_topic_ids=True, now_ms=0)
    for number in range(20 * CHUNK):
        session.update((ID, number), SessionPartition(None, ID, number, PartitionFetch(0, 1)))
    asked = session.begin_fetch("reader", 0)
    assert asked is session.changed, "nothing is copied yet"
    steps = fetch_context.in_order(asked)
    before = set(map(id, gc.get_objects()))
    next(steps)
    made = [each for each in gc.get_objects() if type(each) is list and id(each) not in before]
    assert max(map(len, made)) <= 10 * CHUNK
    assert [each.index for each in at_once(steps)] == list(range(20 * CHUNK))


def test_the_dictionaries_of_a_session_are_spread_in_different_steps() -> None:
    session = FetchSession(7, is_privileged=False, uses_topic_ids=True, now_ms=0)
    spread_at: dict[str, int] = {}
    for number in range(6 * CHUNK):
        session.update((ID, number), SessionPartition(None, ID, number, PartitionFetch(0, 1)))
        for name in ("partitions", "changed"):
            if isinstance(getattr(session, name), SpreadDict):
                spread_at.setdefault(name, number)
    assert spread_at["changed"] - spread_at["partitions"] > fetch_context.STEP


def test_a_large_session_with_topic_ids_is_continued_in_steps(one: OneBroker) -> None:
    """The names of all its changed partitions are looked up again."""
    session = one.broker.fetch_sessions.create(is_privileged=False, uses_topic_ids=True, partition_count=20 * CHUNK)
    assert session is not None
    for number in range(20 * CHUNK):
        session.update((ID, number), SessionPartition(None, ID, number, PartitionFetch(0, 1)))
    asked = request({}, session_id=session.id, session_epoch=1)
    steps = fetch_context.open_context(one.broker, 13, asked, lambda: False)
    before = set(map(id, gc.get_objects()))
    next(steps)
    made = [each for each in gc.get_objects() if type(each) is list and id(each) not in before]
    assert max(map(len, made)) <= 10 * CHUNK
    at_once(steps)
    assert all(partition.tp is not None for partition in session.changed)


def test_a_session_that_grows_by_small_requests_is_copied_in_steps() -> None:
    """Each of them leaves few changed partitions. Later, all change before the reader fetches again."""
    session = FetchSession(7, is_privileged=False, uses_topic_ids=True, now_ms=0)
    for number in range(20 * CHUNK):
        session.update((ID, number), SessionPartition(None, ID, number, PartitionFetch(0, 1)))
        if number % SLICE == 0:
            for partition in list(session.changed):
                del session.changed[partition]
    for partition in session.partitions.values():
        session.mark(partition)
    asked = session.begin_fetch("reader", 0)
    assert isinstance(asked, SpreadDict) and max(map(len, asked.parts())) <= 10 * CHUNK
    assert len(asked) == 20 * CHUNK
