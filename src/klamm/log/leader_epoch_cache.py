"""Which leader epoch began at which offset: what replicas compare to find where their logs part.

Backed by `leader-epoch-checkpoint` in the log's directory. The file is written at every change and forced to the disk
soon after, at the latest with the data it describes. When a crash takes it, the batches tell the epochs again.

A short file that gets one more entry is written over in place: a page, which a killed process leaves old or new, and of
which a loss of power leaves the old entries, the new ones, or something whose count of entries is wrong. A rename over
a file would have the file system write it out at once, and a broker that becomes the leader of a thousand partitions
waited for that a thousand times.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

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
        """How long the file is; None when that is not known or its content is of no use."""
        self._is_held = False

    def load(self, *, exists: bool = True) -> bool:
        """Takes the entries of the file; False when there is none that can be used."""
        if not exists:
            self._file_bytes = 0
            return False
        try:
            found = self._files.read_bytes(self.path)
            data = found.rstrip(b"\0")  # the file had grown, and the power went before its new bytes were written
            if data and not data.endswith(b"\n"):
                raise KlammError("its last line is not whole")
            rows = decode_checkpoint(data, self.path)
            entries = [EpochEntry(int(epoch), int(start)) for epoch, start in rows]
            if any(b.epoch <= a.epoch or b.start_offset <= a.start_offset for a, b in pairwise(entries)):
                raise KlammError("its entries do not rise")
            if entries and (
                min(entries[0]) < 0 or entries[-1].epoch > INT32_MAX or entries[-1].start_offset > INT64_MAX
            ):
                raise KlammError("an epoch or an offset is out of range")
            self.entries = entries
            self._file_bytes = len(data) if data == found else None
        except FileNotFoundError:
            self._file_bytes = 0
            return False
        except (KlammError, ValueError) as e:
            _log.warning("The leader epochs in %s are not used: %s", self.path, e)
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

    @property
    def earliest(self) -> EpochEntry | None:
        return self.entries[0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Notes that an epoch begins; conflicting entries go. Nothing happens when it is the latest already."""
        if epoch < 0:
            return
        if self.entries:
            latest = self.entries[-1]
            if epoch == latest.epoch and start_offset >= latest.start_offset:
                return
        kept = [e for e in self.entries if e.epoch < epoch and e.start_offset < start_offset]
        self._replace([*kept, EpochEntry(epoch, start_offset)])

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Where an epoch ended: (-1, -1) when it is not known, the log end for the latest."""
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
        """Forgets the epochs that begin at `end_offset` or after."""
        if self.entries and self.entries[-1].start_offset >= end_offset:
            self._replace([e for e in self.entries if e.start_offset < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """The log begins at `start_offset` now: the epoch that holds it begins there too."""
        after = bisect_right(self.entries, start_offset, key=lambda e: e.start_offset)
        if (after > 0 and self.entries[after - 1].start_offset != start_offset) or after > 1:
            first = EpochEntry(self.entries[after - 1].epoch, start_offset)
            self._replace([first, *self.entries[after:]])

    def clear(self) -> None:
        if self.entries:
            self._replace([])

    @contextmanager
    def held(self, *, sync: bool = True) -> Iterator[None]:
        """Changes are written together, at the end: entries that are being collected are no file to be believed.

        Without `sync` the caller has the file forced to the disk later.
        """
        before, self._is_held = self.entries, True
        yield
        self._is_held = False
        if self.entries != before:
            self._files.write_atomic(self.path, _encode(self.entries), sync=sync)
            self._file_bytes = None
            self.is_dirty = self.is_dirty or not sync

    def _replace(self, entries: list[EpochEntry]) -> None:
        """The file first: when the disk refuses, memory says what the file does."""
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
