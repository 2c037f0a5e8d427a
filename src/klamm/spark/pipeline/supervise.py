"""Keeps the queries of a pipeline running: restarts with back-off, stops after the running batch.

The supervisor does not use Spark. It takes functions that start a query, a clock and a random source, and acts in
`tick`, so its rules are tested without a JVM and without waiting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from klamm.client.client_errors import AuthenticationError, ClientError
from klamm.clock import Clock
from klamm.errors import KlammError
from klamm.spark.cluster.jvm_ended import SparkEndedError
from klamm.spark.pipeline.pipeline_model import Restart
from klamm.spark.source.checkpoint_locations import CheckpointUnreachableError

FACTOR: Final = 2.0
JITTER: Final = 0.2
SAME_FAILURES: Final = 3
"""Maximum number of identical failures of a batch: then the batch or the code is wrong."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended. A permanent failure would recur at every start, so the query is not restarted.

    `batch` identifies the batch if code or data seem to be wrong: that recurs until either is fixed. It is empty if the
    cause may be external. `moved` records became dead letters, so the batch can be repeated at once without them.
    """

    reason: str
    permanent: bool = False
    batch: str = ""
    moved: int = 0


class RunningQuery(Protocol):
    """One run of a streaming query, as the supervisor sees it."""

    def is_active(self) -> bool: ...

    def failure(self) -> Failure | None:
        """Why it ended, once it is no longer active; None if it ended normally."""

    def is_in_batch(self) -> bool: ...

    def batches(self) -> int:
        """Number of batches that this run has finished."""

    def stop(self) -> None: ...


class State(Enum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting to restart"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (State.STOPPED, State.FINISHED, State.FAILED)


_SAME: Final = "{} times in the same batch: it would recur at every start until the pipeline or the records are fixed"
_NOT_RUNNING: Final = (State.STARTING, State.WAITING)


@dataclass(slots=True)
class Supervised:
    """The supervisor's state of one query. Times are the clock's monotonic seconds."""

    name: str
    start: Callable[[], RunningQuery]
    state: State = State.STARTING
    run: RunningQuery | None = None
    restarts: int = 0
    failures_in_a_row: int = 0
    last_failure: str = ""
    last_batch: str = ""
    same_failures: int = 0
    started_at: float = 0.0
    has_run: bool = False
    """Whether this run has finished a batch."""
    due_at: float = 0.0
    stop_batches: int = 0
    stop_deadline: float = 0.0


def restart_delay_ms(restart: Restart, failures: int, rng: random.Random) -> float:
    """Doubles with every consecutive failure up to the maximum, plus or minus a fifth so that queries spread."""
    delay = min(restart.first_delay_ms * FACTOR ** min(failures - 1, 60), restart.max_delay_ms)
    return delay * rng.uniform(1 - JITTER, 1 + JITTER)


class Supervisor:
    """Call `tick` until it returns False. One permanent failure ends all queries; `failed` names it.

    `report` receives one line per change. `stop_timeout_s` bounds the wait for a running batch. At most
    `starts_at_once` queries are in their first batch at a time, for at most `stagger_s` each: a start needs several
    processes, and Spark gives each of them ten seconds.
    """

    def __init__(
        self,
        starts: Mapping[str, Callable[[], RunningQuery]],
        restart: Restart,
        clock: Clock,
        rng: random.Random,
        report: Callable[[str], None] = lambda line: None,
        stop_timeout_s: float = 60.0,
        stagger_s: float = 0.0,
        starts_at_once: int = 1,
    ) -> None:
        self.queries = [Supervised(name, start) for name, start in starts.items()]
        self.failed: tuple[str, str] | None = None
        self._restart = restart
        self._clock = clock
        self._rng = rng
        self._report = report
        self._stop_timeout_s = stop_timeout_s
        self._stagger_s = stagger_s
        self._starts_at_once = starts_at_once
        self._stopping = False
        self._stop_reason = ""

    def request_stop(self, why: str = "stop was asked for") -> None:
        """Stop every query after its running batch; a query that waits for its restart is not restarted.

        Safe in a signal handler during a call of Spark: queries are stopped in the next `tick`.
        """
        if not self._stopping:
            self._stopping, self._stop_reason = True, why

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def _stop_all(self) -> None:
        if self._stop_reason:
            self._report(f"stopping after the running batch: {self._stop_reason}")
            self._stop_reason = ""
        now = self._clock.monotonic()
        for query in self.queries:
            if query.state in _NOT_RUNNING:
                query.state = State.STOPPED
            elif query.state is State.RUNNING and query.run is not None:
                query.state = State.STOPPING
                query.stop_batches = query.run.batches()
                query.stop_deadline = now + self._stop_timeout_s

    def tick(self) -> bool:
        """Check every query once and act on it. Returns False when nothing is left to supervise."""
        if self._stopping:
            self._stop_all()  # a signal may have requested the stop while a query was starting or had failed
        now = self._clock.monotonic()
        for query in self.queries:
            if query.state in _NOT_RUNNING and now >= query.due_at and self._may_start(now):
                self._begin(query, now)
            elif query.state is State.RUNNING:
                self._look(query, now)
            elif query.state is State.STOPPING:
                self._stop(query, now)
        if self.failed is not None:
            self.request_stop(f"{self.failed[0]} failed")
            self._stop_all()
        return not all(query.state.is_final for query in self.queries)

    def _may_start(self, now: float) -> bool:
        starting = [
            query
            for query in self.queries
            if query.state is State.RUNNING
            and not query.has_run
            and now - query.started_at < self._stagger_s
            and query.run is not None
            and query.run.is_active()
            and query.run.batches() == 0
        ]
        return len(starting) < self._starts_at_once

    def _begin(self, query: Supervised, now: float) -> None:
        try:
            query.run = query.start()
        except SparkEndedError:
            raise
        except Exception as error:
            # An exception of a start is a failure like any other, except that the pipeline's own code may raise it.
            self._on_failure(query, Failure(_describe(error), permanent=is_permanent(error)), now)
            return
        query.state = State.RUNNING
        query.started_at = now
        query.has_run = False
        self._report(f"{query.name}: {'restarted' if query.restarts else 'started'}, waiting for its first batch")

    def _look(self, query: Supervised, now: float) -> None:
        assert query.run is not None
        if query.run.is_active():
            if not query.has_run and query.run.batches() > 0:
                query.has_run = True
                self._report(f"{query.name}: running, first batch done after {now - query.started_at:.1f} s")
            return
        failure = query.run.failure()
        if failure is None:
            query.state = State.FINISHED
            self._report(f"{query.name}: finished")
            return
        healthy_s = self._restart.max_delay_ms / 1000
        if query.run.batches() > 0 and now - query.started_at >= healthy_s:
            query.failures_in_a_row = 0
        self._on_failure(query, failure, now)

    def _on_failure(self, query: Supervised, failure: Failure, now: float) -> None:
        if failure.moved:
            query.state, query.due_at = State.WAITING, now
            query.restarts += 1
            self._report(f"{query.name}: restart: {failure.reason}")
            return
        is_same = failure.batch != "" and (query.last_failure, query.last_batch) == (failure.reason, failure.batch)
        query.same_failures = query.same_failures + 1 if is_same else 1
        query.last_failure, query.last_batch = failure.reason, failure.batch
        query.failures_in_a_row += 1
        if failure.permanent or query.failures_in_a_row > self._restart.attempts:
            times = query.failures_in_a_row
            tries = "" if failure.permanent or times == 1 else f" ({times} times in a row)"
            self._give_up(query, failure.reason, tries)
            return
        if query.same_failures >= SAME_FAILURES:
            query.last_failure = f"{failure.reason} ({_SAME.format(query.same_failures)})"
            self._give_up(query, query.last_failure)
            return
        delay_ms = restart_delay_ms(self._restart, query.failures_in_a_row, self._rng)
        query.state = State.WAITING
        query.restarts += 1
        query.due_at = now + delay_ms / 1000
        self._report(f"{query.name}: failed, restart in {delay_ms / 1000:.1f} s: {failure.reason}")

    def _give_up(self, query: Supervised, reason: str, tries: str = "") -> None:
        query.state = State.FAILED
        self.failed = self.failed or (query.name, reason)
        self._report(f"{query.name}: failed{tries}: {reason}")

    def _stop(self, query: Supervised, now: float) -> None:
        """Stop a query whose batch is done. The next batch may have begun: it is repeated at the next start."""
        assert query.run is not None
        if query.run.is_active():
            done = query.run.batches() > query.stop_batches or not query.run.is_in_batch()
            if not done and now < query.stop_deadline:
                return
            query.run.stop()
        elif (failure := query.run.failure()) is not None:
            query.last_failure = failure.reason
        query.state = State.STOPPED
        self._report(f"{query.name}: stopped")


def is_permanent(error: Exception) -> bool:
    """Whether the same start would fail in the same way: a query that cannot be analysed, or klamm's own refusal.

    Brokers and file systems that do not answer may come back.
    """
    if isinstance(error, CheckpointUnreachableError | ClientError) and not isinstance(error, AuthenticationError):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, KlammError | TypeError | NameError | AttributeError) or bool(
        names & {"AnalysisException", "ParseException", "IllegalArgumentException"}
    )


def _describe(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
