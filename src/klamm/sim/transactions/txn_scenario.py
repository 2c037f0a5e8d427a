"""Level 2 with transactions: writers and copiers of both protocols, readers of committed records, faults, then quiet.

Some processes share a transactional id. The epochs of producer ids are used up, because there are only a few of them.
In some runs the blocks of producer ids are used up, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from klamm.model import TopicPartition
from klamm.sim.clients import Client, create_topic
from klamm.sim.cluster import SimCluster
from klamm.sim.cluster_quiet import check_quiet
from klamm.sim.loop import SimProcess
from klamm.sim.transactions.anomalies import check_anomalies
from klamm.sim.transactions.committed_reader import CommittedReader
from klamm.sim.transactions.group_copier import GroupCopier
from klamm.sim.transactions.observations import Observations, Outcome, Recorder, Seen
from klamm.sim.transactions.repeated_requests import RepeatedRequests
from klamm.sim.transactions.restless_client import RestlessClient
from klamm.sim.transactions.txn_clients import (
    Copier,
    LeavingWriter,
    TransactionalClient,
    TransactionalWriter,
    stable_offset,
)
from klamm.sim.transactions.txn_faults import (
    COPIER,
    OLD_CLIENT,
    TRANSACTIONAL,
    TransactionFaults,
    is_careless_run,
    is_repaired_run,
)
from klamm.sim.transactions.txn_producer import TransactionalProducer
from klamm.sim.transactions.txn_quiet import check_logs, check_stable
from klamm.sim.violation import require
from klamm.sim.watched_run import WatchedRun
from klamm.zk.model import paths
from klamm.zk.model.znodes import decode_producer_id_block

FAULTS_S: Final = 3.0
COMPACTION: Final[dict[str, object]] = {
    "log.cleaner.enable": True,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.delete.retention.ms": 20_000,
    "transaction.state.log.segment.bytes": 1_000,
    "offsets.topic.segment.bytes": 1_000,
}
"""The logs of coordinators are compacted all the time.

Tombstones and markers stay for longer than a broker is down, as in Kafka: a replica that misses them keeps the records
that they end.
"""
SETTINGS: Final[dict[str, object]] = {
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 300,
    "offsets.topic.num.partitions": 1,
    "replica.fetch.wait.max.ms": 500,
    **COMPACTION,
}
REPAIRED_SETTINGS: Final[dict[str, object]] = {
    "klamm.transaction.version": 2,
    "transactional.id.expiration.ms": 400,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 250,
}
MAX_EPOCHS: Final = (3, 4, 6)
TINY_BLOCK: Final = 2
"""Producer ids per block in some runs: brokers ask for blocks again and again, also while the controller changes."""
TIMEOUTS_MS: Final = (500, 1_000, 2_000)
ORDERS: Final = tuple(TopicPartition("orders", p) for p in range(2))
COPIES: Final = TopicPartition("copies", 0)
GROUP: Final = "copiers"
WRITERS: Final = {"w0": 2, "w1": 1}
"""Transactional ids, with the number of processes that share each."""
COPIER_PROCESSES: Final = 2
LEAVING: Final = ("l0", "l1", "l2")
"""Transactional ids of clients that leave a transaction open, in runs of the repaired protocol."""


class TransactionScenario(WatchedRun):
    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self._is_repaired = is_repaired_run(cluster.seed)
        cluster.settings.update(SETTINGS | (REPAIRED_SETTINGS if self._is_repaired else {}))
        cluster.max_producer_epoch = cluster.rng.choice(MAX_EPOCHS)
        if cluster.seed % 10 == 2:
            cluster.producer_ids_per_block = TINY_BLOCK
        cluster.settings["transaction.state.log.replication.factor"] = min(3, len(cluster.nodes))
        self._tps = cluster.partitions = [*ORDERS, COPIES]
        self._recorder = Recorder()
        self._repeated = RepeatedRequests(cluster.network, TRANSACTIONAL.values())
        self._is_quiet = False
        self._has_group = cluster.seed % 2 == 1
        """Whether the copiers are members of a group; otherwise they share a transactional id."""
        self._members: dict[int, GroupCopier] = {}
        self._readers: list[CommittedReader] = []
        self._runs = 0
        self._producers: list[TransactionalProducer] = []
        self._connections: list[RestlessClient] = []
        self._starts: list[Callable[[], None]] = []
        """Start each transactional client, also after its death."""
        self._running: dict[int, tuple[SimProcess, asyncio.Task[None]]] = {}
        """Processes of transactional clients, by position in `_starts`."""

    async def run(self) -> None:
        cluster = self._cluster
        for node in cluster.nodes.values():
            cluster.outside(cluster.rng.uniform(0.0, 0.1), node.start)
        await self._until(lambda: all(node.is_ready for node in cluster.nodes.values()), "all brokers answer")
        await self._create_topics()
        self._start_clients()
        await self._until(lambda: self._recorder.count(Outcome.COMMITTED) > 2, "transactions commit")
        faults = TransactionFaults(cluster, cluster.loop.time() + FAULTS_S, self._hosts, self._kill_client)
        await self._while_watching(cluster.loop.create_task(faults.run()))
        await self._while_watching(cluster.loop.create_task(faults.heal()))
        self._is_quiet = True
        await self._until(self._are_clients_done, "all clients are done")
        await self._until_no_violation(self._check_quiet)
        check_anomalies(await self._observe())
        check_logs(cluster)
        self._count_effects()

    # --- clients -------------------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        cluster = self._cluster
        admin = Client("admin", cluster.addresses, self._random())
        process = cluster.client_process("admin")
        for name, count in (("orders", len(ORDERS)), ("copies", 1)):
            create = create_topic(admin, name, count, min(3, len(cluster.nodes)))
            await self._while_watching(cluster.loop.spawn(process, create))

    def _start_clients(self) -> None:
        for i, rack in enumerate(("", "rack 2"), 1):
            self._start_readers(f"r{i}", rack)
        for transactional_id, count in WRITERS.items():
            for i in range(count):
                self._add(partial(self._writer, transactional_id, i))
        for i in range(COPIER_PROCESSES):
            self._add(partial(self._group_copier if self._has_group else self._copier, i))

        for transactional_id in LEAVING if self._is_repaired else ():
            client, data = self._client(transactional_id, 0)
            process = self._cluster.client_process(client.name)
            self._clients.append(self._cluster.loop.spawn(process, LeavingWriter(client, data, ORDERS).run()))

    def _add(self, create: Callable[[], tuple[str, Any]]) -> None:
        position = len(self._starts)

        def start() -> None:
            name, client = create()
            process = self._cluster.client_process(name)
            task = self._cluster.loop.spawn(process, client.run())
            self._running[position] = process, task
            self._clients.append(task)

        self._starts.append(start)
        start()

    def _start_readers(self, name: str, rack: str) -> None:
        client = Client(name, self._cluster.addresses, self._random())
        process = self._cluster.client_process(name)
        for tp in self._tps:
            reader = CommittedReader(name, client, tp, self._recorder, rack)
            self._readers.append(reader)
            self._clients.append(self._cluster.loop.spawn(process, reader.run()))

    def _writer(self, transactional_id: str, number: int) -> tuple[str, TransactionalWriter]:
        client, data = self._client(transactional_id, number)
        reading = Client(client.name, self._cluster.addresses, self._random())
        readers = [CommittedReader(client.name, reading, tp, self._recorder) for tp in self._tps]
        may_write = partial(self._may_write, number)
        writer = TransactionalWriter(client, data, ORDERS, readers, may_write, asks_for_ends=self._is_repaired)
        return client.name, writer

    def _copier(self, number: int) -> tuple[str, Copier]:
        client, data = self._client(COPIER, number)
        reading = Client(client.name, self._cluster.addresses, self._random())
        reader = CommittedReader(client.name, reading, ORDERS[0], self._recorder)
        return client.name, Copier(client, data, reader, COPIES, GROUP, partial(self._may_copy, number))

    def _group_copier(self, number: int) -> tuple[str, GroupCopier]:
        client, _ = self._client(f"{COPIER}{number}", number)
        reading = Client(client.name, self._cluster.addresses, self._random())
        readers = {tp: CommittedReader(client.name, reading, tp, self._recorder) for tp in ORDERS}
        copier = GroupCopier(reading, GROUP, readers, COPIES, client)
        self._members[number] = copier
        return client.name, copier

    def _client(self, transactional_id: str, number: int) -> tuple[TransactionalClient, RestlessClient]:
        """Every run of a process has a name and a host of its own."""
        cluster = self._cluster
        self._runs += 1
        name = f"{transactional_id}.{number}.{self._runs}"
        coordinator = RestlessClient(f"{name} (coordinator)", cluster.addresses, self._random())
        data = RestlessClient(f"{name} (data)", cluster.addresses, self._random())
        producer = TransactionalProducer(
            transactional_id,
            coordinator,
            data,
            is_new=cluster.rng.random() < 0.4 and transactional_id != OLD_CLIENT,
            is_careless=is_careless_run(cluster.seed),
            timeout_ms=cluster.rng.choice(TIMEOUTS_MS),
            max_epoch=cluster.max_producer_epoch,
        )
        self._producers.append(producer)
        self._connections += (coordinator, data)
        is_standby = number > 0 and not (self._has_group and transactional_id.startswith(COPIER))
        client = TransactionalClient(name, producer, self._recorder, cluster.history, is_standby=is_standby)
        return client, data

    def _may_write(self, number: int, has_committed: bool) -> bool:
        """When it is quiet, one process of each id continues until it has committed once more."""
        return not self._is_quiet or (number == 0 and not has_committed)

    def _may_copy(self, number: int, tp: TopicPartition, position: int) -> bool:
        """When it is quiet, one process copies the rest."""
        if not self._is_quiet:
            return True
        writing = any(not task.done() for at, (_, task) in self._running.items() if at < sum(WRITERS.values()))
        return number == 0 and (writing or position < self._end(tp))

    def _are_clients_done(self) -> bool:
        """Members of a group do not end, but have nothing to copy in the end: see `_check_quiet`."""
        endless = len(self._starts) - COPIER_PROCESSES if self._has_group else len(self._starts)
        return all(task.done() for at, (_, task) in self._running.items() if at < endless)

    def _end(self, tp: TopicPartition) -> int:
        logs = [node.broker.logs.get_log(tp) for node in self._cluster.nodes.values() if node.broker is not None]
        return max((log.log_end_offset for log in logs if log is not None), default=1 << 40)

    def _hosts(self) -> list[str]:
        return [process.host for process, task in self._running.values() if not process.is_dead and not task.done()]

    def _kill_client(self) -> None:
        alive = [at for at, (process, task) in self._running.items() if not process.is_dead and not task.done()]
        if alive:
            at = self._cluster.rng.choice(alive)
            process, task = self._running[at]
            self._cluster.note(f"kill client {process.name}")
            process.kill()
            self._clients.remove(task)
            self._cluster.outside(self._cluster.rng.uniform(0.0, 1.0), self._starts[at])

    # --- the end ---------------------------------------------------------------------------------------------------

    def _check_quiet(self) -> None:
        check_stable(self._cluster, self._readers)
        check_quiet(self._cluster, self._tps, ())
        if self._has_group:
            positions = {tp: at for member in self._members.values() for tp, at in member.positions.items()}
            ends = {tp: self._end(tp) for tp in ORDERS}
            require(positions == ends, f"the group is at {positions}, the logs end at {ends}")

    def _count_effects(self) -> None:
        """A process that has its transactional id alone is fenced only after a timeout of its transaction."""
        counts = self._cluster.counts
        for outcome in Outcome:
            counts[f"transactions {outcome.value}"] += self._recorder.count(outcome)
        counts["logs compacted"] += self._compacted_logs()
        counts["block of producer ids used up"] += self._blocks_used_up()
        counts["committed reads from followers"] += sum(reader.near_records for reader in self._readers)
        counts["requests delivered twice"] += self._repeated.count
        counts["connections given up"] += sum(client.abandoned for client in self._connections)
        for producer in self._producers:
            is_shared = WRITERS.get(producer.transactional_id, 2) > 1 and not self._has_own_id(producer)
            counts["producer id used up"] += producer.ids_used_up
            counts["fenced by another process" if is_shared else "fenced after a timeout"] += producer.fenced
            counts["end fenced after a timeout"] += 0 if is_shared else producer.fenced_ends

    def _has_own_id(self, producer: TransactionalProducer) -> bool:
        return self._has_group and producer.transactional_id.startswith(COPIER)

    def _blocks_used_up(self) -> int:
        """Count the blocks beyond the first one of each process. Some may be lost with an answer."""
        znode = self._cluster.zookeeper.tree.nodes[paths.PRODUCER_ID_BLOCK]
        last = decode_producer_id_block(znode.data)
        given = 0 if last is None else (last.block_end + 1) // self._cluster.producer_ids_per_block
        return max(0, given - sum(process.name.startswith("broker") for process in self._cluster.processes))

    def _compacted_logs(self) -> int:
        brokers = [node.broker for node in self._cluster.nodes.values() if node.broker is not None]
        return sum(log.cleaner_offset > 0 for broker in brokers for log in broker.logs.logs.values())

    async def _observe(self) -> Observations:
        cluster = self._cluster
        client = Client("auditor", cluster.addresses, self._random())
        process = cluster.client_process("auditor")
        logs: dict[TopicPartition, tuple[Seen, ...]] = {}
        for tp in self._tps:
            task = cluster.loop.spawn(process, self._read_all(CommittedReader("auditor", client, tp, Recorder())))
            await self._while_watching(task)
            logs[tp] = task.result()
        offsets: dict[tuple[str, TopicPartition], int] = {}
        for tp in ORDERS if self._has_group else ORDERS[:1]:
            asking = cluster.loop.spawn(process, stable_offset(client, GROUP, tp))
            await self._while_watching(asking)
            offsets[GROUP, tp] = asking.result()
        return self._recorder.observations(logs, offsets)

    async def _read_all(self, reader: CommittedReader) -> tuple[Seen, ...]:
        found: list[Seen] = []
        while reader.offset < self._end(reader.tp):
            poll = await reader.poll(max_bytes=100_000)
            found += () if poll is None else poll.records
        return tuple(found)

    def _random(self) -> Random:
        return Random(self._cluster.rng.getrandbits(64))
