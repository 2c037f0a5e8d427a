"""A transactional producer whose requests are sent one by one, over the connections that a scenario names.

It speaks the old protocol (like librdkafka) or the repaired one (KIP-890, like the Java client 4). Its transactions
are recorded for the checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch, TopicPartition
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message
from klamm.sim.aimed.cluster_stage import WAIT_S, expect
from klamm.sim.cluster import SimNode
from klamm.sim.transactions.aimed_stage import Stage
from klamm.sim.transactions.observations import Draft, Outcome, Write
from klamm.sim.transactions.restless_client import RestlessClient
from klamm.sim.transactions.txn_errors import FENCING, RETRIED
from klamm.sim.violation import require

ANSWER_MS: Final = 1_500
IMPATIENT_MS: Final = 250
"""Timeout of requests that get no answer."""
AGAIN_S: Final = 0.02
TIMEOUT_MS: Final = 60_000
TIMESTAMP_MS: Final = 1_700_000_000_000
COORDINATION: Final = "coordination"
DATA: Final = "data"
NOBODY: Final = ProducerIdAndEpoch(-1, -1)


class Prepared(NamedTuple):
    """Batches that may be sent later, and the records in them."""

    batches: Mapping[TopicPartition, bytes]
    writes: Mapping[TopicPartition, Write]


class Actor:
    def __init__(
        self, stage: Stage, transactional_id: str, *, is_new: bool = False, host: str = "", timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self.stage = stage
        self.transactional_id = transactional_id
        self.host = host or transactional_id
        self.is_new = is_new
        self.timeout_ms = timeout_ms
        self.identity = NOBODY
        self._process = stage.cluster.client_process(self.host)
        self._clients: dict[str, RestlessClient] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._draft: Draft | None = None
        self._written = 0

    # --- requests ----------------------------------------------------------------------------------------------------

    async def ask(
        self, node: SimNode, request: Message, version: int, *, on: str = COORDINATION, patience_ms: int = ANSWER_MS
    ) -> Any:
        """`on` names a connection to this broker: another name is another connection."""
        if on not in self._clients:
            cluster = self.stage.cluster
            self._clients[on] = RestlessClient(f"{self.host} ({on})", cluster.addresses, self.stage.random())
        asking = self._clients[on].ask(node.id, request, version, timeout_ms=patience_ms)
        return await self.stage.cluster.loop.spawn(self._process, asking)

    async def connect(self, node: SimNode, *, on: str) -> None:
        """Open a connection, so that requests which are sent at the same time use this one and not one each."""
        await self.ask(node, ApiVersionsRequest(), 0, on=on)

    def is_connected(self, node: SimNode, *, on: str = COORDINATION) -> bool:
        return self._clients[on].is_connected(node.id)

    def close(self, *, on: str) -> None:
        """Close a connection; its pending requests are abandoned."""
        self._clients[on].close()

    async def _send(
        self, ask: Callable[[], Coroutine[Any, Any, Any]], code_of: Callable[[Any], int], *, once: bool
    ) -> tuple[ErrorCode | None, Any]:
        """Repeat the request until its answer is final; `once`: send it once, and return None for no answer."""
        until_s = self.stage.now_s + WAIT_S
        while True:
            code: ErrorCode | None = None
            response: Any = None
            try:
                response = await ask()
                code = ErrorCode(code_of(response))
            except OSError:
                pass
            if once or (code is not None and code not in RETRIED):
                return code, response
            name = "no answer" if code is None else code.name
            require(self.stage.now_s < until_s, f"{self.host} gets {name} for {WAIT_S:g} s")
            await asyncio.sleep(AGAIN_S)

    async def _coordinate(
        self, request: Message, version: int, code_of: Callable[[Any], int], *, on: str, once: bool
    ) -> tuple[ErrorCode | None, Any]:
        async def ask() -> Any:
            node = await self.stage.coordinator(self.transactional_id)
            return await self.ask(node, request, version, on=on, patience_ms=IMPATIENT_MS if once else ANSWER_MS)

        return await self._send(ask, code_of, once=once)

    # --- the producer ------------------------------------------------------------------------------------------------

    async def init(
        self, *, recovers: bool = False, timeout_ms: int = 0, on: str = COORDINATION, once: bool = False
    ) -> ErrorCode | None:
        """Get an epoch; `recovers`: as the producer that this one is (KIP-360)."""
        known = self.identity if recovers else NOBODY
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms or self.timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
        )
        code, response = await self._coordinate(request, 5 if self.is_new else 4, _code, on=on, once=once)
        if code is ErrorCode.NONE:
            self._take(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
            self._finish(Outcome.ABORTED if self._draft is None else self._draft.outcome)
        return code

    def _take(self, identity: ProducerIdAndEpoch) -> None:
        is_given = identity.producer_epoch < self.stage.cluster.max_producer_epoch
        require(is_given, f"{self.host} got the last epoch of its id: {identity}")
        if identity != self.identity:
            self._sequences.clear()
        self.identity = identity

    async def write(self, *tps: TopicPartition, key: bytes | None = None) -> None:
        """Write a record to each partition in the present transaction."""
        if not self.is_new:
            await self.add(*(tp for tp in tps if tp not in self._added))
        for tp in tps:
            expect(f"Produce of {self.host}", await self.deliver(self.prepare(tp, key=key)), ErrorCode.NONE)

    async def add(self, *tps: TopicPartition, on: str = COORDINATION) -> None:
        """AddPartitionsToTxn."""
        if not tps:
            return
        code, _ = await self._coordinate(self._request_to_add(*tps), 0, _code_of_added, on=on, once=False)
        expect(f"AddPartitionsToTxn of {self.host}", code, ErrorCode.NONE)
        self._added.update(tps)

    async def ask_to_add(self, *tps: TopicPartition, on: str = COORDINATION) -> ErrorCode | None:
        """AddPartitionsToTxn, once; None: no answer."""
        code, _ = await self._coordinate(self._request_to_add(*tps), 0, _code_of_added, on=on, once=True)
        return code

    def _request_to_add(self, *tps: TopicPartition) -> AddPartitionsToTxnRequest:
        names = dict.fromkeys(tp.topic for tp in tps)
        topics = [
            AddPartitionsToTxnTopic(name=name, partitions=[tp.partition for tp in tps if tp.topic == name])
            for name in names
        ]
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.producer_epoch,
            v3_and_below_topics=topics,
        )

    def prepare(self, *tps: TopicPartition, key: bytes | None = None, timestamp_ms: int = TIMESTAMP_MS) -> Prepared:
        """Make a batch with one record for each partition, with the next sequence number."""
        batches: dict[TopicPartition, bytes] = {}
        writes: dict[TopicPartition, Write] = {}
        for tp in tps:
            self._written += 1
            writes[tp] = Write(tp, f"{self.host}.{self._written}".encode())
            sequence = self._sequences.get(tp, 0)
            self._sequences[tp] = sequence + 1
            batches[tp] = build_batch(
                [Record(timestamp=timestamp_ms, key=key, value=writes[tp].value)],
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
            if tp in self.stage.tps:
                self._transaction().writes.append(writes[tp])
        return Prepared(batches, writes)

    async def produce(self, tp: TopicPartition, *, on: str = DATA, once: bool = False) -> ErrorCode | None:
        """Send a record without adding its partition to the transaction."""
        return await self.deliver(self.prepare(tp), on=on, once=once)

    async def deliver(self, prepared: Prepared, *, on: str = DATA, once: bool = False) -> ErrorCode | None:
        """Send prepared batches to the leader of the first partition; return the first error."""
        names = dict.fromkeys(tp.topic for tp in prepared.batches)
        topics = [
            TopicProduceData(
                name=name,
                partition_data=[
                    PartitionProduceData(index=tp.partition, records=batch)
                    for tp, batch in prepared.batches.items()
                    if tp.topic == name
                ],
            )
            for name in names
        ]
        request = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=1_000, topic_data=topics)

        async def ask() -> Any:
            node = await self.stage.leader(next(iter(prepared.batches)))
            return await self.ask(node, request, 12 if self.is_new else 9, on=on)

        code, _ = await self._send(ask, _code_of_produced, once=once)
        return code

    async def end(
        self, *, commit: bool, on: str = COORDINATION, once: bool = False, version: int | None = None
    ) -> ErrorCode | None:
        """Send EndTxn, in the highest version that this client would use or in another one below 5."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=commit,
        )
        before = Outcome.ABORTED if self._draft is None else self._draft.outcome
        if commit and self._draft is not None:
            self._draft.outcome = Outcome.UNKNOWN
        code, response = await self._coordinate(request, version or (5 if self.is_new else 1), _code, on=on, once=once)
        if once and code in FENCING and self._draft is not None:
            self._draft.outcome = before  # the only attempt was refused
        if code is ErrorCode.NONE:
            if self.is_new:
                self._take_next(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
            self._finish(Outcome.COMMITTED if commit else Outcome.ABORTED)
        return code

    async def ask_to_commit(self, node: SimNode) -> ErrorCode | None:
        """Send EndTxn once to this broker, even if it is not the coordinator; None if there is no answer."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=True,
        )
        try:
            response = await self.ask(node, request, 5 if self.is_new else 1)
        except OSError:
            return None
        return ErrorCode(response.error_code)

    async def commit(self) -> None:
        expect(f"EndTxn of {self.host}", await self.end(commit=True), ErrorCode.NONE)

    async def abort(self, *, on: str = COORDINATION) -> None:
        expect(f"EndTxn of {self.host}", await self.end(commit=False, on=on), ErrorCode.NONE)

    def _take_next(self, given: ProducerIdAndEpoch) -> None:
        """EndTxn returns the next epoch, or the first epoch of another id."""
        before = self.identity
        is_next = given == (before.producer_id, before.producer_epoch + 1)
        is_other = given.producer_id != before.producer_id and given.producer_epoch == 0
        require(is_next or is_other, f"EndTxn gave {self.host} {given} after {before}")
        self._take(given)

    # --- groups ------------------------------------------------------------------------------------------------------

    async def add_offsets(self, group: str, *, on: str = COORDINATION) -> None:
        """AddOffsetsToTxn; clients of the repaired protocol do not send it."""
        code, _ = await self._coordinate(self._request_to_add_offsets(group), 3, _code, on=on, once=False)
        expect(f"AddOffsetsToTxn of {self.host}", code, ErrorCode.NONE)

    async def ask_to_add_offsets(self, group: str, *, on: str = COORDINATION) -> ErrorCode | None:
        """AddOffsetsToTxn, once; None: no answer."""
        code, _ = await self._coordinate(self._request_to_add_offsets(group), 3, _code, on=on, once=True)
        return code

    def _request_to_add_offsets(self, group: str) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            group_id=group,
        )

    async def commit_offset(
        self,
        group: str,
        tp: TopicPartition,
        offset: int,
        *,
        member: tuple[int, str] = (-1, ""),
        on: str = DATA,
        once: bool = False,
    ) -> ErrorCode | None:
        """TxnOffsetCommit; `member` is the generation and the id of a group member."""
        partition = TxnOffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            generation_id=member[0],
            member_id=member[1],
            topics=[TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[partition])],
        )

        async def ask() -> Any:
            node = await self.stage.group_coordinator(group)
            patience_ms = IMPATIENT_MS if once else ANSWER_MS
            return await self.ask(node, request, 5 if self.is_new else 3, on=on, patience_ms=patience_ms)

        code, _ = await self._send(ask, lambda it: it.topics[0].partitions[0].error_code, once=once)
        return code

    async def stable_offset(
        self, group: str, tp: TopicPartition, *, of: SimNode | None = None
    ) -> tuple[ErrorCode | None, int]:
        """OffsetFetch with *require stable*, sent once, to the group's coordinator or to another broker."""
        topic = OffsetFetchRequestTopic(name=tp.topic, partition_indexes=[tp.partition])
        request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)
        node = of or await self.stage.group_coordinator(group)
        try:
            response = await self.ask(node, request, 7, on="offsets")
        except OSError:
            return None, -1
        if response.error_code != ErrorCode.NONE or not response.topics:
            return ErrorCode(response.error_code), -1
        partition = response.topics[0].partitions[0]
        return ErrorCode(partition.error_code), partition.committed_offset

    async def committed_offset(self, group: str, tp: TopicPartition) -> int:
        """The stable offset of a group, as soon as there is one; -1 if nothing was committed."""
        until_s = self.stage.now_s + WAIT_S
        while True:
            code, offset = await self.stable_offset(group, tp)
            if code is ErrorCode.NONE:
                return offset
            require(self.stage.now_s < until_s, f"the offset of {group} is not stable for {WAIT_S:g} s")
            await asyncio.sleep(AGAIN_S)

    # --- records -----------------------------------------------------------------------------------------------------

    def _transaction(self) -> Draft:
        if self._draft is None:
            self._draft = self.stage.recorder.begin(self.transactional_id, self.host)
        return self._draft

    def _finish(self, outcome: Outcome) -> None:
        if self._draft is not None:
            self._draft.outcome = outcome
        self._draft = None
        self._added.clear()


def _code(response: Any) -> int:
    return int(response.error_code)


def _code_of_added(response: Any) -> int:
    topics = response.results_by_topic_v3_and_below
    codes = [it.partition_error_code for topic in topics for it in topic.results_by_partition]
    return next((code for code in codes if code), 0)


def _code_of_produced(response: Any) -> int:
    codes = [it.error_code for topic in response.responses for it in topic.partition_responses]
    return next((code for code in codes if code not in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)), 0)
