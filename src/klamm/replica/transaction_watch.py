"""Counts producers and late transactions over all partitions in slices, so that no gauge walks the partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from klamm.log.producer_state import LATE_TRANSACTION_BUFFER_MS

if TYPE_CHECKING:
    from klamm.model import TopicPartition
    from klamm.replica.partition import Partition

INTERVAL_MS: Final = 10_000
"""How old the counts may be."""
_SLICE: Final = 50
"""Partitions that are counted before the loop serves others: a third of a millisecond."""


class TransactionWatch:
    """Owner: the ReplicaManager. `look` is called every `INTERVAL_MS`."""

    def __init__(self) -> None:
        self.producer_id_count = 0
        self.late_partitions_count = 0

    def look(self, partitions: Mapping[TopicPartition, Partition], now_ms: int, max_timeout_ms: int) -> Iterator[None]:
        """Count again. A transaction is late if its coordinator should have ended it long ago.

        The coordinator of a hanging transaction no longer knows it: only an operator can end it.
        """
        producer_ids = late_partitions = 0
        late_before_ms = now_ms - max_timeout_ms - LATE_TRANSACTION_BUFFER_MS
        waiting = list(partitions.values())
        if len(waiting) > _SLICE:
            yield  # the list alone takes some tenths of a millisecond
        while waiting:
            for partition in waiting[-_SLICE:]:
                log = partition.log
                if log is None or not log.is_open:  # A log that nobody has used since the start has no transaction.
                    continue
                producer_ids += len(log.producers.entries)
                if partition.is_leader and (oldest_ms := log.producers.oldest_open_timestamp) is not None:
                    late_partitions += oldest_ms < late_before_ms
            del waiting[-_SLICE:]  # freeing all of them at the end would hold the loop
            if waiting:
                yield
        self.producer_id_count = producer_ids
        self.late_partitions_count = late_partitions
