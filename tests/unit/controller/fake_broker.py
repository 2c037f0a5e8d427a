"""A broker as the controller's senders meet it: it decodes control requests and answers as the test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Any

from klamm.model import BrokerEndPoints, EndPoint
from klamm.protocol.frames import decode_request_header
from klamm.protocol.messages import request_class
from klamm.protocol.messages import stop_replica as stop
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from klamm.protocol.wire import decode
from tests.support.frames import encode_response_frame

Answer = Callable[[Any], Any]


def success(request: Any) -> Any:
    """The answer of a healthy broker; None closes the connection instead."""
    if isinstance(request, UpdateMetadataRequest):
        return UpdateMetadataResponse(error_code=0)
    if isinstance(request, LeaderAndIsrRequest):
        topics = [
            LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=[
                    LeaderAndIsrPartitionError(partition_index=p.partition_index, error_code=0)
                    for p in topic.partition_states
                ],
            )
            for topic in request.topic_states
        ]
        return LeaderAndIsrResponse(error_code=0, topics=topics)
    errors = [
        stop.StopReplicaPartitionError(topic_name=t.topic_name, partition_index=p.partition_index, error_code=0)
        for t in request.topic_states
        for p in t.partition_states
    ]
    return stop.StopReplicaResponse(error_code=0, partition_errors=errors)


class FakeBroker:
    def __init__(self, broker_id: int, answer: Answer = success, epoch: int = 1) -> None:
        self.id = broker_id
        self.answer = answer
        self.epoch = epoch
        self.requests: list[Any] = []
        self.client_ids: list[str | None] = []
        self.correlation_ids: list[int] = []
        self.changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> FakeBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    @property
    def endpoints(self) -> BrokerEndPoints:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return BrokerEndPoints(self.id, (EndPoint("PLAINTEXT", "127.0.0.1", port),), epoch=self.epoch)

    async def received(self, count: int) -> list[Any]:
        """Waits until at least `count` requests have come."""
        while len(self.requests) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 60)
        return self.requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                header, pos = decode_request_header(frame)
                message, _ = decode(request_class(header.api_key), header.api_version, frame, pos)
                self.requests.append(message)
                self.client_ids.append(header.client_id)
                self.correlation_ids.append(header.correlation_id)
                self.changed.set()
                response = self.answer(message)
                if response is None:
                    break
                for part in encode_response_frame(header.correlation_id, response, header.api_version):
                    writer.write(bytes(part))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
