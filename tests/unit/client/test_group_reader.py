"""Assignments of members: bytes that any client may send."""

from __future__ import annotations

import pytest

from klamm.client.group_reader import consumer_assignment
from klamm.model import TopicPartition

ASSIGNED = b"\0\1\0\0\0\2\0\1b\0\0\0\2\0\0\0\7\0\0\0\1\0\2aa\0\0\0\1\0\0\0\0\xff\xff\xff\xff"


def test_an_assignment() -> None:
    assert consumer_assignment(ASSIGNED) == (
        TopicPartition("aa", 0),
        TopicPartition("b", 1),
        TopicPartition("b", 7),
    )
    assert consumer_assignment(b"") == ()


@pytest.mark.parametrize(
    "data",
    [
        *(ASSIGNED[:length] for length in range(1, len(ASSIGNED) - 4)),
        b"\0\1\0\0\0\1\0\1\xff\0\0\0\0",
        b"\0\1\0\0\0\1\xff\xff",
        b"\0\1\0\0\0\1\0\1a\x7f\xff\xff\xff",
        b"\0\1\0\0\0\1\0\1a\xff\xff\xff\xff",
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        consumer_assignment(data)
