"""The offsets that a micro-batch read. They distinguish two batches with the same number.

Spark writes a batch's end offsets to the checkpoint before the batch runs, one line per source. The commit of a table
keeps them together with the start, whatever the query does between source and table: the records that a batch reads
and the state it starts from determine its rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.source.checkpoint_files import CheckpointFiles, LocalCheckpoint
from klamm.spark.source.checkpoint_locations import local_path
from klamm.spark.source.source_offsets import SourceOffset, by_topic, parse_source_offset, source_offset, to_json

START: Final = "klamm.start.offsets"
END: Final = "klamm.end.offsets"
_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"
_SHOWN_OFFSETS: Final = 2000


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """One JSON value per source of the query: `{"topic": {"0": 42}}` for topics; None if unknown."""

    start: tuple[Any, ...]
    end: tuple[Any, ...]

    def to_metadata(self) -> dict[str, str]:
        """Return the entries of the table's commit."""
        return {START: _compact(self.start), END: _compact(self.end)}

    def is_same(self, other: BatchOffsets) -> bool:
        """Whether both read the same records. Start offsets and topic ids count only where both have them."""
        return _all_same(self.end, other.end) and _all_same(self.start, other.start)

    def starting_offsets(self) -> str | None:
        """Return where to continue after this batch, as option `startingOffsets`; None for several sources or a long
        text."""
        if len(self.end) != 1 or (parsed := _topics(self.end[0])) is None:
            return None
        text = to_json(parsed.offsets)
        return text if len(text) <= _SHOWN_OFFSETS else None

    def __str__(self) -> str:
        return f"{_shown(self.start)} to {_shown(self.end)}"


def from_metadata(commit: Mapping[str, Any]) -> BatchOffsets | None:
    """Return the offsets of a commit; None for commits of versions that did not store them."""
    try:
        return BatchOffsets(tuple(json.loads(commit[START])), tuple(json.loads(commit[END])))
    except (KeyError, TypeError, ValueError):
        return None


def batch_offsets(checkpoint: str | None, batch_id: int) -> BatchOffsets | None:
    """Return the offsets of a batch from the query's checkpoint; None if the checkpoint is not a local directory."""
    root = local_path(checkpoint) if checkpoint else None
    return logged_offsets(LocalCheckpoint(root), batch_id) if root is not None else None


def logged_offsets(files: CheckpointFiles, batch_id: int) -> BatchOffsets | None:
    """Return the offsets of a batch from the offset log of a checkpoint; None if they are unknown."""
    if (end := _logged(files, batch_id)) is None:
        return None
    before = _logged(files, batch_id - 1) or (None,) * len(end)
    if len(before) != len(end):
        return None
    return BatchOffsets(tuple(map(_start, before, end)), tuple(map(_without_from, end)))


def _logged(files: CheckpointFiles, batch_id: int) -> tuple[Any, ...] | None:
    """Read an entry of Spark's offset log: a version, the metadata, then one line per source."""
    lines = (files.offsets_of(batch_id) or "").splitlines()
    if len(lines) < 3 or lines[0] != _VERSION:
        return None
    return tuple(None if line == _NO_OFFSET else _value(line) for line in lines[2:])


def _value(line: str) -> Any:
    """Other sources may write anything as an offset."""
    try:
        return json.loads(line)
    except ValueError:
        return line


def _start(before: Any, end: Any) -> Any:
    """An end offset of klamm's source holds the start of partitions that the previous offset lacks."""
    if (ended := _topics(end)) is None:
        return before
    began = _topics(before)
    starts = {**(began.offsets if began is not None else {}), **ended.resolved_from}
    return by_topic({tp: offset for tp, offset in starts.items() if tp in ended.offsets}) or None


def _without_from(end: Any) -> Any:
    parsed = _topics(end)
    return end if parsed is None else source_offset(parsed.offsets, topic_ids=parsed.topic_ids).to_dict()


def _topics(value: Any) -> SourceOffset | None:
    """Return the offset of a source of topics; None for any other."""
    try:
        return parse_source_offset(value) if isinstance(value, Mapping) else None
    except (KlammError, ValueError, TypeError):
        return None


def _all_same(these: tuple[Any, ...], those: tuple[Any, ...]) -> bool:
    return len(these) == len(those) and all(map(_same, these, those))


def _same(this: Any, that: Any) -> bool:
    if this is None or that is None:
        return True
    one, other = _topics(this), _topics(that)
    if one is None or other is None:
        return bool(this == that)
    both = one.topic_ids.keys() & other.topic_ids.keys()
    return one.offsets == other.offsets and all(one.topic_ids[topic] == other.topic_ids[topic] for topic in both)


def _compact(values: tuple[Any, ...]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _shown(values: tuple[Any, ...]) -> str:
    """Return the offsets as short text for a message."""
    parts = []
    for value in values:
        parsed = _topics(value)
        parts.append(_ranges(parsed.offsets) if parsed is not None else "-" if value is None else json.dumps(value))
    text = "; ".join(parts)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _ranges(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{tp}: {offset}" for tp, offset in sorted(offsets.items()))
