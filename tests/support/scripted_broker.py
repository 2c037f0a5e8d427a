"""A broker that answers as scripted: like controllers that move, lag or fall silent, in any order."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import unpack

from klamm.protocol.frames import decode_request_header
from klamm.protocol.messages import request_class
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.wire import Message, decode
from tests.support.frames import encode_response_frame

Answer = Callable[[Message], Message | None]
"""None: the connection is closed, and the answer is lost."""


@contextmanager
def scripted_broker(answer: Answer) -> Iterator[tuple[str, int]]:
    """Where it listens. Connections are served at the same time."""

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while size := stream.read(4):
                frame = stream.read(unpack(">i", size)[0])
                header, position = decode_request_header(frame)
                request, _ = decode(request_class(header.api_key), header.api_version, frame, position)
                reported = answer(request)
                if reported is None:
                    return
                connection.sendall(b"".join(encode_response_frame(header.correlation_id, reported, header.api_version)))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def view(
    brokers: dict[int, tuple[str, int]],
    controller: int,
    replicas: dict[str, tuple[int, ...]],
    isr: tuple[int, ...] = (),
) -> MetadataResponse:
    """Metadata with the replicas of partition 0 of each topic; led by the first in sync, all of them without `isr`."""
    topics = [
        MetadataResponseTopic(
            error_code=0,
            name=name,
            is_internal=False,
            partitions=[
                MetadataResponsePartition(
                    error_code=0,
                    partition_index=0,
                    leader_id=(isr or nodes)[0],
                    leader_epoch=0,
                    replica_nodes=nodes,
                    isr_nodes=isr or nodes,
                )
            ],
        )
        for name, nodes in replicas.items()
    ]
    nodes = [MetadataResponseBroker(node_id=each, host=host, port=port) for each, (host, port) in brokers.items()]
    return MetadataResponse(brokers=nodes, cluster_id="scripted", controller_id=controller, topics=topics)
