"""One producer in the state of a log: its epochs, its open transaction, and its last batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.model import ConnectionOrder
from klamm.protocol.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, RecordBatch

NUM_BATCHES_TO_RETAIN: Final = 5
NO_COORDINATOR_EPOCH: Final = -1
MAX_SEQUENCE: Final = 0x7FFFFFFF


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + MAX_SEQUENCE + 1


@dataclass(slots=True)
class ProducerStateEntry:
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int | None = None
    batches: tuple[BatchMetadata, ...] = ()
    aborted_after: ConnectionOrder = 0
    """The youngest connection of the broker when the last transaction of this epoch was aborted here."""

    def copied(self) -> ProducerStateEntry:
        return ProducerStateEntry(
            self.producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.current_txn_first_offset,
            self.batches,
            self.aborted_after,
        )

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        if batch.producer_epoch != self.producer_epoch:
            return None
        first, last = batch.base_sequence, batch.last_sequence
        for known in self.batches:
            if known.last_sequence == last and known.first_sequence == first:
                return known
        return None

    def use_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches = ()
            self.aborted_after = 0
