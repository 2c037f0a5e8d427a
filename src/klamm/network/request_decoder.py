"""RequestDecoder: decode header and body of one connection's requests when a handler takes them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from klamm.errors import ProtocolError
from klamm.network.api_table import ApiTableEntry
from klamm.protocol.chunked import Held
from klamm.protocol.frames import Frame, decode_request_header
from klamm.protocol.runtime import skip_tagged_fields_in_slices
from klamm.protocol.wire import Message, decode, decode_in_slices

_CLIENT_ID_AT: Final = 8
"""Where the client id begins in a frame, with its length; without one, the body."""


class RequestDecoder:
    """Caches the client id of the last request: a client sends the same one each time."""

    __slots__ = ("_client_id", "_client_id_bytes", "_client_id_end")

    def __init__(self) -> None:
        self._client_id_bytes: bytes = b"none"
        """The length and the bytes of the client id, as in the frame."""
        self._client_id_end: int = _CLIENT_ID_AT
        self._client_id: str | None = None

    def decode(self, api: ApiTableEntry, frame: Frame) -> tuple[str | None, Message]:
        """Return client id and message of a small request. Raises ProtocolError only."""
        pos = self._client_id_end
        if not api.has_client_id:
            return None, decode(api.request, api.version, frame, _CLIENT_ID_AT)[0]
        if frame[_CLIENT_ID_AT:pos] != self._client_id_bytes:
            client_id, pos = self._read_client_id(frame)
            return client_id, decode(api.request, api.version, frame, pos)[0]
        if api.is_request_flexible:
            if frame[pos : pos + 1] != b"\0":
                client_id, pos = self._read_client_id(frame)
                return client_id, decode(api.request, api.version, frame, pos)[0]
            pos += 1
        return self._client_id, decode(api.request, api.version, frame, pos)[0]

    def decode_in_slices(
        self, api: ApiTableEntry, frame: Frame, held: Held
    ) -> Generator[None, None, tuple[str | None, Message]]:
        """Return client id and message of a large request, and its lists in `held`. Raises ProtocolError only."""
        client_id, pos = (yield from self._read_header(frame, api)) if api.has_client_id else (None, _CLIENT_ID_AT)
        message, _ = yield from decode_in_slices(api.request, api.version, frame, pos, held)
        return client_id, message

    def _read_client_id(self, frame: Frame) -> tuple[str | None, int]:
        """Return the client id and the position of the body."""
        header, pos = decode_request_header(frame)
        end = _client_id_end(frame)
        self._client_id, self._client_id_bytes, self._client_id_end = header.client_id, bytes(frame[8:end]), end
        return header.client_id, pos

    def _read_header(self, frame: Frame, api: ApiTableEntry) -> Generator[None, None, tuple[str | None, int]]:
        """Like `_read_client_id`, in slices if there are very many tagged fields."""
        end = _client_id_end(frame)
        if frame[_CLIENT_ID_AT:end] == self._client_id_bytes:
            if not api.is_request_flexible:
                return self._client_id, end
            if frame[end : end + 1] == b"\0":
                return self._client_id, end + 1
        if not api.is_request_flexible or end >= len(frame) or frame[end] < 0x80:
            return self._read_client_id(frame)
        header, _ = decode_request_header(frame[:end] + b"\0")
        try:
            return header.client_id, (yield from skip_tagged_fields_in_slices(frame, end + 1, frame[end]))
        except IndexError as cause:
            raise ProtocolError(f"the request header is malformed: {cause}") from cause


def _client_id_end(frame: Frame) -> int:
    return 10 + max(0, int.from_bytes(frame[8:10], "big", signed=True))
