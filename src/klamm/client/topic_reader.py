"""Reads the values of a topic from its beginning, without a group: nothing is committed and nothing is created.

For topics of moderate size, such as the control log. It blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from klamm.client.client_errors import OffsetOutOfRangeError, RetriableError
from klamm.client.cluster_client import ClusterClient
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import PartitionData
from klamm.protocol.record_batch import batches, records

FETCH_BYTES: Final = 4 * 1024 * 1024


class TopicReader:
    """Knows the next offset of each partition. If records were deleted meanwhile, it continues at the first one."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._next: dict[TopicPartition, int] = {}

    def open(self, last: int | None = None) -> bool:
        """Find the partitions and their first offsets; returns False if the topic does not exist.

        With `last`, begin this many records before the end of each partition.
        """
        found = self._client.topics([self._topic]).get(self._topic)
        if not found:
            return False
        partitions = [TopicPartition(self._topic, number) for number in found]
        self._next = dict(self._client.earliest(partitions))
        if last is not None:
            ends = self._client.latest(partitions)
            self._next = {tp: max(first, ends[tp] - last) for tp, first in self._next.items()}
        return True

    def read(self) -> list[bytes]:
        """Return the next values of every partition: some, or none if nothing arrives for a moment."""
        return [value for tp in list(self._next) for value in self._read(tp)]

    def to_end(self) -> Iterator[bytes]:
        """Yield the values up to the present end of each partition."""
        for tp, end in self._client.latest(list(self._next)).items():
            while self._next[tp] < end:
                yield from self._read(tp)

    def _read(self, tp: TopicPartition) -> list[bytes]:
        def attempt() -> PartitionData:
            pending = self._client.start_fetch(tp, self._next[tp], max_bytes=FETCH_BYTES)
            try:
                return self._client.finish_fetch(pending)
            except OffsetOutOfRangeError:
                self._next[tp] = self._client.earliest([tp])[tp]
                raise RetriableError(f"the records of {tp} were deleted") from None

        part = self._client.retry(f"the records of {tp}", attempt)
        values = []
        data = part.records
        assert not isinstance(data, tuple), "a decoded response has one piece"
        for batch in batches(memoryview(data or b"")):
            for record in () if batch.is_control else records(batch):
                if record.offset >= self._next[tp] and record.value is not None:
                    values.append(bytes(record.value))
            self._next[tp] = max(self._next[tp], batch.next_offset)
        return values
