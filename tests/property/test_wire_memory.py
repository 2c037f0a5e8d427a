"""A peer can make a decoder allocate only a bounded amount: the budget of a message, and the budget is honest."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest

from klamm.protocol.messages import BY_KEY
from klamm.protocol.runtime import MEMORY_BUDGET
from klamm.protocol.schema import REFERENCE_COST, Type, cost
from klamm.protocol.wire import Message, decode, encode_bytes
from tests.wire.samples import layout, random_message

ROOT = Path(__file__).parents[2]
LATEST = [(cls, version) for pair in BY_KEY.values() for cls in pair for version in (cls.VERSIONS[0], cls.VERSIONS[-1])]
SLACK_BYTES = 3000
"""The memory of one decode without its elements: the root object and the interpreter's own."""
WIDEST_CHARACTER = 4


def charged(t: Type, value: Any) -> int:
    """The charge to the budget for a value, and the contents of its strings, which the frame's size bounds."""
    if value is None:
        return 0
    if t.element is not None:
        own = len(value) * (cost(t.element) + REFERENCE_COST)
        return own + sum(charged(t.element, item) for item in value)
    if t.struct is not None:
        return sum(charged(s.type, getattr(value, s.name)) for s in t.fields if s.present)
    return WIDEST_CHARACTER * len(value) if isinstance(value, str | bytes) else 0


@pytest.mark.parametrize(("cls", "version"), LATEST, ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_budget_covers_what_is_allocated(cls: type[Message], version: int) -> None:
    message = random_message(cls, version, Random(version), spread=6)
    raw = encode_bytes(message, version)
    decode(cls, version, raw)
    tracemalloc.start()
    try:
        got = decode(cls, version, raw)[0]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= charged(layout(cls, version), got) + SLACK_BYTES


HOSTILE = """
import resource
from klamm.errors import ProtocolError
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.runtime import uvarint
from klamm.protocol.wire import decode

partition = bytes(4 + 4 + 8 + 4 + 8 + 4) + b"\\x00"
topic = b"\\x01" + b"\\x03" + partition * 2 + b"\\x00"
head = bytes(4 + 4 + 4 + 4 + 1 + 4 + 4)
raw = head + uvarint(1_000_001) + topic * 1_000_000
resource.setrlimit(resource.RLIMIT_AS, (CEILING, CEILING))
try:
    decode(FetchRequest, 12, raw)
except ProtocolError as error:
    print(error)
"""


def test_a_frame_of_tiny_elements_stays_under_the_ceiling() -> None:
    """A million topics of two partitions in 70 MB: refused when the budget is spent, before the process has no more."""
    ceiling = 256 * 1024 * 1024 + MEMORY_BUDGET
    code = HOSTILE.replace("CEILING", str(ceiling))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "more than one message may carry" in done.stdout
