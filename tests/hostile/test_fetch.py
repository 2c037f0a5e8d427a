"""Fetch requests that name very many partitions, and sessions that make the broker remember them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from klamm.apis import fetch, fetch_context
from klamm.apis.fetch_context import SLICE
from klamm.errors import ErrorCode
from klamm.log.memory_files import MemoryFiles
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchRequest, ForgottenTopic
from klamm.replica import delayed_fetch, fetch_path
from klamm.replica.fetch_session import FetchSessionCache, size_bytes_of
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
    partition.append_records_to_leader(batch(b"x"), 1, one.clock.now_ms())
    one.broker.replicas.complete_after_append(partition.topic_partition)


class TestLargeRequests:
    @pytest.mark.parametrize("version", [12, 17])
    def test_others_are_served_between_the_slices(
        self, one: OneBroker, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read_per_step: list[int] = []
        real = fetch_path.read_all

        def count(replicas: Any, params: Any, partitions: Any, limit: Any = None) -> Any:
            read_per_step.append(len(partitions))
            return real(replicas, params, partitions, limit)

        for module in (fetch, delayed_fetch):
            monkeypatch.setattr(module, "read_all", count)
        append(one, 1)
        waiting = one.dispatch(fetch.API, many(max_wait_ms=60_000), version)
        assert isinstance(waiting, asyncio.Future)
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
        waiting = one.dispatch(fetch.API, asked, 12)
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
        waiting = one.dispatch(fetch.API, many(HOSTED, max_wait_ms=60_000), 12)
        while not one.broker.replicas.partitions[TopicPartition("t", 0)].readers:
            one.loop.run_until_complete(asyncio.sleep(0))
        append(one, 0)
        answered = one.run(waiting)
        assert any(p.records for topic in answered.responses for p in topic.partitions)

    def test_a_session_that_ends_between_the_slices_leaves_nothing_behind(self, one: OneBroker) -> None:
        hosted_last = dict.fromkeys(reversed(range(NAMED)), 0)
        waiting = one.dispatch(fetch.API, request(hosted_last, session_epoch=0), 12)
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
