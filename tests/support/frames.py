"""Whole frames of requests and responses. Brokers and clients write header and body apart."""

from __future__ import annotations

from klamm.protocol.frames import (
    RequestHeader,
    encode_request_header,
    framed,
    prepend_response_header,
    response_header_version,
)
from klamm.protocol.wire import BytesLike, Message, encode


def encode_request_frame(header: RequestHeader, message: Message) -> list[BytesLike]:
    """Return a whole request as parts to write: size, header and body."""
    return framed(encode_request_header(header), encode(message, header.api_version))


def encode_response_frame(correlation_id: int, message: Message, version: int) -> list[BytesLike]:
    """Return a whole response as parts to write: size, header and body."""
    parts = encode(message, version)
    prepend_response_header(response_header_version(message.KEY, version), correlation_id, parts)
    return parts
