"""RequestDecoder: decode header and body of one connection's requests when a handler takes them."""

from __future__ import annotations

from collections.abc import Generator

from klamm.errors import ProtocolError
from klamm.network.api_table import VersionedApi
from klamm.protocol.chunked import Held
from klamm.protocol.frames import Frame, decode_request_header
from klamm.protocol.runtime import skip_tagged_fields_in_slices
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

    def decode_in_slices(
        self, api: VersionedApi, frame: Frame, held: Held
    ) -> Generator[None, None, tuple[str | None, Message]]:
        """Return client id and message of a large request, and its lists in `held`. Raises ProtocolError only."""
        client_id, pos = (yield from self._read_header(frame, api)) if api.has_client_id else (None, 8)
        message, _ = yield from decode_in_slices(api.request, api.version, frame, pos, held)
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

    def _read_header(self, frame: Frame, api: VersionedApi) -> Generator[None, None, tuple[str | None, int]]:
        """Like `_read_client_id`, in slices if there are very many tagged fields."""
        end = 10 + max(0, int.from_bytes(frame[8:10], "big", signed=True))
        if not api.is_request_flexible or end >= len(frame) or frame[end] < 0x80:
            return self._read_client_id(frame, api)
        header, _ = decode_request_header(frame[:end] + b"\0")
        try:
            return header.client_id, (yield from skip_tagged_fields_in_slices(frame, end + 1, frame[end]))
        except IndexError as cause:
            raise ProtocolError(f"the request header is malformed: {cause}") from cause
