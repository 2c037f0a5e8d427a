"""Runs seeds of level 2: a cluster, clients, faults, then quiet, then everything that must hold."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from klamm.model import TopicPartition
from klamm.sim.aimed_faults import AimedFaults
from klamm.sim.checkers import require
from klamm.sim.clients import Client, Consumer, Producer, create_topic
from klamm.sim.cluster import SimCluster
from klamm.sim.cluster_quiet import check_quiet, led_from_failed_disks
from klamm.sim.faults import Faults
from klamm.sim.group_member import Committed, GroupMember, check_group, committed_offset, find_coordinator
from klamm.sim.loop import SimProcess
from klamm.sim.runner import Failure, OnDone, ignore
from klamm.sim.watched_run import WatchedRun

FAULTS_S: Final = 12.0
GROUP: Final = "readers"
NewScenario = Callable[[SimCluster], WatchedRun]


@dataclass(slots=True)
class ClusterSummary:
    seeds: int = 0
    records: int = 0
    simulated_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    """Faults by kind, and their outcomes."""
    failures: list[Failure] = field(default_factory=list)


class Scenario(WatchedRun):
    """One run: two topics, two producers, two consumers of everything, a group of two members."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self._is_quiet = False
        self._produces_until_s = 0.0
        most = len(cluster.nodes)
        self._topics = {"orders": (2, min(3, most)), "audit": (1, min(2, most))}
        self._tps = cluster.partitions = [
            TopicPartition(name, p) for name, (count, _) in self._topics.items() for p in range(count)
        ]
        self._consumers: list[Consumer] = []
        self._members: list[GroupMember] = []
        self._member_processes: list[SimProcess] = []
        self._committed = Committed()
        self._producing: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        cluster = self._cluster
        for node in cluster.nodes.values():
            cluster.outside(cluster.rng.uniform(0.0, 0.3), node.start)
        await self._until(lambda: all(node.is_ready for node in cluster.nodes.values()), "all brokers answer")
        await self._start_clients()
        if (kind := AimedFaults.kind_of(cluster.seed)) is not None:
            await self._while_watching(cluster.loop.create_task(AimedFaults(cluster, GROUP).run(kind)))
        faults = Faults(cluster, cluster.loop.time() + FAULTS_S)
        await self._while_watching(cluster.loop.create_task(faults.run()))
        await self._while_watching(cluster.loop.create_task(faults.heal()))
        await self._until(lambda: not led_from_failed_disks(cluster), "leaders have left the disks that failed")
        faults.repair_disks()
        self._is_quiet = True
        await self._until(lambda: all(task.done() for task in self._producing), "all producers are done")
        await self._until_no_violation(self._check_quiet)
        cluster.history.check()
        await self._check_offsets()
        await self._move_coordinator()
        await self._check_offsets()
        cluster.counts["reads from followers"] += sum(consumer.near_records for consumer in self._consumers)
        require(bool(cluster.history.acknowledged), "nothing was acknowledged at all")

    async def _start_clients(self) -> None:
        cluster = self._cluster
        creator = Client("admin", cluster.addresses, Random(cluster.rng.getrandbits(64)))
        process = cluster.client_process("admin")
        for name, (partitions, replicas) in self._topics.items():
            task = cluster.loop.spawn(process, create_topic(creator, name, partitions, replicas))
            await self._while_watching(task)
        self._produces_until_s = cluster.loop.time() + FAULTS_S * cluster.rng.choice([0.5, 0.7, 0.9, 2.0, 2.0])
        for i in (1, 2):
            client = Client(f"p{i}", cluster.addresses, Random(cluster.rng.getrandbits(64)))
            producer = Producer(client, self._tps, cluster.history, self._may_produce, cluster.watch.is_leader)
            self._producing.append(cluster.loop.spawn(cluster.client_process(client.name), producer.run()))
        for i in (1, 2):
            self._start_consumers(f"c{i}", rack=f"rack {i}")
            self._start_member(f"g{i}")
        self._clients += self._producing

    def _may_produce(self) -> bool:
        """In some runs, the last faults hit a cluster without writers."""
        return not self._is_quiet and self._cluster.loop.time() < self._produces_until_s

    def _start_consumers(self, name: str, rack: str) -> None:
        cluster = self._cluster
        client = Client(name, cluster.addresses, Random(cluster.rng.getrandbits(64)))
        process = cluster.client_process(name)
        for tp in self._tps:
            consumer = Consumer(client, tp, cluster.history, rack)
            self._consumers.append(consumer)
            self._clients.append(cluster.loop.spawn(process, consumer.run()))

    def _start_member(self, name: str) -> None:
        cluster = self._cluster
        client = Client(name, cluster.addresses, Random(cluster.rng.getrandbits(64)))
        member = GroupMember(client, GROUP, self._tps, cluster.history, self._committed)
        self._members.append(member)
        process = cluster.client_process(name)
        self._member_processes.append(process)
        self._clients.append(cluster.loop.spawn(process, member.run()))

    async def _check_offsets(self) -> None:
        """The group's committed offsets equal the acknowledged ones."""
        cluster = self._cluster
        client = Client("auditor", cluster.addresses, Random(cluster.rng.getrandbits(64)))
        process = cluster.client_process("auditor")
        for tp in self._tps:
            task = cluster.loop.spawn(process, committed_offset(client, GROUP, tp))
            await self._while_watching(task)
            self._committed.check(tp, task.result())

    async def _move_coordinator(self) -> None:
        """The members leave and the coordinator is killed: its successor has only the written records."""
        cluster = self._cluster
        for process in self._member_processes:
            process.kill()
        client = Client("finder", cluster.addresses, Random(cluster.rng.getrandbits(64)))
        task = cluster.loop.spawn(cluster.client_process("finder"), find_coordinator(client, GROUP))
        await self._while_watching(task)
        node = cluster.nodes[task.result()]
        cluster.note(f"kill broker {node.id}, which coordinates the group")
        node.kill()
        node.start()

    def _check_quiet(self) -> None:
        check_quiet(self._cluster, self._tps, self._consumers)
        check_group(self._members, self._tps, self._cluster.history)


def run_cluster(
    seed: int, brokers: int = 3, *, tracing: bool = False, scenario: NewScenario = Scenario
) -> tuple[SimCluster, Failure | None]:
    """Run one seed. The returned cluster is closed but keeps its history."""
    cluster = SimCluster(seed, brokers, tracing=tracing)
    failure = None
    try:
        cluster.loop.run_until_complete(scenario(cluster).run())
    except Exception as error:
        failure = Failure(seed, f"{type(error).__name__}: {error}", tuple(cluster.lines))
    finally:
        cluster.close()
    return cluster, failure


def run_cluster_seeds(
    first: int,
    count: int,
    brokers: int = 3,
    *,
    stop_at: Callable[[Failure], bool] = lambda _: True,
    tracing: bool = False,
    scenario: NewScenario = Scenario,
    on_done: OnDone = ignore,
) -> ClusterSummary:
    """Failing seeds are run again with their transcript, unless every run is `tracing`, which suits expected
    failures.

    The search ends at the first failure that `stop_at` selects.
    """
    summary = ClusterSummary()
    for seed in range(first, first + count):
        cluster, failure = run_cluster(seed, brokers, tracing=tracing, scenario=scenario)
        summary.seeds += 1
        summary.records += sum(map(len, cluster.history.acknowledged.values()))
        summary.simulated_s += cluster.loop.time()
        summary.counts += cluster.counts
        if failure is not None:
            traced = failure if tracing else run_cluster(seed, brokers, tracing=True, scenario=scenario)[1]
            assert traced is not None, f"seed {seed} failed, and not when replayed: the simulation is not deterministic"
            summary.failures.append(traced)
            if stop_at(traced):
                break
        on_done(summary.seeds)
    return summary


def fingerprint(seed: int, brokers: int = 3, scenario: NewScenario = Scenario) -> str:
    """Return a digest of the run: the same for the same seed in every process."""
    cluster, _ = run_cluster(seed, brokers, tracing=True, scenario=scenario)
    return hashlib.sha256("\n".join(cluster.lines).encode()).hexdigest()[:16]
