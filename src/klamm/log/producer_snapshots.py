"""Snapshots of producer state beside the segments: `<offset>.snapshot`, Kafka's version 1 with its CRC-32C.

The name is the offset after the last batch that the snapshot knows.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from typing import Final

import crc32c

from klamm.log import names
from klamm.log.files import Files
from klamm.log.producer_entry import BatchMetadata, ProducerStateEntry

_log = logging.getLogger(__name__)
_VERSION: Final = 1
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(Exception):
    """The file is not a complete snapshot."""


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    rows = [
        _ENTRY.pack(
            e.producer_id,
            e.producer_epoch,
            e.last_sequence,
            e.last_data_offset,
            e.last_offset_delta,
            e.last_timestamp,
            e.coordinator_epoch,
            -1 if e.current_txn_first_offset is None else e.current_txn_first_offset,
        )
        for e in entries
    ]
    body = _COUNT.pack(len(rows)) + b"".join(rows)
    return _HEADER.pack(_VERSION, crc32c.crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerStateEntry]:
    if len(data) < _HEADER.size + _COUNT.size:
        raise CorruptSnapshotError("it is too short")
    version, crc = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if version != _VERSION:
        raise CorruptSnapshotError(f"its version is {version}, not {_VERSION}")
    if crc32c.crc32c(body) != crc:
        raise CorruptSnapshotError("its checksum is wrong")
    (count,) = _COUNT.unpack_from(body)
    if count * _ENTRY.size != len(body) - _COUNT.size:
        raise CorruptSnapshotError(f"its size does not match its {count} producers")
    return [_entry(*row) for row in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _entry(
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerStateEntry:
    batch = BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)
    return ProducerStateEntry(
        producer_id,
        producer_epoch,
        coordinator_epoch,
        timestamp,
        txn_first_offset if txn_first_offset >= 0 else None,
        (batch,) if last_offset >= 0 else (),
    )


class ProducerSnapshots:
    """The snapshot files of one log. Owner: the `Log`."""

    def __init__(self, files: Files, directory: str, offsets: Iterable[int] = ()) -> None:
        self._files = files
        self._directory = directory
        self.offsets = sorted(offsets)

    def moved_to(self, directory: str) -> None:
        self._directory = directory

    def path(self, offset: int) -> str:
        return f"{self._directory}/{names.file_name(offset, names.SNAPSHOT)}"

    @property
    def latest_offset(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def write(self, offset: int, entries: Iterable[ProducerStateEntry]) -> str:
        """Write a snapshot without forcing it to the disk, like the data of the log; return its path."""
        path = self.path(offset)
        self._files.write_atomic(path, encode_snapshot(entries), sync=False)
        if offset not in self.offsets:
            self.offsets = sorted((*self.offsets, offset))
        return path

    def load_latest(self, max_offset: int) -> tuple[int, list[ProducerStateEntry]] | None:
        """Return the newest valid snapshot up to `max_offset`; remove corrupt ones."""
        for offset in reversed(self.offsets):
            if offset > max_offset:
                continue
            try:
                return offset, decode_snapshot(self._files.read_bytes(self.path(offset)))
            except (CorruptSnapshotError, FileNotFoundError) as e:
                _log.warning("ignoring the producer snapshot %s: %s", self.path(offset), e)
                self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets = [o for o in self.offsets if o != offset]
            self._files.unlink(self.path(offset))

    def remove_above(self, offset: int) -> None:
        for found in [o for o in self.offsets if o > offset]:
            self.remove(found)

    def remove_strays(self, base_offsets: Iterable[int]) -> None:
        """Keep the snapshots of segments and the newest other one, which may be that of a clean shutdown."""
        keep = set(base_offsets)
        strays = [o for o in self.offsets if o not in keep]
        newest_is_stray = bool(strays) and strays[-1] >= max(keep, default=0)
        for offset in strays[:-1] if newest_is_stray else strays:
            self.remove(offset)

    def mark_deleted(self, offset: int) -> str | None:
        """Rename the snapshot of a deleted segment; return the path to remove later."""
        if offset not in self.offsets:
            return None
        self.offsets = [o for o in self.offsets if o != offset]
        path = self.path(offset)
        try:
            self._files.rename(path, path + names.DELETED)
        except FileNotFoundError:
            return None
        return path + names.DELETED
