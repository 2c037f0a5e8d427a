"""The names Kafka gives to the files and directories of a log."""

from __future__ import annotations

import re
from typing import Final

from klamm.errors import KlammError
from klamm.model import TopicPartition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
TMP: Final = ".tmp"

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
LOG_SUMMARY: Final = "klamm-log-summary"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"

DELETE_DIR: Final = "-delete"
FUTURE_DIR: Final = "-future"
MAX_NAME: Final = 255
_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MAX: Final = (1 << 63) - 1
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_MARKED_DIR = re.compile(r"^(\S+)-(\S+)\.(\S+)(-delete|-future|-stray)$")
_OFFSET_FILE = re.compile(r"^([0-9]{20})(\.[a-z]+)(\.deleted|\.cleaned|\.swap)?$")


def file_name(offset: int, suffix: str) -> str:
    """`00000000000000000042.log`: twenty digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str, str] | None:
    """Return (offset, `.log`, `.swap` or nothing) for a file of a segment, else None."""
    match = _OFFSET_FILE.match(name)
    if match is None or (offset := int(match[1])) > _INT64_MAX:  # an offset that no request can carry
        return None
    return offset, match[2], match[3] or ""


def dir_name(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"


def marked_dir_name(tp: TopicPartition, unique_id: str, mark: str) -> str:
    """`<topic>-<partition>.<unique id>-delete`; a long topic is cut to the limit of the file system."""
    suffix = f"-{tp.partition}.{unique_id}{mark}"
    return tp.topic[: MAX_NAME - len(suffix)] + suffix


def parse_dir_name(name: str) -> tuple[TopicPartition, str]:
    """Return the partition of a directory and its mark: "", "-delete", "-future" or "-stray"."""
    match = _MARKED_DIR.match(name)
    topic, partition, mark = (match[1], match[2], match[4]) if match else (*_split(name), "")
    # Another spelling of a number, such as 007, would be a second directory of the same partition. A name that is not
    # UTF-8 is decoded with surrogates, which no request can carry. Checkpoints separate names by blanks.
    is_number = _NUMBER.fullmatch(partition) is not None and int(partition) <= _INT32_MAX
    if topic.split() != [topic] or not is_number or topic.encode(errors="ignore").decode() != topic:
        raise KlammError(f"{name!r} is not a log directory: <topic>-<partition> is expected")
    return TopicPartition(topic, int(partition)), mark


def _split(name: str) -> tuple[str, str]:
    topic, _, partition = name.rpartition("-")
    return topic, partition
