"""The little that a coordinator reads of a consumer's opaque metadata: the topics it subscribes to.

A subscription starts, in every version, with int16 version and an array of topic names. Members of other protocol
types (Connect, Schema Registry) are never looked into.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PROTOCOL_TYPE: Final = "consumer"


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The union of all members' topics, or None when one of the subscriptions cannot be read."""
    topics: set[str] = set()
    for subscription in subscriptions:
        names = _topics(subscription)
        if names is None:
            return None
        topics.update(names)
    return frozenset(topics)


def _topics(subscription: bytes) -> list[str] | None:
    if len(subscription) < 6 or int.from_bytes(subscription[:2], "big", signed=True) < 0:
        return None
    count = int.from_bytes(subscription[2:6], "big", signed=True)
    position = 6
    names = []
    for _ in range(count):
        end = position + 2
        size = int.from_bytes(subscription[position:end], "big", signed=True)
        if end > len(subscription) or size < 0 or end + size > len(subscription):
            return None
        try:
            names.append(subscription[end : end + size].decode())
        except UnicodeDecodeError:
            return None
        position = end + size
    return names
