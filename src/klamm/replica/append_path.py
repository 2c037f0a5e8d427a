"""Writing: records into the logs this broker leads, and the wait for their replication (acks=all)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final, TypeAlias

from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.appending import Checkable
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.log.validator import Checked
from klamm.log.verification_state import TransactionCheck
from klamm.metrics import BrokerTopicMetrics
from klamm.model import BROKER_TOPICS, TopicPartition
from klamm.protocol.record_batch import MAGIC_POSITION, MAGIC_V2
from klamm.replica.record_checks import AppendResults, RecordsBytes
from klamm.replica.replica_manager import ReplicaManager

Transactions: TypeAlias = Mapping[TopicPartition, TransactionCheck]
_QUIET_FAILURES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Failures that FailedProduceRequestsPerSec does not count: caused by the client or the cluster's state."""


def failed(error: ErrorCode, message: str | None = None) -> AppendResult:
    """Return the result of an append that never reached its log."""
    return AppendResult.rejected(error, message)


def append_records(
    replicas: ReplicaManager,
    required_acks: int,
    internal_topics_allowed: bool,
    origin: AppendOrigin,
    records: Mapping[TopicPartition, RecordsBytes],
    timeout_ms: int = 30_000,
    *,
    convert: bool = False,
    transactions: Transactions | None = None,
) -> AppendResults | asyncio.Future[AppendResults]:
    """Append every partition's records. With acks=-1 the answer waits until all in-sync replicas have them.

    Each partition has its own result; a failure does not affect the others. With `convert` messages of the
    formats 0 and 1 are accepted and become record batches. `transactions` has the rules for transactional batches.
    """
    if convert or (origin is AppendOrigin.CLIENT and replicas.record_checks.are_needed(records)):
        append = partial(
            _append_all,
            replicas,
            required_acks,
            internal_topics_allowed,
            origin,
            records,
            timeout_ms,
            transactions=transactions,
        )
        return replicas.record_checks.run(records, append, convert=convert)
    return _append_all(replicas, required_acks, internal_topics_allowed, origin, records, timeout_ms, {}, transactions)


def _append_all(
    replicas: ReplicaManager,
    required_acks: int,
    internal_topics_allowed: bool,
    origin: AppendOrigin,
    records: Mapping[TopicPartition, RecordsBytes],
    timeout_ms: int,
    checked: Mapping[TopicPartition, Checked],
    transactions: Transactions | None = None,
) -> AppendResults | asyncio.Future[AppendResults]:
    results: AppendResults = {}
    is_waiting = False
    now_ms = elapsed_ms(replicas.clock)
    for tp, data in records.items():
        batch = checked.get(tp, data) if checked else data
        transaction = transactions.get(tp) if transactions else None
        result = results[tp] = _append(
            replicas, tp, data, batch, required_acks, internal_topics_allowed, origin, now_ms, transaction
        )
        if required_acks and result.error == 0:
            is_waiting |= _must_wait(replicas, tp, result, required_acks)
    if not is_waiting:
        return results
    waiting = {tp: result.last_offset + 1 for tp, result in results.items() if result.error == 0}
    delayed = _DelayedProduce(replicas, results, waiting, required_acks)
    return replicas.produce_purgatory.try_complete_else_watch(
        waiting, timeout_ms, delayed.try_complete, delayed.on_expire
    )


def _append(
    replicas: ReplicaManager,
    tp: TopicPartition,
    data: RecordsBytes,
    batch: Checkable,
    required_acks: int,
    internal_topics_allowed: bool,
    origin: AppendOrigin,
    now_ms: int,
    transaction: TransactionCheck | None,
) -> AppendResult:
    totals = replicas.topic_stats.all_topics
    totals.total_produce_requests.count += 1
    partition = replicas.partition_or_error(tp)
    if isinstance(partition, ErrorCode):  # no meters per topic: a client may send any name
        return failed(partition)
    stats = replicas.topic_stats.topic(tp.topic)
    stats.total_produce_requests.count += 1
    old_high_watermark = partition.log.high_watermark if partition.log is not None else 0
    if tp.topic in BROKER_TOPICS and not internal_topics_allowed:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
        result: AppendResult | ErrorCode = failed(error, f"Cannot append to internal topic {tp.topic}")
    else:
        result = partition.append_records_to_leader(batch, required_acks, now_ms, origin, transaction)
    if isinstance(result, ErrorCode):
        result = failed(result)
    if result.error != 0:
        for meters in (stats, totals):
            _mark_failure(meters, result, data)
        return result
    if not result.is_duplicate:
        stats.bytes_in.count += result.bytes
        totals.bytes_in.count += result.bytes
        stats.messages_in.count += result.records_count
        totals.messages_in.count += result.records_count
        has_moved = partition.log is None or partition.log.high_watermark > old_high_watermark
        replicas.complete_after_append(tp, has_high_watermark_moved=has_moved)
    return result


def _must_wait(replicas: ReplicaManager, tp: TopicPartition, result: AppendResult, required_acks: int) -> bool:
    partition = replicas.partitions.get(tp)
    if partition is None or partition.log is None:
        return True
    return result.flush_pending or (required_acks == -1 and partition.log.high_watermark <= result.last_offset)


def _mark_failure(meters: BrokerTopicMetrics, result: AppendResult, data: RecordsBytes) -> None:
    error = result.error
    if error not in _QUIET_FAILURES:
        meters.failed_produce_requests.mark()
    if error == ErrorCode.MESSAGE_TOO_LARGE:
        meters.bytes_rejected.mark(len(data))
    elif error == ErrorCode.CORRUPT_MESSAGE:
        meters.invalid_message_crc_records.mark()
    elif error == ErrorCode.INVALID_RECORD and len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC_V2:
        meters.invalid_magic_number_records.mark()
    elif error == ErrorCode.INVALID_RECORD and result.record_errors:
        meters.no_key_compacted_topic_records.mark(len(result.record_errors))
    elif error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        meters.invalid_offset_or_sequence_records.mark()


class _DelayedProduce:
    """Partitions whose records are in the leader's log, but not yet in the logs of all in-sync replicas.

    If `flush.messages` requires it, the records must also be on the leader's disk, for any acks.
    """

    __slots__ = ("_replicas", "_required_acks", "_results", "_waiting")

    def __init__(
        self,
        replicas: ReplicaManager,
        results: AppendResults,
        waiting: dict[TopicPartition, int],
        required_acks: int,
    ) -> None:
        self._replicas = replicas
        self._results = results
        self._waiting = waiting
        self._required_acks = required_acks

    def try_complete(self) -> AppendResults | None:
        for tp, required_offset in list(self._waiting.items()):
            if (error := self._outcome(tp, required_offset)) is not None:
                self._decide(tp, error)
        return None if self._waiting else self._results

    def _outcome(self, tp: TopicPartition, required_offset: int) -> ErrorCode | None:
        partition = self._replicas.partition_or_error(tp)
        if isinstance(partition, ErrorCode):
            return partition
        log = partition.log
        if log is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._results[tp].flush_pending and log.recovery_point < required_offset and partition.is_leader:
            return None
        return partition.check_enough_replicas(required_offset) if self._required_acks == -1 else ErrorCode.NONE

    def on_expire(self) -> AppendResults:
        for tp in list(self._waiting):
            self._decide(tp, ErrorCode.REQUEST_TIMED_OUT)
        return self._results

    def _decide(self, tp: TopicPartition, error: ErrorCode) -> None:
        del self._waiting[tp]
        if error != ErrorCode.NONE:
            self._results[tp] = self._results[tp].with_error(error)
