"""A record of the logs of a directory, which lets the next start use them without opening them.

`klamm-log-summary` is beside Kafka's checkpoints; Kafka does not read it. It lists every log that is complete on the
disk: its end, the sizes of its segments, a checksum of its last bytes, and when its directory was last changed. A clean
stop writes the file, and a running broker renews it for the logs that are flushed.

A log whose files agree with the record needs no recovery, however the last run ended. A log whose files disagree with
the record of a clean stop was damaged afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from sys import intern
from typing import Final, NamedTuple

import crc32c

from klamm.errors import KlammError, shown
from klamm.log import names
from klamm.log.files import Files
from klamm.model import TopicPartition, make_topic_partition

_log = logging.getLogger(__name__)
_VERSION: Final = "2"
_TAIL_BYTES: Final = 4096
_MARKS: Final = (names.DELETED, names.CLEANED, names.SWAP, names.TMP)
_SETTLED_NS: Final = 2_000_000_000
"""File systems store modification times in coarse steps: a younger file can change without a new time."""


class SegmentSize(NamedTuple):
    base_offset: int
    size_bytes: int


class LogSummary(NamedTuple):
    """A log that is complete on the disk and has no open transaction.

    `latest_epoch` and `epochs_crc` are of the leader epochs that have records. `oldest_timestamp` is the newest
    timestamp in the first segment. `modified_ns` and `tail_crc` are of the active segment's data file.
    `dir_modified_ns` is of the directory: if it is still the same, the directory has the data files of the segments, no
    others, and no unfinished ones. A clean stop records it, and it is kept while the log stays
    unopened: 0 means that the names must be listed.
    """

    log_end_offset: int
    latest_epoch: int
    epochs_crc: int
    oldest_timestamp: int
    modified_ns: int
    tail_crc: int
    dir_modified_ns: int
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


_UNMODIFIED: Final = Inspection((), True, True)


def inspect(files: Files, directory: str, summary: LogSummary) -> Inspection:
    segments = summary.segments
    known_ns = summary.dir_modified_ns
    # A list of names takes longer than all other calls for a log.
    is_same_dir = known_ns != 0 and files.stat(directory).modified_ns == known_ns
    has_others = not is_same_dir and _has_others(files, directory, segments)
    damaged: list[int] = []
    for base_offset, size_bytes in segments[:-1] if len(segments) > 1 else ():
        try:
            is_whole = files.stat(_data_file(directory, base_offset)).size_bytes == size_bytes
        except FileNotFoundError:
            is_whole = False
        if not is_whole:
            damaged.append(base_offset)
    active_base, active_bytes = segments[-1]
    is_unmodified = True
    try:
        stat, tail = files.read_tail(_data_file(directory, active_base), active_bytes, _TAIL_BYTES)
        is_unmodified = stat.modified_ns == summary.modified_ns
        is_whole = stat.size_bytes == active_bytes and _crc(tail) == summary.tail_crc
    except FileNotFoundError:
        is_whole = False
    if is_whole and is_unmodified and not has_others and not damaged:
        return _UNMODIFIED
    if not is_whole:
        damaged.append(active_base)
    is_same = not damaged and not has_others
    return Inspection(tuple(damaged), is_same, is_same and is_unmodified)


def _data_file(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}{names.LOG}"


def _has_others(files: Files, directory: str, segments: Sequence[SegmentSize]) -> bool:
    """Whether a directory has unfinished files, or data files of other segments."""
    count = 0
    for name in files.list_names(directory):
        if name.endswith(names.LOG):
            count += name[:20].isdecimal()
        elif name.endswith(_MARKS):
            return True
    return count > len(segments)


def with_directory(files: Files, directory: str, summary: LogSummary, stopped_ns: int) -> LogSummary:
    """Add `dir_modified_ns` to the summary of a closed log. `stopped_ns` is the time of a file that was written later.

    File systems store times in coarse steps. If both are equal, a change after the stop could get the same time.
    """
    modified_ns = files.stat(directory).modified_ns
    if modified_ns >= stopped_ns or _has_others(files, directory, summary.segments):
        return summary
    return summary._replace(dir_modified_ns=modified_ns)


def is_settled(summary: LogSummary, now_ms: int) -> bool:
    """Whether any later change of the active segment gets another modification time."""
    return now_ms * 1_000_000 - summary.modified_ns >= _SETTLED_NS


def read_modified_and_crc(files: Files, path: str, size_bytes: int) -> tuple[int, int]:
    """Return `modified_ns` and `tail_crc` of an active segment."""
    stat, tail = files.read_tail(path, size_bytes, _TAIL_BYTES)
    return stat.modified_ns, _crc(tail)


def _crc(tail: bytes) -> int:
    return int(crc32c.crc32c(tail))


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
        f"{tp.topic} {tp.partition} {s.log_end_offset} {s.latest_epoch} {s.epochs_crc} {s.oldest_timestamp} "
        f"{s.modified_ns} {s.tail_crc} {s.dir_modified_ns} {segments}"
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
    except KlammError as e:
        _log.warning("ignoring %s: %s", path, e)
    except (ValueError, IndexError):
        _log.warning("ignoring %s: a line is damaged", path)
    return RecordedLogs(0, {})


def _decode_line(line: str) -> tuple[TopicPartition, LogSummary]:
    topic, partition, end, epoch, epochs_crc, oldest, modified, crc, dir_modified, *segments = line.split(" ")
    sizes = []
    for segment in segments:
        base, _, size = segment.partition(":")
        sizes.append(SegmentSize(int(base), int(size)))
    if not sizes:
        raise KlammError(f"the line of {shown(f'{topic}-{partition}')} has no segment")
    of_file = int(modified), int(crc), int(dir_modified)
    summary = LogSummary(int(end), int(epoch), int(epochs_crc), int(oldest), *of_file, tuple(sizes))
    return make_topic_partition((intern(topic), int(partition))), summary
