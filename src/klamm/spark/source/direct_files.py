"""Segment files of one partition on this machine: finding, verifying, listing and opening them.

A broker may remove, compact or truncate them at any moment. An open file stays readable. Its content is verified by
checksums and offsets; its name proves nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from klamm.client.cluster_client import ClusterClient
from klamm.errors import KlammError, ProtocolError
from klamm.log import names
from klamm.log.batch_reader import find_offset
from klamm.log.files import OsFileHandle, OsFiles
from klamm.log.indexes import CorruptIndexError
from klamm.log.transaction_index import TransactionIndex
from klamm.model import TopicPartition, decode_topic_id

_LIST_TRIES: Final = 100
_LIST_WAIT_S: Final = 0.02


class DirectReadError(KlammError):
    """The files of a partition cannot be read directly. Fetch still works."""


class SegmentFile(NamedTuple):
    base_offset: int
    inode: int


def find_directory(
    client: ClusterClient, tp: TopicPartition, log_dirs: Iterable[str], topic_id: UUID | None = None
) -> Path:
    """Return the directory of the leader's log on this machine. Raises DirectReadError if there is none.

    `log_dirs` are further paths where the leader's log directories may be mounted. `topic_id` excludes a newer topic of
    the same name.
    """
    client.metadata([tp.topic])  # a worker's cached directory may belong to an older topic
    leader, host, _ = client.leader_address(tp)
    described = client.log_dirs(tp) if is_this_machine(host) else []
    problems: list[str] = []
    if not described:
        problems.append(f"the leader of {tp}, broker {leader} at {host}, is not on this machine")
    for log_dir in dict.fromkeys((*described, *log_dirs)):
        directory = Path(log_dir) / names.dir_name(tp)
        problem = _mismatch(directory, client, tp, leader) or _other_topic(directory, topic_id)
        if problem is None:
            return directory
        problems.append(problem)
    raise DirectReadError(f"The files of {tp} cannot be read directly: {'; '.join(problems)}.")


def is_this_machine(host: str) -> bool:
    """Whether the address belongs to this machine: only local addresses can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue
    return False


def check_topic(directory: Path, topic_id: UUID | None) -> None:
    """Raise DirectReadError if another topic now uses the directory: names are reused."""
    if problem := _other_topic(directory, topic_id):
        raise DirectReadError(f"The files cannot be read directly: {problem}.")


def _other_topic(directory: Path, topic_id: UUID | None) -> str | None:
    actual = _topic_id(directory)
    if topic_id is None or actual is None or actual == topic_id:
        return None
    return f"{directory} belongs to another topic of this name than the one that was asked for"


def _mismatch(directory: Path, client: ClusterClient, tp: TopicPartition, leader: int) -> str | None:
    """Return why a directory is unusable: it must be readable and belong to this topic, broker and cluster."""
    if not os.access(directory, os.R_OK | os.X_OK):
        return f"{directory} does not exist or is not readable"
    properties = _properties(directory.parent / names.META_PROPERTIES, "=")
    if (found := properties.get("cluster.id")) and client.cluster_id and found != client.cluster_id:
        return f"{directory.parent} belongs to cluster {found}"
    if (found := properties.get("broker.id", properties.get("node.id"))) and found != str(leader):
        return f"{directory.parent} belongs to broker {found}, the leader is {leader}"
    expected = client.topic_ids.get(tp.topic)
    actual = _topic_id(directory)
    if expected is not None and actual is not None and actual != expected:
        return f"{directory} belongs to an older topic of this name"
    return None


def _properties(path: Path, separator: str) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.partition(separator) for line in lines if not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _topic_id(directory: Path) -> UUID | None:
    try:
        return decode_topic_id(_properties(directory / names.PARTITION_METADATA, ":")["topic_id"])
    except (KeyError, ValueError):
        return None


def list_segments(directory: Path, *, sleep: Callable[[float], None] = time.sleep) -> list[SegmentFile]:
    """Return the segments by base offset.

    Lists until two listings agree and no compaction is between removing old files and renaming the new one. Otherwise a
    segment could be missed silently.
    """
    before: list[SegmentFile] | None = None
    for _ in range(_LIST_TRIES):
        found, is_swapping = _list(directory)
        if not is_swapping and found == before:
            return found
        if is_swapping or before is not None:
            sleep(_LIST_WAIT_S)
        before = None if is_swapping else found
    raise DirectReadError(f"The files of {directory.name} change too fast to be read directly.")


def _list(directory: Path) -> tuple[list[SegmentFile], bool]:
    found: list[SegmentFile] = []
    is_swapping = False
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                parsed = names.parse_file_name(entry.name)
                if parsed is not None and parsed[1] == names.LOG:
                    is_swapping |= parsed[2] == names.SWAP
                    if not parsed[2]:
                        found.append(SegmentFile(parsed[0], entry.inode()))
    except OSError as e:
        raise DirectReadError(f"{directory} cannot be read: {e.strerror or e}.") from e
    return sorted(found), is_swapping


def segment_path(directory: Path, base_offset: int, kind: str = names.LOG) -> Path:
    return directory / names.file_name(base_offset, kind)


def position_of(handle: OsFileHandle, directory: Path, base_offset: int, offset: int) -> int:
    """Return the position of the batch that holds `offset` or of the next one; the end of the file if there is none.

    The index is a hint: an index of another generation of the segment is detected and ignored.
    """
    size = handle.size()
    for start in (_index_lookup(directory, base_offset, offset), 0):
        try:
            found = find_offset(handle, start, size, offset)
        except ProtocolError:
            continue
        if found is not None and (start == 0 or found.base_offset <= offset):
            return found.position
        if found is None and start == 0:
            return size
    raise DirectReadError(f"Segment {base_offset} of {directory.name} has no batches of format 2 at its beginning.")


def _index_lookup(directory: Path, base_offset: int, offset: int) -> int:
    try:
        data = segment_path(directory, base_offset, names.INDEX).read_bytes()
    except OSError:
        return 0
    entries = np.frombuffer(data[: len(data) // 8 * 8], ">u4").reshape(-1, 2)
    entries = entries[entries[:, 1] > 0]  # preallocated space that is not yet written is zero
    slot = int(np.searchsorted(entries[:, 0], offset - base_offset, side="right")) - 1
    return int(entries[slot, 1]) if slot >= 0 else 0


def aborted_transactions(directory: Path, start: int, end: int) -> list[tuple[int, int, int]]:
    """Return (producer id, first offset, marker's offset) of aborted transactions that overlap the range.

    A marker may be in a later segment than its records, so all indexes are read; they have few entries.
    """
    found: list[tuple[int, int, int]] = []
    try:
        paths = sorted(path for path in os.listdir(directory) if path.endswith(names.TXN_INDEX))
        for path in paths:
            index = TransactionIndex(OsFiles(), str(directory / path), 0, exists=True)
            found += [
                (txn.producer_id, txn.first_offset, txn.last_offset)
                for txn in index.all()
                if txn.last_offset >= start and txn.first_offset < end
            ]
    except FileNotFoundError:
        return aborted_transactions(directory, start, end) if directory.is_dir() else found
    except (OSError, CorruptIndexError) as e:
        raise DirectReadError(f"The aborted transactions of {directory.name} cannot be read: {e}.") from e
    return found
