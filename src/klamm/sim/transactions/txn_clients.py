"""Clients with transactions: writers, and copiers that read, process and write exactly once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from klamm.replica.partition_reader import LATEST_TIMESTAMP
from klamm.sim.clients import Client
from klamm.sim.history import History
from klamm.sim.transactions.committed_reader import READ_COMMITTED, CommittedReader
from klamm.sim.transactions.observations import (
    NO_OFFSET,
    Draft,
    End,
    Move,
    Outcome,
    Poll,
    Read,
    Recorder,
    Source,
    Write,
)
from klamm.sim.transactions.txn_errors import RETRIED, Fenced, GaveUp, TransactionFailed
from klamm.sim.transactions.txn_producer import GROUP_KEY, TransactionalProducer
from klamm.sim.violation import Violation

REST_S: Final = (0.02, 0.2)
STANDBY_S: Final = (0.6, 2.0)
"""A second process with the same transactional id takes over again after this time."""
Work = Callable[[Draft], Awaitable[None]]


class TransactionalClient:
    """A process with a transactional producer, which is replaced after errors that it cannot recover from."""

    def __init__(
        self,
        name: str,
        producer: TransactionalProducer,
        recorder: Recorder,
        history: History,
        *,
        is_standby: bool = False,
    ) -> None:
        self.name = name
        self.is_standby = is_standby
        self.producer = producer
        self.last_failure = ""
        self._recorder = recorder
        self._history = history

    async def transact(self, work: Work, *, is_commit: bool) -> bool:
        """Run one transaction; return whether it committed. A producer that must be replaced raises."""
        draft = self._recorder.begin(self.producer.transactional_id, self.name)
        try:
            await work(draft)
            if is_commit:
                draft.outcome = Outcome.UNKNOWN
                await self.producer.commit()
                draft.outcome = Outcome.COMMITTED
                return True
        except TransactionFailed as failure:
            self.last_failure = str(failure)
            is_careless = self.producer.is_careless and isinstance(failure, GaveUp)
            if draft.outcome is Outcome.UNKNOWN and not is_careless:
                if failure.is_certain:
                    draft.outcome = Outcome.ABORTED
                raise
            if isinstance(failure, Fenced):
                raise
        await self.producer.abort()
        draft.outcome = Outcome.ABORTED  # also of a careless client, which aborts after a commit without an answer
        return False

    async def write(self, draft: Draft, planned: dict[TopicPartition, list[Write]]) -> None:
        """Write records: a value names its transaction. They are recorded first, with the offsets afterwards."""
        for writes in planned.values():
            draft.writes += writes
        since_s = asyncio.get_running_loop().time()
        offsets = await self.producer.produce({tp: [it.value for it in writes] for tp, writes in planned.items()})
        for tp, writes in planned.items():
            base = offsets[tp]
            self._history.on_acknowledged(tp, base, [it.value for it in writes], since_s)
            for i, write in enumerate(writes if base >= 0 else ()):
                draft.writes[draft.writes.index(write)] = write._replace(offset=base + i)

    async def leave(self, tps: Sequence[TopicPartition]) -> None:
        """Write a record to each partition, and never end the transaction."""
        draft = self._recorder.begin(self.producer.transactional_id, self.name)
        await self.write(draft, {tp: [Write(tp, f"t{draft.number}.{tp.partition}".encode())] for tp in tps})

    async def ask_for_ends(self, draft: Draft, client: Client) -> None:
        """Ask where the partitions that were written end for readers of committed records: before these records."""
        firsts: dict[TopicPartition, int] = {}
        for write in draft.writes:
            if write.offset != NO_OFFSET:
                firsts[write.tp] = min(write.offset, firsts.get(write.tp, write.offset))
        for tp, first in firsts.items():
            end = await stable_end(client, tp)
            if end is not None:
                draft.ends.append(End(tp, end, first))

    async def rest(self, client: Client) -> None:
        await asyncio.sleep(client.rng.uniform(*(STANDBY_S if self.is_standby else REST_S)))


class TransactionalWriter:
    """Writes to several partitions in a transaction and reads others; aborts some transactions on purpose."""

    def __init__(
        self,
        client: TransactionalClient,
        data: Client,
        tps: Sequence[TopicPartition],
        readers: Sequence[CommittedReader],
        may_go_on: Callable[[bool], bool],
        *,
        asks_for_ends: bool = False,
    ) -> None:
        self._client = client
        self._data = data
        self._tps = tps
        self._readers = readers
        self._may_go_on = may_go_on
        """Called with whether its last transaction committed."""
        self._asks_for_ends = asks_for_ends

    async def run(self) -> None:
        rng = self._data.rng
        has_committed = False
        while self._may_go_on(has_committed):
            has_committed = False
            try:
                await self._client.producer.init()
                while self._may_go_on(has_committed):
                    is_commit = rng.random() < 0.75
                    has_committed = await self._client.transact(self._work, is_commit=is_commit)
                    await asyncio.sleep(rng.uniform(0.0, 0.15))
            except TransactionFailed as failure:
                self._client.last_failure = str(failure)
                await self._client.rest(self._data)

    async def _work(self, draft: Draft) -> None:
        rng = self._data.rng
        if rng.random() < 0.08:
            return  # an empty transaction
        for step in range(rng.randint(1, 2)):
            await self._read(draft)
            tps = rng.sample(self._tps, rng.randint(1, len(self._tps)))
            planned = {
                tp: [Write(tp, f"t{draft.number}.{step}.{tp.partition}.{i}".encode()) for i in range(rng.randint(1, 2))]
                for tp in tps
            }
            await self._client.write(draft, planned)
            if self._asks_for_ends:
                await self._client.ask_for_ends(draft, self._data)
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.1, 0.6)))
        await self._read(draft)

    async def _read(self, draft: Draft) -> None:
        reader = self._data.rng.choice(self._readers)
        poll = await reader.poll()
        if poll is not None:
            draft.reads += [Read(poll.tp, offset, value) for offset, value in poll.records]


class LeavingWriter:
    """Writes to each partition in a transaction that nobody ends: the coordinator has to abort it."""

    def __init__(self, client: TransactionalClient, data: Client, tps: Sequence[TopicPartition]) -> None:
        self._client = client
        self._data = data
        self._tps = tps

    async def run(self) -> None:
        await asyncio.sleep(self._data.rng.uniform(0.0, 2.0))
        with contextlib.suppress(TransactionFailed):
            await self._client.producer.init()
            await self._client.leave(self._tps)


class Copier:
    """Copies one partition to another: records and the position of its group in one transaction."""

    def __init__(
        self,
        client: TransactionalClient,
        data: Client,
        reader: CommittedReader,
        target: TopicPartition,
        group: str,
        may_go_on: Callable[[TopicPartition, int], bool],
    ) -> None:
        self._client = client
        self._data = data
        self._reader = reader
        self._target = target
        self._group = group
        self._may_go_on = may_go_on
        """Called with its source and the committed position."""

    async def run(self) -> None:
        reader, position = self._reader, 0
        while self._may_go_on(reader.tp, position):
            try:
                await self._client.producer.init()
                position = await self._position()
                while self._may_go_on(reader.tp, position):
                    reader.seek(position)
                    poll = await reader.poll(max_wait_ms=150, max_bytes=400)
                    if poll is not None and poll.end > poll.start:
                        await copy_records(self._client, self._group, poll, self._target, self._data.rng)
                        position = await self._position()
            except TransactionFailed as failure:
                self._client.last_failure = str(failure)
                await self._client.rest(self._data)

    async def _position(self) -> int:
        return max(0, await stable_offset(self._data, self._group, self._reader.tp))


async def copy_records(
    client: TransactionalClient,
    group: str,
    poll: Poll,
    target: TopicPartition,
    rng: Random,
    member: tuple[int, str] | None = None,
) -> bool:
    """Copy the records of a poll and commit the position behind them; return whether both were committed."""

    async def work(draft: Draft) -> None:
        draft.reads += [Read(poll.tp, offset, value) for offset, value in poll.records]
        draft.moves.append(Move(group, poll.tp, poll.start, poll.end))
        writes = [
            Write(target, f"t{draft.number}.copy.{offset}".encode(), source=Source(poll.tp, offset))
            for offset, _ in poll.records
        ]
        planned = {target: writes} if writes else {}
        is_offset_first = rng.random() < 0.3
        if not is_offset_first:
            await client.write(draft, planned)
        await client.producer.commit_offset(group, poll.tp, poll.end, member)
        if is_offset_first:
            await client.write(draft, planned)

    return await client.transact(work, is_commit=rng.random() < 0.9)


async def stable_end(client: Client, tp: TopicPartition) -> int | None:
    """Return the end of a partition for readers of committed records; None if there was no answer."""
    leader, epoch = await client.leader(tp)
    partition = ListOffsetsPartition(
        partition_index=tp.partition, current_leader_epoch=epoch, timestamp=LATEST_TIMESTAMP
    )
    topic = ListOffsetsTopic(name=tp.topic, partitions=[partition])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=[topic])
    try:
        response = await client.ask(leader, request, 5)
    except OSError:
        client.forget_leader(tp)
        return None
    found = response.topics[0].partitions[0]
    return int(found.offset) if found.error_code == ErrorCode.NONE else None


async def stable_offset(client: Client, group: str, tp: TopicPartition) -> int:
    """Return the committed offset of a group, waiting until no transaction may still change it."""
    topic = OffsetFetchRequestTopic(name=tp.topic, partition_indexes=[tp.partition])
    while True:
        try:
            found = await client.ask(client.any_broker(), FindCoordinatorRequest(key=group, key_type=GROUP_KEY), 3)
            if found.error_code == ErrorCode.NONE:
                request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)
                response = await client.ask(found.node_id, request, 7)
                partition = response.topics[0].partitions[0] if response.topics else None
                codes = {response.error_code, ErrorCode.NONE if partition is None else partition.error_code}
                if partition is not None and codes == {ErrorCode.NONE}:
                    return int(partition.committed_offset)
                if not codes - {ErrorCode.NONE} <= RETRIED:
                    names = sorted(ErrorCode(code).name for code in codes)
                    raise Violation(f"{client.name} was answered {names} for the offset of {group} in {tp}")
        except OSError:
            pass
        await client.rest()
