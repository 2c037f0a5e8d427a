"""One run of a pipeline in this process: lock, session, queries, supervisor, and its published state."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from klamm.clock import Clock, SystemClock
from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.cluster.jvm_ended import SparkEndedError
from klamm.spark.pipeline.pipeline_model import PipelineSpec, Trigger
from klamm.spark.pipeline.pipeline_runner import PipelineRunner, SparkQuery, sink_checkpoint
from klamm.spark.pipeline.shape import ShapeFile, shape_of
from klamm.spark.pipeline.state import CheckpointLock, RunFile, forget_moved, identity, refuse_if_running
from klamm.spark.pipeline.supervise import State, Supervised, Supervisor
from klamm.spark.query.progress import Progress, Sink, StateSink, parse_progress
from klamm.spark.tables.existing import may_append, refuse_new_query
from klamm.spark.tables.table_paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK_S: Final = 0.2
PUBLISH_EVERY_S: Final = 1.0
STAGGER_S: Final = 60.0
MOST_STARTS: Final = 4
"""Queries that start at the same time: one per core, since Spark gives each Python process ten seconds to start."""
_ENDED: Final = "The next run continues from the checkpoint."


@contextmanager
def _plain_session(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    from klamm.spark.cluster.session import session

    spark = session(master, app_name, conf)
    try:
        yield spark
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`session` creates and stops the SparkSession of the run; `progress` receives batches, at most one per second.

    `log` is the file with Spark's complete output.
    """

    bootstrap_servers: str
    trigger: Trigger
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[str], None] = print
    progress: Sequence[Sink] = ()
    session: Callable[[str, str, Mapping[str, str]], AbstractContextManager[SparkSession]] = _plain_session
    log: str = ""
    append_to_existing: bool = False
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of security, as Kafka's clients name them, for every connection with the brokers."""


def check_checkpoint(spec: PipelineSpec, append_to_existing: bool = False) -> None:
    """Refuse, without Spark, a checkpoint that is in use or belongs to other sources, tables or output modes.

    A new checkpoint for a table with rows of another query is refused too, unless explicitly allowed.
    """
    refuse_if_running(spec.checkpoint)
    for sink in spec.sinks:
        if sink.table is not None and sink.format == "delta" and not (append_to_existing or sink.append_to_existing):
            checkpoint = sink_checkpoint(spec, sink)
            if not may_append(checkpoint):
                refuse_new_query(local_path(sink.table), checkpoint)
    ShapeFile(spec.checkpoint).check(spec.file, {sink.name: shape_of(spec, sink) for sink in spec.sinks})


def run(spec: PipelineSpec, options: RunOptions, clock: Clock | None = None) -> None:
    """Run until the queries are done, one fails permanently, or SIGTERM or SIGINT arrives."""
    clock = clock or SystemClock()
    check_checkpoint(spec, options.append_to_existing)
    conf = {**spec.settings, **options.conf}
    with CheckpointLock(spec.checkpoint, spec.name, clock.now_ms()):
        published = _PublishedState(spec, options, clock)
        with published.of_start(), options.session(options.master, f"klamm pipeline {spec.name}", conf) as spark:
            runner = _built(spec, options, spark)
            _supervise(spec, options, runner, clock, published)


def _counted(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _built(spec: PipelineSpec, options: RunOptions, spark: SparkSession) -> PipelineRunner:
    runner = PipelineRunner(
        spec, spark, options.bootstrap_servers, options.trigger, options.append_to_existing, client=options.client
    )
    steps = f"{_counted(spec.sources, 'source')} and {_counted(spec.views, 'view')}"
    options.report(f"Spark runs, waiting for the plans of {steps}")
    runner.build()
    now = runner.shapes()
    shapes = ShapeFile(spec.checkpoint)
    shapes.check(spec.file, now)
    shapes.write(now)
    for sink in spec.sinks:
        options.report(f"{sink.name}: writes to {sink.target}, {sink.written}")
    return runner


class _PublishedState:
    """The published state of this run, from its start on."""

    def __init__(self, spec: PipelineSpec, options: RunOptions, clock: Clock) -> None:
        self._sinks = [sink.name for sink in spec.sinks]
        self._states = [sink for sink in options.progress if isinstance(sink, StateSink)]
        self._file = RunFile(spec.name, spec.checkpoint)
        self._is_starting = True
        self._head = {
            "name": spec.name,
            "file": os.path.abspath(spec.file),
            "checkpoint": identity(spec.checkpoint),
            "master": options.master,
            "log": options.log,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_ms": clock.now_ms(),
        }

    def update(self, queries: Mapping[str, Mapping[str, Any]]) -> None:
        self._is_starting = False
        self._write(queries)

    def _write(self, queries: Mapping[str, Mapping[str, Any]]) -> None:
        self._file.write({**self._head, "queries": queries})
        for sink in self._states:
            sink.states({f"{self._head['name']}.{name}": query for name, query in queries.items()})

    @contextmanager
    def of_start(self) -> Iterator[None]:
        """Publish "starting" until the first `update`; an earlier end of the run is published as its end."""
        forget_moved(str(self._head["name"]), str(self._head["file"]), str(self._head["checkpoint"]))
        self._publish_all(State.STARTING)
        try:
            yield
        except BaseException as error:
            if self._is_starting:
                reason = str(error) if isinstance(error, Exception) else ""
                self._publish_all(State.FAILED if reason else State.STOPPED, reason)
            raise

    def _publish_all(self, state: State, failure: str = "") -> None:
        query = {"state": state.value, "restarts": 0, "failure": failure}
        self._write(dict.fromkeys(self._sinks, query))


def _supervise(
    spec: PipelineSpec, options: RunOptions, runner: PipelineRunner, clock: Clock, published: _PublishedState
) -> None:
    from py4j.protocol import Py4JError

    supervisor = Supervisor(
        {sink.name: _starter(runner, sink) for sink in spec.sinks},
        spec.restart,
        clock,
        random.Random(),
        options.report,
        stagger_s=STAGGER_S,
        starts_at_once=min(MOST_STARTS, os.cpu_count() or 1),
    )
    runner.is_stopping = lambda: supervisor.is_stopping
    publisher = _Publisher(spec, options, supervisor, published, clock)
    try:
        with _signals(supervisor):
            while _looked_after(supervisor, publisher):
                time.sleep(TICK_S)
    except SparkEndedError:
        if not supervisor.is_stopping:
            raise
        # A signal to the whole process group has ended the JVM as well.
        options.report("Spark's JVM has ended before its queries; an unfinished batch is repeated at the next start")
    finally:
        # If the JVM has ended, the last published state stays, and `status` reports the run as dead.
        with suppress(Py4JError, OSError):
            publisher.publish(final=True)
    if supervisor.failed is not None:
        more = f"\nSpark's log is {options.log}." if options.log else ""
        raise KlammError("Sink {} failed: {}".format(*supervisor.failed) + more)


def _starter(runner: PipelineRunner, sink: Any) -> Callable[[], SparkQuery]:
    def start() -> SparkQuery:
        with reported_if_ended():
            return runner.start(sink)

    return start


def _looked_after(supervisor: Supervisor, publisher: _Publisher) -> bool:
    with reported_if_ended():
        is_left = supervisor.tick()
        if is_left:
            publisher.publish()
    return is_left


@contextmanager
def reported_if_ended() -> Iterator[None]:
    """Raise SparkEndedError for a broken connection. Py4J reports it during a call as a plain Py4JError."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if isinstance(error, Py4JJavaError):
            raise
        raise SparkEndedError(_ENDED) from None


@contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    """SIGTERM and the first Ctrl-C stop after the running batch; the second Ctrl-C stops at once."""
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        supervisor.request_stop(signal.Signals(number).name)

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Publisher:
    """Publish the state of the run about once per second, and forward new progress."""

    def __init__(
        self, spec: PipelineSpec, options: RunOptions, supervisor: Supervisor, published: _PublishedState, clock: Clock
    ) -> None:
        self._options = options
        self._supervisor = supervisor
        self._published = published
        self._clock = clock
        self._due = 0.0
        self._seen: dict[str, tuple[str, int, str]] = {}
        self._groups = _group_sinks(spec, options.bootstrap_servers, options.client)

    def publish(self, final: bool = False) -> None:
        now = self._clock.monotonic()
        if not final and now < self._due:
            return
        self._due = now + PUBLISH_EVERY_S
        self._published.update({query.name: self._query(query) for query in self._supervisor.queries})

    def _query(self, query: Supervised) -> dict[str, Any]:
        state = {"state": query.state.value, "restarts": query.restarts, "failure": query.last_failure}
        report = query.run.progress() if isinstance(query.run, SparkQuery) else {}
        if not report:
            return state
        progress = parse_progress(report)
        key = (progress.run_id, progress.batch_id, progress.timestamp)
        if self._seen.get(query.name) != key:
            self._seen[query.name] = key
            for sink in (*self._options.progress, *self._groups.get(query.name, ())):
                sink.progress(progress)
        return state | summary(progress)


def _group_sinks(spec: PipelineSpec, servers: str, client_options: Mapping[str, str]) -> dict[str, list[Sink]]:
    """Commit the offsets of a sink with a `group`, so that Kafka's tools show its lag."""
    from klamm.client.patience import PROGRESS_COMMIT
    from klamm.spark.query.group_lag import GroupOffsets
    from klamm.spark.source.client_options import task_client

    def commit(group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with task_client(servers, client_options) as client, client.within(PROGRESS_COMMIT):
            client.commit_offsets(group, offsets)

    return {sink.name: [GroupOffsets(sink.group, commit)] for sink in spec.sinks if sink.group is not None}


def summary(progress: Progress) -> dict[str, Any]:
    """Return the figures of a batch for `klamm pipeline status` and the viewer."""
    return {
        "batch": progress.batch_id,
        "batch_at": progress.timestamp,
        "input_rows": progress.input_rows,
        "input_rows_per_second": round(progress.input_rows_per_second, 1),
        "rows_per_second": round(progress.processed_rows_per_second, 1),
        "batch_ms": progress.batch_ms,
        "lag": progress.total_lag,
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
        "watermark": progress.watermark,
    }
