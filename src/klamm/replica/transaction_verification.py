"""Appends of transactional producers: the coordinator confirms a transaction before its first batch (KIP-890).

A batch that arrives after its transaction has ended would begin a transaction that nobody ends: readers of committed
records and the cleaner would stop there for good. So the leader asks the coordinator whether the partition belongs to
the open transaction of this producer and epoch (part 1), or, for clients of `transaction.version` 2, has it added
(part 2). Later batches of the transaction need no question, because the log knows that the transaction is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from klamm.errors import ErrorCode
from klamm.log.appending import note_refused
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.log.verification_state import NOT_REQUIRED, TransactionCheck, VerificationGuard
from klamm.model import ConnectionOrder, TopicPartition, TransactionVersion
from klamm.protocol.record_batch import (
    ATTRIBUTES_POSITION,
    MAGIC_POSITION,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_BIT,
    RecordBatch,
)
from klamm.replica.append_path import append_records, failed
from klamm.replica.record_checks import AppendResults, RecordsBytes
from klamm.replica.replica_manager import ReplicaManager
from klamm.replica.transactional_producers import AddPartitionsToTxn as AddPartitionsToTxn
from klamm.replica.transactional_producers import Turn
from klamm.waiting import after

_FLAGS: Final = ATTRIBUTES_POSITION + 1
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Answers after which producers must retry. They are sent as NOT_ENOUGH_REPLICAS: producers retry it without requesting
new metadata.
"""
Errors = dict[TopicPartition, ErrorCode]


def append_transactional(
    replicas: ReplicaManager,
    required_acks: int,
    internal_topics_allowed: bool,
    origin: AppendOrigin,
    records: Mapping[TopicPartition, RecordsBytes],
    timeout_ms: int,
    *,
    transactional_id: str,
    version: TransactionVersion,
    connection: ConnectionOrder | None,
    admit: Callable[[], ErrorCode] | None = None,
    renews_epoch: bool = False,
) -> AppendResults | asyncio.Future[AppendResults]:
    """Append batches of a transactional producer, those that begin a transaction after its coordinator agreed.

    The batches of a producer for a partition are appended in the order of their requests. If `connection` is older than
    another one of the producer, nothing is appended and each result is NETWORK_EXCEPTION: the client has given up this
    connection, so the caller closes it. The same holds for a connection that is older than the abort of the producer's
    last transaction, unless its client `renews_epoch` when it gives up a batch. Clients that do not know
    TRANSACTION_ABORTABLE get INVALID_TXN_STATE from the caller. `admit` is called once, directly before the append: the
    caller's own state may have changed while the coordinator was asked. Its error refuses everything.
    """
    batches = _transactional_batches(records)
    append = _Append(replicas, required_acks, internal_topics_allowed, origin, records, timeout_ms, version, admit)
    if not batches:
        return append.run({}, {})
    producers = {(batch.producer_id, batch.producer_epoch) for batch in batches.values()}
    if len(producers) > 1:
        message = "the transactional records have more than one producer id"
        return {tp: failed(ErrorCode.INVALID_PRODUCER_ID_MAPPING, message) for tp in records}
    [(producer_id, producer_epoch)] = producers
    producers_here = replicas.transactional_producers
    if connection is not None and not version.bumps_epoch:
        is_admitted = producers_here.connections.admit(origin, producer_id, producer_epoch, connection)
        if not is_admitted or (not renews_epoch and _is_late(replicas, batches, connection)):
            return {tp: failed(ErrorCode.NETWORK_EXCEPTION, "the connection may carry late batches") for tp in records}
    verification = _Verification(append, batches, transactional_id, producer_id, producer_epoch)
    predecessors = producers_here.predecessors(producer_id, batches)
    if not predecessors and verification.begin():
        return append.run(verification.guards, verification.errors)
    return verification.wait(predecessors)


def _is_late(
    replicas: ReplicaManager, batches: Mapping[TopicPartition, RecordBatch], connection: ConnectionOrder
) -> bool:
    """Whether a batch may belong to a transaction that was aborted meanwhile."""
    for tp, batch in batches.items():
        log = replicas.leader_log(tp)
        if isinstance(log, ErrorCode) or not log.is_open:
            continue
        if log.producers.is_late(batch.producer_id, batch.producer_epoch, connection):
            return True
    return False


def _transactional_batches(records: Mapping[TopicPartition, RecordsBytes]) -> dict[TopicPartition, RecordBatch]:
    """Return the headers of the batches that belong to a transaction. The log refuses malformed ones."""
    return {
        tp: batch
        for tp, data in records.items()
        if len(data) >= RECORD_BATCH_OVERHEAD
        and data[_FLAGS] & TRANSACTIONAL_BIT
        and data[MAGIC_POSITION] == MAGIC_V2
        and (batch := RecordBatch(memoryview(data))).producer_id >= 0
    }


class _Append:
    """The append itself, once it is known which batches may be appended."""

    __slots__ = (
        "_admit",
        "_internal_topics_allowed",
        "_required_acks",
        "_timeout_ms",
        "origin",
        "records",
        "replicas",
        "version",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        records: Mapping[TopicPartition, RecordsBytes],
        timeout_ms: int,
        version: TransactionVersion,
        admit: Callable[[], ErrorCode] | None,
    ) -> None:
        self.replicas = replicas
        self._admit = admit
        self._required_acks = required_acks
        self._internal_topics_allowed = internal_topics_allowed
        self.origin = origin
        self.records = records
        self._timeout_ms = timeout_ms
        self.version = version

    def run(
        self, guards: Mapping[TopicPartition, VerificationGuard | None], errors: Errors
    ) -> AppendResults | asyncio.Future[AppendResults]:
        """Append the batches without an error; return the results in the order of the request."""
        refused = {tp: self._explain(error) for tp, error in errors.items()}
        accepted = {tp: data for tp, data in self.records.items() if tp not in refused} if refused else self.records
        if not accepted:
            return refused
        if self._admit is not None and (error := self._admit()) is not ErrorCode.NONE:
            return {tp: failed(error) for tp in self.records}
        done = append_records(
            self.replicas,
            self._required_acks,
            self._internal_topics_allowed,
            self.origin,
            accepted,
            self._timeout_ms,
            transactions={tp: TransactionCheck(self.version, guard) for tp, guard in guards.items()},
        )
        if not refused:
            return done
        order = tuple(self.records)
        return after(done, lambda results: {tp: refused.get(tp) or results[tp] for tp in order})

    def _explain(self, error: ErrorCode) -> AppendResult:
        if error == ErrorCode.INVALID_TXN_STATE:
            return failed(error, "The partition was not added to the transaction.")
        is_concurrent = error == ErrorCode.CONCURRENT_TRANSACTIONS and not self.version.bumps_epoch
        if error in _RETRIABLE or is_concurrent:
            reason = f"The transaction's coordinator did not confirm the partition: {error.name}."
            return failed(ErrorCode.NOT_ENOUGH_REPLICAS, reason)
        return failed(error)


class _Verification:
    """One request of a transactional producer, and the answer of the coordinator for its partitions."""

    __slots__ = (
        "_append",
        "_batches",
        "_producer_epoch",
        "_producer_id",
        "_retry_until",
        "_transactional_id",
        "errors",
        "guards",
    )

    def __init__(
        self,
        append: _Append,
        batches: dict[TopicPartition, RecordBatch],
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        self._append = append
        self._batches = batches
        self._transactional_id = transactional_id
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._retry_until: float | None = None
        self.guards: dict[TopicPartition, VerificationGuard | None] = {}
        self.errors: Errors = {}

    def begin(self) -> bool:
        """Find the batches that begin a transaction; return whether there is nothing to ask the coordinator."""
        replicas, version = self._append.replicas, self._append.version
        is_needed = version.bumps_epoch or replicas.transactional_producers.config().is_enabled
        now_ms = replicas.clock.now_ms()
        self.guards = {}
        self.errors = {}
        is_ready = True
        for tp, batch in self._batches.items():
            log = replicas.leader_log(tp)
            if isinstance(log, ErrorCode):
                self.errors[tp] = log
                continue
            if not log.is_usable():
                note_refused(log, self._append.records[tp], self._append.origin)
                self.errors[tp] = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            if not is_needed:
                self.guards[tp] = NOT_REQUIRED
                continue
            guard = log.producers.begin_verification(
                self._producer_id, self._producer_epoch, batch.base_sequence, now_ms
            )
            if isinstance(guard, ErrorCode):
                self.errors[tp] = guard
            else:
                self.guards[tp] = guard
                is_ready = is_ready and guard is None
        return is_ready

    # --- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, predecessors: list[Turn]) -> AppendResults | asyncio.Future[AppendResults]:
        """Append after the predecessors and the coordinator's answer. Later requests of the producer wait for it."""
        producers = self._append.replicas.transactional_producers
        partitions = tuple(self._batches)
        size_bytes = sum(len(data) for data in self._append.records.values())
        turn = producers.begin(self._producer_id, partitions, size_bytes)
        if turn is None:
            reason = "Too many transactional batches wait for their coordinators."
            return {tp: failed(ErrorCode.NOT_ENOUGH_REPLICAS, reason) for tp in self._append.records}

        def end() -> None:
            producers.end(turn, self._producer_id, partitions, size_bytes)

        def append(errors: Errors) -> AppendResults | asyncio.Future[AppendResults]:
            try:
                if producers.is_closed:
                    return {tp: failed(ErrorCode.NOT_LEADER_OR_FOLLOWER) for tp in self._append.records}
                return self._append.run(self.guards, self.errors | errors)
            finally:
                end()

        turn_has_come = asyncio.gather(*predecessors) if predecessors else None
        answer = self._ask() if turn_has_come is None else after(turn_has_come, lambda _: self._begin_and_ask())
        done = after(answer, append)
        done.add_done_callback(lambda _: end() if not turn.done() else None)
        return done

    def _begin_and_ask(self) -> Errors | asyncio.Future[Errors]:
        return {} if self.begin() else self._ask()

    def _ask(self) -> asyncio.Future[Errors]:
        asked = [tp for tp, guard in self.guards.items() if isinstance(guard, VerificationGuard)]
        producers = self._append.replicas.transactional_producers
        answer = producers.add_partitions(
            self._transactional_id,
            self._producer_id,
            self._producer_epoch,
            asked,
            verify_only=not self._append.version.bumps_epoch,
        )
        return after(answer, self._on_answer, on_failure=lambda _: dict.fromkeys(asked, ErrorCode.NETWORK_EXCEPTION))

    def _on_answer(self, answer: Errors) -> Errors | asyncio.Future[Errors]:
        errors: Errors = {tp: error for tp, error in answer.items() if error}
        is_concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
        if self._append.version.bumps_epoch and (is_concurrent or self._is_outdated(errors)):
            return self._ask_again_later(errors)
        for tp, error in errors.items():
            if error not in _RETRIABLE and error != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._forget(tp)
        return errors

    def _is_outdated(self, errors: Errors) -> bool:
        """Whether a marker has ended the verification meanwhile, while the coordinator has confirmed the transaction.

        It was a marker of the last transaction, whose producer continues before its markers are written. With a new
        epoch per transaction, the next answer is about the same transaction, or a refusal.
        """
        for tp, guard in self.guards.items():
            log = self._append.replicas.leader_log(tp)
            if guard is None or tp in errors or isinstance(log, ErrorCode) or not log.is_open:
                continue
            if not log.producers.is_verifying(self._producer_id, self._producer_epoch, guard):
                return True
        return False

    def _forget(self, tp: TopicPartition) -> None:
        log, guard = self._append.replicas.leader_log(tp), self.guards.get(tp)
        if not isinstance(log, ErrorCode) and guard is not None and log.is_open:
            log.producers.verifications.refuse(self._producer_id, guard)

    def _ask_again_later(self, errors: Errors) -> Errors | asyncio.Future[Errors]:
        """Ask again instead of the client: the previous transaction completes within milliseconds."""
        producers = self._append.replicas.transactional_producers
        config, loop = producers.config(), producers.loop
        if self._retry_until is None:
            self._retry_until = loop.time() + config.concurrent_retry_max_ms / 1000
        if loop.time() >= self._retry_until:
            return errors
        pause: asyncio.Future[None] = loop.create_future()
        loop.call_later(config.concurrent_retry_ms / 1000, _wake, pause)
        return after(pause, lambda _: self._begin_and_ask())


def _wake(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
