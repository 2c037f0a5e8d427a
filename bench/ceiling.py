"""The ceiling: a bare event-loop server that does the unavoidable work and nothing else.

`append`: reads a frame, checks the CRC-32C of the batch in it, appends the batch to a file, answers.
`read`: answers every frame with `--answer-bytes` read from a file with pread.
`echo`: answers `--answer-bytes` of nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
from pathlib import Path
from typing import cast

import crc32c
import uvloop

CRC_AT, CRC_FROM = 17, 21


class Bare(asyncio.BufferedProtocol):
    def __init__(self, args: argparse.Namespace, fd: int) -> None:
        self.args, self.fd = args, fd
        self.buffer = bytearray(8 << 20)
        self.have = 0
        self.answer = struct.pack(">i", args.answer_bytes) + bytes(args.answer_bytes)
        self.head = struct.pack(">i", args.answer_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)[self.have :]

    def buffer_updated(self, nbytes: int) -> None:
        self.have += nbytes
        view = memoryview(self.buffer)
        at = 0
        while self.have - at >= 4:
            (size,) = struct.unpack_from(">i", view, at)
            if self.have - at < 4 + size:
                break
            self.serve(view[at : at + 4 + size])
            at += 4 + size
        if at:
            self.buffer[: self.have - at] = bytes(view[at : self.have])
            self.have -= at

    def serve(self, frame: memoryview) -> None:
        args = self.args
        if args.mode == "append":
            batch = frame[args.batch_at : args.batch_at + args.batch_bytes]
            (crc,) = struct.unpack_from(">I", batch, CRC_AT)
            assert crc32c.crc32c(batch[CRC_FROM:]) == crc
            os.write(self.fd, batch)
            self.transport.write(self.answer)
        elif args.mode == "read":
            self.transport.writelines([self.head, os.pread(self.fd, args.answer_bytes, 0)])
        else:
            self.transport.write(self.answer)


def announce(port_file: str, port: int) -> None:
    Path(port_file).write_text(str(port))


async def serve(args: argparse.Namespace) -> None:
    fd = os.open(args.file, os.O_RDWR | os.O_CREAT | (os.O_APPEND if args.mode == "append" else 0), 0o600)
    server = await asyncio.get_running_loop().create_server(lambda: Bare(args, fd), "127.0.0.1", 0)
    announce(args.port_file, server.sockets[0].getsockname()[1])
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="A bare server to measure the ceiling with")
    parser.add_argument("mode", choices=["append", "read", "echo"])
    parser.add_argument("--file", required=True)
    parser.add_argument("--port-file", required=True)
    parser.add_argument("--batch-at", type=int, default=0)
    parser.add_argument("--batch-bytes", type=int, default=0)
    parser.add_argument("--answer-bytes", type=int, default=60)
    uvloop.run(serve(parser.parse_args(sys.argv[1:])))


if __name__ == "__main__":
    main()
