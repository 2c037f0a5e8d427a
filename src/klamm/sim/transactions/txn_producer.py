"""A transactional producer at the level of the wire, of the old protocol or of the repaired one (KIP-890).

The old one acts like librdkafka: AddPartitionsToTxn before the first record, EndTxn v1, one connection for the
coordinator and others for data, and a new epoch by InitProducerId after an abort with unacknowledged records. The new
one acts like the Java client 4: brokers add partitions, and every end of a transaction returns the next epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message
from klamm.sim.transactions.restless_client import RestlessClient
from klamm.sim.transactions.txn_errors import (
    ABORTING,
    CERTAINLY_NOTHING,
    FENCING,
    RETRIED,
    Fenced,
    GaveUp,
    Refused,
    TransactionFailed,
)
from klamm.sim.violation import Violation, require

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
PATIENCE_S: Final = 4.0
"""How long a request is repeated."""
LINGER_S: Final = 0.08
_LOST: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
Batches = Mapping[TopicPartition, Sequence[bytes]]


class TransactionalProducer:
    """One producer: its id and epoch, and the sequence numbers of its partitions."""

    def __init__(
        self,
        transactional_id: str,
        coordinator: RestlessClient,
        data: RestlessClient,
        *,
        is_new: bool,
        is_careless: bool = False,
        timeout_ms: int,
        max_epoch: int,
    ) -> None:
        """`is_careless`: gives up a request without an answer at once, aborts and keeps its epoch."""
        self.transactional_id = transactional_id
        self.is_new = is_new
        self.is_careless = is_careless and not is_new
        self._coordinator = coordinator
        self._data = data
        self._timeout_ms = timeout_ms
        self._max_epoch = max_epoch
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._is_unresolved = False
        """Whether a record of this transaction may or may not be in the log."""
        self._is_empty = True
        self._coordinators: dict[int, int] = {}
        """Broker ids by type of coordinator."""
        self.fenced = 0
        """Requests that were refused because of another epoch."""
        self.fenced_ends = 0
        self.ids_used_up = 0

    # --- steps of a transaction ----------------------------------------------------------------------------------

    async def init(self, *, keeps_id: bool = False) -> None:
        """Fence other producers of the transactional id, or raise the epoch of this one."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=self._producer_id if keeps_id else -1,
            producer_epoch=self._producer_epoch if keeps_id else -1,
        )
        response = await self._coordinate(request, 5 if self.is_new else 4, lambda it: it.error_code)
        if keeps_id:
            self._check_next(response, "InitProducerId")
        self._take_epoch(response.producer_id, response.producer_epoch)
        self._begin()

    def _check_next(self, response: Any, what: str) -> None:
        """The producer gets the next epoch of its id, but not the last one, or the first one of another id."""
        given = response.producer_id, response.producer_epoch
        is_other = response.producer_id != self._producer_id and response.producer_epoch == 0
        is_next = given == (self._producer_id, self._producer_epoch + 1) and response.producer_epoch < self._max_epoch
        before = f"{self._producer_id} with epoch {self._producer_epoch}"
        require(
            is_next or is_other, f"{what} gave {self.transactional_id} the producer id and epoch {given} after {before}"
        )

    def _begin(self) -> None:
        self._added.clear()
        self._is_unresolved = False
        self._is_empty = True

    def _take_epoch(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != (self._producer_id, self._producer_epoch):
            self._sequences.clear()
        self.ids_used_up += -1 < self._producer_id != producer_id
        self._producer_id, self._producer_epoch = producer_id, producer_epoch

    async def produce(self, values: Batches) -> dict[TopicPartition, int]:
        """Return the base offsets: -1 for a batch that an earlier attempt wrote."""
        if not values:
            return {}
        self._is_empty = False
        if not self.is_new:
            await self._add_partitions([tp for tp in values if tp not in self._added])
        await self._linger()
        batches = {tp: self._batch(tp, batch) for tp, batch in values.items()}
        self._is_unresolved = True
        if self.is_careless:
            self._count_sequences(values)
        found = await self._deliver(batches)
        self._is_unresolved = False
        if not self.is_careless:
            self._count_sequences(values)
        return found

    def _count_sequences(self, values: Batches) -> None:
        for tp, batch in values.items():
            self._sequences[tp] = self._sequences.get(tp, 0) + len(batch)

    async def commit_offset(
        self, group: str, tp: TopicPartition, offset: int, member: tuple[int, str] | None = None
    ) -> None:
        """Commit a group's position in the transaction; `member` is the generation and the id of a group member."""
        generation_id, member_id = (-1, "") if member is None else member
        self._is_empty = False
        if not self.is_new:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                group_id=group,
            )
            await self._coordinate(add, 3, lambda it: it.error_code)
        await self._linger()
        partition = TxnOffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            generation_id=generation_id,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[partition])],
        )
        version = 5 if self.is_new else 3
        await self._persist(
            self._data,
            (GROUP_KEY, group),
            request,
            version,
            lambda it: it.topics[0].partitions[0].error_code,
            is_once=self.is_careless,
        )

    async def _linger(self) -> None:
        """Make a careless client pause, so that its late requests find a transaction that is still empty."""
        if self.is_careless:
            await asyncio.sleep(self._data.rng.uniform(0.0, LINGER_S))

    async def commit(self) -> None:
        """An empty transaction has nothing to commit: clients do not send it."""
        if not self._is_empty:
            await self._end(is_commit=True, is_once=self.is_careless)

    async def abort(self) -> None:
        """Abort, with a new epoch if it is unknown whether a record was written."""
        if self.is_new or self.is_careless or not self._is_unresolved:
            await self._end(is_commit=False)
            return
        if self._data.rng.random() < 0.5:
            await self._end(is_commit=False)
        await self.init(keeps_id=True)

    async def _end(self, *, is_commit: bool, is_once: bool = False) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            committed=is_commit,
        )
        version = 5 if self.is_new else 1
        response = await self._coordinate(request, version, lambda it: it.error_code, is_once=is_once)
        if self.is_new:
            self._check_next(response, "EndTxn")
            self._take_epoch(response.producer_id, response.producer_epoch)
        is_unresolved = self._is_unresolved
        self._begin()
        self._is_unresolved = is_unresolved and not self.is_new and not self.is_careless

    async def _add_partitions(self, tps: Sequence[TopicPartition]) -> None:
        if not tps:
            return
        names = list(dict.fromkeys(tp.topic for tp in tps))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=[tp.partition for tp in tps if tp.topic == name])
                for name in names
            ],
        )
        await self._coordinate(request, 0, _worst_added)
        self._added.update(tps)

    # --- coordinators --------------------------------------------------------------------------------------------

    async def _coordinate(
        self, request: Message, version: int, code_of: Callable[[Any], int], *, is_once: bool = False
    ) -> Any:
        key = (TRANSACTION_KEY, self.transactional_id)
        return await self._persist(self._coordinator, key, request, version, code_of, is_once=is_once)

    async def _persist(
        self,
        client: RestlessClient,
        key: tuple[int, str],
        request: Message,
        version: int,
        code_of: Callable[[Any], int],
        *,
        is_once: bool = False,
    ) -> Any:
        """Repeat a request to a coordinator until it succeeds or is refused; `is_once`: or is not answered."""
        is_certain = True
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < deadline_s:
            broker_id = await self._find(client, *key)
            if broker_id is None:
                await client.rest()
                continue
            try:
                response = await client.ask(broker_id, request, version)
            except OSError as error:
                is_certain = False
                self._coordinators.pop(key[0], None)
                await client.rest()
                if is_once and isinstance(error, TimeoutError):
                    break
                continue
            code = ErrorCode(code_of(response))
            if code is ErrorCode.NONE:
                return response
            if code not in RETRIED:
                self.fenced += code in FENCING
                self.fenced_ends += code in FENCING and isinstance(request, EndTxnRequest)
                raise _failure(f"{client.name} {type(request).__name__}", code, is_certain)
            is_certain = is_certain and code in CERTAINLY_NOTHING
            if code in _LOST:
                self._coordinators.pop(key[0], None)
            await client.rest()
        raise GaveUp(f"{type(request).__name__} was not answered", is_certain=is_certain)

    async def _find(self, client: RestlessClient, key_type: int, key: str) -> int | None:
        if key_type not in self._coordinators:
            request = FindCoordinatorRequest(key=key, key_type=key_type)
            try:
                response = await client.ask(client.any_broker(), request, 3)
            except OSError:
                return None
            if response.error_code != ErrorCode.NONE:
                return None
            self._coordinators[key_type] = response.node_id
        return self._coordinators[key_type]

    # --- data ----------------------------------------------------------------------------------------------------

    async def _deliver(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int]:
        loop, client = asyncio.get_running_loop(), self._data
        deadline_s = loop.time() + PATIENCE_S
        found: dict[TopicPartition, int] = {}
        while loop.time() < deadline_s:
            leaders: dict[int, list[TopicPartition]] = {}
            for tp in batches:
                if tp not in found:
                    leaders.setdefault((await client.leader(tp))[0], []).append(tp)
            for leader, tps in leaders.items():
                found.update(await self._send(leader, {tp: batches[tp] for tp in tps}))
            if len(found) == len(batches):
                return found
            await client.rest()
        raise GaveUp("Produce was not answered", is_certain=False)

    def _batch(self, tp: TopicPartition, values: Sequence[bytes]) -> bytes:
        return build_batch(
            [Record(timestamp=1_700_000_000_000, value=value) for value in values],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequences.get(tp, 0),
            is_transactional=True,
        )

    async def _send(self, leader: int, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int]:
        """Return the base offsets of the batches that the leader has."""
        names = list(dict.fromkeys(tp.topic for tp in batches))
        topics = [
            TopicProduceData(
                name=name,
                partition_data=[
                    PartitionProduceData(index=tp.partition, records=data)
                    for tp, data in batches.items()
                    if tp.topic == name
                ],
            )
            for name in names
        ]
        request = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=1_000, topic_data=topics)
        try:
            response = await self._data.ask(leader, request, 12 if self.is_new else 9)
        except OSError as error:
            for tp in batches:
                self._data.forget_leader(tp)
            if self.is_careless and isinstance(error, TimeoutError):
                raise GaveUp("Produce was not answered", is_certain=False) from error
            return {}
        found = {}
        for topic in response.responses:
            for result in topic.partition_responses:
                tp, code = TopicPartition(topic.name, result.index), ErrorCode(result.error_code)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    found[tp] = int(result.base_offset) if code is ErrorCode.NONE else -1
                elif code in RETRIED:
                    self._data.forget_leader(tp)
                elif self.is_careless and code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise Fenced(f"{self._data.name}: the batch before it was given up", is_certain=False)
                else:
                    raise _failure(f"{self._data.name} Produce to {tp}", code, is_certain=False)
        return found


def _failure(what: str, code: ErrorCode, is_certain: bool) -> TransactionFailed:
    text = f"{what}: {code.name}"
    if code in FENCING:
        return Fenced(text, is_certain=is_certain)
    if code in ABORTING:
        return Refused(text, is_certain=is_certain)
    raise Violation(text)


def _worst_added(response: Any) -> int:
    """Return the first error that is final, or else any error of AddPartitionsToTxn."""
    codes = [
        ErrorCode(result.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]
    errors = [int(code) for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    final = [code for code in errors if code not in RETRIED]
    return (final or errors or [0])[0]
