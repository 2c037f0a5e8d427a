"""The longest turn of the broker loop for each periodic task, request and event, with very many hosted partitions.

One broker with its embedded ZooKeeper runs in this process. It hosts all partitions and is the controller. Turns are
measured in CPU time of the loop's thread, so other processes matter little.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from bench.loop_holds import requests
from bench.loop_holds.account import Account
from bench.loop_holds.measured_broker import measured_broker
from bench.walks.due_at_once import SETTINGS, DueAtOnce
from bench.walks.turn_samples import SampledAccount
from klamm.local.ports import ReservedPort
from klamm.metrics.instruments import Gauge
from klamm.model import BrokerEndPoints, EndPoint
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.list_groups import ListGroupsRequest
from klamm.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from klamm.protocol.messages.list_transactions import ListTransactionsRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.wire import Message
from klamm.server import periodic_tasks
from klamm.server.kafka_server import KafkaServer
from klamm.server.running import Running
from klamm.server.schedules import Scheduler
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import encode_broker
from klamm.zk.model.ops import Create, Delete

PER_TOPIC: Final = 1_000
ROUNDS: Final = 3
QUIET_S: Final = 0.3
TIMEOUT_S: Final = 60.0
Row = tuple[str, float]
"""Name, and the longest turn in milliseconds."""
Action = Callable[[int], object]
"""Does something for the n-th time, in the thread of the driver, and returns when it is done."""


class RecordedTasks(Scheduler):
    """Keeps the periodic tasks instead of running them at their intervals."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.loop = loop
        self.tasks: dict[str, Callable[[], object]] = {}
        recorded.append(self)

    def every(self, name: str, interval_ms: int, task: Callable[[], object], *, first_ms: int | None = None) -> None:
        self.tasks[name] = task

    async def run(self, name: str) -> None:
        steps = self.tasks[name]()
        if isinstance(steps, Iterator):
            for _ in steps:
                await asyncio.sleep(0)


recorded: list[RecordedTasks] = []


class Driver:
    """Asks the broker, from another thread."""

    def __init__(self, running: Running, zookeeper: str, loop: asyncio.AbstractEventLoop, account: Account) -> None:
        self._running = running
        self.broker = running.broker
        self._zookeeper = zookeeper
        self.loop = loop
        self._account = account

    def ask(self, request: Message, version: int) -> bytes:
        return self.ask_all([request], version)[0]

    def ask_all(self, asked: Iterable[Message], version: int) -> list[bytes]:
        """Send the requests one after the other; return the answers without their sizes."""
        answers = []
        with socket.create_connection(("127.0.0.1", self._running.endpoints[0].port), TIMEOUT_S) as peer:
            stream = peer.makefile("rb")
            for request in asked:
                peer.sendall(requests.case("", request, version).frame(7))
                answers.append(stream.read(struct.unpack(">i", stream.read(4))[0]))
        return answers

    def get(self, path: str) -> None:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._running.metrics_port}{path}", timeout=TIMEOUT_S
        ) as answer:
            answer.read()

    def wait_for_control_log(self) -> None:
        """Wait until the records of what was done before are written: that takes turns of the loop for seconds."""
        buffered = self.broker.metrics.find("klamm.server", "ControlLog", "BufferedRecordCount")
        time.sleep(QUIET_S)
        while isinstance(buffered, Gauge) and buffered.value:
            time.sleep(QUIET_S)
        time.sleep(2 * QUIET_S)  # the last batch

    def run_task(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(recorded[-1].run(name), self.loop).result(TIMEOUT_S)

    def write(self, *operations: Any) -> None:
        with BlockingSession(self._zookeeper, TIMEOUT_S) as session:
            session.write(operations)

    def create(self, name: str, partitions: int) -> None:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)

    def alter(self, kind: int, name: str, key: str, value: str) -> None:
        config = AlterableConfig(name=key, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        self.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)

    def measure(self, name: str, action: Action, prepare: Action = lambda _: None) -> Row:
        account = self._account
        found: list[tuple[float, str]] = []
        for number in range(ROUNDS):
            prepare(number)
            self.wait_for_control_log()
            self.loop.call_soon_threadsafe(account.start, self.loop)
            action(number)
            time.sleep(QUIET_S)  # what the answer leaves behind: checkpoints, messages of the controller
            account.stop()
            found.append((1000 * account.hold_s, account.report() if isinstance(account, SampledAccount) else ""))
        hold_ms, samples = sorted(found)[len(found) // 2]
        print(f"{hold_ms:8.2f} ms  {name}{samples}", flush=True)
        return name, hold_ms

    def actions(self) -> Iterator[tuple[str, Action]]:
        broker = BrokerEndPoints(2, (EndPoint("PLAINTEXT", "127.0.0.1", 1),))
        yield "nothing", lambda _: None
        for name in recorded[-1].tasks:
            yield f"task: {name}", lambda _, name=name: self.run_task(name)  # type: ignore[misc]
        yield "GET /healthz", lambda _: self.get("/healthz")
        yield "GET /metrics", lambda _: self.get("/metrics")
        yield "Metadata of one topic", lambda _: self.ask(MetadataRequest(topics=[]), 9)
        yield "Metadata of all topics", lambda _: self.ask(MetadataRequest(topics=None), 9)
        yield "DescribeLogDirs of all partitions", lambda _: self.ask(DescribeLogDirsRequest(topics=None), 4)
        yield "ListGroups", lambda _: self.ask(ListGroupsRequest(), 4)
        yield "ListTransactions", lambda _: self.ask(ListTransactionsRequest(), 0)
        yield "ListPartitionReassignments", lambda _: self.ask(ListPartitionReassignmentsRequest(topics=None), 0)
        yield (
            "ElectLeaders of all partitions, none to elect",
            lambda _: self.ask(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=10_000), 2),
        )
        yield "setting of a topic changed", lambda n: self.alter(2, "t0", "retention.ms", str(10**9 + n))
        yield "setting of all brokers changed", lambda n: self.alter(4, "", "log.retention.ms", str(10**9 + n))
        yield "topic with 1 partition created", lambda n: self.create(f"one-{n}", 1)
        yield "topic with 1,000 partitions created", lambda n: self.create(f"many-{n}", PER_TOPIC)
        yield (
            "topic grown by 1 partition",
            lambda n: self.ask(
                CreatePartitionsRequest(
                    topics=[CreatePartitionsTopic(name=f"one-{n}", count=2, assignments=None)],
                    timeout_ms=10_000,
                    validate_only=False,
                ),
                1,
            ),
        )
        yield "topic with 2 partitions deleted", lambda n: self.delete(f"one-{n}")
        yield "topic with 1,000 partitions deleted", lambda n: self.delete(f"many-{n}")
        yield (
            "another broker registers, or dies",
            lambda n: self.write(
                Delete(paths.broker_path(2)) if n % 2 else Create(paths.broker_path(2), encode_broker(broker, 0))
            ),
        )
        yield "controller elected again", lambda _: self.elect()

    def delete(self, name: str) -> None:
        self.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000), 5)

    def elect(self) -> None:
        self.write(Delete(paths.CONTROLLER))
        time.sleep(3.0)


def drive(driver: Driver, partitions: int, chosen: Callable[[str], object], rows: list[Row]) -> None:
    for number in range(partitions // PER_TOPIC):
        driver.create(f"t{number}", PER_TOPIC)
    for name, action in driver.actions():
        if chosen(name):
            rows.append(driver.measure(name, action))
    for due in DueAtOnce(driver).rows():
        if chosen(due.name):
            rows.append(driver.measure(due.name, due.act, due.prepare))
            due.clean_up()


async def serve(folder: str, account: Account, partitions: int, chosen: Callable[[str], object]) -> list[Row]:
    setattr(periodic_tasks, "Scheduler", RecordedTasks)  # noqa: B010 - not exported
    with ReservedPort() as reserved:
        port = reserved.number
    settings = {
        "klamm.zookeeper.embedded.port": str(port),
        "klamm.metrics.port": "0",
        **SETTINGS,
    }
    server = KafkaServer(measured_broker(folder, settings))
    running = await server.start()
    rows: list[Row] = []
    driver = Driver(running, f"127.0.0.1:{port}", asyncio.get_running_loop(), account)
    thread = threading.Thread(target=drive, args=(driver, partitions, chosen, rows), name="driver")
    thread.start()
    while thread.is_alive():  # noqa: ASYNC110 - a thread's end
        await asyncio.sleep(0.2)
    await server.stop()
    return rows
