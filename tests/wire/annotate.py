"""Writes a frame as hex digits with a comment for every field, as the golden files have it.

    python -m tests.wire.annotate fetch 12 request < frame.hex > tests/wire/fetch_v12_request.hex

The file's test annotates the bytes again and compares, so the comments are checked and not only decoration.
"""

from __future__ import annotations

import sys
import textwrap
import typing
from itertools import pairwise
from typing import Annotated, Any

from klamm.protocol.frames import request_header_version, response_header_version
from klamm.protocol.messages import BY_KEY, MODULES
from klamm.protocol.wire import Kind, Message
from tests.wire.reference import Reader, element_of, present, struct_of

WIDTH = 64
LONGEST_VALUE = 80


class Annotator(Reader):
    """A slow reader that notes which bytes each field was read from."""

    def __init__(self, buf: bytes, version: int) -> None:
        super().__init__(buf, version, flexible=False)
        self.lines: list[str] = []
        self.noted = 0

    def note(self, comment: str, *cuts: int) -> None:
        """Write the bytes read since the last note, with spaces at the given positions."""
        edges = [self.noted, *(cut for cut in cuts if self.noted < cut < self.pos), self.pos]
        *heads, last = (self.buf[a:b].hex() for a, b in pairwise(edges))
        rows = textwrap.wrap(last, WIDTH) or [""]
        self.lines.append(f"{' '.join([*heads, rows[0]]):<20}  # {comment}")
        self.lines += rows[1:]
        self.noted = self.pos

    def field(self, path: str, value: Any, *cuts: int) -> None:
        text = f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)
        self.note(f"{path} = {text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + ' ...'}", *cuts)

    def annotate_struct(self, cls: Any, path: str) -> None:
        prefix = f"{path}." if path else ""
        tagged = {}
        for name, hint, versions, _ in present(cls, self.version):
            if versions.tag is None:
                self.annotate(hint, prefix + name)
            else:
                tagged[versions.tag] = (prefix + name, hint)
        if self.flexible:
            self.annotate_tags(path, tagged)

    def annotate_tags(self, path: str, tagged: dict[int, tuple[str, Any]]) -> None:
        count = self.uvarint()
        self.note(f"{path or 'message'}: {count} tagged fields")
        for _ in range(count):
            tag, size = self.uvarint(), self.uvarint()
            self.note(f"tag {tag}, {size} bytes")
            if tag in tagged:
                name, hint = tagged[tag]
                self.annotate(struct_of(hint) or hint, name)
            else:
                self.take(size)
                self.note("unknown")

    def annotate(self, hint: Any, path: str) -> None:
        inner = struct_of(hint) if typing.get_origin(hint) is not Annotated else None
        if inner is not None and isinstance(hint, type):
            self.annotate_struct(inner, path)
            return
        base, kind = typing.get_args(hint)
        if kind.name != "array":
            start = self.pos
            value = self.value(hint, None)
            self.field(path, value, *self.cuts(kind, value, start))
            return
        count = self.length("i")
        self.note(f"{path}: {'null' if count is None else count}")
        for index in range(count or 0):
            self.annotate(element_of(base), f"{path}[{index}]")

    def cuts(self, kind: Kind, value: Any, start: int) -> tuple[int, ...]:
        """Where a length ends and its contents begin."""
        if kind.code or value is None:
            return ()
        contents = value.encode() if isinstance(value, str) else value
        return (max(start, self.pos - len(contents)),)


def annotate_frame(key: int, version: int, direction: str, frame: bytes) -> list[str]:
    """The lines of a golden file for one frame, its size included."""
    notes = Annotator(frame, version)
    notes.field("size", notes.fixed("i"))
    if direction == "request":
        header = request_header_version(key, version)
        notes.field("api_key", notes.fixed("h"))
        notes.field("api_version", notes.fixed("h"))
        notes.field("correlation_id", notes.fixed("i"))
        if header:
            length = notes.fixed("h")
            notes.field("client_id", notes.take(length).decode() if length >= 0 else None, notes.noted + 2)
    else:
        header = response_header_version(key, version) + 1
        notes.field("correlation_id", notes.fixed("i"))
    if header == 2:
        notes.annotate_tags("header", {})
    cls: type[Message] = BY_KEY[key][direction == "response"]
    notes.flexible = version >= cls.FLEXIBLE
    notes.annotate_struct(cls, "")
    assert notes.pos == len(frame)
    return notes.lines


def key_of(api: str) -> int:
    """The key of an API by the name of its module."""
    return next(key for key, (module, _) in MODULES.items() if module == api)


if __name__ == "__main__":
    wanted_api, wanted_version, wanted_direction = sys.argv[1:4]
    raw = bytes.fromhex("".join(line.partition("#")[0] for line in sys.stdin))
    print("\n".join(annotate_frame(key_of(wanted_api), int(wanted_version), wanted_direction, raw)))
