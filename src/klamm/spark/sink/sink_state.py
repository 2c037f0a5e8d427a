"""The rules of an exactly-once sink, without I/O: which record of its state follows which, and what a restart does.

A batch is prepared by tasks, each in a transaction that it leaves open. The driver then writes the list of these
transactions to the sink's state: this record is the decision. Before it, a crash aborts the batch. After it, the next
driver of the sink ends the listed transactions, and the batch is complete.

The state has one writer at a time: the driver that claimed it last, by a generation. Transactional ids contain the
generation and the run, so a task of an earlier run cannot touch a transaction of a later one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from klamm.client.transaction_client import ONGOING, Ended, Transaction, TransactionState
from klamm.errors import KlammError
from klamm.spark.source.batch_offsets import BatchOffsets, from_metadata
from klamm.spark.source.checkpoint_locations import CheckpointError

NO_BATCH: Final = -1
_VERSION: Final = 1
_TASK_ID: Final = re.compile(r"(\d+)\.[0-9a-f]+\.\d+\.\d+")
_RUN_CHARACTERS: Final = 8


class TakenOverError(KlammError):
    """Another run of the query has claimed the sink: this one must stop."""


class TornBatchError(KlammError):
    """A decided batch cannot be completed: some of its transactions are aborted and others are not."""


class LateBatchError(KlammError):
    """The transaction of a task ended before the batch was decided."""


def driver_id(sink: str) -> str:
    """Return the transactional id that writes the state of a sink."""
    return f"{sink}.driver"


def task_id(sink: str, generation: int, run: str, partition: int, attempt: int) -> str:
    """Return the transactional id of a task attempt. All batches of a run use the same ids."""
    run = re.sub("[^0-9a-f]", "", run.lower())[:_RUN_CHARACTERS] or "0"
    return f"{sink}.{generation}.{run}.{partition}.{attempt}"


@dataclass(frozen=True, slots=True)
class SinkState:
    """The last record of a sink. `transactions` are those of a decided batch, until it is complete.

    `query` distinguishes the batches of a new checkpoint from those of the former one.
    """

    query: str = ""
    generation: int = 0
    batch: int = NO_BATCH
    before: int = NO_BATCH
    """The batch before this one, in case that the decision has to be cancelled."""
    transactions: tuple[Transaction, ...] = ()
    is_complete: bool = True
    offsets: BatchOffsets | None = None

    def to_json(self) -> str:
        record: dict[str, Any] = {
            "version": _VERSION,
            "query": self.query,
            "generation": self.generation,
            "batch": self.batch,
            "complete": self.is_complete,
        }
        if not self.is_complete:
            record |= {"before": self.before, "transactions": [list(each) for each in self.transactions]}
        if self.offsets is not None:
            record["offsets"] = self.offsets.to_metadata()
        return json.dumps(record, separators=(",", ":"))


def parse_state(text: str | bytes) -> SinkState:
    """Parse a record. Raises KlammError for a record of another version."""
    record = json.loads(text)
    if record.get("version") != _VERSION:
        raise KlammError(
            f"The state of the sink has version {record.get('version')}, and this version of klamm reads {_VERSION}: "
            "a newer klamm has written it."
        )
    return SinkState(
        query=record["query"],
        generation=record["generation"],
        batch=record["batch"],
        before=record.get("before", NO_BATCH),
        transactions=tuple(Transaction(*each) for each in record.get("transactions", ())),
        is_complete=record["complete"],
        offsets=from_metadata(record.get("offsets", {})),
    )


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The transactions that the tasks of a batch have left open, and the claim under which they ran."""

    sink: str
    query: str
    generation: int
    batch: int
    transactions: tuple[Transaction, ...]
    offsets: BatchOffsets | None = None


def claimed(state: SinkState | None) -> SinkState:
    """Return the state after a driver has taken the sink over. Batches of the former driver can no longer commit."""
    if state is None:
        return SinkState(generation=1)
    assert state.is_complete, "an incomplete batch is rolled forward first"
    return replace(state, generation=state.generation + 1)


def rolled_forward(sink: str, state: SinkState, ended: Mapping[Transaction, Ended]) -> SinkState:
    """Return the state after the transactions of a decided batch were ended.

    If all of them have timed out, the batch did not happen and is cancelled. Raises TornBatchError if some have.
    """
    results = [ended[transaction] for transaction in state.transactions]
    if all(result is Ended.DONE for result in results):
        return replace(state, transactions=(), is_complete=True)
    if all(result is Ended.FENCED for result in results):
        return replace(state, batch=state.before, transactions=(), is_complete=True, offsets=None)
    lost = [each for each, result in zip(state.transactions, results, strict=True) if result is not Ended.DONE]
    raise TornBatchError(
        f"Batch {state.batch} of the sink {sink} was decided, and {len(lost)} of its {len(results)} transactions "
        f"can no longer be committed ({lost[0].transactional_id} and others): they timed out before a run continued. "
        "The topic has a part of the batch. Start with a new checkpoint and a new transactionalIdPrefix, from the "
        "offsets of that batch, and remove its records downstream. A longer kafka.transaction.timeout.ms avoids this."
    )


def decided(state: SinkState | None, batch: PreparedBatch) -> SinkState | None:
    """Return the state that commits the batch; None if an earlier run has committed it.

    Raises TakenOverError for a driver that lost its claim, CheckpointError for a checkpoint older than the topic.
    """
    if is_decision(state, batch):
        return state
    check_claim(state, batch)
    assert state is not None
    assert state.is_complete, "an incomplete batch is rolled forward first"
    before = state.batch if state.query == batch.query else NO_BATCH
    if batch.batch < before:
        raise CheckpointError(
            f"The topic has batch {before} of this query already, and the checkpoint continues with batch "
            f"{batch.batch}: it is older than the topic. Restore the newer checkpoint, or start with a new checkpoint."
        )
    if batch.batch == before:
        if state.offsets is not None and batch.offsets is not None and not state.offsets.is_same(batch.offsets):
            raise CheckpointError(
                f"The topic has batch {before} of this query with other records: offsets {state.offsets} in the "
                f"topic, {batch.offsets} in the checkpoint, which is older than the topic. Restore the newer "
                "checkpoint, or start with a new checkpoint."
            )
        return None
    return SinkState(
        query=batch.query,
        generation=batch.generation,
        batch=batch.batch,
        before=before,
        transactions=batch.transactions,
        is_complete=False,
        offsets=batch.offsets,
    )


def check_planned(state: SinkState | None, query: str, newest: int) -> None:
    """Raise CheckpointError if the topic has a batch of the query that its checkpoint has not planned.

    A query must not start then: Spark would plan a new batch of that number, which `decided` could take for the batch
    of the topic.
    """
    if state is not None and state.query == query and state.batch > newest:
        last = f"ends with batch {newest}" if newest != NO_BATCH else "has no batch"
        raise CheckpointError(
            f"The topic has batch {state.batch} of this query, and the checkpoint {last}: it is older than the topic. "
            "Restore the newer checkpoint, or start with a new checkpoint."
        )


def check_claim(state: SinkState | None, batch: PreparedBatch) -> None:
    """Raise TakenOverError unless the driver of the batch still has the sink."""
    generation = state.generation if state is not None else 0
    if state is None or generation != batch.generation:
        raise TakenOverError(
            f"Another run of the query has taken over the sink {batch.sink} (generation {generation}, this run has "
            f"{batch.generation}). Batch {batch.batch} of this run is not written. Stop one of the runs: they share a "
            "checkpoint or a transactionalIdPrefix."
        )


def is_decision(state: SinkState | None, batch: PreparedBatch) -> bool:
    """Whether the state is the decision for exactly this batch, not complete yet."""
    return state is not None and not state.is_complete and state.transactions == batch.transactions


def may_abort(state: SinkState | None, transactions: Iterable[Transaction]) -> list[Transaction]:
    """Return the transactions of a failed batch that no decision lists: those are to be committed, not aborted."""
    kept = set(state.transactions) if state is not None else set()
    return [transaction for transaction in transactions if transaction not in kept]


def to_sweep(sink: str, open_ids: Iterable[str], generation: int, state: SinkState | None) -> list[str]:
    """Return the open transactional ids of tasks that nobody will end: of this generation or an earlier one.

    Ids of a later generation belong to a driver that has taken over since.
    """
    kept = {each.transactional_id for each in state.transactions} if state is not None else set()
    found: list[str] = []
    for each in open_ids:
        match = _TASK_ID.fullmatch(each.removeprefix(f"{sink}.")) if each.startswith(f"{sink}.") else None
        if match is not None and int(match[1]) <= generation and each not in kept:
            found.append(each)
    return found


def check_open(batch: PreparedBatch, states: Mapping[str, TransactionState], timeout_ms: int) -> None:
    """Raise LateBatchError if a transaction of the batch is no longer open: it cannot be decided."""
    for transaction in batch.transactions:
        found = states.get(transaction.transactional_id)
        is_open = (
            found is not None
            and found.state == ONGOING
            and (found.producer_id, found.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)
        )
        if not is_open:
            raise late_batch(batch, transaction, timeout_ms)


def late_batch(batch: PreparedBatch, transaction: Transaction, timeout_ms: int) -> LateBatchError:
    return LateBatchError(
        f"The transaction {transaction.transactional_id} of batch {batch.batch} ended before the batch did: nothing of "
        f"the batch is written. A batch must take less than kafka.transaction.timeout.ms, which is {timeout_ms}. Make "
        "batches smaller (maxOffsetsPerTrigger), or raise the timeout, together with transaction.max.timeout.ms of the "
        "brokers."
    )
