"""Retention: deletes the oldest segments of a log, by the log start offset, by size and by age."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.segment import LogSegment
from klamm.log.segments import LogSegments

MAX_DELETED: Final = 2
"""Segments of a log that are deleted without giving the loop back: each costs about half a millisecond."""
RetentionRule: TypeAlias = Callable[[LogSegment, int], bool]
"""Whether a segment is too old, given the segment and the base offset of the following one."""


def delete_old_segments(log: Log, now_ms: int) -> int:
    """Delete segments that neither retention nor the log start offset keeps; return how many.

    Deletes at most `MAX_DELETED` segments. The caller repeats the call until it returns 0.
    """
    unopened = log.unopened
    if unopened is not None and not unopened.may_have_old_segments(log.log_start_offset, log.config, now_ms):
        return 0
    deleted = log.disk.run("deleting old segments of", lambda: _delete(log, now_ms))
    return 0 if isinstance(deleted, ErrorCode) else deleted


def _delete(log: Log, now_ms: int) -> int:
    for rule in _rules(log.segments, log.config, log.log_start_offset, now_ms):
        segments = _deletable(log.segments, rule, log.high_watermark, log.log_end_offset)
        if segments:
            log.delete_oldest(segments)
            return len(segments)
    return 0


def _rules(segments: LogSegments, config: LogConfig, log_start_offset: int, now_ms: int) -> Iterator[RetentionRule]:
    """Yield the rules. A rule is applied when the earlier ones find no segment."""
    yield lambda segment, following: following <= log_start_offset
    if not config.is_deleted:
        return
    if config.retention_bytes >= 0:
        yield _beyond_size(segments.size_bytes - config.retention_bytes)
    if config.retention_ms >= 0:
        limit_ms = now_ms - config.retention_ms
        yield lambda segment, following: segment.largest_timestamp() < limit_ms


def _beyond_size(excess: int) -> RetentionRule:
    def is_excess(segment: LogSegment, following: int) -> bool:
        nonlocal excess
        excess -= segment.size_bytes
        return excess >= 0

    return is_excess


def _deletable(
    segments: LogSegments, rule: RetentionRule, high_watermark: int, log_end_offset: int
) -> list[LogSegment]:
    """Return the oldest segments, at most `MAX_DELETED`, that fall under the rule and are replicated completely."""
    bases = segments.base_offsets
    found: list[LogSegment] = []
    for segment, following in islice(zip(segments, [*bases[1:], log_end_offset], strict=True), MAX_DELETED):
        is_active = segment is segments.active
        if (is_active and segment.size_bytes == 0) or high_watermark < following:
            break
        # An active segment has no following one yet: the log start offset never deletes it.
        if not rule(segment, log_end_offset + 1 if is_active else following):
            break
        found.append(segment)
    return found
