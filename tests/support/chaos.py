"""Chaos: a cluster under load, one fault after another by a seed, then quiet, and an account of every record.

    KLAMM_CHAOS_SECONDS=3600 KLAMM_CHAOS_SEED=7 pytest -s tests/cluster/test_chaos.py

The seed decides on the faults, their targets and their durations. The processes never behave exactly the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Protocol

from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.protocol.record_batch import batches
from klamm.testing import LocalCluster
from tests.support import chaos_clients
from tests.support.chaos_clients import Account, Reader, Writer

TOPIC: Final = "chaos"
GROUP: Final = "chaos-readers"
PARTITIONS: Final = 6
OFFSETS_PARTITIONS: Final = 4
WRITERS: Final = 2
PIPELINED: Final = frozenset({1})
READERS: Final = 2
RECORDS_PER_S: Final = 1_000
WAIT_S: Final = 180.0
"""How long anything may take that must come in the end, on the slowest machine."""


CLOSE_S: Final = 30.0


class ZooKeeper(Protocol):
    """The ZooKeeper of the cluster, which can be stopped."""

    def stop(self, *, kill: bool) -> None: ...

    def start(self) -> None: ...


class EmbeddedZooKeeper:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def stop(self, *, kill: bool) -> None:
        self._cluster.stop_zookeeper(kill=kill)

    def start(self) -> None:
        self._cluster.start_zookeeper()


@dataclass
class Fault:
    """One thing that was done to the cluster, for the report."""

    name: str
    start: float
    steps: list[str] = field(default_factory=list)


class Chaos:
    """`run` works for about `seconds`, and returns the problems it found; `report` describes the events."""

    def __init__(self, cluster: LocalCluster, zookeeper: ZooKeeper, *, seconds: float, seed: int) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.seconds = seconds
        self.seed = seed
        self.rng = Random(seed)
        self.account = Account(PARTITIONS, PIPELINED)
        self.repeated = 0
        self.left_behind: list[str] = []
        self.faults: list[Fault] = []
        self._bag: list[Callable[[], None]] = []
        self._begin = time.monotonic()

    def run(self) -> list[str]:
        cluster = self.cluster
        servers = cluster.bootstrap_servers
        cluster.create_topic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": 2})
        chaos_clients.commit_zero(servers, TOPIC, GROUP, PARTITIONS)
        writers = [Writer(servers, TOPIC, i, RECORDS_PER_S / WRITERS, self.account) for i in range(WRITERS)]
        readers = [Reader(servers, TOPIC, GROUP, i, self.account) for i in range(READERS)]
        workers = [*writers, *readers]
        try:
            for worker in workers:
                worker.start()
            self._break_things()
            self._heal()
            for writer in writers:
                writer.stop()
                writer.join()
            return self._judge()
        finally:
            for worker in workers:
                worker.stop()
            # librdkafka's close has been seen to wait for ever after many rebalances, in a group that it had left
            self.left_behind = [worker.name for worker in workers if not worker.join(CLOSE_S)]

    # --- faults ---

    def _break_things(self) -> None:
        self._begin = time.monotonic()
        while time.monotonic() < self._begin + self.seconds:
            self._quiet()
            fault = self._next_fault()
            self.faults.append(Fault(fault.__name__, time.monotonic()))
            fault()
        self._quiet()

    def _next_fault(self) -> Callable[[], None]:
        """Every kind once, in a random order, then all again."""
        if not self._bag:
            self._bag = [
                self.kill_a_leader,
                self.kill_the_controller,
                self.pause_beyond_the_session,
                self.restart_zookeeper,
                self.rolling_restart,
                self.reassign,
                self.expire_a_session,
                self.kill_two,
                self.kill_all,
            ]
            self.rng.shuffle(self._bag)
        return self._bag.pop()

    def kill_a_leader(self) -> None:
        victim = self.cluster.leader(TOPIC, self.rng.randrange(PARTITIONS))
        self._kill_and_start(victim)

    def kill_the_controller(self) -> None:
        self._kill_and_start(self.cluster.controller_id)

    def kill_two(self) -> None:
        """Fewer than min.insync.replicas are left, sometimes none of the in-sync replicas."""
        first, second = self.rng.sample(self.cluster.broker_ids, 2)
        self.cluster.kill(first)
        self._say(f"kill {first}")
        self._hold(0, 0.5, 3)
        self._kill_and_start(second)
        self.cluster.start(first)
        self._say(f"start {first}")

    def kill_all(self) -> None:
        """All at once, and back one after the other: what was acknowledged is in files that nobody closed."""
        order = self.rng.sample(self.cluster.broker_ids, len(self.cluster.broker_ids))
        for broker_id in order:
            self.cluster.kill(broker_id)
            self._say(f"kill {broker_id}")
        self._hold(0, 1)
        for broker_id in self.rng.sample(order, len(order)):
            self.cluster.start(broker_id)
            self._say(f"start {broker_id}")

    def pause_beyond_the_session(self) -> None:
        """The others continue without it, and it wakes up in the belief that it leads."""
        victim = self.rng.choice([self._any_broker(), self.cluster.leader(TOPIC, 0), self.cluster.controller_id])
        self.cluster.pause(victim)
        self._say(f"pause {victim}")
        self._wait(lambda: victim not in self.cluster.live_brokers, f"The end of the session of broker {victim}")
        self._hold(0, 1)
        self.cluster.resume(victim)
        self._say(f"resume {victim}")

    def restart_zookeeper(self) -> None:
        kill = self.rng.random() < 0.5
        self.zookeeper.stop(kill=kill)
        self._say("kill ZooKeeper" if kill else "stop ZooKeeper")
        self._hold(0, 1, 3)
        self.zookeeper.start()
        self._say("start ZooKeeper")

    def rolling_restart(self) -> None:
        for broker_id in self.rng.sample(self.cluster.broker_ids, len(self.cluster.broker_ids)):
            self.cluster.stop(broker_id)
            self._say(f"stop {broker_id}")
            self.cluster.start(broker_id)
            self._say(f"start {broker_id}")
            self.wait_for_full_isr()

    def reassign(self) -> None:
        """To two of the three, and back in another order; sometimes a broker dies meanwhile."""
        moved = self.rng.sample(range(PARTITIONS), 2)
        self._reassign({partition: self.rng.sample(self.cluster.broker_ids, 2) for partition in moved})
        if self.rng.random() < 0.3:
            self._kill_and_start(self._any_broker())
        self._wait(lambda: self._reassigning() == 0, "The end of a reassignment")
        self._reassign({partition: self.rng.sample(self.cluster.broker_ids, 3) for partition in moved})
        if self.rng.random() < 0.3:
            self._kill_and_start(self.cluster.controller_id)

    def expire_a_session(self) -> None:
        victim = self.rng.choice([self._any_broker(), self.cluster.controller_id])
        self.cluster.expire_session(victim)
        self._say(f"expire the session of {victim}")

    # --- parts of the faults ---

    def _kill_and_start(self, victim: int) -> None:
        """Back at once, before anybody has noticed, or after the others have gone on without it."""
        self.cluster.kill(victim)
        self._say(f"kill {victim}")
        self._hold(0, 1, 4)
        self.cluster.start(victim)
        self._say(f"start {victim}")

    def _quiet(self) -> None:
        """Mostly until the cluster has healed; sometimes the next fault comes before."""
        if self.rng.random() < 0.7:
            self.wait_for_full_isr()
        self._hold(0.5, 1, 2)

    def _hold(self, *choices: float) -> None:
        """How long a fault lasts is a part of the fault, and not a wait for something."""
        time.sleep(self.rng.choice(choices))

    def _any_broker(self) -> int:
        return self.rng.choice(self.cluster.broker_ids)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self.cluster.wait_for(condition, WAIT_S, what=what)

    def wait_for_full_isr(self) -> None:
        def is_full() -> bool:
            offsets = (("__consumer_offsets", p) for p in range(OFFSETS_PARTITIONS))
            everything = [*((TOPIC, p) for p in range(PARTITIONS)), *offsets]
            return all(sorted(self.cluster.isr(*each)) == list(self.cluster.broker_ids) for each in everything)

        self._wait(lambda: self._reassigning() == 0 and is_full(), "All replicas in sync")

    def _reassign(self, wanted: dict[int, list[int]]) -> None:
        partitions = [ReassignablePartition(partition_index=p, replicas=r) for p, r in wanted.items()]
        topics = [ReassignableTopic(name=TOPIC, partitions=partitions)]
        request = AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=topics)

        def accepted() -> bool:
            try:
                answer = ask_once(self._controller(), request, 0, AlterPartitionReassignmentsResponse, 60)
            except OSError:
                return False
            codes = {answer.error_code, *(p.error_code for t in answer.responses for p in t.partitions)}
            return codes == {ErrorCode.NONE}

        self._wait(accepted, f"The start of the reassignment {wanted}")
        self._say(f"move {wanted}")

    def _reassigning(self) -> int:
        """How many partitions are on the move; -1 when nobody could say."""
        request = ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=None)
        try:
            answer = ask_once(self._controller(), request, 0, ListPartitionReassignmentsResponse, 60)
        except OSError:
            return -1
        return sum(len(t.partitions) for t in answer.topics) if answer.error_code == ErrorCode.NONE else -1

    def _controller(self) -> tuple[str, int]:
        return "127.0.0.1", self.cluster.port(self.cluster.controller_id)

    def _say(self, step: str) -> None:
        self.faults[-1].steps.append(f"{step} at {time.monotonic() - self._begin:.1f}")

    # --- and then ---

    def _heal(self) -> None:
        for broker_id in self.cluster.broker_ids:
            if not self.cluster.is_running(broker_id):
                self.cluster.start(broker_id)
        self.wait_for_full_isr()

    def _judge(self) -> list[str]:
        """Called when nothing is being written and every replica is in sync; stops the brokers in the end."""
        servers = self.cluster.bootstrap_servers
        log = chaos_clients.read_log(servers, TOPIC, PARTITIONS, WAIT_S)
        problems = chaos_clients.check(self.account, log)
        self.repeated = chaos_clients.repeated(self.account, log)
        if problems:
            return problems
        self._wait(lambda: not chaos_clients.unread(self.account, log), "The group has read everything")
        ends = {partition: len(records) for partition, records in log.items()}
        self._wait(
            lambda: chaos_clients.committed(servers, TOPIC, GROUP, PARTITIONS) == ends,
            f"The group has committed {ends}",
        )
        return []

    def report(self) -> str:
        account = self.account
        lines = [
            f"chaos with seed {self.seed}: {len(self.faults)} faults in {self.seconds:g} s, "
            f"{account.acked_count} records acknowledged, {len(account.timed_out)} timed out, "
            f"{self.repeated} repeated under a new epoch by a producer with several requests in flight"
        ]
        lines += [f"  {name} did not end" for name in self.left_behind]
        starts = [*(fault.start for fault in self.faults), time.monotonic()]
        for fault, end in zip(self.faults, starts[1:], strict=True):
            gap = account.longest_gap(fault.start, end)
            lines.append(f"  {gap:6.2f} s longest without an acknowledgement: {fault.name}: {', '.join(fault.steps)}")
        return "\n".join(lines)


def _content(data_dir: Path, broker_id: int, partition: int) -> bytes:
    segments = sorted((data_dir / f"broker-{broker_id}" / f"{TOPIC}-{partition}").glob("*.log"))
    return b"".join(path.read_bytes() for path in segments)


def check_files(data_dir: Path, broker_ids: tuple[int, ...]) -> list[str]:
    """Return the differences between the logs of brokers that have ended: all must be the same, byte by byte."""
    logs = {partition: _content(data_dir, broker_ids[0], partition) for partition in range(PARTITIONS)}
    differing = [
        f"{TOPIC}-{partition} of broker {broker_id} differs from broker {broker_ids[0]}'s"
        for partition, content in logs.items()
        for broker_id in broker_ids[1:]
        if _content(data_dir, broker_id, partition) != content
    ]
    return differing + chaos_clients.check_sequences({p: batches(memoryview(data)) for p, data in logs.items()})


def chosen_seed() -> int:
    """KLAMM_CHAOS_SEED, or another one every time."""
    return int(os.environ.get("KLAMM_CHAOS_SEED") or Random().randrange(1_000_000))


def chosen_seconds(default: float) -> float:
    return float(os.environ.get("KLAMM_CHAOS_SECONDS") or default)
