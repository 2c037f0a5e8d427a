"""The broker as the coordinators see it: its event loop as a scheduler, and its replicas as a log.

`create_group_coordinator` connects the coordinator of groups to both, and to metadata and metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from klamm.clock import Clock
from klamm.config import KafkaConfig
from klamm.coordinator.config import GroupConfig
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.metrics import GroupMetrics
from klamm.coordinator.offsets_log import Appended, TransactionalProducer
from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, AppendResult, Log
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import GROUP_METADATA_TOPIC, ConnectionOrder, TopicPartition, TransactionVersion
from klamm.waiting import follow

_log = logging.getLogger("klamm.coordinator")

T = TypeVar("T")
AppendResults = dict[TopicPartition, AppendResult]
Follower = Callable[["asyncio.Future[AppendResults]"], object]
Follow = Callable[["asyncio.Future[AppendResults]", TopicPartition, Follower], None]
Leadership = Sequence[tuple[TopicPartition, int]]


class RecordWorker(Protocol):
    """Runs pure functions of record bytes off the loop."""

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]: ...


class Replicas(Protocol):
    """The parts of the ReplicaManager that the coordinator uses."""

    leadership_listeners: list[Callable[[Leadership, Leadership], None]]

    @property
    def record_checks(self) -> RecordWorker: ...

    @property
    def controller_epoch(self) -> int:
        """The epoch of the last controller that this broker obeyed."""

    def leader_log(self, tp: TopicPartition) -> Log | ErrorCode: ...

    def is_confirmed_leader(self, tp: TopicPartition, within_ms: int) -> bool: ...

    def await_replication(self, tp: TopicPartition, timeout_ms: int) -> ErrorCode | asyncio.Future[ErrorCode]: ...


class AppendRecords(Protocol):
    """Appends to the logs that this broker leads."""

    def __call__(
        self,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        records: Mapping[TopicPartition, memoryview | bytes],
        timeout_ms: int = ...,
    ) -> AppendResults | asyncio.Future[AppendResults]: ...


class AppendTransactional(Protocol):
    """Appends as part of a transaction to the logs that this broker leads, once the transaction is verified.

    From `TV_2` on the partitions are added to the transaction instead. `admit` is called directly before the append.
    """

    def __call__(
        self,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        records: Mapping[TopicPartition, memoryview | bytes],
        timeout_ms: int,
        *,
        transactional_id: str,
        version: TransactionVersion,
        connection: ConnectionOrder | None,
        admit: Callable[[], ErrorCode] | None = ...,
    ) -> AppendResults | asyncio.Future[AppendResults]: ...


class LoopScheduler:
    """One timer and the background jobs, on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._advance: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ms = 0
        self._jobs: dict[asyncio.Task[None], None] = {}

    def start(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._jobs):
            task.cancel()

    def wake_at(self, deadline_ms: int) -> None:
        if self._timer is not None:
            if self._deadline_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._deadline_ms = deadline_ms
        # A millisecond more: the deadline is in whole milliseconds and must be past when the timer fires.
        delay_ms = max(deadline_ms - self._clock.monotonic() * 1000, 0) + 1
        self._timer = self._loop.call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._advance()

    def spawn(self, job: Iterator[None]) -> None:
        task = self._loop.create_task(_run(job), name=getattr(job, "__qualname__", "coordinator-job"))
        self._jobs[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._jobs.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("coordinator job %s failed", task.get_name(), exc_info=error)


async def _run(job: Iterator[None]) -> None:
    for _ in job:
        await asyncio.sleep(0)


LONGEST_CONFIRMATION_MS: Final = 12_000
"""ZooKeeper may grant a shorter session than a broker requests, but hardly one of less than 18 s, Kafka's default."""


def confirmed_within_ms(config: KafkaConfig) -> int:
    """Return the time within which a paused broker cannot have been replaced (decision 0042).

    Its last ping is up to three tenths of its session older than the pause. The fetches of followers come much more
    often, so a leader that runs stays confirmed.
    """
    within_ms = min(config.zookeeper_session_timeout_ms * 3 // 5, LONGEST_CONFIRMATION_MS)
    # The confirmation of an idle follower is up to two fetches old.
    if 2 * config.replica_fetch_wait_max_ms > within_ms:
        _log.warning(
            "replica.fetch.wait.max.ms=%d is too long for zookeeper.session.timeout.ms=%d: coordinators of idle "
            "partitions may answer NOT_COORDINATOR. Set it to at most %d.",
            config.replica_fetch_wait_max_ms,
            config.zookeeper_session_timeout_ms,
            within_ms // 2,
        )
    return within_ms


class ReplicaOffsetsLog:
    """The partitions of `__consumer_offsets`, or of another internal topic, in the ReplicaManager."""

    def __init__(
        self,
        replicas: Replicas,
        append_records: AppendRecords,
        confirmed_within_ms: int,
        topic: str = GROUP_METADATA_TOPIC,
        *,
        is_prompt: bool = False,
    ) -> None:
        """With `is_prompt`, results are reported inside the change of the log: their receivers must not append."""
        self._replicas = replicas
        self._confirmed_within_ms = confirmed_within_ms
        self._append_records = append_records
        self._topic = topic
        self._follow = _follow_promptly if is_prompt else _follow_later

    def append(self, partition: int, batch: bytes, timeout_ms: int) -> Deferred[Appended]:
        tp = TopicPartition(self._topic, partition)
        outcome = self._append_records(-1, True, AppendOrigin.COORDINATOR, {tp: batch}, timeout_ms)
        return _later(outcome, tp, self._follow)

    def await_replication(self, partition: int, timeout_ms: int) -> Deferred[ErrorCode]:
        outcome = self._replicas.await_replication(TopicPartition(self._topic, partition), timeout_ms)
        if not isinstance(outcome, asyncio.Future):
            return Deferred.of(outcome)
        replicated: Deferred[ErrorCode] = Deferred()

        def on_done(done: asyncio.Future[ErrorCode]) -> None:
            is_failed = done.cancelled() or done.exception() is not None
            replicated.complete(ErrorCode.REQUEST_TIMED_OUT if is_failed else done.result())

        outcome.add_done_callback(on_done)
        return replicated

    def build(self, work: Callable[[], bytes]) -> Deferred[bytes | None]:
        built: Deferred[bytes | None] = Deferred()

        def on_done(done: asyncio.Future[bytes]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                _log.error("building a batch of %s failed", self._topic, exc_info=error)
            built.complete(None if done.cancelled() or error is not None else done.result())

        self._replicas.record_checks.submit(work).add_done_callback(on_done)
        return built

    def bounds(self, partition: int) -> tuple[int, int] | ErrorCode:
        log = self._replicas.leader_log(TopicPartition(self._topic, partition))
        return log if isinstance(log, ErrorCode) else (log.log_start_offset, log.log_end_offset)

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes | memoryview | ErrorCode:
        log = self._replicas.leader_log(TopicPartition(self._topic, partition))
        if isinstance(log, ErrorCode):
            return log
        result = log.read(offset, max_bytes, max_offset=log.log_end_offset)
        return result if isinstance(result, ErrorCode) else result.records

    def is_confirmed(self, partition: int) -> bool:
        return self._replicas.is_confirmed_leader(TopicPartition(self._topic, partition), self._confirmed_within_ms)


class ReplicaGroupLog(ReplicaOffsetsLog):
    """The partitions of `__consumer_offsets`, with the appends of transactional producers."""

    def __init__(
        self,
        replicas: Replicas,
        append_records: AppendRecords,
        append_transactional: AppendTransactional,
        confirmed_within_ms: int,
    ) -> None:
        super().__init__(replicas, append_records, confirmed_within_ms)
        self._append_transactional = append_transactional

    def append_transactional(
        self,
        partition: int,
        batch: bytes,
        timeout_ms: int,
        producer: TransactionalProducer,
        admit: Callable[[], ErrorCode],
    ) -> Deferred[Appended]:
        tp = TopicPartition(GROUP_METADATA_TOPIC, partition)
        outcome = self._append_transactional(
            -1,
            True,
            AppendOrigin.COORDINATOR,
            {tp: batch},
            timeout_ms,
            transactional_id=producer.transactional_id,
            version=producer.version,
            connection=producer.connection,
            admit=admit,
        )
        return _later(outcome, tp, self._follow)


def _later(
    outcome: AppendResults | asyncio.Future[AppendResults], tp: TopicPartition, follow_outcome: Follow
) -> Deferred[Appended]:
    if not isinstance(outcome, asyncio.Future):
        return Deferred.of(_appended(outcome, tp))
    appended: Deferred[Appended] = Deferred()
    follow_outcome(outcome, tp, lambda done: appended.complete(_appended_later(done, tp)))
    return appended


def _follow_later(outcome: asyncio.Future[AppendResults], _: TopicPartition, follower: Follower) -> None:
    """The callbacks of groups may append: they run in a later turn of the loop."""
    outcome.add_done_callback(follower)


def _follow_promptly(outcome: asyncio.Future[AppendResults], tp: TopicPartition, follower: Follower) -> None:
    def guarded(done: asyncio.Future[AppendResults]) -> None:
        try:
            follower(done)
        except Exception:  # A bug of the coordinator. It does not belong to the request that changed the log.
            _log.exception("the coordinator of %s failed after a record was written", tp)

    follow(outcome, guarded)


def _appended(results: AppendResults, tp: TopicPartition) -> Appended:
    result = results[tp]
    return Appended(ErrorCode(result.error), result.base_offset)


def _appended_later(done: asyncio.Future[AppendResults], tp: TopicPartition) -> Appended:
    if done.cancelled() or done.exception() is not None:
        return Appended(ErrorCode.REQUEST_TIMED_OUT)
    return _appended(done.result(), tp)


def create_group_coordinator(
    *,
    config: KafkaConfig,
    replicas: Replicas,
    append_records: AppendRecords,
    append_transactional: AppendTransactional,
    metadata: MetadataCache,
    clock: Clock,
    loop: asyncio.AbstractEventLoop,
    metrics: MetricsRegistry,
    new_uuid: Callable[[], str],
    last_connection: Callable[[], ConnectionOrder] = lambda: 0,
) -> GroupCoordinator:
    """The coordinator of a broker; it follows leadership changes. The broker calls `startup()` and `shutdown()`."""
    group_config = GroupConfig.from_kafka(config)
    scheduler = LoopScheduler(loop, clock)
    group_metrics = GroupMetrics(metrics)
    manager = GroupMetadataManager(
        ReplicaGroupLog(replicas, append_records, append_transactional, confirmed_within_ms(config)),
        clock,
        group_config,
        scheduler,
        group_metrics,
        lambda: metadata.partition_count(GROUP_METADATA_TOPIC),
        last_connection,
    )
    coordinator = GroupCoordinator(manager, group_config, scheduler, group_metrics, new_uuid)
    scheduler.start(coordinator.advance)
    replicas.leadership_listeners.append(coordinator.on_leadership_change)
    return coordinator
