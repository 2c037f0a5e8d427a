"""RequestDecoder: decode header and body of one connection's requests when a handler takes them."""

from __future__ import annotations

from collections.abc import Generator

from klamm.network.api_table import VersionedApi
from klamm.protocol.frames import Frame, decode_request_header
from klamm.protocol.wire import Message, decode, decode_in_slices


class RequestDecoder:
    """Caches the client id of the last request: a client sends the same one each time."""

    __slots__ = ("_client_id", "_client_id_bytes")

    def __init__(self) -> None:
        self._client_id_bytes: bytes = b""
        self._client_id: str | None = ""

    def decode(self, api: VersionedApi, frame: Frame) -> tuple[str | None, Message]:
        """Return client id and message of a small request. Raises ProtocolError only."""
        client_id, pos = self._read_client_id(frame, api) if api.has_client_id else (None, 8)
        return client_id, decode(api.request, api.version, frame, pos)[0]

    def decode_in_slices(self, api: VersionedApi, frame: Frame) -> Generator[None, None, tuple[str | None, Message]]:
        """Return client id and message of a large request. Raises ProtocolError only."""
        client_id, pos = self._read_client_id(frame, api) if api.has_client_id else (None, 8)
        message, _ = yield from decode_in_slices(api.request, api.version, frame, pos)
        return client_id, message

    def _read_client_id(self, frame: Frame, api: VersionedApi) -> tuple[str | None, int]:
        """Return the client id and the position of the body."""
        length = frame[8] << 8 | frame[9] if frame[8] < 0x80 else -1
        end = 10 + length
        raw = frame[10:end]
        if raw == self._client_id_bytes and length == len(raw) and end < len(frame):
            if not api.is_request_flexible:
                return self._client_id, end
            if frame[end] == 0:
                return self._client_id, end + 1
        header, pos = decode_request_header(frame)
        self._client_id_bytes, self._client_id = bytes(raw), header.client_id
        return header.client_id, pos
