"""Filter a Fetch response as consumers with `read_committed` do: keep committed records only."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from klamm.protocol.record_batch import RecordBatch, batches, records
from klamm.sim.transactions.observations import Seen

_ABORT_MARKER: Final = b"\x00\x00\x00\x00"


def is_abort_marker(batch: RecordBatch) -> bool:
    return _marker(batch) == _ABORT_MARKER


def _marker(batch: RecordBatch) -> bytes | None:
    return next((record.key for record in records(batch)), None) if batch.is_control else None


def committed_records(data: bytes, aborted: Iterable[tuple[int, int]], start: int) -> tuple[tuple[Seen, ...], int]:
    """Return the records from offset `start` on that are committed, and the next position.

    `aborted` has the producer id and the first offset of each aborted transaction. A producer's records from that
    offset on are dropped, up to its next abort marker.
    """
    waiting = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    heapq.heapify(waiting)
    dropped: set[int] = set()
    found: list[Seen] = []
    end = start
    for batch in batches(data):
        while waiting and waiting[0][0] <= batch.last_offset:
            dropped.add(heapq.heappop(waiting)[1])
        end = max(end, batch.last_offset + 1)
        if is_abort_marker(batch):
            dropped.discard(batch.producer_id)
        elif not batch.is_control and not (batch.is_transactional and batch.producer_id in dropped):
            found += [Seen(it.offset, it.value or b"") for it in records(batch) if it.offset >= start]
    return tuple(found), end
