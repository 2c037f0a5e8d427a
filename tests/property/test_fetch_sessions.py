"""A fetch session looks only at the partitions that changed, and answers as if it had looked at all of them.

Two brokers go through the same steps. On one the reader has a session. On the other it names all its partitions in
every request, and the model keeps what a session has to remember: their order and the answers to the reader.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import GeneratorType
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from klamm.apis import fetch, fetch_context
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.log.memory_files import MemoryFiles
from klamm.log.producer_state import AppendOrigin
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from klamm.protocol.record_batch import batches
from klamm.replica import delayed_fetch
from klamm.replica.alter_partition_manager import after_isr_change
from klamm.replica.delete_records import delete_records
from klamm.replica.partition import Partition
from klamm.replica.replica_selector import select_in_rack
from klamm.waiting import after
from tests.support.one_broker import OneBroker, batch
from tests.unit.log.harness import marker

PARTITIONS = 5
REPLICAS = (1, 2, 3)
RACKS = {1: "a", 2: "b", 3: "c"}
FOREVER_MS = 600_000

Answer = list[tuple[Any, ...]]


@dataclass
class Position:
    """The reader's request for a partition."""

    offset: int = 0
    leader_epoch: int = 0
    last_epoch: int = -1
    log_start: int = 0


@dataclass
class Asker:
    """One side: a broker, and the request that waits there."""

    one: OneBroker
    version: int
    wanted: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    waiting: asyncio.Future[Any] | None = None

    def __post_init__(self) -> None:
        self.one.broker.replicas.isr_change_listener = lambda p, isr: self.wanted.append(
            (p.topic_partition.partition, isr)
        )

    def partition(self, index: int) -> Partition | None:
        return self.one.broker.replicas.partitions.get(TopicPartition("t", index))

    def send(self, request: FetchRequest) -> Any:
        return self.one.dispatch(fetch.API, request, self.version)


class LargeAsker(Asker):
    """Every request is handled in steps, as if it named very many partitions."""

    def send(self, request: FetchRequest) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for where, name in ((fetch, "SLICE"), (fetch_context, "SLICE"), (fetch_context, "STEP")):
                patch.setattr(where, name, 1)
            for where in (fetch, delayed_fetch):
                patch.setattr(where, "LARGE_READS", 2)
            return _in_steps(super().send(request))


def _in_steps(answer: Any) -> Any:
    while isinstance(answer, GeneratorType):
        try:
            while True:
                next(answer)
        except StopIteration as done:
            answer = done.value
    return after(answer, _in_steps) if isinstance(answer, asyncio.Future) else answer


class Readers:
    """The reader of both sides, and all that happens to the partitions."""

    KINDS: ClassVar[dict[str, dict[str, Any]]] = {
        "consumer": {},
        "read committed": {"isolation_level": 1},
        "consumer of a rack": {"rack_id": "b"},
        "follower": {"replica_id": 2},
    }

    ASKER: ClassVar[type[Asker]] = Asker

    def __init__(self, kind: str, version: int, has_selector: bool) -> None:
        self.kind = kind
        self.is_follower = kind == "follower"
        self.version = version
        self.with_session = self.ASKER(OneBroker(Path("/a"), files=MemoryFiles()), version)
        self.full = Asker(OneBroker(Path("/b"), files=MemoryFiles()), version)
        self.sides = (self.with_session, self.full)
        self.topic_id = UUID(int=77)
        self.leader_epoch = dict.fromkeys(range(PARTITIONS), 0)
        self.partition_epoch = 0
        self.positions = {index: Position() for index in range(PARTITIONS)}
        self.order = list(range(PARTITIONS))
        self.reported: dict[int, tuple[int, int]] = {}
        self.named = set(range(PARTITIONS))
        self.forgotten: set[int] = set()
        self.session_id = 0
        self.epoch = 0
        self.is_full = True
        self.sequence = 0
        self.replica_epoch = 0
        self.sent: dict[int, tuple[int, int]] = {}
        for side in self.sides:
            side.one.topic_configs["t"] = LogConfig(retention_bytes=0, min_cleanable_dirty_ratio=0.5)
            side.one.broker.replicas.replica_selector = select_in_rack if has_selector else None
            self.lead(side, range(PARTITIONS), 1, (1, 2, 3))
            side.one.update_metadata(
                {"t": range(PARTITIONS)}, topic_id=self.topic_id, replicas=REPLICAS, brokers=REPLICAS, racks=RACKS
            )

    def close(self) -> None:
        for side in self.sides:
            side.one.close()

    def lead(self, side: Asker, indexes: Any, leader: int, isr: tuple[int, ...]) -> None:
        for index in indexes:
            side.one.leader_and_isr(
                {"t": [index]},
                topic_id=self.topic_id,
                leader=leader,
                leader_epoch=self.leader_epoch[index],
                partition_epoch=self.partition_epoch,
                isr=isr,
                replicas=REPLICAS,
            )

    # --- changes, the same on both sides ---------------------------------------------------------------------------

    def append(self, index: int, amount: int) -> None:
        for side in self.sides:
            partition = side.partition(index)
            if partition is not None and partition.is_leader:
                for _ in range(1 + amount % 3):
                    partition.append_records_to_leader(batch(b"x" * 200), 1, elapsed_ms(side.one.clock))
                side.one.broker.replicas.complete_after_append(partition.topic_partition)

    def transaction(self, index: int, amount: int) -> None:
        """An open transaction, or its end."""
        self.sequence += 1
        for side in self.sides:
            partition = side.partition(index)
            if partition is None or not partition.is_leader:
                continue
            now_ms = elapsed_ms(side.one.clock)
            if amount % 2:
                data = batch(b"t", producer_id=self.sequence, producer_epoch=0, base_sequence=0, is_transactional=True)
                partition.append_records_to_leader(data, 1, now_ms)
            else:
                for producer_id in range(1, self.sequence):
                    end = marker(producer_id, 0, abort=bool(amount % 3))
                    partition.append_records_to_leader(end, 1, now_ms, AppendOrigin.COORDINATOR)
            side.one.broker.replicas.complete_after_append(partition.topic_partition)

    def follow(self, index: int, amount: int) -> None:
        """Followers that are not the reader have a part of the log, or all of it."""
        for side in self.sides:
            partition = side.partition(index)
            if partition is None or partition.log is None or not partition.is_leader:
                continue
            for replica_id in (3,) if self.is_follower else (2, 3):
                asked = self.request({index: Position(max(0, partition.log.log_end_offset - amount % 2))}, ())
                asked.session_epoch = -1
                self.set_replica(asked, replica_id)
                side.send(asked)

    def elect(self, index: int, amount: int) -> None:
        self.leader_epoch[index] += 1
        self.partition_epoch += 1
        leader, isr = ((1, (1, 2, 3)), (1, (1,)), (2, (1, 2)), (1, (1, 2)))[amount % 4]
        for side in self.sides:
            self.lead(side, [index], leader, isr)

    def change_isr(self, index: int, amount: int) -> None:
        isr = ((1, 2, 3), (1,), (1, 2), (1, 3))[amount % 4]
        self.partition_epoch += 1
        for side in self.sides:
            partition = side.partition(index)
            if partition is None or not partition.is_leader:
                continue
            before = partition.isr
            epoch = partition.leader_epoch
            assert partition.commit_isr(isr, epoch, self.partition_epoch, elapsed_ms(side.one.clock))
            after_isr_change(side.one.broker.replicas, partition, before)

    def delete(self, index: int, amount: int) -> None:
        """The topic's partition goes; it comes back with a later election."""
        for side in self.sides:
            side.one.stop_replica("t", index)

    def rename(self, index: int, amount: int) -> None:
        """The topic was deleted and created again: its id is another one."""
        for side in self.sides:
            for each in range(PARTITIONS):
                side.one.stop_replica("t", each)
        self.topic_id = UUID(int=self.topic_id.int + amount % 2)
        for side in self.sides:
            self.lead(side, range(PARTITIONS), 1, (1, 2, 3))
            side.one.update_metadata({"t": range(PARTITIONS)}, topic_id=self.topic_id, brokers=REPLICAS, racks=RACKS)

    def delete_records(self, index: int, amount: int) -> None:
        for side in self.sides:
            partition = side.partition(index)
            if partition is not None and partition.log is not None:
                offset = min(partition.log.log_start_offset + amount % 3, partition.log.high_watermark)
                delete_records(side.one.broker.replicas, {partition.topic_partition: offset}, 0)

    def retention(self, index: int, amount: int) -> None:
        for side in self.sides:
            partition = side.partition(index)
            if partition is not None and partition.log is not None:
                partition.log.roll()
            for _ in side.one.broker.logs.passes.retention(side.one.clock.now_ms()):
                pass

    def configure(self, index: int, amount: int) -> None:
        """Old readers are refused while the topic is compressed with zstd."""
        compression = ("zstd", "producer")[amount % 2]
        for side in self.sides:
            for each in range(PARTITIONS):
                partition = side.partition(each)
                if partition is not None and partition.log is not None:
                    partition.log.update_config(LogConfig(retention_bytes=0, compression_type=compression))
            for _ in side.one.broker.replicas.topic_config_pass("t"):
                pass

    def move_racks(self, index: int, amount: int) -> None:
        racks = (RACKS, {1: "b", 2: "a", 3: "b"}, {1: "a", 2: "a", 3: "a"})[amount % 3]
        for side in self.sides:
            side.one.update_metadata({}, brokers=REPLICAS, racks=racks)

    def throttle(self, index: int, amount: int) -> None:
        for side in self.sides:
            quota = side.one.broker.replicas.quotas.leader
            quota.throttle("t", None if amount % 2 else frozenset())
            quota.limit = 1
            quota.record(1_000_000)

    def wait(self, index: int, amount: int) -> None:
        """Not while a request is parked: whether the end of the wait counts as a fetch is not the session's matter."""
        if self.with_session.waiting is None:
            for side in self.sides:
                side.one.clock.elapsed_ms += 1 + amount

    # --- the reader --------------------------------------------------------------------------------------------------

    def seek(self, index: int, amount: int) -> None:
        if index in self.positions:
            self.positions[index].offset = max(0, self.positions[index].offset + amount % 5 - 2)
            self.name(index)

    def learn(self, index: int, amount: int) -> None:
        """The reader learns the leader epoch, and of the epoch of the last record it has."""
        if index in self.positions:
            self.positions[index].leader_epoch = self.leader_epoch[index]
            self.positions[index].last_epoch = (-1, max(0, self.leader_epoch[index] - amount % 2))[amount % 2]
            self.positions[index].log_start = amount % 3
            self.name(index)

    def forget(self, index: int, amount: int) -> None:
        if index in self.positions and len(self.positions) > 1:
            self.end_wait()
            del self.positions[index]
            self.order.remove(index)
            self.reported.pop(index, None)
            self.named.discard(index)
            self.forgotten.add(index)
        elif index not in self.positions:
            self.end_wait()
            self.flush_forgotten()
            self.positions[index] = Position(amount % 2, self.leader_epoch[index])
            self.order.append(index)
            self.named.add(index)

    def flush_forgotten(self) -> None:
        """A partition that is forgotten and named by one request would be forgotten again."""
        if self.forgotten and not self.is_full:
            self.fetch(0, 0)

    def name(self, index: int) -> None:
        self.end_wait()
        self.named.add(index)

    def change_reader(self, index: int, amount: int) -> None:
        """The broker epoch of the follower, or the rack of the consumer, is another one from now on."""
        self.end_wait()
        self.replica_epoch = amount % 3

    def set_replica(self, asked: FetchRequest, replica_id: int) -> None:
        if self.version >= 15:
            asked.replica_state = ReplicaState(replica_id=replica_id, replica_epoch=self.replica_epoch)
        else:
            asked.replica_id = replica_id

    def request(
        self, positions: dict[int, Position], forgotten: Any, max_bytes: int = 1 << 20, **fields: Any
    ) -> FetchRequest:
        asked = FetchRequest(
            topics=[], **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": max_bytes, "session_epoch": -1, **fields}
        )
        if positions:
            partitions = [self.ask(i, p) for i, p in positions.items()]
            asked.topics = [FetchTopic(topic="t", topic_id=UUID(int=77), partitions=partitions)]
        if forgotten:
            asked.forgotten_topics_data = [
                ForgottenTopic(topic="t", topic_id=UUID(int=77), partitions=sorted(forgotten))
            ]
        return asked

    def ask(self, index: int, position: Position) -> FetchPartition:
        return FetchPartition(
            partition=index,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_epoch if self.is_follower else -1,
            log_start_offset=position.log_start if self.is_follower else -1,
            partition_max_bytes=1 << 20,
        )

    def fetch(self, index: int, amount: int, **fields: Any) -> None:
        self.end_wait()
        for reported_again in self.named & set(self.reported):
            if reported_again in self.again:
                self.reported[reported_again] = (-1, self.reported[reported_again][1])
        max_bytes = (1 << 20, 300, 700)[amount % 3]
        kind = {k: v for k, v in self.KINDS[self.kind].items() if k != "replica_id"}
        fields = {**kind, **fields}
        named = {i: self.positions[i] for i in self.order if i in self.named}
        incremental = self.request(named, self.forgotten, max_bytes, **fields)
        incremental.session_id, incremental.session_epoch = self.session_id, self.epoch
        everything = self.request({i: self.positions[i] for i in self.order}, (), max_bytes, **fields)
        self.sent = {i: (p.offset, p.leader_epoch) for i, p in self.positions.items()}
        for asked in (incremental, everything):
            if self.is_follower:
                self.set_replica(asked, 2)
        answers = []
        for side, asked in zip(self.sides, (incremental, everything), strict=True):
            answer = side.send(asked)
            if isinstance(answer, asyncio.Future):
                side.waiting = answer
            else:
                answers.append(answer)
        self.named, self.forgotten = set(), set()
        if answers:
            assert len(answers) == 2, "only one side waits"
            self.compare(*answers)
        else:
            event("parked")

    @property
    def again(self) -> set[int]:
        """Partitions that are named with another epoch, or without having moved on."""
        return {
            i
            for i in self.named
            if i in self.sent
            and (self.positions[i].leader_epoch != self.sent[i][1] or self.positions[i].offset <= self.sent[i][0])
        }

    def park(self, index: int, amount: int) -> None:
        if not self.is_full:
            self.fetch(index, amount, max_wait_ms=FOREVER_MS, min_bytes=(1, 1, 500)[amount % 3])

    def end_wait(self) -> None:
        """The time of the waiting requests runs out."""
        if self.with_session.waiting is not None:
            for side in self.sides:
                side.one.broker.replicas.fetch_purgatory.shutdown()
            self.check_waiting()
            assert self.with_session.waiting is None

    def check_waiting(self) -> None:
        first, second = self.with_session.waiting, self.full.waiting
        if first is None or second is None:
            return
        for side in self.sides:
            side.one.spin()
        assert first.done() == second.done(), "both are answered, or none"
        if first.done():
            self.with_session.waiting = self.full.waiting = None
            self.compare(first.result(), second.result())

    def compare(self, incremental: Any, everything: Any) -> None:
        assert incremental.error_code == everything.error_code == 0
        if self.is_full:
            self.session_id = incremental.session_id
            assert self.session_id
        self.epoch += 1
        wanted = []
        for row in self.rows(self.full, everything):
            index, error, high_watermark, _, log_start, size, diverging, preferred, _ = row
            is_other = (high_watermark, log_start) != self.reported.get(index)
            is_news = size or error or diverging or preferred != -1 or is_other
            if is_news or self.is_full:
                wanted.append(row)
            self.reported[index] = (-1 if error else high_watermark, log_start)
            if size:
                self.order.remove(index)
                self.order.append(index)
        self.is_full = False
        found = self.rows(self.with_session, incremental)
        assert self.in_order(found) == self.in_order(wanted)
        for index, *_, records in found:
            if records:
                position = self.positions[index]
                position.offset = records[-1]
                position.last_epoch = -1
                self.named.add(index)

    def rows(self, side: Asker, response: Any) -> Answer:
        return [
            (
                data.partition_index,
                # a session knows the name of a topic that is gone, a request that brings its id does not
                ErrorCode.UNKNOWN_TOPIC_ID
                if data.error_code == ErrorCode.INCONSISTENT_TOPIC_ID
                else ErrorCode(data.error_code),
                data.high_watermark,
                data.last_stable_offset,
                data.log_start_offset,
                len(data.records or b""),
                data.diverging_epoch and (data.diverging_epoch.epoch, data.diverging_epoch.end_offset),
                data.preferred_read_replica,
                [each.last_offset + 1 for each in batches(data.records)] if data.records else [],
            )
            for topic in side.one.as_read(response, self.version).responses
            for data in topic.partitions
        ]

    def in_order(self, rows: Answer) -> Answer:
        """The rows in the order in which they are compared."""
        return rows

    def proposals(self, side: Asker) -> list[tuple[int, tuple[int, ...]]]:
        """The ISRs that the leader has proposed."""
        return side.wanted

    def compare_replicas(self) -> None:
        """The leader knows the same of its followers."""
        assert self.proposals(self.with_session) == self.proposals(self.full)
        for index in range(PARTITIONS):
            standings: list[Any] = []
            for side in self.sides:
                partition = side.partition(index)
                if partition is None or partition.log is None:
                    standings.append(None)
                    continue
                remotes = [
                    (r.broker_id, r.log_end_offset, r.log_start_offset, r.last_caught_up_time_ms, r.broker_epoch)
                    for r in partition.remotes.values()
                ]
                log = partition.log
                standings.append((log.log_start_offset, log.high_watermark, log.log_end_offset, remotes))
            assert standings[0] == standings[1]


class LargeReaders(Readers):
    """The reader with the session has very many partitions."""

    ASKER = LargeAsker

    def rename(self, index: int, amount: int) -> None:
        """A large answer is read later, when the topic may be there again."""
        self.end_wait()
        super().rename(index, amount)

    def in_order(self, rows: Answer) -> Answer:
        """Partitions that changed during the wait come last."""
        return sorted(rows, key=lambda row: row[0])

    def proposals(self, side: Asker) -> list[tuple[int, tuple[int, ...]]]:
        """At the end of a wait, a large fetch reads less and so repeats fewer proposals."""
        return sorted(set(side.wanted))

    def change_reader(self, index: int, amount: int) -> None:
        """A large session ends when another reader uses it."""

    def move_racks(self, index: int, amount: int) -> None:
        """Racks are a part of the reader that asks with its rack."""
        if self.kind != "consumer of a rack":
            super().move_racks(index, amount)


READS = ("fetch", "park")
CHANGES = (
    *("append", "append", "append", "follow", "follow", "transaction", "elect", "change_isr", "delete", "rename"),
    *("delete_records", "retention", "configure", "move_racks", "throttle", "wait"),
    *("seek", "learn", "forget", "change_reader"),
)
STEPS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(READS), st.sampled_from(CHANGES)),
        st.integers(0, PARTITIONS - 1),
        st.integers(0, 11),
    ),
    min_size=5,
    max_size=60,
)


@pytest.mark.parametrize("kind", Readers.KINDS)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, version=st.sampled_from((9, 12, 17)), has_selector=st.booleans())
@example(steps=[("append", 0, 0), ("fetch", 0, 0), ("park", 0, 0), ("append", 1, 0)], version=12, has_selector=False)
def test_a_session_answers_as_if_it_had_looked_at_everything(
    kind: str, steps: list[tuple[str, int, int]], version: int, has_selector: bool
) -> None:
    _compare(Readers(kind, version, has_selector), steps)


@pytest.mark.parametrize("kind", Readers.KINDS)
@settings(max_examples=30, deadline=None)
@given(steps=STEPS, version=st.sampled_from((9, 12, 17)), has_selector=st.booleans())
def test_a_large_session_answers_like_a_small_one(
    kind: str, steps: list[tuple[str, int, int]], version: int, has_selector: bool
) -> None:
    _compare(LargeReaders(kind, version, has_selector), steps)


def _compare(readers: Readers, steps: list[tuple[str, int, int]]) -> None:
    try:
        for name, index, amount in [*steps, ("fetch", 0, 0), ("fetch", 0, 0)]:
            getattr(readers, name)(index, amount)
            readers.check_waiting()
            readers.compare_replicas()
        readers.end_wait()
    finally:
        readers.close()
