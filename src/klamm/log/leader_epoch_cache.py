"""The offsets at which leader epochs began. Replicas compare them to find where their logs diverge.

Backed by `leader-epoch-checkpoint` in the log's directory. The file is written at every change and forced to the disk
soon after, at the latest with the data it describes. If a crash destroys it, the epochs are read from the batches.

A short file that gets one more entry is overwritten in place, since it is one page. After a kill the page is old or
new. After a power failure it has the old entries, the new ones, or a wrong count of entries. Renaming a new file over
the old one would make the file system write it out at once, once per partition that a broker becomes the leader of.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

import crc32c

from klamm.errors import KlammError
from klamm.log import names
from klamm.log.checkpoints import decode_checkpoint, encode_checkpoint
from klamm.log.files import Files
from klamm.model import NO_EPOCH

UNDEFINED_EPOCH_OFFSET: Final = -1
PAGE_BYTES: Final = 4096
INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = (1 << 63) - 1
_log = logging.getLogger(__name__)


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class EpochEndOffset(NamedTuple):
    epoch: int
    end_offset: int


UNDEFINED: Final = EpochEndOffset(NO_EPOCH, UNDEFINED_EPOCH_OFFSET)


class LeaderEpochCache:
    """Owner: the `Log`. Entries rise in both epoch and start offset."""

    def __init__(self, files: Files, directory: str, entries: Iterable[EpochEntry] = ()) -> None:
        self._files = files
        self._directory = directory
        self.entries: list[EpochEntry] = list(entries)
        self.is_dirty = False
        self._file_bytes: int | None = None
        """The size of the file; None if it is unknown or the content is invalid."""
        self._is_held = False

    def load(self, *, exists: bool = True) -> bool:
        """Load the entries of the file; return False if there are none that can be used."""
        if not exists:
            self._file_bytes = 0
            return False
        try:
            found = self._files.read_bytes(self.path)
            data = found.rstrip(b"\0")  # The power failed before the new bytes of a grown file were written.
            if data and not data.endswith(b"\n"):
                raise KlammError("its last line is incomplete")
            rows = decode_checkpoint(data, self.path)
            entries = [EpochEntry(int(epoch), int(start)) for epoch, start in rows]
            if any(b.epoch <= a.epoch or b.start_offset <= a.start_offset for a, b in pairwise(entries)):
                raise KlammError("its entries do not increase")
            if entries and (
                min(entries[0]) < 0 or entries[-1].epoch > INT32_MAX or entries[-1].start_offset > INT64_MAX
            ):
                raise KlammError("an epoch or an offset is out of range")
            self.entries = entries
            self._file_bytes = len(data) if data == found else None
        except FileNotFoundError:
            self._file_bytes = 0
            return False
        except ValueError:
            _log.warning("%s: ignoring the leader epochs: a line is not `epoch offset`", self.path)
            return False
        except KlammError as e:
            _log.warning("%s: ignoring the leader epochs: %s", self.path, e)
            return False
        return bool(rows)

    def moved_to(self, directory: str) -> None:
        self._directory = directory

    def take_unsynced(self) -> list[str]:
        """Return the file if it was changed since it was last forced to the disk, which the caller does now."""
        if not self.is_dirty:
            return []
        self.is_dirty = False
        return [self.path]

    @property
    def path(self) -> str:
        return f"{self._directory}/{names.LEADER_EPOCH_CHECKPOINT}"

    @property
    def latest_epoch(self) -> int | None:
        return self.entries[-1].epoch if self.entries else None

    def of_records(self, log_end_offset: int) -> tuple[int, int]:
        """Return the latest epoch that has records, and a checksum of all entries up to it."""
        entries = [e for e in self.entries if e.start_offset < log_end_offset]
        return entries[-1].epoch if entries else NO_EPOCH, int(crc32c.crc32c(_encode(entries)))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that an epoch begins and remove conflicting entries. Do nothing if it is the latest already."""
        if epoch < 0:
            return
        if self.entries:
            latest = self.entries[-1]
            if epoch == latest.epoch and start_offset >= latest.start_offset:
                return
        kept = [e for e in self.entries if e.epoch < epoch and e.start_offset < start_offset]
        self._replace([*kept, EpochEntry(epoch, start_offset)])

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Return where an epoch ended: (-1, -1) if it is unknown, the log end for the latest."""
        if epoch == NO_EPOCH or not self.entries or epoch > self.entries[-1].epoch:
            return UNDEFINED
        if epoch == self.entries[-1].epoch:
            return EpochEndOffset(epoch, log_end_offset)
        after = bisect_right(self.entries, epoch, key=lambda e: e.epoch)
        floor = self.entries[after - 1].epoch if after > 0 else epoch
        return EpochEndOffset(floor, self.entries[after].start_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        after = bisect_right(self.entries, offset, key=lambda e: e.start_offset)
        return self.entries[after - 1].epoch if after > 0 else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at `end_offset` or later."""
        if self.entries and self.entries[-1].start_offset >= end_offset:
            self._replace([e for e in self.entries if e.start_offset < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Start the first epoch at `start_offset`, the new start of the log."""
        after = bisect_right(self.entries, start_offset, key=lambda e: e.start_offset)
        if (after > 0 and self.entries[after - 1].start_offset != start_offset) or after > 1:
            first = EpochEntry(self.entries[after - 1].epoch, start_offset)
            self._replace([first, *self.entries[after:]])

    def truncate_after(self, epoch: int) -> EpochEntry | None:
        """Forget the epochs after `epoch`; return the first of them."""
        after = bisect_right(self.entries, epoch, key=lambda e: e.epoch)
        if after == len(self.entries):
            return None
        first = self.entries[after]
        self._replace(self.entries[:after])
        return first

    def clear(self) -> None:
        if self.entries:
            self._replace([])

    @contextmanager
    def held(self, *, sync: bool = True) -> Iterator[None]:
        """Write all changes together at the end: a file with half of the collected entries would be wrong.

        Without `sync` the caller forces the file to the disk later.
        """
        before, self._is_held = self.entries, True
        yield
        self._is_held = False
        if self.entries != before:
            self._files.write_atomic(self.path, _encode(self.entries), sync=sync)
            self._file_bytes = None
            self.is_dirty = self.is_dirty or not sync

    def _replace(self, entries: list[EpochEntry]) -> None:
        """Write the file first, so that memory agrees with it if the disk fails."""
        if not self._is_held:
            self._write(_encode(entries), has_one_more=entries[:-1] == self.entries)
            self.is_dirty = True
        self.entries = entries

    def _write(self, data: bytes, *, has_one_more: bool) -> None:
        had, self._file_bytes = self._file_bytes, None
        if not has_one_more or had is None or len(data) > PAGE_BYTES:
            self._files.write_atomic(self.path, data, sync=False)
        else:
            handle = self._files.open(self.path, create=True)
            try:
                handle.pwrite((data,), 0)
            finally:
                handle.close()
        self._file_bytes = len(data)


def _encode(entries: Iterable[EpochEntry]) -> bytes:
    return encode_checkpoint(f"{e.epoch} {e.start_offset}" for e in entries)
