"""Rebuilds producer state from the newest snapshot and the batches after it."""

from __future__ import annotations

import logging

from klamm.errors import ProtocolError
from klamm.log.producer_snapshots import ProducerSnapshots
from klamm.log.producer_state import ProducerStateManager
from klamm.log.segments import LogSegments

_log = logging.getLogger(__name__)


def rebuild_producers(
    producers: ProducerStateManager,
    snapshots: ProducerSnapshots,
    segments: LogSegments,
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
    high_watermark: int | None,
    recovered_from: int | None = None,
) -> None:
    """Set `producers` to the state at `log_end_offset`. They remember the changes above the high watermark, if known.

    `recovered_from`: segments from that base offset on were recovered. Their transaction indexes are written again, and
    their snapshots are not trusted.
    """
    rewritten = [s for s in segments if recovered_from is not None and s.base_offset >= recovered_from]
    for segment in rewritten:
        segment.txn_index.reset()
    snapshots.remove_above(log_end_offset if recovered_from is None else min(recovered_from, log_end_offset))
    snapshot = snapshots.load_latest(log_end_offset)
    if snapshot is not None:
        start, entries = snapshot
        producers.load(entries, start, now_ms)
    else:
        start = log_start_offset
        producers.clear(start)
    if start >= log_end_offset:
        return
    recent = segments.base_offsets[-2:]
    for segment in segments.between(start, log_end_offset):
        if segment.base_offset > start and segment.base_offset in recent:
            snapshots.write(segment.base_offset, producers.entries.values())
        try:
            for batch in segment.batches_from(max(start, segment.base_offset)):
                if batch.base_offset >= log_end_offset:
                    return
                aborted = producers.update(batch, high_watermark=high_watermark) if batch.producer_id >= 0 else None
                if aborted is not None and segment in rewritten:
                    segment.txn_index.append(aborted)
        except ProtocolError as e:
            _log.error("%s cannot be read to its end; its producers are unknown: %s", segment, e)
