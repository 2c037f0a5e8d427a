"""Level 2: whole brokers on one loop in virtual time, with a simulated network, disks, clocks and ZooKeeper.

A broker here is the `KafkaServer` of production in another `Environment`. Killing it keeps its disk (a process died,
not the machine). Checkers see only what it wrote, sent and stored in ZooKeeper.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import random
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

from klamm import acl_changes
from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.controller.config import BLOCK_SIZE
from klamm.coordinator.transaction.transaction_metadata import MAX_PRODUCER_EPOCH
from klamm.errors import KlammError
from klamm.log.memory_files import MemoryFiles
from klamm.model import TopicPartition
from klamm.server.environment import Environment
from klamm.server.kafka_server import KafkaServer
from klamm.server.running import Running
from klamm.sim.checkers import Checkers, require
from klamm.sim.cluster_watch import ClusterWatch
from klamm.sim.controller_task import ControllerTaskRunner
from klamm.sim.history import History
from klamm.sim.loop import PROCESS, SimClock, SimExecutor, SimLoop, SimProcess, running_as
from klamm.sim.network import Network
from klamm.sim.zk_server import ZooKeeperServer
from klamm.sim.zk_session import SessionNote, SimCoordination
from klamm.zk.client import posting
from klamm.zk.client.batches import levels_of
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import decode_broker
from klamm.zk.model.ops import Check, Create, SetData, WriteOp
from klamm.zk.model.znodes import decode_controller, decode_controller_epoch

PORT: Final = 9092
MIN_INSYNC_REPLICAS: Final = 2
SETTINGS: Final[dict[str, object]] = {
    "log.dirs": "/data",
    "zookeeper.connect": "zk:2181",
    "zookeeper.session.timeout.ms": 1_500,
    "zookeeper.connection.timeout.ms": 6_000,
    "controller.socket.timeout.ms": 1_000,
    "request.timeout.ms": 1_000,
    "replica.socket.timeout.ms": 1_000,
    "replica.lag.time.max.ms": 1_500,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 200,
    "replica.fetch.max.bytes": 400,
    "replica.fetch.response.max.bytes": 1_000,
    "replica.high.watermark.checkpoint.interval.ms": 1_000,
    "controlled.shutdown.retry.backoff.ms": 100,
    "min.insync.replicas": MIN_INSYNC_REPLICAS,
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "log.segment.bytes": 2_000,
    "log.cleaner.enable": False,
    "leader.imbalance.check.interval.seconds": 3,
    "klamm.unclean.replica.wait.ms": 50_000,
}
PARTIAL_WRITE_BYTES: Final = 30
"""Bytes of a write for which a full disk still has room: less than the header of a batch."""
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_SKELETON: Final = frozenset(levels_of((*paths.PERSISTENT_PATHS, *acl_changes.PERSISTENT_PATHS)))
"""Znodes that any broker creates if they are missing."""


class SimNode:
    """A machine with a disk and a clock, and the broker process on it, if one runs."""

    def __init__(self, cluster: SimCluster, broker_id: int) -> None:
        self.id = broker_id
        self.host = f"b{broker_id}"
        self.rack = f"rack {broker_id}"
        self.files = MemoryFiles()
        self.clock = SimClock(cluster.loop)
        self.note = SessionNote()
        self.process: SimProcess | None = None
        self.server: KafkaServer | None = None
        self.running: Running | None = None
        self.is_disk_broken = False
        self.is_disk_full = False
        self.has_no_files = False
        """Whether the process has used up its file descriptors."""
        self._has_lost_records = False
        self.lost_records_s = -math.inf
        """When it last lost records that it had not flushed, or that were damaged."""
        self._cluster = cluster
        self._runs = 0

    @property
    def is_ready(self) -> bool:
        return self.running is not None

    @property
    def broker(self) -> Broker | None:
        """The broker that answers, if any."""
        return None if self.running is None else self.running.broker

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.held is not None

    def _environment(self) -> Environment:
        cluster = self._cluster
        rng = random.Random(cluster.rng.getrandbits(64))
        coordination = partial(SimCoordination, network=cluster.network, server=cluster.zookeeper, note=self.note)
        return Environment(
            clock=self.clock,
            new_rng=lambda: random.Random(rng.getrandbits(64)),
            new_uuid=lambda: uuid.UUID(int=rng.getrandbits(128), version=4),
            files=self.files,
            file_worker=SimExecutor(cluster.loop),
            record_worker=SimExecutor(cluster.loop),
            coordination=coordination,
            controller_runner=ControllerTaskRunner,
            max_producer_epoch=cluster.max_producer_epoch,
            producer_ids_per_block=cluster.producer_ids_per_block,
            resolve=None,
            on_built=self._report_leaders,
        )

    def _report_leaders(self, broker: Broker) -> None:
        """Report every leadership to the checkers."""
        report = partial(self._cluster.on_leaders, broker.id)
        broker.replicas.leadership_listeners.append(lambda leaders, _: report(leaders))

    def start(self) -> None:
        """Start a new process from the content of the disk."""
        if self.process is not None:
            return
        self._runs += 1
        self.running = None
        self.files.fault = self._fault
        self.process = process = SimProcess(f"broker {self.id} run {self._runs}", self.host)
        self._cluster.processes.append(process)
        where = ",".join(f"{name}://{self.host}:{port}" for name, port in self._cluster.listeners.items())
        own = {"broker.id": self.id, "listeners": where, "advertised.listeners": where, "broker.rack": self.rack}
        with running_as(process):
            self.server = KafkaServer(KafkaConfig({**self._cluster.settings, **own}), self._environment())
        self._cluster.loop.spawn(process, self._run(self.server))

    async def _run(self, server: KafkaServer) -> None:
        try:
            self.running = await server.start()
        except KlammError as error:
            self._cluster.note(f"broker {self.id} cannot start: {error}")
            self._cluster.outside(0.0, self.kill)
            self._cluster.outside(0.5, self.start)
            return
        except Exception as error:
            self._cluster.problem(f"broker {self.id} failed while it started: {error!r}")
            raise
        self._cluster.note(f"broker {self.id} answers")

    def kill(self) -> None:
        """Kill the process at an arbitrary point. Its disk stays."""
        if self.process is not None:
            self.process.kill()
            self.process = self.server = self.running = None
            self.is_disk_broken = False
            self.files = self.files.after_kill()

    def lose_power(self, kept: Collection[TopicPartition]) -> None:
        """The machine loses power and all unflushed data, except for the `kept` logs."""
        rng, files = self._cluster.rng, self.files
        directories = tuple(f"/data/{tp.topic}-{tp.partition}/" for tp in kept)
        self.kill()
        self.files = files.crash(rng, lambda path: path.startswith(directories))
        self._note_lost_records()

    def damage(self, path: str) -> None:
        """Damage a stopped broker's disk: half of a file becomes zeros."""
        size = len(self.files.read_bytes(path))
        self.files.open(path).pwrite((bytes(size - size // 2),), size // 2)
        self._note_lost_records()

    def _note_lost_records(self) -> None:
        self._has_lost_records = True
        self.lost_records_s = self._cluster.loop.time()

    @property
    def is_suspected(self) -> bool:
        """Whether its logs may lack acknowledged records while ISRs still depend on them."""
        if self._has_lost_records and (broker := self.broker) is not None:
            znode = self._cluster.zookeeper.tree.nodes.get(paths.broker_path(self.id))
            if znode is not None and znode.czxid == broker.broker_epoch:
                self._has_lost_records = decode_broker(self.id, znode.data, znode.czxid).unclean_shutdown
        return self._has_lost_records

    async def stop(self) -> None:
        """A controlled shutdown by the operator; a process that does not end is killed."""
        process, server = self.process, self.server
        if process is None or server is None or not self.is_ready:
            return
        self.running = None
        stopping = self._cluster.loop.spawn(process, server.stop())
        await asyncio.wait({stopping}, timeout=20)
        if self.process is process:
            self.kill()
        if stopping.done() and not stopping.cancelled() and (error := stopping.exception()) is not None:
            self._cluster.problem(f"broker {self.id} failed while it stopped: {error!r}")

    def break_disk(self) -> None:
        self.is_disk_broken = True

    def _fault(self, operation: str, path: str) -> int | None:
        """A broken disk writes nothing more, a full one nothing that needs room; half of a write may still succeed."""
        if self.has_no_files and operation in ("open", "pwrite", "read", "write"):  # Its file cannot be opened.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        if self.is_disk_full:
            return self._refuse_room(operation, path)
        if not self.is_disk_broken or operation in ("pread", "read", "list"):
            return None
        if operation == "pwrite":
            self._cluster.counts["writes torn"] += 1
            return self._cluster.rng.randint(0, 40)
        self._cluster.counts["disk operations failed"] += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _refuse_room(self, operation: str, path: str) -> int | None:
        if operation == "pwrite":
            return PARTIAL_WRITE_BYTES
        if operation in ("write", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return None


class SimCluster:
    """Everything in one run. `lines` is the transcript, written if `tracing`."""

    def __init__(self, seed: int, brokers: int = 3, *, tracing: bool = False) -> None:
        self.seed = seed
        self.loop = SimLoop(seed)
        self.rng = self.loop.rng
        self.network = self.loop.network = Network(self.loop)
        self.tracing = tracing
        self.lines: list[str] = []
        self.problems: list[str] = []
        self.processes: list[SimProcess] = []
        self.partitions: list[TopicPartition] = []
        """Those that clients use."""
        self.counts: Counter[str] = Counter()
        """Injected faults and their outcomes."""
        self.checkers = Checkers(are_suspected=self._are_suspected)
        self.history = History()
        copies = min(3, brokers)
        self.max_producer_epoch = MAX_PRODUCER_EPOCH
        self.producer_ids_per_block = BLOCK_SIZE
        self.settings = {
            **SETTINGS,
            "klamm.control.log.enable": seed % 4 == 0,
            # Where peers must prove themselves, forged requests never reach the rules about epochs.
            "klamm.admit.unproven.peers": seed % 4 != 3,
            "klamm.transaction.version": 0,
            "offsets.topic.replication.factor": copies,
        }
        if seed % 2:
            self.settings["replica.selector.class"] = RACK_AWARE
        self.listeners = {"PLAINTEXT": PORT}
        """The listeners of every broker, with their ports."""
        self.zookeeper = ZooKeeperServer(self.loop, self._on_written)
        self.nodes = {broker_id: SimNode(self, broker_id) for broker_id in range(1, brokers + 1)}
        self.addresses = {node.id: (node.host, PORT) for node in self.nodes.values()}
        self.watch = ClusterWatch(self, MIN_INSYNC_REPLICAS)
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._log_handler = _LogHandler(self)
        self._log_handler.install()

    @property
    def is_proof_needed(self) -> bool:
        """Whether all forged requests fail for lack of a proof. With an authorizer, its entries may decide instead."""
        is_guarded = bool(self.settings.get("authorizer.class.name"))
        return not is_guarded and not self.settings["klamm.admit.unproven.peers"]

    # --- transcript ---------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        if self.tracing:
            self.lines.append(f"{self.loop.time():9.3f}  {text}")

    def problem(self, text: str) -> None:
        self.note(f"PROBLEM {text}")
        self.problems.append(text)

    def check_so_far(self) -> None:
        problems = [*self.problems, *self.loop.problems]
        require(not problems, "; ".join(problems[:3]))
        self.watch.check()
        self.watch.check_sessions()

    def outside(self, delay_s: float, call: Any, *args: Any) -> None:
        """Call it later, outside of all processes."""
        with running_as(None) as context:
            self.loop.call_later(delay_s, call, *args, context=context)

    def client_process(self, name: str) -> SimProcess:
        process = SimProcess(name, name)
        self.processes.append(process)
        return process

    def _are_suspected(self, members: Iterable[int]) -> bool:
        """Whether no registered broker was shut down cleanly: then a longer log may lead."""
        found = {b: self.zookeeper.tree.nodes.get(paths.broker_path(b)) for b in members}
        live = [decode_broker(b, znode.data, znode.czxid) for b, znode in found.items() if znode is not None]
        return bool(live) and all(broker.unclean_shutdown for broker in live)

    # --- what the checkers see -------------------------------------------------------------------------------------

    def on_leaders(self, broker_id: int, leaders: Sequence[tuple[TopicPartition, int]]) -> None:
        for tp, epoch in leaders:
            self.counts["leaderships"] += 1
            self.note(f"broker {broker_id} leads {tp} in epoch {epoch}")
            other = self._leaders.setdefault((tp, epoch), broker_id)
            if other != broker_id:
                self.problem(f"brokers {other} and {broker_id} both lead {tp} in epoch {epoch}")

    def _on_written(self, session_id: int, operations: tuple[WriteOp, ...]) -> None:
        if self.tracing:
            described = [_describe(op) for op in operations if not isinstance(op, Check)]
            self.note(f"zk session {session_id}: {'; '.join(described)}")
        operations = tuple(op for op in operations if not _is_of_any_broker(op))
        try:
            self.checkers.on_written(session_id, operations)
            self._check_claim(operations)
            self.watch.check()
        except AssertionError as violation:
            self.problem(str(violation))

    def _check_claim(self, operations: tuple[WriteOp, ...]) -> None:
        claimed = [op for op in operations if isinstance(op, Create) and op.path == paths.CONTROLLER]
        epochs = [op for op in operations if isinstance(op, SetData) and op.path == paths.CONTROLLER_EPOCH]
        if claimed and epochs:
            broker_id = decode_controller(claimed[0].data).broker_id
            self.checkers.on_controller(broker_id, decode_controller_epoch(epochs[0].data))

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.counts["sessions expired"] += self.zookeeper.expired_sessions
        self.counts["zookeeper requests lost"] += self.zookeeper.lost_requests
        self.counts["replies lost"] += self.network.replies_lost
        self.counts["messages late"] += self.network.sent_late
        for process in self.processes:
            process.is_dead = True
            process.bury()
        self._log_handler.remove()
        posting.forget_callbacks(self.loop)
        self.loop.close()


def _is_of_any_broker(op: WriteOp) -> bool:
    """Writes of brokers that are not the controller: each broker reports its own failed disk."""
    is_failure_note = isinstance(op, Create) and op.path.startswith(paths.LOG_DIR_EVENT_NOTIFICATION)
    return is_failure_note or op.path in _SKELETON


def _describe(op: WriteOp) -> str:
    kind = type(op).__name__.lower()
    data = op.data if isinstance(op, Create | SetData) else None
    return f"{kind} {op.path} {(data or b'').decode(errors='replace')[:160]}".rstrip()


class _LogHandler(logging.Handler):
    """Copies the brokers' log lines to the transcript. A caught and logged exception counts as a problem."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(logging.DEBUG)
        self._cluster = cluster
        self._logger = logging.getLogger("klamm")
        self._before = (self._logger.level, self._logger.propagate)

    def install(self) -> None:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO if self._cluster.tracing else logging.ERROR)
        self._logger.propagate = False

    def remove(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        if process is None or process.is_dead:
            return
        text = f"{process.name}: {record.getMessage()}"
        self._cluster.note(text)
        if record.levelno >= logging.ERROR and record.exc_info:
            failure = record.exc_info[1]
            self._cluster.problem(f"{text}: {failure!r}{_where(failure)}")


def _where(error: BaseException | None) -> str:
    trace, last = None if error is None else error.__traceback__, ""
    while trace is not None:
        last = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return last
