"""The facade for API handlers: it checks that the transactional id is coordinated here, applies the rules, writes
transitions and has markers sent.

NETWORK_EXCEPTION is the answer to a request on a connection that its client has given up (`connection_guard`): the
handler closes the connection instead of sending it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from klamm.coordinator.deferred import Deferred
from klamm.coordinator.scheduler import Scheduler
from klamm.coordinator.transaction import connection_guard, end_rules
from klamm.coordinator.transaction import transaction_rules as rules
from klamm.coordinator.transaction.transaction_completions import TransactionCompletions
from klamm.coordinator.transaction.transaction_config import TransactionConfig
from klamm.coordinator.transaction.transaction_listing import list_transactions
from klamm.coordinator.transaction.transaction_markers import WRITES_PER_TURN
from klamm.coordinator.transaction.transaction_metadata import TransactionMetadata, TransactionValue
from klamm.coordinator.transaction.transaction_metrics import TransactionMetrics
from klamm.coordinator.transaction.transaction_results import (
    EndTxnResult,
    InitProducerIdResult,
    TransactionDescription,
    TransactionListing,
)
from klamm.coordinator.transaction.transaction_state_manager import (
    TransactionPartition,
    TransactionStateManager,
)
from klamm.errors import ErrorCode
from klamm.model import (
    TRANSACTION_STATE_TOPIC,
    ConnectionOrder,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

_log = logging.getLogger("klamm.coordinator.transaction")

GIVEN_UP: Final = ErrorCode.NETWORK_EXCEPTION
_HARMLESS: Final = frozenset({GIVEN_UP, ErrorCode.CONCURRENT_TRANSACTIONS})
"""Answers after which the producer asks again."""
Leadership = Sequence[tuple[TopicPartition, int]]


class ProducerIds(Protocol):
    def __call__(self) -> Deferred[int | ErrorCode]:
        """Return a new producer id, or a retriable error."""


class TransactionCoordinator:
    def __init__(
        self,
        manager: TransactionStateManager,
        completions: TransactionCompletions,
        config: TransactionConfig,
        scheduler: Scheduler,
        metrics: TransactionMetrics,
        new_producer_id: ProducerIds,
    ) -> None:
        self.config = config
        self._manager = manager
        self._completions = completions
        self._scheduler = scheduler
        self._metrics = metrics
        self._new_producer_id = new_producer_id
        self._is_active = False
        self._next_abort_ms = 0
        self._next_expiry_ms = 0
        markers = completions.markers
        metrics.register_queues(lambda: markers.unknown_destination_count, lambda: completions.append_retry_count)

    def startup(self) -> None:
        self._is_active = True
        now_ms = self._completions.now_ms()
        self._next_abort_ms = now_ms + self.config.abort_timed_out_interval_ms
        self._next_expiry_ms = now_ms + self.config.remove_expired_interval_ms
        self.advance()

    def shutdown(self) -> None:
        """From now on every request is COORDINATOR_NOT_AVAILABLE."""
        self._is_active = False
        self._scheduler.stop()
        self._manager.resign_all()
        self._completions.clear()

    def advance(self) -> None:
        """Process due timers."""
        if not self._is_active:
            return
        now_ms = self._completions.now_ms()
        if self._next_abort_ms <= now_ms:
            self._next_abort_ms = now_ms + self.config.abort_timed_out_interval_ms
            self._scheduler.spawn(self._abort_timed_out())
        if self._next_expiry_ms <= now_ms:
            self._next_expiry_ms = now_ms + self.config.remove_expired_interval_ms
            self._scheduler.spawn(self._manager.remove_expired())
        next_ms = min(self._next_abort_ms, self._next_expiry_ms)
        retry_ms = self._completions.advance()
        self._scheduler.wake_at(next_ms if retry_ms is None else min(next_ms, retry_ms))

    # --- requests of producers -----------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
        origin: ConnectionOrder | None = None,
    ) -> Deferred[InitProducerIdResult]:
        """Give the producer an id and an epoch that fence all others with its transactional id."""
        if not transactional_id:
            return Deferred.of(InitProducerIdResult(ErrorCode.INVALID_REQUEST))
        if not 0 < timeout_ms <= self.config.max_timeout_ms:
            return Deferred.of(InitProducerIdResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        result: Deferred[InitProducerIdResult] = Deferred()
        may_wait = origin is not None

        def decide_again() -> None:
            nonlocal may_wait
            may_wait = False
            decide(None)

        def answer(txn: TransactionMetadata, initialised: InitProducerIdResult) -> None:
            is_early = may_wait and initialised.error is ErrorCode.CONCURRENT_TRANSACTIONS
            if not is_early or not self._completions.waits.add(txn, decide_again):
                result.complete(initialised)

        def decide(new_id: int | None) -> None:
            found = self._find_or_add(transactional_id, new_id, timeout_ms)
            if isinstance(found, ErrorCode):
                result.complete(InitProducerIdResult(found))
                return
            if found is None:
                self._with_new_id(decide, lambda error: result.complete(InitProducerIdResult(error)))
                return
            partition, txn = found
            if expected is not None and not self._admits(partition, txn, expected, origin):
                result.complete(InitProducerIdResult(GIVEN_UP))
                return
            decision = rules.init_producer_id(
                txn,
                timeout_ms,
                expected,
                server_version=self._manager.version,
                new_producer_id=new_id,
                now_ms=self._manager.timestamp_ms(),
            )
            if isinstance(decision, rules.Need):
                self._with_new_id(decide, lambda error: result.complete(InitProducerIdResult(error)))
            elif isinstance(decision, ErrorCode):
                answer(txn, InitProducerIdResult(self._from_memory(partition, decision)))
            else:
                self._write_init(partition, txn, decision, origin).then(partial(answer, txn))

        decide(None)
        return result

    def _find_or_add(
        self, transactional_id: str, new_id: int | None, timeout_ms: int
    ) -> tuple[TransactionPartition, TransactionMetadata] | ErrorCode | None:
        """Return the transaction, an error, or None if a producer id is needed to create it."""
        partition = self._partition(transactional_id)
        if isinstance(partition, ErrorCode):
            return partition
        txn = partition.transactions.get(transactional_id)
        if txn is not None:
            return partition, txn
        if new_id is None:
            return None
        added = self._manager.get_or_add(partition, transactional_id, new_id, timeout_ms)
        return added if isinstance(added, ErrorCode) else (partition, added)

    def _write_init(
        self,
        partition: TransactionPartition,
        txn: TransactionMetadata,
        value: TransactionValue,
        origin: ConnectionOrder | None,
    ) -> Deferred[InitProducerIdResult]:
        def on_written(error: ErrorCode) -> InitProducerIdResult:
            if error is not ErrorCode.NONE:
                return InitProducerIdResult(error)
            if value.state.is_prepared:
                self._completions.begin(partition, txn)
                return InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
            connection_guard.begin_epoch(txn, origin)
            return InitProducerIdResult(ErrorCode.NONE, value.producer_id, value.producer_epoch)

        return self._manager.write(partition, txn).map(on_written)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        version: TransactionVersion = TransactionVersion.TV_0,
        origin: ConnectionOrder | None = None,
    ) -> Deferred[ErrorCode]:
        """Make `partitions` part of the producer's transaction; the first of them open it."""
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        result: Deferred[ErrorCode] = Deferred()

        def decide(*, may_wait: bool) -> None:
            found = self._admitted(transactional_id, producer, origin)
            if isinstance(found, ErrorCode):
                result.complete(found)
                return
            partition, txn = found
            if may_wait and self._completions.waits.add(txn, lambda: decide(may_wait=False)):
                return
            if may_wait and txn.waiting:  # too many wait already, and this one must not be decided before them
                result.complete(ErrorCode.CONCURRENT_TRANSACTIONS)
                return
            now_ms = self._manager.timestamp_ms()
            decision = rules.add_partitions(txn, producer, partitions, version=version, now_ms=now_ms)
            if isinstance(decision, ErrorCode):
                result.complete(self._from_memory(partition, decision))
            else:
                self._manager.write(partition, txn).then(result.complete)

        # A broker asks for several producers at once, and these must not wait for each other.
        decide(may_wait=origin is not None)
        return result

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Report which of `partitions` belong to the producer's open transaction."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return dict.fromkeys(partitions, found)
        if not self._manager.is_confirmed(found[0]):
            return dict.fromkeys(partitions, ErrorCode.NOT_COORDINATOR)
        return dict(rules.verify_partitions(found[1], ProducerIdAndEpoch(producer_id, producer_epoch), partitions))

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        version: TransactionVersion = TransactionVersion.TV_0,
        origin: ConnectionOrder | None = None,
    ) -> Deferred[EndTxnResult]:
        """Commit or abort. The answer comes when the outcome is stored; the markers follow."""
        request = end_rules.EndTxn(ProducerIdAndEpoch(producer_id, producer_epoch), commit, version, origin)
        result: Deferred[EndTxnResult] = Deferred()

        def decide(new_id: int | None) -> None:
            # With a bump at each end, the epoch alone distinguishes a late request from a current one.
            found = self._admitted(transactional_id, request.producer, None if version.bumps_epoch else origin)
            if isinstance(found, ErrorCode):
                result.complete(EndTxnResult(found))
                return
            partition, txn = found
            decision = end_rules.end_transaction(
                txn, request, new_producer_id=new_id, now_ms=self._manager.timestamp_ms()
            )
            if isinstance(decision, rules.Need):
                self._with_new_id(decide, lambda error: result.complete(EndTxnResult(error)))
            elif isinstance(decision, ErrorCode):
                result.complete(self._end_from_memory(partition, txn, request, decision))
            else:
                self._write_end(partition, txn, decision, origin).then(result.complete)

        decide(None)
        return result

    def _end_from_memory(
        self, partition: TransactionPartition, txn: TransactionMetadata, request: end_rules.EndTxn, decision: ErrorCode
    ) -> EndTxnResult:
        answer = self._from_memory(partition, decision)
        if answer is not ErrorCode.NONE:
            _note_refused_end(txn, request, answer)
            return EndTxnResult(answer)
        txn.answered_on = request.origin
        return EndTxnResult(ErrorCode.NONE, *end_rules.next_identity(txn.value))

    def _write_end(
        self,
        partition: TransactionPartition,
        txn: TransactionMetadata,
        value: TransactionValue,
        origin: ConnectionOrder | None,
    ) -> Deferred[EndTxnResult]:
        result: Deferred[EndTxnResult] = Deferred()

        def on_written(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                result.complete(EndTxnResult(error))
                return
            txn.answered_on = origin
            try:  # The producer waits only for this: it gets its answer before the markers are sent.
                result.complete(EndTxnResult(ErrorCode.NONE, *end_rules.next_identity(value)))
            finally:
                self._completions.begin(partition, txn)

        self._manager.write(partition, txn).then(on_written)
        return result

    def _with_new_id(self, use: Callable[[int], None], refuse: Callable[[ErrorCode], None]) -> None:
        def on_generated(generated: int | ErrorCode) -> None:
            if isinstance(generated, ErrorCode):
                refuse(generated)
            else:
                use(generated)

        self._new_producer_id().then(on_generated)

    # --- time ----------------------------------------------------------------------------------------------------

    def _abort_timed_out(self) -> Iterator[None]:
        room = WRITES_PER_TURN
        for found in self._manager.timed_out():
            if found is not None:
                self._abort(*found, None)
                room -= 1
            if found is None or not room:
                yield
                room = WRITES_PER_TURN

    def _abort(self, partition: TransactionPartition, txn: TransactionMetadata, new_id: int | None) -> None:
        """Abort a transaction that has timed out, in a new epoch. Called again once there is a new producer id."""
        now_ms = self._manager.timestamp_ms()
        if not self._is_active or not self._manager.is_current(partition) or not rules.is_timed_out(txn, now_ms):
            return
        fenced = rules.fence(txn, server_version=self._manager.version, new_producer_id=new_id, now_ms=now_ms)
        if isinstance(fenced, rules.Need):
            self._with_new_id(lambda generated: self._abort(partition, txn, generated), lambda error: None)
            return

        def on_written(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                _log.info("%s timed out after %d ms: aborted", txn.transactional_id, txn.value.timeout_ms)
                self._completions.begin(partition, txn)

        self._manager.write(partition, txn).then(on_written)

    # --- administration ------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionDescription:
        found = self._find(transactional_id)
        if found is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return TransactionDescription(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        if isinstance(found, ErrorCode):
            return TransactionDescription(found)
        if not self._manager.is_confirmed(found[0]):  # Spark's sink decides by the answer
            return TransactionDescription(ErrorCode.NOT_COORDINATOR)
        return TransactionDescription(ErrorCode.NONE, found[1].value)

    def list_transactions(
        self, states: Sequence[str] = (), producer_ids: Sequence[int] = (), longer_than_ms: int = -1
    ) -> Generator[None, None, TransactionListing]:
        """List the transactional ids of this broker, in slices.

        `longer_than_ms` selects those whose last transaction began more than this time ago; -1 selects all.
        """
        if not self._is_active:
            return TransactionListing(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._manager.is_loading:
            return TransactionListing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        latest_start_ms = self._manager.timestamp_ms() - longer_than_ms if longer_than_ms >= 0 else None
        return (yield from list_transactions(self._manager.transactions(), states, producer_ids, latest_start_ms))

    # --- the cluster ---------------------------------------------------------------------------------------------

    def partition_for(self, transactional_id: str) -> int:
        return self._manager.partition_for(transactional_id)

    def on_leadership_change(self, became_leader: Leadership, became_follower: Leadership) -> None:
        """Listener of the ReplicaManager: only partitions of `__transaction_state` matter."""
        for tp, leader_epoch in became_follower:
            if tp.topic == TRANSACTION_STATE_TOPIC:
                self._manager.on_resignation(tp.partition, leader_epoch if leader_epoch >= 0 else None)
        for tp, leader_epoch in became_leader:
            if tp.topic == TRANSACTION_STATE_TOPIC:
                self._manager.on_election(tp.partition, leader_epoch, self._completions.resume)

    # --- inside --------------------------------------------------------------------------------------------------

    def _partition(self, transactional_id: str) -> TransactionPartition | ErrorCode:
        if not self._is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._manager.partition_of(transactional_id)

    def _find(self, transactional_id: str) -> tuple[TransactionPartition, TransactionMetadata] | ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        partition = self._partition(transactional_id)
        if isinstance(partition, ErrorCode):
            return partition
        txn = partition.transactions.get(transactional_id)
        if txn is None or txn.is_ending:
            return self._from_memory(partition, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return partition, txn

    def _from_memory(self, partition: TransactionPartition, answer: ErrorCode) -> ErrorCode:
        """Return an answer for which nothing is written, unless another broker may coordinate the transaction by now.

        A broker that was paused does not know of its successor, which may have a later transaction (decision 0042). Its
        success would be false, and most errors are fatal for the producer.
        """
        if answer in _HARMLESS or self._manager.is_confirmed(partition):
            return answer
        return ErrorCode.NOT_COORDINATOR

    def _admitted(
        self, transactional_id: str, producer: ProducerIdAndEpoch, origin: ConnectionOrder | None
    ) -> tuple[TransactionPartition, TransactionMetadata] | ErrorCode:
        """Return the transaction, unless the request comes from a connection that its client has given up."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return found
        return found if self._admits(*found, producer, origin) else GIVEN_UP

    def _admits(
        self,
        partition: TransactionPartition,
        txn: TransactionMetadata,
        producer: ProducerIdAndEpoch,
        origin: ConnectionOrder | None,
    ) -> bool:
        last = partition.last_before_election
        is_admitted = connection_guard.admits(txn, producer, origin, last_before_election=last)
        if not is_admitted:
            _log.info("closing an older connection of %s: its producer uses a younger one", txn.transactional_id)
            self._metrics.refused_late_requests.mark()
        return is_admitted


def _note_refused_end(txn: TransactionMetadata, request: end_rules.EndTxn, error: ErrorCode) -> None:
    """INVALID_TXN_STATE is fatal for most clients, and they do not report the state. Each request may cause a line."""
    if error is ErrorCode.INVALID_TXN_STATE and _log.isEnabledFor(logging.DEBUG):
        end, value = "commit" if request.commit else "abort", txn.value
        facts = (txn.transactional_id, end, *request.producer, value.state.title, *value.identity)
        text = "%s: refused the %s of producer %d with epoch %d: the state is %s, with producer %d and epoch %d"
        _log.debug(text, *facts)
