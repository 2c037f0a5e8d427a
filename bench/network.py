"""The cost of the network layer alone: APIs that do nothing, served over loopback to 4 connections with 5 in flight.

`python -m bench.network` prints requests/s, the server's CPU time a request, and the same for the bare server of
`bench.ceiling` (mode echo). The difference is the price of frames, headers, codec, queues, handlers and metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench import load
from bench.ceiling import announce
from bench.frames import frame, produce_frame
from bench.processes import cpu_seconds
from klamm.clock import SystemClock
from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.network import Plane, RequestContext, SocketServer
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.protocol.wire import Message

CONNECTIONS, IN_FLIGHT = 4, 5
CASES = (
    ("heartbeat", 0, 100_000),
    ("produce", 1 << 10, 60_000),
    ("produce", 16 << 10, 40_000),
    ("produce", 256 << 10, 5_000),
)


class NullApi:
    """An API that answers at once and keeps nothing."""

    plane = Plane.DATA
    is_read = False
    metric_name = None

    def __init__(self, request: type[Message], response: type[Message], answer: Callable[[Any], Message]) -> None:
        self.request, self.response, self._answer = request, response, answer
        self.key = request.KEY
        self.name = request.__name__.removesuffix("Request")
        self.versions = (0, request.VERSIONS[-1])

    def dispatch(self, ctx: RequestContext, request: Any) -> Message:
        return self._answer(request)


def _produced(request: ProduceRequest) -> ProduceResponse:
    responses = [
        TopicProduceResponse(
            name=topic.name,
            partition_responses=[
                PartitionProduceResponse(index=p.index, error_code=0, base_offset=7, log_append_time_ms=-1)
                for p in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=responses)


APIS = (
    NullApi(HeartbeatRequest, HeartbeatResponse, lambda _: HeartbeatResponse(error_code=0)),
    NullApi(ProduceRequest, ProduceResponse, _produced),
)


async def serve(port_file: str) -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    endpoint = EndPoint("PLAINTEXT", "127.0.0.1", 0)
    server = SocketServer((endpoint,), APIS, loop=loop, clock=clock, registry=MetricsRegistry(clock))
    await server.bind()
    server.start_processing()
    announce(port_file, server.bound_port("PLAINTEXT"))
    await loop.create_future()


def measure(command: list[str], port_file: Path, frames: list[bytes], requests: int) -> tuple[load.Load, float]:
    """The load on a server process, and the CPU seconds that the server spent on it."""
    port_file.unlink(missing_ok=True)
    with subprocess.Popen(command) as server:
        try:
            deadline = time.monotonic() + 30
            while not (port_file.exists() and port_file.read_text()):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command} did not start")
                time.sleep(0.02)
            port = int(port_file.read_text())
            load.run(port, frames, in_flight=IN_FLIGHT, requests=requests // 10)
            before = cpu_seconds(server.pid)
            result = load.run(port, frames, in_flight=IN_FLIGHT, requests=requests)
            return result, cpu_seconds(server.pid) - before
        finally:
            server.kill()


def case_frame(kind: str, size_bytes: int) -> bytes:
    if kind == "heartbeat":
        return frame(HeartbeatRequest(group_id="group", generation_id=1, member_id="member-1"), 3)
    return produce_frame("topic", 0, size_bytes).frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="PORT_FILE", help="run the server only")
    args = parser.parse_args()
    if args.serve:
        uvloop.run(serve(args.serve))
        return
    print(f"{'request':>18} {'klamm/s':>9} {'bare/s':>9} {'ratio':>6} {'klamm us':>9} {'bare us':>8} {'p99 ms':>7}")
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        klamm = [sys.executable, "-m", "bench.network", "--serve", str(port_file)]
        bare = [sys.executable, "-m", "bench.ceiling", "echo", "--file", f"{folder}/log", "--port-file", str(port_file)]
        for kind, size_bytes, requests in CASES:
            frames = [case_frame(kind, size_bytes)] * CONNECTIONS
            ours, our_cpu = measure(klamm, port_file, frames, requests)
            bares, bare_cpu = measure([*bare, "--answer-bytes", "30"], port_file, frames, requests)
            print(
                f"{kind + ' ' + str(size_bytes):>18} {ours.requests_per_s:9.0f} {bares.requests_per_s:9.0f}"
                f" {ours.requests_per_s / bares.requests_per_s:6.2f} {our_cpu / ours.requests * 1e6:9.1f}"
                f" {bare_cpu / bares.requests * 1e6:8.1f} {ours.latencies_ms[int(len(ours.latencies_ms) * 0.99)]:7.2f}"
            )


if __name__ == "__main__":
    main()
