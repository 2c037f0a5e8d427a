"""Frames and headers, without I/O: bytes in, whole frames out.

A frame is a four-byte size, followed by that many bytes. `FrameReader` fits `asyncio.BufferedProtocol` (`get_buffer`,
`buffer_updated`) and plain `receive(data)` alike. Small frames are copied out of a scratch buffer that the connections
of a loop may share; the bytes of a large frame are received straight into the object that is handed out. Memory is
never reserved only because the peer announced a size: the buffer of a large frame grows with the received bytes, and
the system gives a very large one its pages when they are written.
"""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct, error
from typing import Final, NamedTuple, NoReturn

from klamm.errors import ProtocolError
from klamm.protocol.messages import MODULES, request_class
from klamm.protocol.runtime import skip_tagged_fields
from klamm.protocol.wire import BytesLike, Received

CONTROLLED_SHUTDOWN: Final = 7
API_VERSIONS: Final = 18
SCRATCH_BYTES: Final = 64 * 1024
STASH_BYTES: Final = 32 * 1024
"""An incomplete frame up to this size is kept as a copy and put back before the next read.

A larger one gets its own buffer.
"""
FIRST_BYTES: Final = 256 * 1024
"""Memory reserved for a large frame before its bytes arrive.

Afterwards the buffer grows fourfold each time it is full, by at most `GROWTH_BYTES`.
"""
GROWTH_BYTES: Final = 1024 * 1024
"""Also the maximum of one read: a page that is written for the first time takes the system up to 2 us."""
MAPPED_BYTES: Final = 4 * 1024 * 1024
"""A larger frame is received into its own pages, which are freed in steps (`chunked.release`)."""

Frame = bytes | bytearray | mmap

REQUEST_HEADER: Final = Struct(">hhih")
"""API key, version, correlation id and the length of the client id. Header version 0 ends before the length."""
_SIZE = Struct(">i")
RESPONSE_HEADERS: Final = (Struct(">ii"), Struct(">iix"))
"""The frame size and the correlation id, by header version. Version 1 ends with an empty section of tagged fields."""
_CORRELATION = Struct(">i")
_TLS_HANDSHAKE: Final = 0x1603
"""The first two bytes of a ClientHello: a record of type 22, with the major version 3."""
_HTTP: Final = frozenset({b"GET ", b"POST", b"HEAD", b"PUT "})


class FrameReader:
    """Cuts a stream into frames of at most `max_bytes`. There is one reader per connection.

    `scratch` may be shared by the readers of one loop: nothing is kept in it between `buffer_updated` and the next
    `get_buffer`.
    """

    def __init__(self, max_bytes: int, scratch: bytearray | None = None) -> None:
        self.max_bytes = max_bytes
        self._scratch = bytearray(SCRATCH_BYTES) if scratch is None else scratch
        self._stash = b""
        self._large: bytearray | mmap | None = None
        self.large_bytes = 0
        """The memory of an incomplete large frame; 0 if there is none."""
        self._large_size = 0
        self._filled = 0

    @property
    def pending_bytes(self) -> int:
        """The number of bytes of an incomplete frame that are held."""
        return self._filled if self._large is not None else len(self._stash)

    @property
    def large_head(self) -> bytes:
        """The first bytes of an incomplete large frame: API key and version."""
        return b"" if self._large is None else bytes(self._large[:4])

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return the memory for the next bytes.

        Call `buffer_updated` before any other reader that shares the scratch buffer.
        """
        large = self._large
        if large is not None:
            if isinstance(large, bytearray) and self._filled == len(large):
                large = self._grown(large)
            return memoryview(large)[self._filled : self._filled + GROWTH_BYTES]
        kept = len(self._stash)
        self._scratch[:kept] = self._stash
        return memoryview(self._scratch)[kept:]

    def buffer_updated(self, nbytes: int) -> list[Frame]:
        """Note that the buffer received `nbytes`; return the complete frames.

        Raises ProtocolError for an invalid size.
        """
        if self._large is not None:
            return self._fill_large(nbytes)
        return self._cut(len(self._stash) + nbytes)

    def receive(self, data: BytesLike) -> list[Frame]:
        """Accept bytes that the caller has received."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest:
            with self.get_buffer() as room:
                taken = min(len(room), len(rest))
                room[:taken] = rest[:taken]
            frames += self.buffer_updated(taken)
            rest = rest[taken:]
        return frames

    def _cut(self, end: int) -> list[Frame]:
        frames: list[Frame] = []
        pos, max_bytes = 0, self.max_bytes
        with memoryview(self._scratch) as view:
            while end - pos >= 4:
                size: int = _SIZE.unpack_from(view, pos)[0]
                if not 0 <= size <= max_bytes:
                    self._refuse_size(size)
                if pos + 4 + size > end:
                    if size > min(STASH_BYTES, len(view) // 2):
                        self._begin_large(size, view[pos + 4 : end])
                        pos = end
                    break
                pos += 4
                frames.append(bytes(view[pos : pos + size]))
                pos += size
            self._stash = bytes(view[pos:end])
        return frames

    def _refuse_size(self, size: int) -> NoReturn:
        if size < 0:
            raise ProtocolError(f"a frame announces the negative size {size}")
        raise ProtocolError(f"a frame announces {size} bytes, {self.max_bytes} are allowed{_hint(size)}")

    def _begin_large(self, size: int, head: memoryview) -> None:
        self._large_size = size
        large: bytearray | mmap | None = _mapped(size) if size > MAPPED_BYTES else None
        if large is None:
            large = bytearray(min(size, max(FIRST_BYTES, len(head) * 2)))
        self._large = large
        self._filled = len(head)
        large[: self._filled] = head
        self._count_large(large)

    def _grown(self, large: bytearray) -> bytearray:
        """Not in `buffer_updated`, where the transport may still hold a view, so that everything would be copied."""
        more = min(self._large_size - len(large), 3 * len(large), GROWTH_BYTES)
        try:
            large.extend(_ZEROS[:more])
        except BufferError:  # the transport still holds the view that get_buffer returned
            large = large + _ZEROS[:more]
        self._large = large
        self._count_large(large)
        return large

    def _count_large(self, large: bytearray | mmap) -> None:
        """Count the memory of the frame. Of a mapped buffer only the pages that were written take memory."""
        used = -(-self._filled // GROWTH_BYTES) * GROWTH_BYTES if isinstance(large, mmap) else len(large)
        self.large_bytes = min(used, len(large))

    def discard(self) -> Frame:
        """Hand out the incomplete frame, to be freed: no more bytes will arrive."""
        rest: Frame = b"" if self._large is None else self._large
        self._large, self.large_bytes, self._stash = None, 0, b""
        return rest

    def _fill_large(self, nbytes: int) -> list[Frame]:
        large = self._large
        assert large is not None
        self._filled += nbytes
        if self._filled < self._large_size:
            if isinstance(large, mmap):
                self._count_large(large)
            return []
        self._large = None
        self.large_bytes = 0
        return [large]


def _hint(size: int) -> str:
    """Name another protocol that the first bytes belong to."""
    if size >> 16 == _TLS_HANDSHAKE:
        return ". It begins a TLS handshake: the listener does not use TLS"
    return ". It sends HTTP" if _SIZE.pack(size) in _HTTP else ""


_ZEROS: Final = memoryview(bytes(GROWTH_BYTES))


def _mapped(size: int) -> mmap | None:
    """Pages that take memory when they are written. None if the system refuses so many."""
    try:
        return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError:
        return None


class RequestHeader(NamedTuple):
    """The header of every request. `client_id` is None when the peer sent none."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether a version of an API has compact types and tagged fields. Unknown APIs have none."""
    return api_key in MODULES and api_version >= request_class(api_key).FLEXIBLE


def request_header_version(api_key: int, api_version: int) -> int:
    if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if is_flexible(api_key, api_version) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """A response to ApiVersions always has header 0, so that a client that does not know the broker can read it."""
    return 1 if api_key != API_VERSIONS and is_flexible(api_key, api_version) else 0


def decode_request_header(buf: Received, pos: int = 0) -> tuple[RequestHeader, int]:
    """Read a request header; return it with the position of the body. Raises ProtocolError only.

    For an unknown key or version, the position is where the body would begin under header 1.
    """
    try:
        return _request_header(buf, pos)
    except (error, IndexError, UnicodeDecodeError) as cause:
        raise ProtocolError(f"the request header is malformed: {cause}") from cause


def _request_header(buf: Received, pos: int) -> tuple[RequestHeader, int]:
    # Header 0 has no client id; the bytes read in its place belong to the body and are not used.
    key, version, correlation_id, length = REQUEST_HEADER.unpack_from(buf, pos)
    header = request_header_version(key, version)
    if header == 0:
        return RequestHeader(key, version, correlation_id), pos + 8
    pos += 10
    client_id = None
    if length >= 0:
        if length > len(buf) - pos:
            raise ProtocolError(f"the client id announces {length} bytes, {len(buf) - pos} remain")
        client_id = str(buf[pos : pos + length], "utf-8")
        pos += length
    if header == 2:
        pos = skip_tagged_fields(buf, pos + 1, buf[pos])
    return RequestHeader(key, version, correlation_id, client_id), pos


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the bytes of a request header, in the header version of its API and version."""
    version = request_header_version(header.api_key, header.api_version)
    client_id = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(client_id)
    raw = REQUEST_HEADER.pack(header.api_key, header.api_version, header.correlation_id, length) + client_id
    return raw[:8] if version == 0 else raw + b"\x00" if version == 2 else raw


def decode_response_header(api_key: int, api_version: int, buf: Received, pos: int = 0) -> tuple[int, int]:
    """Read the correlation id of a response; return it with the position of the body. Raises ProtocolError only."""
    try:
        correlation_id: int = _CORRELATION.unpack_from(buf, pos)[0]
        pos += 4
        if response_header_version(api_key, api_version) == 1:
            pos = skip_tagged_fields(buf, pos + 1, buf[pos])
        return correlation_id, pos
    except (error, IndexError) as cause:
        raise ProtocolError(f"the response header is malformed: {cause}") from cause


def prepend_response_header(header_version: int, correlation_id: int, parts: list[BytesLike]) -> int:
    """Put size and header before an encoded body; return the number of bytes of the frame."""
    size = 4 + header_version + sum(map(len, parts))
    parts.insert(0, RESPONSE_HEADERS[header_version].pack(size, correlation_id))
    return size + 4
