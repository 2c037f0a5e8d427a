"""One request, one response, over a blocking socket: what the test cluster asks its brokers."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import TypeVar

from klamm.errors import KlammError, ProtocolError
from klamm.protocol.frames import RequestHeader, decode_response_header, encode_request_frame
from klamm.protocol.wire import Message, decode

R = TypeVar("R", bound=Message)
_CORRELATION_IDS = itertools.count(1)


def send_request(address: tuple[str, int], request: Message, version: int, answer: type[R], timeout_s: float) -> R:
    """Raises OSError when the broker cannot be reached or does not answer in time."""
    with socket.create_connection(address, timeout_s) as connection:
        return exchange(connection, request, version, answer)


def exchange(connection: socket.socket, request: Message, version: int, answer: type[R]) -> R:
    """The same over a connection that has no other request under way.

    Raises KlammError when the answer is none to this request, or not of Kafka's protocol.
    """
    return receive(connection, send(connection, request, version), answer)


def send(connection: socket.socket, request: Message, version: int) -> RequestHeader:
    """What `receive` needs to know of the request that is under way now."""
    header = RequestHeader(request.KEY, version, next(_CORRELATION_IDS), "klamm-testing")
    connection.sendall(b"".join(encode_request_frame(header, request)))
    return header


def receive(connection: socket.socket, header: RequestHeader, answer: type[R]) -> R:
    host, port = connection.getpeername()[:2]
    (size,) = struct.unpack(">i", _read(connection, 4))
    frame = _read(connection, size)
    try:
        correlation_id, position = decode_response_header(header.api_key, header.api_version, frame)
        if correlation_id != header.correlation_id:
            raise KlammError(f"The broker at {host}:{port} answered another request than ours.")
        response, _ = decode(answer, header.api_version, frame, position)
    except ProtocolError as error:
        raise KlammError(f"What answers at {host}:{port} does not speak Kafka's protocol: {error}.") from error
    return response


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        data += part
    return bytes(data)
