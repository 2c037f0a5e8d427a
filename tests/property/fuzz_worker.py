"""Damages valid frames and decodes them, in a process of its own whose memory has a ceiling.

    python -m tests.property.fuzz_worker SEED FRAMES

Every frame goes through the header and the body of its API; every sixteenth also arrives in pieces. Anything but a
message or a ProtocolError is a failure and ends the process with the frame that did it. Prints what it counted.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from pathlib import Path
from random import Random

from klamm.errors import ProtocolError
from klamm.protocol.frames import FrameReader, RequestHeader, decode_request_header, decode_response_header
from klamm.protocol.messages import BY_KEY
from klamm.protocol.wire import decode
from tests.support.frames import encode_request_frame, encode_response_frame
from tests.wire.samples import random_message

CEILING_BYTES = 512 * 1024 * 1024
MAX_FRAME_BYTES = 1024 * 1024
CORPUS = Path(__file__).with_name("fuzz_corpus.txt")
INTERESTING = bytes((0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
WORDS = tuple(struct.pack(">i", n) for n in (-1, 0, 1, 255, 65535, 1 << 20, 1 << 24, 2**31 - 1, -(2**31)))
LONG_VARINTS = (
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x08",
    b"\xff\xff\xff\xff\xff\x01",
    b"\x80\x01",
    b"\xff\xff\x7f",
)

Subject = tuple[int, int, bool, bytes]
"""API key, version, whether it is a response, and a frame."""


def valid_frames(rng: Random) -> list[Subject]:
    """A valid frame of every key, version and direction."""
    frames = []
    for key, (request, response) in BY_KEY.items():
        for version in request.VERSIONS:
            sent = encode_request_frame(
                RequestHeader(key, version, rng.getrandbits(31), rng.choice((None, "", "client"))),
                random_message(request, version, rng, spread=2),
            )
            answered = encode_response_frame(1, random_message(response, version, rng, spread=2), version)
            frames += [(key, version, False, b"".join(sent)), (key, version, True, b"".join(answered))]
    return frames


def kept_frames() -> list[Subject]:
    """The frames of the corpus: key, version, direction and the hex digits of the frame without its size."""
    subjects = []
    for line in CORPUS.read_text().splitlines():
        text = line.partition("#")[0].split()
        if text:
            body = bytes.fromhex("".join(text[3:]))
            subjects.append((int(text[0]), int(text[1]), text[2] == "response", struct.pack(">i", len(body)) + body))
    return subjects


def damage(frame: bytes, rng: Random, others: list[Subject]) -> bytes:
    """A frame with one to four wounds, behind its size."""
    data = bytearray(frame)
    bits = rng.getrandbits(2)
    for _ in range(bits + 1):
        room = len(data) - 4
        if room <= 0:
            break
        dice = rng.getrandbits(40)
        pos = 4 + (dice >> 8) % room
        match dice & 15:
            case 0 | 1 | 2 | 3:
                data[pos] = INTERESTING[(dice >> 4 & 15) % len(INTERESTING)]
            case 4 | 5 | 6:
                data[pos] = dice >> 32
            case 7 | 8:
                data[pos] ^= 1 << (dice >> 4 & 7)
            case 9 | 10:
                data[pos : pos + 4] = WORDS[(dice >> 4 & 15) % len(WORDS)]
            case 11:
                data[pos : pos + 1] = LONG_VARINTS[(dice >> 4 & 15) % len(LONG_VARINTS)]
            case 12:
                del data[pos:]
            case 13:
                del data[pos : pos + (dice >> 32) % 16]
            case 14:
                data[pos:pos] = data[4 : 4 + (dice >> 32) % 64]
            case _:
                other = others[dice % len(others)][3]
                data[pos:] = other[4 + pos % max(1, len(other) - 4) :]
    return bytes(data)


def read(subject: Subject, body: bytes) -> bool:
    """Whether the bytes are a message after all."""
    key, version, is_response, _ = subject
    try:
        if is_response:
            _, pos = decode_response_header(key, version, body)
            decode(BY_KEY[key][1], version, body, pos)
        else:
            header, pos = decode_request_header(body)
            pair = BY_KEY.get(header.api_key)
            if pair is None:
                return False
            decode(pair[0], header.api_version, body, pos)
    except ProtocolError:
        return False
    return True


def read_in_pieces(subject: Subject, frame: bytes, rng: Random) -> None:
    """The frame as a stream with its damaged size, in pieces of random length."""
    reader = FrameReader(MAX_FRAME_BYTES)
    step = 1 + rng.getrandbits(6)
    try:
        for pos in range(0, len(frame), step):
            for body in reader.receive(frame[pos : pos + step]):
                read(subject, bytes(body))
    except ProtocolError:
        return


def run(seed: int, count: int) -> dict[str, int]:
    rng = Random(seed)
    subjects = kept_frames() + valid_frames(rng)
    accepted = 0
    for subject in kept_frames():
        read(subject, subject[3][4:])
    for n in range(count):
        subject = subjects[n % len(subjects)]
        frame = damage(subject[3], rng, subjects)
        try:
            accepted += read(subject, frame[4:])
            if n % 16 == 0:
                read_in_pieces(subject, rng.choice((WORDS[n % len(WORDS)], frame[:4])) + frame[4:], rng)
        except Exception:
            print(f"seed {seed}, frame {n}: {subject[0]} {subject[1]} {subject[2]} {frame[4:].hex()}", file=sys.stderr)
            raise
    return {"frames": count, "accepted": accepted, "subjects": len(subjects), "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """The most memory this program held; rusage would also count what its parent held when it was forked."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (CEILING_BYTES, CEILING_BYTES))
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
