"""A ZooKeeper client of bytes, for what kazoo would never send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import NamedTuple

from klamm.zk.model.jute import OpCode, buffer_bytes, string_bytes, strings_bytes


class Reply(NamedTuple):
    xid: int
    zxid: int
    error: int
    body: bytes


class RawClient:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.session_id, self.password, self.timeout_ms = 0, bytes(16), 0
        self._xid = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def connect(
        self, timeout_ms: int = 30_000, session_id: int = 0, password: bytes = bytes(16), last_zxid: int = 0
    ) -> RawClient:
        self.send_frame(struct.pack(">iqiq", 0, last_zxid, timeout_ms, session_id) + buffer_bytes(password) + b"\0")
        frame = self.read_frame()
        _, self.timeout_ms, self.session_id, length = struct.unpack_from(">iiqi", frame)
        self.password = frame[20 : 20 + length]
        return self

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def read_exactly(self, count: int) -> bytes:
        """Raises EOFError when the server has closed."""
        data = b""
        while len(data) < count:
            try:
                chunk = self.socket.recv(count - len(data))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise EOFError("the server closed the connection")
            data += chunk
        return data

    def read_frame(self) -> bytes:
        return self.read_exactly(struct.unpack(">i", self.read_exactly(4))[0])

    def send(self, opcode: int, body: bytes = b"", xid: int | None = None) -> None:
        self._xid += 1
        self.send_frame(struct.pack(">ii", self._xid if xid is None else xid, opcode) + body)

    def receive(self) -> Reply:
        frame = self.read_frame()
        xid, zxid, error = struct.unpack_from(">iqi", frame)
        return Reply(xid, zxid, error, frame[16:])

    def ask(self, opcode: int, body: bytes = b"") -> Reply:
        self.send(opcode, body)
        return self.receive()

    def create(self, path: str, data: bytes = b"", flags: int = 0) -> Reply:
        return self.ask(OpCode.CREATE, create_body(path, data, flags))

    def exists(self, path: str, *, watch: bool = False) -> Reply:
        return self.ask(OpCode.EXISTS, string_bytes(path) + bytes([watch]))

    def is_closed(self) -> bool:
        try:
            self.read_exactly(1)
        except EOFError:
            return True
        return False


def create_body(path: str, data: bytes, flags: int = 0) -> bytes:
    acl = struct.pack(">ii", 1, 31) + string_bytes("world") + string_bytes("anyone")
    return string_bytes(path) + buffer_bytes(data) + acl + struct.pack(">i", flags)


def set_watches_body(zxid: int, data: list[str], exist: list[str], child: list[str]) -> bytes:
    return struct.pack(">q", zxid) + b"".join(map(strings_bytes, (data, exist, child)))
