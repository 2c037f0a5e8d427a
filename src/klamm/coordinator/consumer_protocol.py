"""Reads the subscribed topics from a consumer's opaque metadata.

A subscription starts, in every version, with int16 version and an array of topic names. Metadata of other protocol
types (Connect, Schema Registry) is never parsed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final

PROTOCOL_TYPE: Final = "consumer"
TOPICS_PER_SLICE: Final = 1_000
MAX_TOPICS: Final = 100_000
"""A group with more topics counts as subscribed to every topic: a larger set would hold the loop while it grows."""


class Subscriptions:
    """The subscriptions of one generation. They are parsed when their topics are first needed, which is rare."""

    __slots__ = ("_is_read", "_raw", "_topics")

    def __init__(self, subscriptions: Iterable[bytes]) -> None:
        self._raw = tuple(subscriptions)
        self._is_read = False
        self._topics: frozenset[str] | None = None

    def reading(self) -> Iterator[None]:
        """Read them in slices: 7 MB of names take half a second."""
        if not self._is_read:
            self._topics = yield from _union(self._raw)
            self._is_read, self._raw = True, ()

    @property
    def topics(self) -> frozenset[str] | None:
        """The union of all members' topics, or None if a subscription cannot be read or there are too many topics."""
        for _ in self.reading():
            pass
        return self._topics


def _union(subscriptions: Iterable[bytes]) -> Generator[None, None, frozenset[str] | None]:
    topics: set[str] = set()
    read = 0
    for subscription in subscriptions:
        for name in _names(subscription):
            if name is not None:
                topics.add(name)
            if name is None or len(topics) > MAX_TOPICS:
                return None
            read += 1
            if read % TOPICS_PER_SLICE == 0:
                yield
    return frozenset(topics)


def _names(subscription: bytes) -> Iterator[str | None]:
    """Yield the names of topics, and None where the subscription cannot be read."""
    if len(subscription) < 6 or int.from_bytes(subscription[:2], "big", signed=True) < 0:
        yield None
        return
    position = 6
    for _ in range(int.from_bytes(subscription[2:6], "big", signed=True)):
        end = position + 2
        size = int.from_bytes(subscription[position:end], "big", signed=True)
        position = end + size
        if end > len(subscription) or size < 0 or position > len(subscription):
            yield None
            return
        try:
            yield subscription[end:position].decode()
        except UnicodeDecodeError:
            yield None
            return
