"""The supervisor's rules, on a clock that is turned by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from klamm.client.client_errors import AuthenticationError, ClientError
from klamm.errors import KlammError
from klamm.spark.cluster.jvm_ended import SparkEndedError
from klamm.spark.pipeline.pipeline_model import Restart
from klamm.spark.pipeline.run import reported_if_ended
from klamm.spark.pipeline.supervise import Failure, RunningQuery, State, Supervisor, restart_delay_ms
from klamm.spark.source.checkpoint_locations import CheckpointError, CheckpointUnreachableError


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


@dataclass
class FakeQuery:
    active: bool = True
    ended_by: Failure | None = None
    in_batch: bool = False
    done: int = 0
    stopped: bool = False

    def is_active(self) -> bool:
        return self.active

    def failure(self) -> Failure | None:
        return self.ended_by

    def is_in_batch(self) -> bool:
        return self.in_batch

    def batches(self) -> int:
        return self.done

    def stop(self) -> None:
        self.active, self.stopped = False, True

    def fail(self, reason: str = "broken pipe", permanent: bool = False, batch: str = "") -> None:
        self.active, self.ended_by = False, Failure(reason, permanent, batch)


@dataclass
class World:
    restart: Restart = field(default_factory=lambda: Restart(attempts=3, first_delay_ms=1000, max_delay_ms=4000))
    names: tuple[str, ...] = ("a",)
    stagger_s: float = 0.0
    starts_at_once: int = 1

    def __post_init__(self) -> None:
        self.clock = HandClock()
        self.runs: dict[str, list[FakeQuery]] = {name: [] for name in self.names}
        self.reported: list[str] = []
        self.refusal: Exception | None = None
        self.during_start: Callable[[], None] = lambda: None
        self.supervisor = Supervisor(
            {name: self._starter(name) for name in self.names},
            self.restart,
            self.clock,
            random.Random(7),
            self.reported.append,
            stop_timeout_s=30,
            stagger_s=self.stagger_s,
            starts_at_once=self.starts_at_once,
        )

    def _starter(self, name: str) -> Callable[[], RunningQuery]:
        def start() -> RunningQuery:
            if self.refusal is not None:
                raise self.refusal
            self.during_start()
            self.runs[name].append(FakeQuery())
            return self.runs[name][-1]

        return start

    def tick(self, seconds: float = 0.0) -> bool:
        self.clock.now += seconds
        return self.supervisor.tick()

    def stopped(self, name: str) -> bool:
        return self.runs[name][0].stopped

    def state(self, index: int = 0) -> State:
        return self.supervisor.queries[index].state


def test_a_query_that_ends_well_is_finished() -> None:
    world = World(names=("a", "b"))
    assert world.tick()
    world.runs["a"][0].active = False
    assert world.tick()
    world.runs["b"][0].active = False
    assert not world.tick()
    assert world.state() is State.FINISHED and world.supervisor.failed is None


def test_a_failed_query_is_started_again_later_and_later() -> None:
    world = World()
    world.tick()
    for attempt, least_s in enumerate((0.8, 1.6, 3.2), 1):
        world.runs["a"][-1].fail()
        assert world.tick()
        assert world.state() is State.WAITING
        world.tick(least_s - 0.01)
        assert len(world.runs["a"]) == attempt, "not before its time"
        world.tick(least_s * 0.5 + 0.02)
        assert len(world.runs["a"]) == attempt + 1 and world.state() is State.RUNNING
    world.runs["a"][-1].fail("disk full")
    assert not world.tick()
    assert world.supervisor.failed == ("a", "disk full")
    assert "4 times in a row" in world.reported[-2]


def test_the_same_mistake_at_the_same_batch_is_not_tried_for_ever() -> None:
    world = World(restart=Restart(attempts=10, first_delay_ms=10, max_delay_ms=10))
    world.tick()
    for batch in ("0", "1", "1", "1"):
        assert world.state() is State.RUNNING
        world.runs["a"][-1].fail("TypeError: ...", batch=batch)
        world.tick()
        world.tick(1)
    assert world.supervisor.failed is not None
    assert world.supervisor.failed[1].startswith("TypeError: ... (3 times in the same batch: it would recur")
    assert world.supervisor.queries[0].last_failure == world.supervisor.failed[1]
    assert len(world.runs["a"]) == 4

    world = World(restart=Restart(attempts=10, first_delay_ms=10, max_delay_ms=10))
    world.tick()
    for _ in range(9):
        world.runs["a"][-1].fail("the broker is away")
        world.tick()
        world.tick(1)
    assert world.state() is State.RUNNING, "what may pass by itself is tried as often as the pipeline says"


def test_a_query_that_was_never_started_does_not_wait_for_a_restart() -> None:
    world = World(names=("a", "b"), stagger_s=60)
    assert world.state() is State.STARTING
    world.tick()
    assert world.state(1) is State.STARTING
    world.supervisor.request_stop("SIGTERM")
    world.tick()
    assert world.state(1) is State.STOPPED


def test_a_signal_asks_no_query_anything() -> None:
    """It may come in the middle of a call of Spark, and a second call on the same connection would break both."""

    class Untouchable(FakeQuery):
        def batches(self) -> int:
            raise AssertionError("called by a signal handler")

    world = World()
    world.tick()
    world.supervisor.queries[0].run = Untouchable()
    reported = list(world.reported)
    world.supervisor.request_stop("SIGTERM")
    assert world.supervisor.is_stopping and world.reported == reported


def test_the_end_of_spark_is_not_the_failure_of_a_query() -> None:
    world = World()
    world.refusal = SparkEndedError("The next run continues from the checkpoint.")
    with pytest.raises(SparkEndedError):
        world.tick()
    assert not any("restart" in line for line in world.reported)


def test_a_call_that_is_interrupted_by_the_end_of_the_jvm_reports_it() -> None:
    """Py4J logs the broken connection of a running call, and raises an error that does not name it."""
    for error in (Py4JError("An error occurred while calling o42.start"), Py4JNetworkError("no"), ConnectionError()):
        with pytest.raises(SparkEndedError, match="continues from the checkpoint"), reported_if_ended():
            raise error
    of_java = Py4JJavaError.__new__(Py4JJavaError)
    with pytest.raises(Py4JJavaError), reported_if_ended():
        raise of_java


def test_a_healthy_while_forgets_earlier_failures() -> None:
    world = World()
    world.tick()
    for _ in range(10):
        world.runs["a"][-1].done = 5
        world.clock.now += 10
        world.runs["a"][-1].fail()
        assert world.tick()
        world.tick(2)
    assert world.state() is State.RUNNING and world.supervisor.queries[0].restarts == 10


def test_a_permanent_failure_ends_the_others_after_their_batch() -> None:
    world = World(names=("a", "b"))
    world.tick()
    world.runs["b"][0].in_batch = True
    world.runs["a"][0].fail("state is not compatible", permanent=True)
    assert world.tick()
    assert world.state() is State.FAILED and world.state(1) is State.STOPPING
    assert not world.stopped("b")
    world.runs["b"][0].done = 1
    assert not world.tick()
    assert world.stopped("b") and world.state(1) is State.STOPPED
    assert world.supervisor.failed == ("a", "state is not compatible")


def test_a_start_that_is_refused_is_not_repeated() -> None:
    world = World()
    world.refusal = KlammError("There is no topic orders.")
    assert not world.tick()
    assert world.supervisor.failed == ("a", "There is no topic orders.")
    world = World()
    world.refusal = CheckpointError("The checkpoint is older than the table.")
    assert not world.tick()
    world = World()
    world.refusal = AuthenticationError("The broker refuses the credentials.")
    assert not world.tick()
    world = World()
    world.refusal = RuntimeError("the gateway is busy")
    assert world.tick(), "other failures are tried again"
    world.refusal = None
    world.tick(2)
    assert world.state() is State.RUNNING


@pytest.mark.parametrize(
    "refusal",
    [
        CheckpointUnreachableError("The checkpoint hdfs://namenode/ck cannot be read: refused"),
        ClientError("The cluster did not return the topic __klamm_sink_state within 60000 ms: refused."),
    ],
)
def test_a_start_waits_for_the_file_system_of_its_checkpoint_and_for_brokers(refusal: KlammError) -> None:
    world = World()
    world.refusal = refusal
    assert world.tick() and world.state() is State.WAITING
    assert "failed, restart in" in world.reported[-1] and str(refusal) in world.reported[-1]
    world.refusal = None
    world.tick(2)
    assert world.state() is State.RUNNING


def test_a_stop_waits_for_the_running_batch_but_not_for_ever() -> None:
    world = World(names=("idle", "busy", "stuck", "waiting"))
    world.tick()
    world.runs["busy"][0].in_batch = world.runs["stuck"][0].in_batch = True
    world.runs["waiting"][0].fail()
    world.tick()
    world.supervisor.request_stop("SIGTERM")
    world.supervisor.request_stop("SIGTERM")
    assert world.tick()
    assert world.stopped("idle") and not world.stopped("busy")
    assert world.state(3) is State.STOPPED, "a restart that was due does not come"
    world.runs["busy"][0].in_batch = False
    assert world.tick(1)
    assert world.stopped("busy")
    assert not world.tick(30)
    assert world.stopped("stuck")
    assert sum("SIGTERM" in line for line in world.reported) == 1


def test_a_signal_while_a_query_starts_or_has_failed_stops_it() -> None:
    """A handler of signals runs in the middle of a tick: starting a query takes seconds."""
    world = World()
    world.during_start = lambda: world.supervisor.request_stop("SIGTERM")
    world.tick()
    assert not world.tick(1)
    assert world.stopped("a") and world.state() is State.STOPPED

    class Interrupting(FakeQuery):
        def failure(self) -> Failure | None:
            world.supervisor.request_stop("SIGTERM")
            return Failure("broken pipe")

    world = World()
    world.tick()
    world.supervisor.queries[0].run = Interrupting(active=False)
    world.tick()
    assert not world.tick(60)
    assert len(world.runs["a"]) == 1 and world.state() is State.STOPPED


def test_queries_start_one_after_the_other() -> None:
    world = World(names=("a", "b", "c"), stagger_s=60)
    world.tick()
    world.tick(1)
    assert not world.runs["b"], "a has not done a batch"
    world.runs["a"][0].done = 1
    world.tick()
    assert world.runs["b"] and not world.runs["c"]
    world.tick(61)
    assert world.runs["c"], "b may have nothing to do"


def test_as_many_start_at_once_as_there_are_cores() -> None:
    world = World(names=("a", "b", "c", "d"), stagger_s=60, starts_at_once=2)
    world.tick()
    assert world.runs["a"] and world.runs["b"] and not world.runs["c"]
    assert world.reported[-1] == "b: started, waiting for its first batch"
    world.runs["b"][0].done = 1
    world.tick(1.5)
    assert world.runs["c"] and not world.runs["d"]
    assert "b: running, first batch done after 1.5 s" in world.reported


def test_the_delay_is_bounded_and_scattered() -> None:
    restart = Restart(first_delay_ms=100, max_delay_ms=5000)
    delays = [restart_delay_ms(restart, 500, random.Random(seed)) for seed in range(50)]
    assert all(4000 <= delay <= 6000 for delay in delays)
    assert len(set(delays)) > 40
    assert restart_delay_ms(restart, 1, random.Random(1)) <= 120


def test_records_that_were_put_aside_cost_no_attempt_and_no_delay() -> None:
    world = World()
    for number in range(12):
        world.supervisor.tick()
        run = world.runs["a"][number]
        run.active, run.ended_by = False, Failure("one record went to the dead letters", moved=1)
        world.supervisor.tick()
    query = world.supervisor.queries[0]
    assert (query.state, query.failures_in_a_row, query.restarts) == (State.WAITING, 0, 12)
    assert "a: restart: one record went to the dead letters" in world.reported and world.supervisor.failed is None
