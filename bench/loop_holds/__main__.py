"""The longest hold of a broker's loop by one frame, for every API.

    python -m bench.loop_holds [--count 100000] [--only Metadata] [--bound-ms 5]

A broker with its embedded ZooKeeper runs in this process, on uvloop as always; a thread sends the frames over loopback,
one after the other. CPU time of the thread of the loop is measured per turn of the loop, so other work does not matter
much. Each frame is sent four times. The first one also compiles codecs; of the others the median counts. "other" is the
rest of the longest turn: reading, writing, results that came later, bookkeeping. Exit code 1 if a hold is above the
bound.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import uvloop

from bench import report
from bench.loop_holds import requests
from bench.loop_holds.account import PARTS, Account
from bench.loop_holds.measured_broker import measured_broker
from bench.loop_holds.requests import Case
from klamm import allocator
from klamm.apis.api_declaration import Api, bind
from klamm.broker import Broker
from klamm.network import connection, request_decoder
from klamm.network.request import Request
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.join_group import JoinGroupResponse
from klamm.protocol.wire import decode
from klamm.server import collector, starting
from klamm.server.kafka_server import KafkaServer

ANSWER_S = 300
QUIET_S = 0.3
FRAMES = 4
HEADER = ("", "first ms", "hold ms", *(f"{part} ms" for part in PARTS), "other ms", "longest pass ms", "CPU ms")


def instrument(account: Account) -> None:
    """Count decoding, handlers and encoding of the process's broker."""
    timed = account.timed
    for name in ("decode", "decode_in_slices"):
        setattr(request_decoder, name, timed("decode", getattr(request_decoder, name)))
    for name in ("encode", "encoded_in_slices"):
        setattr(connection, name, timed("encode", getattr(connection, name)))

    Request.freed = timed("free", Request.freed)  # type: ignore[method-assign]

    def bind_timed(apis: Iterable[Api[Any, Any]], broker: Broker) -> tuple[Api[Any, Any], ...]:
        bound = bind(apis, broker)
        for api in bound:
            object.__setattr__(api, "dispatch", timed("handler", api.dispatch))
        return bound

    starting.bind = bind_timed  # type: ignore[attr-defined]


class Sender:
    """A client in a thread. It reads answers without keeping them."""

    def __init__(self, port: int, account: Account, loop: asyncio.AbstractEventLoop) -> None:
        self._port = port
        self._account = account
        self._loop = loop

    def ask(self, case: Case) -> bytes:
        """Send a frame and read its answer, or the end of the connection; return the first bytes of the answer."""
        frame = case.frame(7)
        with socket.create_connection(("127.0.0.1", self._port), ANSWER_S) as peer:
            peer.sendall(frame)
            head = b""
            while len(head) < 4 and (part := peer.recv(4 - len(head))):
                head += part
            left = struct.unpack(">i", head)[0] if len(head) == 4 else 0
            head = b""
            while left and (part := peer.recv(min(left, 1 << 20))):
                left -= len(part)
                head = head or part
            return head

    def measure(self, case: Case) -> tuple[str, ...]:
        return row(case.name, [self._hold(case) for _ in range(FRAMES)])

    def sync(self, name: str, count: int, size_bytes: int) -> tuple[str, ...]:
        """The leader's SyncGroup in new groups."""
        groups = (self._new_group(f"{name} {n}", name, count, size_bytes) for n in range(FRAMES))
        return row(name, [self._hold(case) for case in groups])

    def _new_group(self, group_id: str, name: str, count: int, size_bytes: int) -> Case:
        answer = self.ask(requests.join(group_id, 100))
        member_id = decode(JoinGroupResponse, 3, answer, 4)[0].member_id
        with paused_collector():
            return requests.sync(name, group_id, count, size_bytes)(member_id)

    def _hold(self, case: Case) -> Account:
        time.sleep(QUIET_S)
        self._loop.call_soon_threadsafe(self._account.start, self._loop)
        self.ask(case)
        time.sleep(QUIET_S)
        self._account.stop()
        return copy(self._account)


def row(name: str, holds: list[Account]) -> tuple[str, ...]:
    """The first frame, and of the others the one with the median hold."""
    best = sorted(holds[1:], key=lambda account: account.hold_s)[(len(holds) - 1) // 2]
    parts = [best.parts.get(part, 0.0) for part in PARTS]
    figures = (holds[0].hold_s, best.hold_s, *parts, best.hold_s - sum(parts), best.pass_s, best.cpu_s)
    return (name, *(f"{1000 * figure:.1f}" for figure in figures))


@contextmanager
def paused_collector() -> Iterator[None]:
    """The sender's own objects are not the broker's garbage."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def cases(count: int, chosen: requests.Chosen) -> Iterator[Case]:
    small = [*requests.tagged(count), requests.join("large", 7 << 20)]
    yield from (case for case in small if chosen(case.name))
    yield from requests.from_schemas(count, chosen)


def prepare(sender: Sender) -> None:
    topic = CreatableTopic(
        name=requests.TOPIC,
        num_partitions=requests.TOPIC_PARTITIONS,
        replication_factor=1,
        assignments=[],
        configs=[],
    )
    sender.ask(requests.case("", CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5))
    for _ in range(50):
        for key_type in (0, 1):
            sender.ask(requests.case("", FindCoordinatorRequest(key=requests.GROUP, key_type=key_type), 2))
        time.sleep(0.1)


def drive(sender: Sender, count: int, only: str, rows: list[tuple[str, ...]]) -> None:
    prepare(sender)
    for row in measured(sender, count, re.compile(only, re.IGNORECASE).search):
        rows.append(row)
        print("  ".join(f"{cell:>8}" for cell in row[1:]), row[0], flush=True)


def measured(sender: Sender, count: int, chosen: requests.Chosen) -> Iterator[tuple[str, ...]]:
    made = cases(count, chosen)
    while True:
        with paused_collector():
            case = next(made, None)
        if case is None:
            break
        yield sender.measure(case)
    if chosen((large := requests.fetch(50 << 20)).name):
        for _ in range(60):
            sender.ask(requests.one_mib())
        yield sender.measure(large)
    for name, record_bytes in requests.PRODUCES:
        if chosen(name):
            yield sender.measure(requests.produce(name, record_bytes))
    for name, assignments, size_bytes in requests.SYNCS:
        if chosen(name):
            yield sender.sync(name, assignments, size_bytes)


async def serve(folder: str, account: Account, count: int, only: str) -> list[tuple[str, ...]]:
    settings = {
        "klamm.zookeeper.embedded.port": "0",
        "klamm.metrics.port": "-1",
        "group.initial.rebalance.delay.ms": "0",
    }
    server = KafkaServer(measured_broker(folder, settings))
    running = await server.start()
    gc.freeze()
    rows: list[tuple[str, ...]] = []
    sender = Sender(running.endpoints[0].port, account, asyncio.get_running_loop())
    driver = threading.Thread(target=drive, args=(sender, count, only, rows), name="sender")
    driver.start()
    while driver.is_alive():  # noqa: ASYNC110 - a thread's end
        await asyncio.sleep(0.2)
    await server.stop()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loop_holds", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="elements of a request")
    parser.add_argument("--only", default="", help="cases whose name matches this regular expression")
    parser.add_argument("--bound-ms", type=float, default=5.0)
    args = parser.parse_args()
    account = Account()
    instrument(account)
    gc.freeze()
    allocator.install()
    collector.install()
    account.install()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(serve(folder, account, args.count, args.only))
    print(report.table(HEADER, rows))
    return int(any(float(row[2]) > args.bound_ms for row in rows))


if __name__ == "__main__":
    sys.exit(main())
