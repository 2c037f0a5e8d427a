"""The driver's side of an exactly-once sink: claim it, commit prepared batches, abort failed ones.

Every call uses its own connections: the end of a transaction comes from another connection than its records, and
should come from a younger one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from klamm.client.client_errors import ProducerFencedError, TransactionTimeoutError
from klamm.client.transaction_client import Transaction, TransactionClient, TransactionState
from klamm.spark.sink.sink_state import (
    NO_BATCH,
    LateBatchError,
    PreparedBatch,
    SinkState,
    TornBatchError,
    check_claim,
    check_open,
    claimed,
    decided,
    is_decision,
    late_batch,
    may_abort,
    rolled_forward,
    to_sweep,
)
from klamm.spark.sink.state_topic import StateTopic
from klamm.spark.source.client_options import driver_client
from klamm.spark.source.read_options import OptionError

_log = logging.getLogger("klamm.spark")

TIMEOUT_OPTION: Final = "kafka.transaction.timeout.ms"


@dataclass(frozen=True, slots=True)
class Claim:
    """A sink that this driver has taken over. `batch` is the last batch of `query` that the topic has."""

    sink: str
    generation: int
    query: str = ""
    batch: int = NO_BATCH

    def has(self, query: str, batch: int) -> bool:
        return query == self.query and batch <= self.batch


class SinkDriver:
    """`timeout_ms` is the transaction timeout of the tasks; `client` are Kafka's client options, without prefix."""

    def __init__(self, servers: str, timeout_ms: int, client: Mapping[str, str] | None = None) -> None:
        self._servers = servers
        self._timeout_ms = timeout_ms
        self._client = client or {}

    def claim(self, sink: str) -> Claim:
        """Take the sink over: complete a decided batch, fence the former driver, and abort what its tasks left."""

        with self._connected() as (transactions, states):

            def rule(state: SinkState | None) -> SinkState:
                return claimed(_rolled_forward(transactions, sink, state))

            state = states.change(sink, rule)
            assert state is not None
            self._check_timeout(transactions, sink, state.generation)
            self._sweep(transactions, sink, state.generation, state)
            return Claim(sink, state.generation, state.query, state.batch)

    def state(self, sink: str) -> SinkState | None:
        """Return the state of a sink; None if it was never claimed. Changes of a driver that died are over then.

        A decided batch is completed first, or cancelled if its transactions have timed out: the topic has not got it.
        """
        with self._connected() as (transactions, states):
            return states.change(sink, lambda state: _rolled_forward(transactions, sink, state))

    def commit(self, batch: PreparedBatch, *, may_have_leftovers: bool) -> bool:
        """Commit a batch for all tasks or none. Returns False if an earlier run has committed it.

        Raises TakenOverError, LateBatchError or CheckpointError before the decision, ClientError at any time. If it
        fails after the decision, the next claim or commit of the sink completes the batch.
        """
        with self._connected() as (transactions, states):
            try:
                check_open(batch, self._described(transactions, batch), self._timeout_ms)
            except LateBatchError:
                check_claim(states.read(batch.sink), batch)  # a driver that took over has aborted it
                raise
            is_old: list[bool] = []

            def decide(state: SinkState | None) -> SinkState | None:
                before = state if is_decision(state, batch) else _rolled_forward(transactions, batch.sink, state)
                after = decided(before, batch)
                is_old[:] = [after is None]
                return before if after is None else after

            state = states.change(batch.sink, decide)
            if state is None or is_old[0]:
                transactions.end_all(batch.transactions, commit=False)
            else:
                self._complete(transactions, states, batch, state)
            if may_have_leftovers:
                self._sweep(transactions, batch.sink, batch.generation, None)
            return not is_old[0]

    def _complete(
        self, transactions: TransactionClient, states: StateTopic, batch: PreparedBatch, state: SinkState
    ) -> None:
        after = rolled_forward(batch.sink, state, transactions.end_all(batch.transactions, commit=True))
        states.change(batch.sink, lambda current: after if is_decision(current, batch) else None)
        if after.batch != state.batch:
            raise late_batch(batch, batch.transactions[0], self._timeout_ms)

    def abort(self, sink: str, generation: int, prepared: Sequence[Transaction]) -> None:
        """Abort what a failed batch has left, but nothing that a decision lists."""
        with self._connected() as (transactions, states):
            state = _settled(states, sink)
            transactions.end_all(may_abort(state, prepared), commit=False)
            self._sweep(transactions, sink, generation, state)

    # --- a write that is one job ---

    def commit_job(self, batch: PreparedBatch, *, may_have_leftovers: bool) -> None:
        """Commit the transactions of a job, whose sink nobody else uses. One alone needs no decision."""
        with self._connected() as (transactions, states):
            check_open(batch, self._described(transactions, batch), self._timeout_ms)
            state = SinkState(transactions=batch.transactions, is_complete=False, batch=batch.batch)
            if needs_decision := len(batch.transactions) > 1:
                states.change(batch.sink, lambda _: state)
            after = rolled_forward(batch.sink, state, transactions.end_all(batch.transactions, commit=True))
            if needs_decision:
                states.remove(batch.sink)
            if after.batch != state.batch:
                raise late_batch(batch, batch.transactions[0], self._timeout_ms)
            if may_have_leftovers:
                self._sweep(transactions, batch.sink, batch.generation, None)

    def abort_job(self, sink: str, prepared: Sequence[Transaction]) -> None:
        """Abort what a failed job has left, but nothing that its decision lists."""
        with self._connected() as (transactions, states):
            state = _settled(states, sink)
            transactions.end_all(may_abort(state, prepared), commit=False)
            self._sweep(transactions, sink, 0, state)

    def finish_jobs(self) -> None:
        """Complete jobs whose driver died after the decision: nobody else would."""
        with self._connected() as (transactions, states):
            for sink, state in states.read_all().items():
                if state.is_complete or state.generation:
                    continue
                try:
                    _rolled_forward(transactions, sink, state)
                except TornBatchError as error:
                    _log.warning("a write to topics was not completed: %s", error)
                states.remove(sink)

    # --- inside ---

    @contextmanager
    def _connected(self) -> Iterator[tuple[TransactionClient, StateTopic]]:
        servers, client = self._servers, self._client
        with driver_client(servers, client) as coordinators, driver_client(servers, client) as brokers:
            transactions = TransactionClient(coordinators)
            yield transactions, StateTopic(servers, transactions, brokers, client)

    def _check_timeout(self, transactions: TransactionClient, sink: str, generation: int) -> None:
        """Let a broker refuse the timeout here, once, and not in every task."""
        try:
            transactions.begin(f"{sink}.{generation}.0.0.0", self._timeout_ms)
        except TransactionTimeoutError:
            raise OptionError(
                f"Option '{TIMEOUT_OPTION}' is {self._timeout_ms} ms, and the brokers allow less: lower it, or raise "
                "transaction.max.timeout.ms of the brokers. A batch, and a restart after a failure, must take less."
            ) from None

    def _described(self, transactions: TransactionClient, batch: PreparedBatch) -> dict[str, TransactionState]:
        return transactions.describe([each.transactional_id for each in batch.transactions])

    def _sweep(self, transactions: TransactionClient, sink: str, generation: int, state: SinkState | None) -> None:
        for each in to_sweep(sink, transactions.open_ids(f"{sink}."), generation, state):
            try:
                transactions.begin(each, self._timeout_ms)
            except ProducerFencedError:
                continue  # somebody else aborts it


def _settled(states: StateTopic, sink: str) -> SinkState | None:
    """Return the state after a change whose outcome this driver has not learned is over, one way or the other."""
    found: list[SinkState | None] = [None]

    def look(state: SinkState | None) -> None:
        found[0] = state

    states.change(sink, look)
    return found[0]


def _rolled_forward(transactions: TransactionClient, sink: str, state: SinkState | None) -> SinkState | None:
    """Complete a decided batch. Repeating it is harmless, also while its own driver does the same."""
    if state is None or state.is_complete:
        return state
    return rolled_forward(sink, state, transactions.end_all(state.transactions, commit=True))
