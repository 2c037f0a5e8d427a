"""Measures the waits of a client: a process that produces 1 KiB at a time, a few hundred times per second.

`python -m bench.control_plane.probe PORT TOPIC PARTITION` runs until its standard input ends, then prints a JSON list
of [moment, latency in ms] pairs; moments are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from bench.frames import produce_frame
from klamm.local.ports import LOOPBACK

PAUSE_S: Final = 0.003


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        data += part
    return data


def _run(port: int, topic: str, partition: int) -> list[tuple[float, float]]:
    frame = produce_frame(topic, partition, 1024).frame
    samples = []
    with socket.create_connection((LOOPBACK, port), 120) as connection:
        print("READY", flush=True)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            begun = time.monotonic()
            connection.sendall(frame)
            (size,) = struct.unpack(">i", _read(connection, 4))
            _read(connection, size)
            samples.append((begun, (time.monotonic() - begun) * 1000))
    return samples


class Probe:
    def __init__(self, port: int, topic: str, partition: int = 0) -> None:
        command = [sys.executable, "-m", "bench.control_plane.probe", str(port), topic, str(partition)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "READY":
            raise RuntimeError("the probe did not reach its broker")

    def stop(self) -> list[tuple[float, float]]:
        """All samples: when the request was sent, and how many ms its answer took."""
        output, _ = self._process.communicate("", timeout=120)
        return [(at, ms) for at, ms in json.loads(output)]


def p99(samples: Sequence[tuple[float, float]], begun: float, ended: float) -> tuple[float, float]:
    """Return the 99th percentile and the longest of the requests that were under way between the two moments.

    If the probe sent no request in that time, use the next request.
    """
    chosen = sorted(ms for at, ms in samples if at <= ended and at + ms / 1000 >= begun)
    chosen = chosen or [ms for at, ms in samples if at > ended][:1]
    if not chosen:
        raise RuntimeError("no request was under way")
    return chosen[min(len(chosen) - 1, int(len(chosen) * 0.99))], chosen[-1]


if __name__ == "__main__":
    print(json.dumps(_run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))), flush=True)
