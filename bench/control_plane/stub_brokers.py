"""Brokers that are only registered: they answer every control request at once and note when it came.

`python -m bench.control_plane.stub_brokers ZOOKEEPER ID...` registers the ids, says READY and obeys lines on its
standard input: `leave ID` ends that broker's session, `report` prints a JSON line with what came since the last report.
With them a controller has very many partitions to care for without a hundred thousand logs on the disk.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from klamm.errors import ErrorCode
from klamm.local.ports import LOOPBACK
from klamm.model import BrokerEndPoints, EndPoint
from klamm.protocol.frames import decode_request_header
from klamm.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeResponse
from klamm.protocol.messages.stop_replica import StopReplicaResponse
from klamm.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from klamm.protocol.wire import Message, decode
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import encode_broker
from tests.support.frames import encode_response_frame
from tests.support.zk_registration import register_ephemeral

_ANSWERS: Final[dict[int, Message]] = {
    4: LeaderAndIsrResponse(error_code=0),
    5: StopReplicaResponse(error_code=0, partition_errors=()),
    6: UpdateMetadataResponse(error_code=0),
    17: SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=()),
}
_CONTROL: Final = (4, 5, 6)


class _Connection(asyncio.Protocol):
    """Answers without reading the body; bodies are kept and counted when somebody asks."""

    def __init__(self, broker_id: int, came: list[tuple[float, int, bytes]]) -> None:
        self._broker_id = broker_id
        self._came = came
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < 4 + size:
                return
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            header, _ = decode_request_header(frame)
            if header.api_key in _CONTROL:
                self._came.append((time.monotonic(), self._broker_id, frame))
            answer = encode_response_frame(header.correlation_id, _ANSWERS[header.api_key], header.api_version)
            self._transport.write(b"".join(answer))


def _summary(came: Sequence[tuple[float, int, bytes]]) -> list[dict[str, Any]]:
    return [_described(at, broker_id, frame) for at, broker_id, frame in came]


def _described(at: float, broker_id: int, frame: bytes) -> dict[str, Any]:
    header, body = decode_request_header(frame)
    partitions = 0
    if header.api_key in (4, 6):
        kind: type[Message] = LeaderAndIsrRequest if header.api_key == 4 else UpdateMetadataRequest
        message: Any = decode(kind, header.api_version, frame, body)[0]
        partitions = sum(len(topic.partition_states) for topic in message.topic_states)
    return {"at": at, "broker": broker_id, "key": header.api_key, "partitions": partitions, "bytes": len(frame)}


async def _serve(zookeeper: str, ids: Sequence[int]) -> None:
    loop = asyncio.get_running_loop()
    came: list[tuple[float, int, bytes]] = []
    sessions = {}
    for broker_id in ids:
        server = await loop.create_server(lambda b=broker_id: _Connection(b, came), LOOPBACK, 0)  # type: ignore[misc]
        port = server.sockets[0].getsockname()[1]
        broker = BrokerEndPoints(broker_id, (EndPoint("PLAINTEXT", LOOPBACK, port),))
        sessions[broker_id] = await ZkSession(zookeeper, 30_000).start(30_000)
        await register_ephemeral(sessions[broker_id], paths.broker_path(broker_id), encode_broker(broker, 0))
    print("READY", flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        if line[0] == "leave":
            await sessions.pop(int(line[1])).close()
            print("LEFT", flush=True)
        elif line[0] == "report":
            print(json.dumps(_summary(came)), flush=True)
            came.clear()
    for session in sessions.values():
        await session.close()


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    broker: int
    key: int
    partitions: int
    bytes: int


class StubBrokers:
    """The process, from outside."""

    def __init__(self, zookeeper: str, ids: Sequence[int]) -> None:
        command = [sys.executable, "-m", "bench.control_plane.stub_brokers", zookeeper, *map(str, ids)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._expect("READY")

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the brokers that only answer ended with code {self._process.wait()}")
        return line

    def _expect(self, word: str) -> None:
        line = self._line()
        assert line.strip() == word, line

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def leave(self, broker_id: int) -> None:
        """Ends the broker's session: its registration goes at once."""
        self._say(f"leave {broker_id}")
        self._expect("LEFT")

    def report(self) -> list[Arrival]:
        """The control requests that came since the last report."""
        self._say("report")
        return [Arrival(**fields) for fields in json.loads(self._line())]

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], [int(text) for text in sys.argv[2:]]))
