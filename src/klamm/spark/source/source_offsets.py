"""Offsets of a streaming query as Spark stores them, and decisions derived from them. Pure.

The JSON is that of Spark's Kafka source, `{"topic": {"0": 123}}`, with these additions, recognisable by their shape:
`"_initial": true` marks an offset that `initialOffset` resolved; `"_from"`, `{"topic": {"0": 100}}`, in an end offset
is the start of its batch for partitions that the previous offset lacks; `"_ids"`, `{"topic": "<topic id>"}`, identifies
the topics where brokers have ids. If a topic has such a name, the key gets one more underscore. Spark stores the end of
a batch before it runs it, so a repeated batch reads exactly the same range of the same topics.

Spark compares offsets as JSON text: keys are always sorted, partitions as numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from klamm.errors import KlammError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TopicPartition, decode_topic_id, encode_topic_id

INITIAL: Final = "_initial"
FROM: Final = "_from"
IDS: Final = "_ids"
_MAX_OFFSET: Final = (1 << 63) - 1

Offsets = Mapping[TopicPartition, int]


class OffsetRange(NamedTuple):
    """The records of one partition from `start` up to, but not including, `end`."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets; compaction and markers may leave fewer records."""
        return self.end - self.start


@lazy_dataclass(frozen=True, slots=True)
class SourceOffset:
    """A point in a stream: the next offset of every partition."""

    offsets: Offsets
    resolved_from: Offsets
    """Start of the batch that ends here, for partitions that its start offset lacks."""
    is_initial: bool
    topic_ids: Mapping[str, UUID]
    """Known ids of the topics in `offsets`: checkpoints of older versions and older brokers have none."""

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = by_topic(self.offsets)
        if self.topic_ids:
            ids = {topic: encode_topic_id(self.topic_ids[topic]) for topic in sorted(self.topic_ids)}
            found[_free(IDS, found)] = ids
        if self.is_initial:
            found[_free(INITIAL, found)] = True
        if self.resolved_from:
            found[_free(FROM, found)] = by_topic(self.resolved_from)
        return dict(sorted(found.items()))


def _free(key: str, topics: Mapping[str, Any]) -> str:
    """Return the key, with more leading underscores if topics have that name."""
    while key in topics:
        key = f"_{key}"
    return key


def source_offset(
    offsets: Offsets,
    resolved_from: Offsets | None = None,
    *,
    is_initial: bool = False,
    topic_ids: Mapping[str, UUID] | None = None,
) -> SourceOffset:
    """Return the `topic_ids` of topics in `offsets`."""
    topics = {tp.topic for tp in offsets}
    ids = {topic: one for topic, one in (topic_ids or {}).items() if topic in topics}
    return SourceOffset(dict(offsets), dict(resolved_from or {}), is_initial, ids)


def parse_source_offset(value: Mapping[str, Any] | str) -> SourceOffset:
    """Parse an offset; offsets written by Spark's Kafka source are accepted too."""
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        raise KlammError(f"An offset of a stream is a JSON object by topic, not {value!r}.")
    offsets: dict[TopicPartition, int] = {}
    resolved: dict[TopicPartition, int] = {}
    ids: dict[str, UUID] = {}
    is_initial = False
    for key, part in value.items():
        name = "_" + key.lstrip("_") if key.startswith("_") else key
        if name == INITIAL and isinstance(part, bool):
            is_initial = part
        elif name == FROM and isinstance(part, Mapping) and all(isinstance(v, Mapping) for v in part.values()):
            for topic, partitions in part.items():
                resolved.update(_partitions(topic, partitions))
        elif name == IDS and isinstance(part, Mapping) and all(isinstance(v, str) for v in part.values()):
            ids = {topic: _topic_id(topic, text) for topic, text in part.items()}
        else:
            offsets.update(_partitions(key, part))
    return SourceOffset(offsets, resolved, is_initial, ids)


def _topic_id(topic: str, text: str) -> UUID:
    try:
        return decode_topic_id(text)
    except ValueError:
        raise KlammError(f"The id of topic {topic!r} is 22 characters of base64, not {text!r}.") from None


def _partitions(topic: str, partitions: Any) -> dict[TopicPartition, int]:
    try:
        return {TopicPartition(topic, int(index)): int(offset) for index, offset in partitions.items()}
    except (AttributeError, TypeError, ValueError):
        raise KlammError(
            f"The offsets of topic {topic!r} are an object of numbers by partition, not {partitions!r}."
        ) from None


def by_topic(offsets: Offsets) -> dict[str, Any]:
    """`{"topic": {"0": 123}}`, in the order of topics and of partition numbers."""
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = int(offsets[tp])
    return found


def to_json(offsets: Offsets) -> str:
    return json.dumps(by_topic(offsets), separators=(",", ":"))


def rate_limit(limit: int, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Return the end of a batch of about `limit` offsets, divided in proportion to each partition's backlog.

    Every partition with a backlog gets at least one offset and never passes its end. A partition that `start` lacks
    stays at its end.
    """
    sizes = {tp: last - start[tp] for tp, last in end.items() if tp in start and last > start[tp]}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    limited = dict(end)
    for tp, size in sizes.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[tp] = min(end[tp], start[tp] + taken, _MAX_OFFSET)
    return limited


def is_delayed(
    *, available: int, min_offsets: int, last_trigger_ms: int | None, now_ms: int, max_trigger_delay_ms: int
) -> bool:
    """Whether a batch should wait for more records: there are too few, and the last batch is recent."""
    if last_trigger_ms is None or now_ms - last_trigger_ms >= max_trigger_delay_ms:
        return False
    return available < min_offsets


def available(start: Offsets, end: Offsets) -> int:
    return sum(max(0, last - start.get(tp, last)) for tp, last in end.items())


def split_ranges(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split into one range per task: at most `max_records` each, then about `min_partitions` in total, by size."""
    found = [r for r in ranges if r.size > 0]
    if max_records is not None:
        found = [part for r in found for part in _cut(r, -(-r.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(r.size for r in found)
    whole = [r for r in found if _parts(r.size, total, min_partitions) == 1]
    rest_total = total - sum(r.size for r in whole)
    rest_parts = max(min_partitions - len(whole), 1)
    is_whole = set(whole)
    return [part for r in found for part in _cut(r, 1 if r in is_whole else _parts(r.size, rest_total, rest_parts))]


def together(ranges: Iterable[OffsetRange], limit: int) -> list[list[OffsetRange]]:
    """Group neighbours with at most `limit` offsets together; a larger range is its own group."""
    groups: list[list[OffsetRange]] = []
    room = 0
    for one in ranges:
        if one.size > room:
            groups.append([])
            room = limit
        groups[-1].append(one)
        room -= one.size
    return groups


def _parts(size: int, total: int, parts: int) -> int:
    return max(1, math.floor(size / total * parts + 0.5))


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Split into pieces of nearly equal size; fewer if there are not enough offsets."""
    pieces: list[OffsetRange] = []
    start, remaining = whole.start, whole.size
    for left in range(parts, 0, -1):
        size = remaining // left
        remaining -= size
        if size:
            pieces.append(OffsetRange(whole.tp, start, start + size))
            start += size
    return pieces
