"""Golden frames: bytes that real clients sent, and bytes that independent encoders wrote, field by field.

`<api>_v<n>_<direction>.hex` holds one frame; the lines before the first byte say where it comes from. Each is read
whole and byte by byte, written again identically, and its comments are compared with what the bytes say.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from klamm.protocol.frames import Frame, FrameReader, decode_request_header, decode_response_header
from klamm.protocol.messages import BY_KEY, MODULES
from klamm.protocol.wire import decode
from tests.support.frames import encode_request_frame, encode_response_frame
from tests.wire.annotate import annotate_frame, key_of

FILES = sorted(Path(__file__).parent.glob("*.hex"))
NAME = re.compile(r"(?P<api>\w+)_v(?P<version>\d+)_(?P<direction>request|response)$")


def parse(path: Path) -> tuple[int, int, str, bytes]:
    found = NAME.match(path.stem)
    assert found is not None, path.name
    raw = bytes.fromhex("".join(line.partition("#")[0] for line in path.read_text().splitlines()))
    return key_of(found["api"]), int(found["version"]), found["direction"], raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_read_and_written_again(path: Path) -> None:
    key, version, direction, raw = parse(path)
    (whole,) = FrameReader(len(raw)).receive(raw)
    drip = FrameReader(len(raw))
    pieces: list[Frame] = [frame for byte in raw for frame in drip.receive(bytes((byte,)))]
    assert pieces == [whole] == [raw[4:]]
    if direction == "request":
        header, pos = decode_request_header(whole)
        assert (header.api_key, header.api_version) == (key, version)
        message, end = decode(BY_KEY[key][0], version, whole, pos)
        again = encode_request_frame(header, message)
    else:
        correlation_id, pos = decode_response_header(key, version, whole)
        message, end = decode(BY_KEY[key][1], version, whole, pos)
        again = encode_response_frame(correlation_id, message, version)
    assert end == len(whole)
    assert b"".join(again) == raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_comments_agree_with_the_bytes(path: Path) -> None:
    key, version, direction, raw = parse(path)
    lines = path.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.partition("#")[0].strip())
    assert first > 0, "the first lines say where the bytes come from"
    assert lines[first:] == annotate_frame(key, version, direction, raw)


def test_every_api_has_golden_frames_in_both_directions() -> None:
    have = {(key, direction) for key, _, direction, _ in map(parse, FILES)}
    assert have == {(key, direction) for key in MODULES for direction in ("request", "response")}
