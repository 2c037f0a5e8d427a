"""The little that a coordinator reads of a consumer's opaque metadata: the topics it subscribes to.

A subscription starts, in every version, with int16 version and an array of topic names. Members of other protocol
types (Connect, Schema Registry) are never looked into.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final

PROTOCOL_TYPE: Final = "consumer"


TOPICS_PER_SLICE: Final = 1_000


class Subscriptions:
    """The subscriptions of one generation. They are read when their topics are first needed: few groups ever are."""

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
        """The union of all members' topics, or None if one of the subscriptions cannot be read."""
        for _ in self.reading():
            pass
        return self._topics


def _union(subscriptions: Iterable[bytes]) -> Generator[None, None, frozenset[str] | None]:
    topics: set[str] = set()
    for subscription in subscriptions:
        names = yield from _topics(subscription)
        if names is None:
            return None
        topics |= names
    return frozenset(topics)


def _topics(subscription: bytes) -> Generator[None, None, set[str] | None]:
    if len(subscription) < 6 or int.from_bytes(subscription[:2], "big", signed=True) < 0:
        return None
    count = int.from_bytes(subscription[2:6], "big", signed=True)
    position = 6
    names: set[str] = set()
    for number in range(1, count + 1):
        end = position + 2
        size = int.from_bytes(subscription[position:end], "big", signed=True)
        if end > len(subscription) or size < 0 or end + size > len(subscription):
            return None
        try:
            names.add(subscription[end : end + size].decode())
        except UnicodeDecodeError:
            return None
        position = end + size
        if number % TOPICS_PER_SLICE == 0:
            yield
    return names
