"""A probe, as a program of its own: an ordinary client of one broker that measures how long it waits for answers.

    python -m tests.support.probe --port 9092 --topic orders --broker-pid 4711

It works until its standard input ends and then prints, as JSON, when each wait began and how long it took, and beside
each wait, for how long the system let the probe and the broker's loop wait for a processor. It is a process because a
thread would also wait for the interpreter lock of the load beside it.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from klamm.client.blocking_connection import BlockingConnection
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")

INTERVAL_S: Final = 0.02
ANSWER_S: Final = 120.0
REQUESTS_PER_CONNECTION: Final = 50


class Probe:
    """A new connection now and then, small requests otherwise."""

    def __init__(self, port: int, topic: str, broker_pid: int) -> None:
        self._address = "127.0.0.1", port
        self._request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        self.started: list[float] = []
        self.seconds: list[float] = []
        self.schedules: list[tuple[float, float, float]] = []
        """Seconds of each wait: the probe waited for a processor, the broker's loop did, the broker's loop ran."""
        self._own, self._broker = Path("/proc/self/schedstat"), Path(f"/proc/{broker_pid}/schedstat")

    def run(self, is_stopped: Callable[[], bool]) -> None:
        while not is_stopped():
            with self._timed(self._connect) as connection:
                for _ in range(REQUESTS_PER_CONNECTION):
                    if is_stopped():
                        return
                    self._timed(lambda: connection.ask(self._request, MetadataResponse, 7))
                    time.sleep(INTERVAL_S)

    def _connect(self) -> BlockingConnection:
        connection = BlockingConnection(self._address, client_id="probe", timeout_ms=ANSWER_S * 1000)
        connection.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        return connection

    def _timed(self, action: Callable[[], T]) -> T:
        before = self._schedule()
        started, begun = time.time(), time.perf_counter()
        result = action()
        self.started.append(started)
        self.seconds.append(time.perf_counter() - begun)
        own, broker, ran = (now - then for now, then in zip(self._schedule(), before, strict=True))
        self.schedules.append((own, broker, ran))
        return result

    def _schedule(self) -> tuple[float, float, float]:
        _, own = schedule(self._own)
        ran, broker = schedule(self._broker)
        return own, broker, ran


def schedule(path: Path) -> tuple[float, float]:
    """For how long the first thread of a process has run, and has waited for a processor; 0 if that is unknown."""
    try:
        ran, waited = path.read_bytes().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


def has_ended() -> bool:
    """Whether standard input has ended; nothing is ever written to it."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.probe", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--broker-pid", type=int, required=True)
    args = parser.parse_args()
    probe = Probe(args.port, args.topic, args.broker_pid)
    probe.run(has_ended)
    found = {"started": probe.started, "seconds": probe.seconds, "schedules": probe.schedules}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
