"""A bounded load: one socket per frame, with `in_flight` requests outstanding, until all requests are answered."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass
from functools import partial
from typing import cast

import uvloop


@dataclass(frozen=True, slots=True)
class Load:
    seconds: float
    requests: int
    bytes_in: int
    latencies_ms: tuple[float, ...]

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


class _Connection(asyncio.BufferedProtocol):
    """Counts whole responses without keeping them: a big Fetch response costs no copy here."""

    def __init__(self, frame: bytes, in_flight: int, requests: int, done: asyncio.Future[None]) -> None:
        self.frame, self.in_flight, self.left, self.done = frame, in_flight, requests, done
        self.to_send = requests
        self.bytes_in = 0
        self.latencies: list[float] = []
        self._sent_at: list[float] = []
        self._buffer = memoryview(bytearray(1 << 20))
        self._head = bytearray()
        self._skip = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        for _ in range(min(self.in_flight, self.to_send)):
            self._send()

    def _send(self) -> None:
        self.to_send -= 1
        self._sent_at.append(time.perf_counter())
        self.transport.write(self.frame)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        at = 0
        while at < nbytes:
            if self._skip:
                step = min(self._skip, nbytes - at)
                self._skip -= step
                at += step
                if self._skip == 0:
                    self._answered()
                continue
            need = 4 - len(self._head)
            self._head += self._buffer[at : min(at + need, nbytes)]
            at = min(at + need, nbytes)
            if len(self._head) == 4:
                (self._skip,) = struct.unpack(">i", self._head)
                self._head.clear()

    def _answered(self) -> None:
        self.latencies.append((time.perf_counter() - self._sent_at.pop(0)) * 1000)
        self.left -= 1
        if self.to_send:
            self._send()
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the server closed with {self.left} answers to come: {exc}"))


async def _run(port: int, frames: list[bytes], in_flight: int, requests: int) -> Load:
    loop = asyncio.get_running_loop()
    each = max(1, requests // len(frames))
    dones = [loop.create_future() for _ in frames]
    start = time.perf_counter()
    pairs = [
        await loop.create_connection(partial(_Connection, frame, in_flight, each, done), "127.0.0.1", port)
        for frame, done in zip(frames, dones, strict=True)
    ]
    await asyncio.wait_for(asyncio.gather(*dones), 300)
    seconds = time.perf_counter() - start
    for transport, _ in pairs:
        transport.close()
    latencies = tuple(sorted(x for _, c in pairs for x in c.latencies))
    return Load(seconds, each * len(frames), sum(c.bytes_in for _, c in pairs), latencies)


def run(port: int, frames: list[bytes], *, in_flight: int, requests: int) -> Load:
    """One connection a frame; blocks until every request is answered."""
    return uvloop.run(_run(port, frames, in_flight, requests))
