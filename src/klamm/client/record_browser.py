"""Pages of a topic's records, read without a group: the newest, or from an offset, a time or an earlier page.

Every page is bounded in records, bytes and time. A page names the offsets at which the next one continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from klamm.client.client_errors import ClientError, OffsetOutOfRangeError, RetriableError
from klamm.client.cluster_client import ClusterClient
from klamm.client.patience import RECORD_SEARCH, Deadline
from klamm.client.reset_rules import Bounds
from klamm.client.topic_details import log_bounds, offsets_at, topic_view
from klamm.clock import SystemClock
from klamm.errors import ProtocolError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, batches, records

FETCH_BYTES: Final = 512 * 1024
PAGE_BYTES: Final = 4 * 1024 * 1024
SEARCH_BYTES: Final = 32 * 1024 * 1024
SEARCH_RECORDS: Final = 50_000
_GROWTH, _LARGEST_WINDOW = 8, 4096
_BATCH_BYTES: Final = 16 * 1024 * 1024
"""A batch that is larger when it is decompressed is left out."""


class Start(StrEnum):
    NEWEST = "newest"
    EARLIEST = "earliest"
    OFFSET = "offset"
    TIME = "time"
    NEXT = "next"
    """The offsets of an earlier page."""


@lazy_dataclass(frozen=True, slots=True)
class PageQuery:
    topic: str
    start: Start = Start.NEWEST
    value: int = 0
    """The offset, or the time in milliseconds."""
    partition: int | None = None
    limit: int = 50
    search: str = ""
    """Only records whose key, value or headers contain this text, ignoring case."""
    cursor: Mapping[int, int] | None = None
    """For NEXT the first offsets; for NEWEST the ends, to see older records."""
    skips: bool = False
    """With NEXT: leave out records if there are more than one page of them."""


class BrowsedRecord(NamedTuple):
    partition: int
    record: Record
    is_transactional: bool
    producer_id: int


@lazy_dataclass(frozen=True, slots=True)
class RecordPage:
    records: tuple[BrowsedRecord, ...]
    """The newest first if the query says so, otherwise in the order of their times."""
    next: Mapping[int, int]
    older: Mapping[int, int]
    """The ends of the page before this one, for NEWEST."""
    bounds: Mapping[int, Bounds]
    scanned: int
    is_complete: bool
    """False if a bound ended the search before the end of the log."""
    skipped: int
    problems: tuple[str, ...]


def browse(client: ClusterClient, query: PageQuery) -> RecordPage:
    """Read one page. Raises UnknownTopicError, or ClientError if no broker answers."""
    topic = topic_view(client, query.topic)
    wanted = [tp for tp in topic.partition_ids() if query.partition in (None, tp.partition)]
    if not wanted:
        raise ClientError(f"Topic {query.topic} has no partition {query.partition}.")
    bounds, problems = log_bounds(client, [topic], wanted)
    at_time: Mapping[TopicPartition, int | None] = {}
    if query.start is Start.TIME:
        at_time, more = offsets_at(client, [topic], query.value, bounds.keys())
        problems += [problem for problem in more if problem not in problems]
    spans = {}
    skipped = 0
    for tp, bound in bounds.items():
        span, left_out = _span(query, bound, tp, at_time)
        spans[tp] = span
        skipped += left_out
    return _Reading(client, query, problems).page(spans, bounds, skipped)


def _span(
    query: PageQuery, bound: Bounds, tp: TopicPartition, at_time: Mapping[TopicPartition, int | None]
) -> tuple[Bounds, int]:
    """Return the offsets of one partition that may be read, and how many are skipped."""
    cursor = query.cursor or {}
    first, end = bound
    match query.start:
        case Start.NEWEST:
            end = max(first, min(end, cursor.get(tp.partition, end)))
        case Start.OFFSET:
            first = max(first, query.value)
        case Start.TIME:
            offset = at_time.get(tp)
            first = end if offset is None else max(first, offset)
        case Start.NEXT:
            wanted = max(first, cursor.get(tp.partition, first))
            first = max(wanted, end - query.limit) if query.skips else wanted
            return Bounds(min(first, end), end), max(0, first - wanted)
        case Start.EARLIEST:
            pass
    return Bounds(min(first, end), end), 0


class _Reading:
    """One page while it is read: what was found so far, and what may still be read."""

    def __init__(self, client: ClusterClient, query: PageQuery, problems: list[str]) -> None:
        self._client = client
        self._query = query
        self._problems = problems
        self._needle = query.search.casefold()
        self._bytes_left = SEARCH_BYTES if query.search else PAGE_BYTES
        self._records_left = SEARCH_RECORDS
        self._deadline = Deadline(RECORD_SEARCH, SystemClock())
        self._scanned = 0
        self._is_complete = True
        self._failed: set[TopicPartition] = set()

    def page(
        self, spans: Mapping[TopicPartition, Bounds], bounds: Mapping[TopicPartition, Bounds], skipped: int
    ) -> RecordPage:
        is_newest = self._query.start is Start.NEWEST
        read = self._backward if is_newest else self._forward
        found: list[BrowsedRecord] = []
        reached: dict[int, int] = {}
        for tp, span in spans.items():
            some, reached[tp.partition] = read(tp, span)
            found += some
        found.sort(key=lambda each: (each.record.timestamp, each.partition, each.record.offset), reverse=is_newest)
        shown, left = found[: self._query.limit], found[self._query.limit :]
        for each in left:  # the next page begins with the first record that this one leaves out
            at, offset = reached[each.partition], each.record.offset
            reached[each.partition] = max(at, offset + 1) if is_newest else min(at, offset)
        known = {tp.partition: bound for tp, bound in bounds.items()}
        ends = {tp.partition: span.end for tp, span in spans.items()}
        return RecordPage(
            tuple(shown),
            ends if is_newest else reached,
            reached if is_newest else {},
            known,
            self._scanned,
            self._is_complete,
            skipped,
            tuple(self._problems),
        )

    def _forward(self, tp: TopicPartition, span: Bounds) -> tuple[list[BrowsedRecord], int]:
        """Return the first records that match, and the offset after the last one that was read."""
        found: list[BrowsedRecord] = []
        position = span.first
        for record in self._read(tp, span):
            position = record.record.offset + 1
            if self._matches(record):
                found.append(record)
                if len(found) >= self._query.limit:
                    return found, position
        if position < span.end and (self._is_spent() or tp in self._failed):
            self._is_complete = False
            return found, position
        return found, max(position, span.end)

    def _backward(self, tp: TopicPartition, span: Bounds) -> tuple[list[BrowsedRecord], int]:
        """Return the last records that match, and the offset of the first one that was read.

        Windows before the end grow. A window that could not be read whole is left out: its newer part is missing.
        """
        found: list[BrowsedRecord] = []
        low, size = span.end, 1
        while low > span.first and len(found) < self._query.limit:
            if self._is_spent():
                self._is_complete = False
                break
            window = Bounds(max(span.first, low - size), low)
            some = [record for record in self._read(tp, window) if self._matches(record)]
            if tp in self._failed or (self._is_spent() and size > 1):
                self._is_complete = False
                break
            found = [*some, *found]
            low, size = window.first, min(size * _GROWTH, _LARGEST_WINDOW)
        return found[-self._query.limit :], low

    def _matches(self, found: BrowsedRecord) -> bool:
        self._scanned += 1
        self._records_left -= 1
        return not self._needle or matches(found.record, self._needle)

    def _is_spent(self) -> bool:
        return self._records_left <= 0 or self._bytes_left <= 0 or self._deadline.has_passed

    def _read(self, tp: TopicPartition, span: Bounds) -> Iterator[BrowsedRecord]:
        try:
            yield from self._records(tp, span)
        except (ClientError, RetriableError, OSError) as error:
            self._problems.append(f"{tp}: {error}")
            self._failed.add(tp)

    def _records(self, tp: TopicPartition, span: Bounds) -> Iterator[BrowsedRecord]:
        position = span.first
        while position < span.end and not self._is_spent():
            data = self._fetch(tp, position)
            self._bytes_left -= len(data)
            reached = position
            for batch in batches(data):
                if batch.next_offset <= position:
                    continue
                reached = batch.next_offset
                if not batch.is_control:
                    try:
                        inside = list(records(batch, _BATCH_BYTES))
                    except ProtocolError as error:
                        self._problems.append(f"{tp}, offsets {batch.base_offset} to {batch.last_offset}: {error}")
                        continue
                    for record in inside:
                        if position <= record.offset < span.end:
                            yield BrowsedRecord(tp.partition, record, batch.is_transactional, batch.producer_id)
            if reached == position:
                return
            position = reached

    def _fetch(self, tp: TopicPartition, offset: int) -> memoryview:
        def attempt() -> memoryview:
            pending = self._client.start_fetch(tp, offset, max_bytes=FETCH_BYTES)
            try:
                data = self._client.finish_fetch(pending).records
            except OffsetOutOfRangeError:
                raise ClientError(f"the records before offset {offset} were deleted meanwhile.") from None
            assert not isinstance(data, tuple), "a decoded response has one piece"
            return memoryview(data or b"")

        return self._client.retry(f"the records of {tp}", attempt)


def matches(record: Record, needle: str) -> bool:
    """Whether a part of the record contains the text; bytes that are not UTF-8 are replaced."""
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    if any(part is not None and needle in bytes(part).decode("utf-8", "replace").casefold() for part in parts):
        return True
    return any(needle in name.casefold() for name, _ in record.headers)
