"""Frames and headers: cut the same however the bytes arrive, bounded whatever the peer announces."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from mmap import mmap
from random import Random

import pytest

from klamm.errors import ProtocolError
from klamm.protocol.chunked import FREED_BYTES, release
from klamm.protocol.frames import (
    FIRST_BYTES,
    GROWTH_BYTES,
    MAPPED_BYTES,
    Frame,
    FrameReader,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    prepend_response_header,
    response_header_version,
)
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.wire import BytesLike, decode
from tests.support.frames import encode_request_frame, encode_response_frame

MAX_BYTES = 100 * 1024 * 1024


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def bodies(rng: Random) -> list[bytes]:
    sizes = [
        0,
        1,
        3,
        4,
        100,
        5000,
        32 * 1024,
        32 * 1024 + 1,
        64 * 1024,
        70_000,
        300_000,
        1_100_000,
        MAPPED_BYTES + 1,
        7,
    ]
    rng.shuffle(sizes)
    return [rng.randbytes(size) for size in sizes]


@pytest.mark.parametrize("seed", range(8))
def test_any_fragmentation_gives_the_same_frames(seed: int) -> None:
    rng = Random(seed)
    expected = bodies(rng)
    stream = b"".join(map(framed, expected))
    reader = FrameReader(MAX_BYTES)
    got: list[Frame] = []
    pos = 0
    while pos < len(stream):
        step = rng.choice((1, 2, 3, 5, 1000, 40_000, 65_536, 400_000))
        got += reader.receive(stream[pos : pos + step])
        pos += step
    assert [bytes(frame) for frame in got] == expected
    assert reader.pending_bytes == 0


def test_byte_by_byte() -> None:
    reader = FrameReader(MAX_BYTES)
    got = [frame for byte in framed(b"abc") + framed(b"") + framed(b"d") for frame in reader.receive(bytes((byte,)))]
    assert got == [b"abc", b"", b"d"]


def test_readers_of_one_loop_share_their_scratch() -> None:
    scratch = bytearray(4096)
    first, second = FrameReader(MAX_BYTES, scratch), FrameReader(MAX_BYTES, scratch)
    one, two = framed(b"1" * 1500) + framed(b"x" * 3000), framed(b"2" * 1500) + framed(b"y" * 3000)
    got: tuple[list[Frame], list[Frame]] = ([], [])
    for pos in range(0, len(one), 700):
        got[0].extend(first.receive(one[pos : pos + 700]))
        got[1].extend(second.receive(two[pos : pos + 700]))
    assert got[0] == [b"1" * 1500, b"x" * 3000]
    assert got[1] == [b"2" * 1500, b"y" * 3000]


def test_frames_own_their_memory() -> None:
    reader = FrameReader(MAX_BYTES)
    (small,) = reader.receive(framed(b"a" * 10))
    (large,) = reader.receive(framed(b"b" * 100_000))
    reader.receive(framed(b"c" * 10) + framed(b"d" * 100_000))
    assert small == b"a" * 10
    assert large == b"b" * 100_000


def test_a_large_frame_arrives_in_the_object_that_is_handed_out() -> None:
    reader = FrameReader(MAX_BYTES)
    reader.receive(struct.pack(">i", 200_000))
    with reader.get_buffer() as view:
        landing = view.obj
        view[:200_000] = b"z" * 200_000
    (frame,) = reader.buffer_updated(200_000)
    assert frame is landing


def test_a_view_that_is_still_held_does_not_stop_growth() -> None:
    reader = FrameReader(MAX_BYTES)
    size = 3 * FIRST_BYTES
    reader.receive(struct.pack(">i", size))
    held = []
    frames: list[Frame] = []
    while not frames:
        view = reader.get_buffer()
        held.append(view)
        view[:] = b"q" * len(view)
        frames = reader.buffer_updated(len(view))
    assert frames == [b"q" * size]


def test_a_very_large_frame_has_pages_of_its_own_that_are_freed_in_steps() -> None:
    body = Random(1).randbytes(MAPPED_BYTES + 3 * FREED_BYTES)
    (frame,) = FrameReader(MAX_BYTES).receive(framed(body))
    assert isinstance(frame, mmap)
    assert frame[:] == body
    with memoryview(frame)[-5:] as kept:
        list(release([frame]))
        assert bytes(kept) == body[-5:], "pages in use are not freed"
    sizes = [len(frame) for _ in release([frame])]
    assert [before - after for before, after in itertools.pairwise(sizes)][:2] == [FREED_BYTES] * 2
    assert frame[:] == body[: len(frame)]


def test_memory_is_counted_as_the_bytes_of_a_very_large_frame_arrive() -> None:
    reader = FrameReader(MAX_BYTES)
    reader.receive(struct.pack(">i", MAX_BYTES) + b"x" * 100)
    assert reader.large_bytes == GROWTH_BYTES
    reader.receive(bytes(3 * GROWTH_BYTES))
    assert reader.large_bytes == 4 * GROWTH_BYTES
    assert len(reader.get_buffer()) == GROWTH_BYTES
    assert len(reader.discard()) == MAX_BYTES
    assert reader.large_bytes == 0


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_an_impossible_size_is_refused_before_anything_is_reserved(size: int) -> None:
    reader = FrameReader(1000)
    with pytest.raises(ProtocolError, match=str(size)):
        reader.receive(struct.pack(">i", size))


def test_an_announced_size_alone_reserves_little() -> None:
    reader = FrameReader(MAX_BYTES)
    tracemalloc.start()
    try:
        reader.receive(struct.pack(">i", MAX_BYTES) + b"x" * 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < FIRST_BYTES + 50_000


@pytest.mark.parametrize(
    ("header", "raw"),
    [
        (RequestHeader(7, 0, 5, None), "0007 0000 00000005"),
        (RequestHeader(7, 1, 5, "c"), "0007 0001 00000005 0001 63"),
        (RequestHeader(12, 3, 5, None), "000c 0003 00000005 ffff"),
        (RequestHeader(12, 4, 5, "grüße"), "000c 0004 00000005 0007 6772c3bcc39f65 00"),
        (RequestHeader(18, 3, -1, ""), "0012 0003 ffffffff 0000 00"),
    ],
)
def test_request_headers(header: RequestHeader, raw: str) -> None:
    data = bytes.fromhex(raw)
    assert encode_request_header(header) == data
    assert decode_request_header(data + b"body") == (header, len(data))


def test_a_request_of_controlled_shutdown_v0_has_no_client_id() -> None:
    parts = encode_request_frame(RequestHeader(7, 0, 9), ControlledShutdownRequest(broker_id=3))
    frame = b"".join(parts)
    header, pos = decode_request_header(frame, 4)
    assert header == RequestHeader(7, 0, 9)
    assert decode(ControlledShutdownRequest, 0, frame, pos)[0].broker_id == 3


def test_unknown_tagged_fields_in_headers_are_skipped() -> None:
    raw = bytes.fromhex("000c 0004 00000005 0001 63 02 05 02 aabb 8101 00") + b"body"
    assert decode_request_header(raw) == (RequestHeader(12, 4, 5, "c"), len(raw) - 4)
    assert decode_response_header(12, 4, bytes.fromhex("00000005 01 07 03 010203 ff")) == (5, 10)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "000c",
        "000c 0003 00000005",
        "000c 0003 00000005 0005 61",
        "000c 0003 00000005 0002 c328",
        "000c 0004 00000005 0001 63",
        "000c 0004 00000005 0001 63 ffffffff0f",
        "000c 0004 00000005 0001 63 01 05 ffffffff0f 00",
        "000c 0004 00000005 0001 63 01 05 808080808001 00",
    ],
)
def test_malformed_request_headers(raw: str) -> None:
    with pytest.raises(ProtocolError):
        decode_request_header(bytes.fromhex(raw))


def test_unknown_keys_and_versions_still_have_a_header() -> None:
    raw = bytes.fromhex("03e7 0000 00000005 0001 63 0102")
    assert decode_request_header(raw) == (RequestHeader(999, 0, 5, "c"), 11)
    assert decode_request_header(bytes.fromhex("0012 0063 00000005 0001 63 00"))[0].api_version == 99


def test_api_versions_answers_with_header_0() -> None:
    versions = {(18, 4): 0, (12, 4): 1, (12, 3): 0}
    assert {of: response_header_version(*of) for of in versions} == versions
    heads = {0: "00000005 00000007", 1: "00000006 00000007 00"}
    for version, head in heads.items():
        parts: list[BytesLike] = [b"x"]
        assert prepend_response_header(version, 7, parts) == len(b"".join(parts))
        assert b"".join(parts) == bytes.fromhex(head) + b"x"
    response = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    frame = b"".join(encode_response_frame(7, response, 0))
    assert frame == bytes.fromhex("00000010 00000007 0023 00000001 0012 0000 0004")


def test_frames_are_written_without_copying_large_records() -> None:
    records = bytes(100_000)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])],
    )
    parts = encode_request_frame(RequestHeader(0, 9, 1, "c"), request)
    assert any(part is records for part in parts)
    assert len(parts) == 3
    (frame,) = FrameReader(MAX_BYTES).receive(b"".join(parts))
    header, pos = decode_request_header(frame)
    got, end = decode(ProduceRequest, header.api_version, frame, pos)
    assert end == len(frame)
    view = got.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    assert view == records


def test_heartbeat_frame_is_one_part() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert len(encode_request_frame(RequestHeader(12, 4, 1, "c"), request)) == 1
