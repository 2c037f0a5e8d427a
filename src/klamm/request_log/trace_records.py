"""The record of one traced request. docs/reference/request-log.md shows it as JSON.

It has names, numbers and times only: no records, no keys or values of records, no passwords and no configurations.
Strings that a client chose are cut, and lists are bounded.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.lazy_dataclass import lazy_dataclass

MAX_LISTED: Final = 16
"""Maximum number of partitions, waits and error codes in a record."""
MAX_CHARS: Final = 250
"""Maximum length of a string that a client chose; a valid topic name is shorter."""


class Cause(NamedTuple):
    """A request that ended the wait of another one. `broker_id` is the broker that sent it; None for clients."""

    api: str
    client_id: str | None
    connection_id: str
    correlation_id: int
    broker_id: int | None


class Wait(NamedTuple):
    """A wait in a purgatory.

    `start_ms` counts from the receipt of the request. `outcome`: completed, expired, failed, or waiting if the request
    ended first. `key` is the partition, topic or group whose change completed it. `by` is None if no request did: a
    timer, a follower's own fetcher, the disk.
    """

    purgatory: str
    start_ms: float
    duration_ms: float
    outcome: str
    key: str | None
    by: Cause | None


class Named(NamedTuple):
    """A partition that the request names; -1 stands for a whole topic."""

    topic: str
    partition: int


@lazy_dataclass(frozen=True, slots=True)
class RequestRecord:
    """`at_ms` is the wall clock at the receipt. The phases follow each other and add up to `total_ms`."""

    sequence: int
    at_ms: int
    api: str
    api_version: int
    correlation_id: int
    client_id: str | None
    principal: str
    connection_id: str
    listener: str
    plane: str
    processor: int
    queue_size: int
    control_queue_size: int
    request_bytes: int
    response_bytes: int
    partition_count: int
    partitions: tuple[Named, ...]
    error: str
    errors: tuple[tuple[str, int], ...]
    outcome: str
    total_ms: float
    request_queue_ms: float
    local_ms: float
    remote_ms: float
    response_order_ms: float
    response_queue_ms: float
    send_ms: float
    throttle_ms: float
    waits: tuple[Wait, ...]
