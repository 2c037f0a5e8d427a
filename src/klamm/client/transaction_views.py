"""Transactions as values: what coordinators and partition leaders report, and which of them hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from klamm.model import TopicPartition

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
"""States that a coordinator may report for a transactional id."""
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which a transaction has not ended. In the others the start time is that of the last one."""


@dataclass(frozen=True, slots=True)
class Listing:
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Description:
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    """None: no transaction is open."""
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in the log of a partition, whether or not a coordinator knows of it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int

    @property
    def identity(self) -> tuple[int, int]:
        """The producer and the first offset: another transaction in the partition differs in one of them."""
        return self.producer_id, self.start_offset


def hanging(
    candidates: Iterable[OpenTransaction], ids: Mapping[int, str], known: Mapping[str, Description]
) -> list[OpenTransaction]:
    """Return the candidates that no coordinator will end: it does not know the producer, or not the partition.

    `ids` has the transactional ids by producer id, `known` the transactions that the coordinators have.
    """
    found = []
    for candidate in candidates:
        description = known.get(ids.get(candidate.producer_id, ""))
        if description is None or candidate.partition not in description.partitions:
            found.append(candidate)
    return found
