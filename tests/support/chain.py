"""A chain of read, process and write under faults: every record of one topic becomes one record of another one.

    KLAMM_CHAIN_RECORDS=100000 KLAMM_CHAIN_SEED=7 pytest -s tests/cluster/test_chain.py

The seed decides on the faults, their targets and their durations. The processes never behave exactly the same.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.client.blocking_connection import ask_once
from klamm.local.drill_network import DrillNetwork
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.testing import LocalCluster
from klamm.zk.client.blocking import BlockingSession
from tests.support import chaos_clients
from tests.support.chain_copiers import Copiers
from tests.support.raw_client import RawClient
from tests.support.relays import Relays

SOURCE: Final = "chain-source"
TARGET: Final = "chain-target"
GROUP: Final = "chain"
PARTITIONS: Final = 9
RECORDS_PER_FAULT: Final = 2_000
FEWEST_FAULTS: Final = 3
WAIT_S: Final = 240.0
"""How long anything may take that must happen in the end, on the slowest machine."""
_TICK_S: Final = 0.05
_GROUP_KEY, _TRANSACTION_KEY = 0, 1


@dataclass
class Fault:
    """One thing that was done to the chain, for the report."""

    name: str
    start: float
    steps: list[str] = field(default_factory=list)
    copied_after_s: float | None = None
    """From the end of the fault until all records were copied; None if the next fault did not wait for this."""


class TargetReader:
    """Reads the target as a consumer of committed records, and compares every record with the one that must be next."""

    def __init__(self, servers: str) -> None:
        self.count = 0
        self.problems: list[str] = []
        self._next = [0] * PARTITIONS
        settings = {"isolation.level": "read_committed", "enable.auto.commit": False, "check.crcs": True}
        self._consumer = Consumer({**chaos_clients.group_settings(servers, "chain-reader"), **settings})
        self._consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])

    def read(self, timeout_s: float) -> None:
        for message in self._consumer.consume(1_000, timeout_s):
            if message.error() is None:
                self._take(message.partition() or 0, message.value() or b"", message.offset() or 0)

    def _take(self, partition: int, value: bytes, offset: int) -> None:
        self.count += 1
        expected = self._next[partition]
        found = int(value.removeprefix(b"copy of "))
        if found != expected:
            kind = "again" if found < expected else "too early"
            self.problems.append(f"{TARGET}-{partition}, offset {offset}: record {found} {kind}; {expected} was next")
        self._next[partition] = found + 1

    def close(self) -> None:
        self._consumer.close()


class Chain:
    """`run` copies `records` records under faults and returns the problems that it found.

    Copiers reach the brokers through `relays`; brokers reach each other and ZooKeeper through `network`.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        relays: Relays,
        network: DrillNetwork,
        copiers: Copiers,
        *,
        records: int,
        seed: int,
    ) -> None:
        self.cluster, self.relays, self.network, self.copiers = cluster, relays, network, copiers
        self.records, self.seed = records, seed
        self.rng = Random(seed)
        self.faults: list[Fault] = []
        self.late_connections = 0
        self.aborted = 0
        self._written = 0
        self._bag: list[Callable[[], None]] = []
        self._kinds: list[Callable[[], None]] = [
            self.kill_the_group_coordinator,
            self.kill_a_copier,
            self.cut_a_copier_off,
            self.kill_a_transaction_coordinator,
            self.pause_a_copier,
            self.cut_a_broker_off,
            self.divide_the_cluster,
            self.pause_a_broker,
            self.kill_a_leader,
        ]
        self._begin = time.monotonic()
        self.seconds = 0.0

    def run(self) -> list[str]:
        servers = self.cluster.bootstrap_servers
        for topic in (SOURCE, TARGET):
            self.cluster.create_topic(topic, PARTITIONS, 3, {"min.insync.replicas": 2})
        chaos_clients.commit_zero(servers, SOURCE, GROUP, PARTITIONS)
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})
        self._reader = TargetReader(servers)
        self.copiers.start()
        self._begin = time.monotonic()
        try:
            rounds = max(FEWEST_FAULTS, self.records // RECORDS_PER_FAULT)
            for number in range(1, rounds + 1):
                self._write(self.records * number // rounds - self._written)
                self._break_something(is_last=number == rounds)
            self.seconds = time.monotonic() - self._begin
            return self._judge()
        finally:
            self.copiers.kill_all()
            self._reader.close()

    # --- faults ---

    def _break_something(self, *, is_last: bool) -> None:
        """Every kind once, in a random order, then all again. Mostly the chain catches up before the next fault."""
        if not self._bag:
            self._bag = self.rng.sample(self._kinds, len(self._kinds))
        fault = self._bag.pop()
        self.faults.append(Fault(fault.__name__, time.monotonic()))
        fault()
        end = time.monotonic()
        if is_last or self.rng.random() < 0.7:
            self._wait(self._is_copied, f"The copy of all {self._written} records")
            self._wait_for_full_isr()
            self.faults[-1].copied_after_s = time.monotonic() - end

    def kill_the_group_coordinator(self) -> None:
        self._kill_and_start(self._coordinator(_GROUP_KEY, GROUP))

    def kill_a_transaction_coordinator(self) -> None:
        self._kill_and_start(self._transaction_coordinator())

    def kill_a_leader(self) -> None:
        self._kill_and_start(self.cluster.leader(TARGET, self.rng.randrange(PARTITIONS)))

    def pause_a_broker(self) -> None:
        """The others continue without it, and it wakes up in the belief that it leads and coordinates."""
        victim = self._some_broker()
        self.cluster.pause(victim)
        self._say(f"pause broker {victim}")
        self._wait(lambda: victim not in self.cluster.live_brokers, f"The end of the session of broker {victim}")
        self._hold(0, 1, 3)
        self.cluster.resume(victim)
        self._say(f"resume broker {victim}")

    def cut_a_broker_off(self) -> None:
        """Its clients cannot reach it, although it lives and leads; their last requests arrive afterwards."""
        victim = self._some_broker()
        self.relays.cut(victim, with_new=self.rng.random() < 0.5)
        self._say(f"cut broker {victim} off")
        self._hold(1, 3, 6)
        self._release()

    def divide_the_cluster(self) -> None:
        """A broker loses the others and ZooKeeper, but not its clients: for a moment, or until others replace it."""
        victim = self._some_broker()
        for broker_id in self.cluster.broker_ids:
            self.network.set_process(broker_id, self.cluster.pid(broker_id))
        self.network.cut(victim)
        self._say(f"cut broker {victim} from the others")
        if self.rng.random() < 0.7:
            with BlockingSession(self.cluster.zookeeper_connect, WAIT_S) as session:
                path = f"/brokers/ids/{victim}"
                self._wait(lambda: not session.exists(path), f"The end of the session of broker {victim}")
        self._hold(0, 1, 5)
        self.network.heal(victim)
        self._say(f"heal broker {victim}")

    def cut_a_copier_off(self) -> None:
        """Its connections are dead, and it opens others; its requests on the old ones arrive during its next work."""
        victim = self.rng.choice(self.copiers.names)
        self.relays.hold(victim)
        self._say(f"hold the connections of {victim}")
        self._hold(3, 5, 8)
        self._release()

    def kill_a_copier(self) -> None:
        victim = self.rng.choice(self.copiers.names)
        self.copiers.kill(victim)
        self._say(f"kill {victim}")
        self._hold(0, 1)

    def pause_a_copier(self) -> None:
        """A successor takes over, and the paused process wakes up in the middle of its transaction."""
        victim = self.rng.choice(self.copiers.names)
        self.copiers.pause(victim)
        self._say(f"pause {victim}")
        before = self._reader.count
        self._wait(lambda: self._is_copied() or self._reader.count > before, "Progress without the paused copier")
        self._hold(1, 5)
        self.copiers.resume()
        self._say(f"resume {victim}")
        self._hold(1, 3)

    # --- parts of faults ---

    def _some_broker(self) -> int:
        """Half of the time a coordinator of the copiers."""
        if self.rng.random() < 0.5:
            return self.rng.choice(self.cluster.broker_ids)
        if self.rng.random() < 0.5:
            return self._coordinator(_GROUP_KEY, GROUP)
        return self._transaction_coordinator()

    def _transaction_coordinator(self) -> int:
        return self._coordinator(_TRANSACTION_KEY, self.rng.choice(self.copiers.transactional_ids))

    def _kill_and_start(self, victim: int) -> None:
        """Start it at once, before the others notice, or after they have elected others."""
        self.cluster.kill(victim)
        self._say(f"kill broker {victim}")
        self._hold(0, 1, 5)
        self.cluster.start(victim)
        self._say(f"start broker {victim}")

    def _release(self) -> None:
        late = self.relays.release()
        self.late_connections += late
        self._say(f"release, {late} with late requests")

    def _hold(self, *choices: float) -> None:
        """The duration of a fault is part of the fault, and not a wait for something."""
        end = time.monotonic() + self.rng.choice(choices)
        while time.monotonic() < end:
            self._tend()

    def _coordinator(self, key_type: int, key: str) -> int:
        def find() -> int | None:
            for broker_id in self.cluster.broker_ids:
                address = "127.0.0.1", self.cluster.port(broker_id)
                try:
                    request = FindCoordinatorRequest(key=key, key_type=key_type)
                    found = ask_once(address, request, 2, FindCoordinatorResponse, 10)
                except OSError:
                    continue
                if found.error_code == 0 and self.cluster.is_running(found.node_id):
                    return found.node_id
            return None

        return self.cluster.wait_for(find, WAIT_S, what=f"A coordinator of {key}")

    def _say(self, step: str) -> None:
        self.faults[-1].steps.append(f"{step} at {time.monotonic() - self._begin:.1f}")

    # --- work between the faults ---

    def _write(self, count: int) -> None:
        """Record i goes to partition i modulo 9, and its value is its number in the partition."""
        for number in range(self._written, self._written + count):
            partition = number % PARTITIONS
            while True:
                try:
                    self._producer.produce(SOURCE, b"%d" % (number // PARTITIONS), partition=partition)
                    break
                except BufferError:
                    self._producer.poll(1)
        left = self._producer.flush(WAIT_S)
        assert left == 0, f"{left} records were not written to {SOURCE}"
        self._written += count

    def _tend(self) -> None:
        self._reader.read(_TICK_S)
        self.copiers.tend()
        assert not self._reader.problems, "\n".join(self._reader.problems[:20])

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_met() -> bool:
            self._tend()
            return condition()

        self.cluster.wait_for(is_met, WAIT_S, what=what)

    def _is_copied(self) -> bool:
        return self._reader.count >= self._written

    def _wait_for_full_isr(self) -> None:
        def is_full() -> bool:
            isrs = (self.cluster.isr(topic, p) for topic in (SOURCE, TARGET) for p in range(PARTITIONS))
            return all(sorted(isr) == list(self.cluster.broker_ids) for isr in isrs)

        self._wait(is_full, "All replicas in sync")

    # --- and then ---

    def _judge(self) -> list[str]:
        servers = self.cluster.bootstrap_servers
        self.copiers.kill_all()
        expected = {p: len(range(p, self._written, PARTITIONS)) for p in range(PARTITIONS)}
        self._wait(lambda: self._open_partitions() == [], "The end of all transactions")
        problems = list(self.copiers.problems)
        positions = self.cluster.wait_for(
            lambda: chaos_clients.committed(servers, SOURCE, GROUP, PARTITIONS),
            WAIT_S,
            what="The positions",
        )
        if positions != expected:
            problems.append(f"the group is at {positions}, the source ends at {expected}")
        again = TargetReader(servers)
        deadline = time.monotonic() + WAIT_S
        while again.count < self._written and time.monotonic() < deadline:
            again.read(_TICK_S)
        again.read(1)
        if again.count != self._written:
            problems.append(f"{again.count} records were read from the target, {self._written} were written")
        again.close()
        return problems + again.problems

    def _open_partitions(self) -> list[int]:
        """The partitions of the target that have an open transaction; counts the aborted records besides."""
        found, ends = [], 0
        for partition in range(PARTITIONS):
            client = RawClient(self.cluster.port(self.cluster.leader(TARGET, partition)))
            data = client.fetch(TARGET, 0, partition=partition)
            ends += data.high_watermark
            if data.error_code or data.last_stable_offset != data.high_watermark:  # the leader may move
                found.append(partition)
        self.aborted = ends - self._written
        return found

    def report(self) -> str:
        copiers = self.copiers
        rate = self._written / self.seconds if self.seconds else 0.0
        lines = [
            f"chain of {copiers.mode} with seed {self.seed}: {self._written} records in {self.seconds:.0f} s "
            f"({rate:.0f} per second) under {len(self.faults)} faults; {self.late_connections} connections delivered "
            f"late requests; {self.aborted} offsets of markers and aborted records",
            f"  copiers: {copiers.started} started, {dict(Counter(copiers.exits))} as exit codes"
            + "".join(f"; {n} hung in {call}" for call, n in Counter(copiers.hung).items()),
        ]
        for fault in self.faults:
            after = "" if fault.copied_after_s is None else f"copied {fault.copied_after_s:.1f} s after its end"
            lines.append(f"  {fault.name}: {', '.join(fault.steps)}; {after}")
        return "\n".join(lines)


def check_replicas(data_dir: Path, broker_ids: tuple[int, ...]) -> list[str]:
    """The logs of the target on the disks of brokers that have ended must be the same, byte by byte."""

    def content(broker_id: int, partition: int) -> bytes:
        folder = data_dir / f"broker-{broker_id}" / f"{TARGET}-{partition}"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    return [
        f"{TARGET}-{partition} of broker {broker_id} differs from broker {broker_ids[0]}'s"
        for partition in range(PARTITIONS)
        for broker_id in broker_ids[1:]
        if content(broker_id, partition) != content(broker_ids[0], partition)
    ]


def chosen_records(default: int) -> int:
    return int(os.environ.get("KLAMM_CHAIN_RECORDS") or default)


def chosen_seed() -> int:
    """KLAMM_CHAIN_SEED, or another one every time."""
    return int(os.environ.get("KLAMM_CHAIN_SEED") or Random().randrange(1_000_000))
