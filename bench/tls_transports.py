"""TLS transports side by side: uvloop's own and aiofastnet's, beside plain sockets.

A server process receives frames through FrameReader and answers them, as the connection of a broker does: 16 KiB in and
60 bytes out (a produce), 100 bytes in and 1 MiB out (a fetch). One blocking client asks, one request at a time. The
figure is the CPU time of the server process per request; the modes take turns, so that the machine's noise hits all of
them. Decision 0034 follows from the result.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import socket
import ssl
import statistics
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import uvloop

from bench import report
from klamm import allocator
from klamm.protocol.frames import FrameReader
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.stores import StoreSource, load_key_pair
from tests.support.certificates import write_tls_files

MODES = ("plain", "uvloop TLS", "aiofastnet TLS")
CASES = {"16 KiB produce": (16 * 1024, 60), "1 MiB fetch": (100, 1 << 20)}


class Answering(asyncio.BufferedProtocol):
    """Answers each frame with as many bytes as its first four bytes say."""

    def __init__(self) -> None:
        self._reader = FrameReader(1 << 27)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._reader.buffer_updated(nbytes):
            (size,) = struct.unpack_from(">i", frame)
            if size < 0:
                usage = resource.getrusage(resource.RUSAGE_SELF)
                self._transport.write(struct.pack(">id", 8, usage.ru_utime + usage.ru_stime))
            else:
                self._transport.writelines([struct.pack(">i", size), bytes(size)])


def serve(mode: str, tls: TlsSettings, ready: Connection) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        context = None if mode == "plain" else server_context(tls)
        if mode == "aiofastnet TLS":
            import aiofastnet

            server: Any = await aiofastnet.create_server(loop, Answering, sock=listening, ssl=context)
        else:
            server = await loop.create_server(Answering, sock=listening, ssl=context)
        ready.send(listening.getsockname()[1])
        await server.serve_forever()

    allocator.install()  # as in a broker: without it, large blocks cost page faults in some processes and not in others
    uvloop.run(run())


@contextmanager
def server(mode: str, tls: TlsSettings) -> Iterator[int]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(mode, tls, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


class Asking:
    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        self._buffer = bytearray((1 << 20) + 64)

    def ask(self, request_bytes: int, response_bytes: int) -> memoryview:
        self._socket.sendall(struct.pack(">ii", request_bytes, response_bytes) + bytes(request_bytes - 4))
        return self._receive(4 + max(response_bytes, 8) if response_bytes < 0 else 4 + response_bytes)

    def cpu_s(self) -> float:
        value: float = struct.unpack_from(">d", self.ask(4, -1), 4)[0]
        return value

    def _receive(self, count: int) -> memoryview:
        view = memoryview(self._buffer)
        filled = 0
        while filled < count:
            filled += self._socket.recv_into(view[filled:count])
        return view[:count]


def measure(port: int, context: ssl.SSLContext | None, case: tuple[int, int], count: int) -> float:
    """Return the server's CPU time per request in microseconds."""
    client = Asking(port, context)
    for _ in range(20):
        client.ask(*case)
    before = client.cpu_s()
    for _ in range(count):
        client.ask(*case)
    return (client.cpu_s() - before) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=400, help="requests per round")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    options = parser.parse_args()
    load_at_start = report.load_average()
    with tempfile.TemporaryDirectory() as directory:
        files = write_tls_files(Path(directory))
        pair = load_key_pair(StoreSource("broker", str(files.broker)))
        tls = TlsSettings(pair)
        client = client_context(TlsSettings(trusted=files.authority.pem))
    found: dict[tuple[str, str], list[float]] = {}
    with server(MODES[0], tls) as plain, server(MODES[1], tls) as own, server(MODES[2], tls) as fast:
        ports = dict(zip(MODES, (plain, own, fast), strict=True))
        for _ in range(options.rounds):
            for name, case in CASES.items():
                for mode in MODES:
                    context = None if mode == "plain" else client
                    taken = measure(ports[mode], context, case, options.count)
                    found.setdefault((name, mode), []).append(taken)
    text = "\n".join(
        [
            "## TLS transports",
            "",
            f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
            "",
            "`python -m bench.tls_transports`: CPU time of a server process per request, in microseconds. Medians and",
            f"ranges of {options.rounds} rounds, in which each mode answers {options.count} requests in turn, one",
            f"connection. TLS 1.3, {', '.join(f'{name} {version(name)}' for name in ('uvloop', 'aiofastnet'))}.",
            "",
            report.table(("", *MODES, "uvloop / aiofastnet"), [row(name, found) for name in CASES]),
        ]
    )
    print(text)
    if options.write:
        report.write_section("tls-transports", text)


def row(name: str, found: Mapping[tuple[str, str], Sequence[float]]) -> tuple[str, ...]:
    taken = [found[name, mode] for mode in MODES]
    cells = [f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in taken]
    ratios = [own / fast for own, fast in zip(taken[1], taken[2], strict=True)]
    return name, *cells, f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
