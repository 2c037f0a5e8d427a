"""Whole frames of requests and responses. Brokers and clients write header and body apart."""

from __future__ import annotations

from klamm.protocol.frames import (
    STASH_BYTES,
    RequestHeader,
    encode_request_header,
    prepend_response_header,
    response_header_version,
)
from klamm.protocol.wire import BytesLike, Message, encode


def encode_request_frame(header: RequestHeader, message: Message) -> list[BytesLike]:
    """Return a whole request as parts to write: size, header and body."""
    body, encoded = encode(message, header.api_version), encode_request_header(header)
    first = (len(encoded) + sum(map(len, body))).to_bytes(4, "big") + encoded
    if body and len(body[0]) <= STASH_BYTES:
        return [b"".join((first, body[0])), *body[1:]]
    return [first, *body]


def encode_response_frame(correlation_id: int, message: Message, version: int) -> list[BytesLike]:
    """Return a whole response as parts to write: size, header and body."""
    parts = encode(message, version)
    prepend_response_header(response_header_version(message.KEY, version), correlation_id, parts)
    return parts
