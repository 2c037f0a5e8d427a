"""A record of the logs of a directory, which lets the next start use them without opening them.

`klamm-log-summary` is beside Kafka's checkpoints; Kafka does not read it. It lists every log that is complete on the
disk: its end, the sizes of its segments, and a checksum of its last bytes. A clean stop writes the file, and a running
broker renews it for the logs that are flushed.

A log whose files agree with the record needs no recovery, however the last run ended. A log whose files disagree with
the record of a clean stop was damaged afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

import crc32c

from klamm.errors import KlammError
from klamm.log import names
from klamm.log.files import Files
from klamm.model import TopicPartition

_log = logging.getLogger(__name__)
_VERSION: Final = "0"
_TAIL_BYTES: Final = 4096
_MARKS: Final = (names.DELETED, names.CLEANED, names.SWAP, names.TMP)
_SETTLED_NS: Final = 2_000_000_000
"""File systems store modification times in coarse steps: a younger file can change without a new time."""


class SegmentSize(NamedTuple):
    base_offset: int
    size_bytes: int


class LogSummary(NamedTuple):
    """A log that is complete on the disk and has no open transaction.

    `oldest_timestamp` is the newest timestamp in the first segment. `modified_ns` and `tail_crc` are of the active
    segment's data file.
    """

    log_end_offset: int
    latest_epoch: int
    oldest_timestamp: int
    modified_ns: int
    tail_crc: int
    segments: tuple[SegmentSize, ...]

    @property
    def size_bytes(self) -> int:
        return sum(s.size_bytes for s in self.segments)


class Inspection(NamedTuple):
    """The comparison of a log's files with its summary.

    `damaged` are the base offsets of segments that are missing or shorter or that end with other bytes. `is_same`: all
    segments are as recorded, and there are no other files to deal with. `is_unmodified`: nothing was written since.
    """

    damaged: tuple[int, ...]
    is_same: bool
    is_unmodified: bool


def inspect(files: Files, directory: str, summary: LogSummary) -> Inspection:
    found = files.list_names(directory)
    bases = {int(name[:20]) for name in found if name.endswith(names.LOG) and name[:20].isdecimal()}
    damaged = []
    is_unmodified = True
    for base_offset, size_bytes in summary.segments:
        path = f"{directory}/{names.file_name(base_offset, names.LOG)}"
        if base_offset not in bases:
            damaged.append(base_offset)
            continue
        stat = files.stat(path)
        is_active = base_offset == summary.segments[-1].base_offset
        if stat.size_bytes != size_bytes or (is_active and tail_crc(files, path, size_bytes) != summary.tail_crc):
            damaged.append(base_offset)
        if is_active:
            is_unmodified = stat.modified_ns == summary.modified_ns
    is_same = not damaged and len(bases) == len(summary.segments) and not any(n.endswith(_MARKS) for n in found)
    return Inspection(tuple(damaged), is_same, is_same and is_unmodified)


def is_settled(summary: LogSummary, now_ms: int) -> bool:
    """Whether any later change of the active segment gets another modification time."""
    return now_ms * 1_000_000 - summary.modified_ns >= _SETTLED_NS


def tail_crc(files: Files, path: str, size_bytes: int) -> int:
    if size_bytes == 0:
        return 0
    handle = files.open(path)
    try:
        tail = min(size_bytes, _TAIL_BYTES)
        return int(crc32c.crc32c(handle.pread(tail, size_bytes - tail)))
    finally:
        handle.close()


# the file


class RecordedLogs(NamedTuple):
    """`clean_stop` is the modification time of the clean-shutdown marker that the record was written for, or 0."""

    clean_stop: int
    logs: Mapping[TopicPartition, LogSummary]


def encode(recorded: RecordedLogs) -> bytes:
    lines = (_encode_line(tp, summary) for tp, summary in recorded.logs.items())
    return "\n".join((_VERSION, str(recorded.clean_stop), str(len(recorded.logs)), *lines, "")).encode()


def _encode_line(tp: TopicPartition, s: LogSummary) -> str:
    segments = " ".join(f"{base}:{size}" for base, size in s.segments)
    return (
        f"{tp.topic} {tp.partition} {s.log_end_offset} {s.latest_epoch} {s.oldest_timestamp} {s.modified_ns} "
        f"{s.tail_crc} {segments}"
    )


def read_recorded(files: Files, log_dir: str) -> RecordedLogs:
    """Read the record of a directory. A missing or invalid one is empty: all logs are opened then."""
    path = f"{log_dir}/{names.LOG_SUMMARY}"
    try:
        lines = files.read_bytes(path).decode().splitlines()
        if lines[0] != _VERSION or int(lines[2]) != len(lines) - 3:
            raise KlammError("its version or its number of lines is wrong")
        return RecordedLogs(int(lines[1]), dict(map(_decode_line, lines[3:])))
    except FileNotFoundError:
        pass
    except (KlammError, ValueError, IndexError) as e:
        _log.warning("ignoring %s: %s", path, e)
    return RecordedLogs(0, {})


def _decode_line(line: str) -> tuple[TopicPartition, LogSummary]:
    topic, partition, end, epoch, oldest, modified, crc, *segments = line.split(" ")
    sizes = []
    for segment in segments:
        base, _, size = segment.partition(":")
        sizes.append(SegmentSize(int(base), int(size)))
    if not sizes:
        raise KlammError(f"the line of {topic}-{partition} has no segment")
    summary = LogSummary(int(end), int(epoch), int(oldest), int(modified), int(crc), tuple(sizes))
    return TopicPartition(topic, int(partition)), summary
