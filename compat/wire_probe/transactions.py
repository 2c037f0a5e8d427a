"""Requests of transactional producers, each to a transaction that was brought into a state before.

The two brokers give different producer ids, so a case builds its fields from the id and epoch of its own producer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode, KlammError
from klamm.model import ProducerIdAndEpoch
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.record_batch import Record, build_batch

TIMEOUT_S: Final = 30.0
TOPIC: Final = "ta"
STATES: Final = ("unknown", "empty", "ongoing", "committed", "aborted", "recovered")
"""`unknown`: no such transactional id. `recovered`: ongoing, in the second epoch of its producer."""
OUTCOMES: Final = ("CompleteCommit", "CompleteAbort")
Address = tuple[str, int]
Fields = dict[str, Any]
T = TypeVar("T")


class Producer(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int


class Case(NamedTuple):
    api: str
    what: str
    state: str
    fields: Callable[[Producer], Fields]


VARIANTS: Final[dict[str, Callable[[Producer], Producer]]] = {
    "current": lambda it: it,
    "older epoch": lambda it: it._replace(epoch=it.epoch - 1),
    "newer epoch": lambda it: it._replace(epoch=it.epoch + 1),
    "other id": lambda it: it._replace(producer_id=it.producer_id + 100_000),
}


def cases() -> Iterator[Case]:
    for state in STATES:
        for variant, change in VARIANTS.items():
            for api, what, fields in _requests():
                name = f"{state}, {variant}{', ' if what else ''}{what}"
                yield Case(api, name, state, partial(_changed, fields, change))


def _requests() -> Iterator[tuple[str, str, Callable[[Producer], Fields]]]:
    for commit in (True, False):
        yield "EndTxn", "commit" if commit else "abort", partial(_end, commit)
    for topic in (TOPIC, "none"):
        yield "AddPartitionsToTxn", topic, partial(_partitions, topic)
    yield "AddOffsetsToTxn", "", lambda it: _who(it) | {"group_id": "txn-group"}
    yield "TxnOffsetCommit", "", _offsets
    yield "TxnOffsetCommit", "member", lambda it: _offsets(it) | {"generation_id": 5, "member_id": "m"}
    yield "InitProducerId", "recovery", _init
    yield "InitProducerId", "long timeout", lambda it: _init(it) | {"transaction_timeout_ms": 10**9}
    yield "Produce", "partition 0", lambda it: _produce(it, 0)
    yield "Produce", "partition 1", lambda it: _produce(it, 1)
    yield "DescribeTransactions", "", lambda it: {"transactional_ids": [it.transactional_id]}


def _changed(fields: Callable[[Producer], Fields], change: Callable[[Producer], Producer], it: Producer) -> Fields:
    return fields(change(it))


def _end(commit: bool, it: Producer) -> Fields:
    return _who(it) | {"committed": commit}


def _who(it: Producer) -> Fields:
    return {"transactional_id": it.transactional_id, "producer_id": it.producer_id, "producer_epoch": it.epoch}


def _partitions(topic: str, it: Producer) -> Fields:
    topics = [{"name": topic, "partitions": [0, 1]}]
    old = {f"v3_and_below_{key}": value for key, value in _who(it).items()} | {"v3_and_below_topics": topics}
    return old | {"transactions": [_who(it) | {"verify_only": True, "topics": topics}]}


def _offsets(it: Producer) -> Fields:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": TOPIC, "partitions": [partition]}]
    return _who(it) | {"group_id": "txn-group", "group_instance_id": None, "generation_id": -1, "topics": topics}


def _init(it: Producer) -> Fields:
    return _who(it) | {"transaction_timeout_ms": 60_000}


def _produce(it: Producer, partition: int) -> Fields:
    batch = build_batch(
        [Record(timestamp=1_700_000_000_000, value=b"v")],
        producer_id=it.producer_id,
        producer_epoch=it.epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": batch}]}]
    return {"acks": -1, "timeout_ms": 9000, "transactional_id": it.transactional_id, "topic_data": data}


class Preparation:
    """Brings transactions of one broker into a state: partition 0 of the topic belongs to those that are ongoing."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._numbers = count()

    def producer(self, state: str) -> Producer:
        transactional_id = f"probe-{next(self._numbers)}"
        if state == "unknown":
            return Producer(transactional_id, 7, 1)
        identity = self._init(transactional_id)
        if state == "recovered":
            identity = self._init(transactional_id)
        producer = Producer(transactional_id, *identity)
        if state != "empty":
            self._add(producer)
        if state in ("committed", "aborted"):
            self._end(producer, commit=state == "committed")
        return producer

    def _init(self, transactional_id: str) -> ProducerIdAndEpoch:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=600_000)

        def attempt() -> ProducerIdAndEpoch | None:
            answer = ask_once(self._address, request, 4, InitProducerIdResponse, TIMEOUT_S)
            if answer.error_code != ErrorCode.NONE:  # the coordinator is loading, or has no block of ids yet
                return None
            return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

        return _until(attempt, f"{transactional_id} was not initialised")

    def _add(self, it: Producer) -> None:
        topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=it.transactional_id,
            v3_and_below_producer_id=it.producer_id,
            v3_and_below_producer_epoch=it.epoch,
            v3_and_below_topics=topics,
        )
        answer = ask_once(self._address, request, 3, AddPartitionsToTxnResponse, TIMEOUT_S)
        [result] = answer.results_by_topic_v3_and_below[0].results_by_partition
        if result.partition_error_code != ErrorCode.NONE:
            raise KlammError(f"{it}: the partition was not added, error {result.partition_error_code}")

    def _end(self, it: Producer, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=it.transactional_id, producer_id=it.producer_id, producer_epoch=it.epoch, committed=commit
        )
        answer = ask_once(self._address, request, 3, EndTxnResponse, TIMEOUT_S)
        if answer.error_code != ErrorCode.NONE:
            raise KlammError(f"{it}: the transaction was not ended, error {answer.error_code}")
        described = DescribeTransactionsRequest(transactional_ids=[it.transactional_id])

        def is_complete() -> bool | None:
            found = ask_once(self._address, described, 0, DescribeTransactionsResponse, TIMEOUT_S)
            return found.transaction_states[0].transaction_state in OUTCOMES or None

        _until(is_complete, f"{it}: the transaction did not complete")


def _until(attempt: Callable[[], T | None], problem: str) -> T:
    deadline = time.monotonic() + TIMEOUT_S
    while (found := attempt()) is None:
        if time.monotonic() > deadline:
            raise KlammError(problem)
        time.sleep(0.02)
    return found
