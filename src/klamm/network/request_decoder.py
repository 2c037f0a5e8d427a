"""RequestDecoder: header and body of one connection's requests, decoded when their turn has come."""

from __future__ import annotations

from collections.abc import Generator

from klamm.network.api_table import VersionedApi
from klamm.network.request import Request
from klamm.protocol.frames import Frame, decode_request_header
from klamm.protocol.wire import Message, decode, decode_in_slices


class RequestDecoder:
    """Keeps the client id of the last request."""

    __slots__ = ("_client_id", "_client_id_bytes")

    def __init__(self) -> None:
        self._client_id_bytes: bytes = b""
        self._client_id: str | None = ""

    def decode(self, request: Request) -> Message:
        """The message of a small request. Raises ProtocolError only."""
        api, frame = request.api, request.frame
        request.frame = b""
        request.client_id, pos = self._read_client_id(frame, api) if api.has_client_id else (None, 8)
        return decode(api.request, api.version, frame, pos)[0]

    def decode_in_slices(self, request: Request) -> Generator[None, None, Message]:
        """The message of a large request. Raises ProtocolError only."""
        api, frame = request.api, request.frame
        request.frame = b""
        request.client_id, pos = self._read_client_id(frame, api) if api.has_client_id else (None, 8)
        return (yield from decode_in_slices(api.request, api.version, frame, pos))[0]

    def _read_client_id(self, frame: Frame, api: VersionedApi) -> tuple[str | None, int]:
        """The client id and where the body begins. A client sends the same id each time: it is decoded once."""
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
