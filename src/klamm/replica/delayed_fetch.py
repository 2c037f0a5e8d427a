"""A fetch that waits until there is enough to read. Looking again costs what moved, not what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.errors import ErrorCode
from klamm.replica.fetch_session import Readers, SessionPartition, place_of
from klamm.replica.partition_reader import PartitionRead, end_of, readable_log

if TYPE_CHECKING:
    from klamm.replica.fetch_path import FetchParams, FetchPath, Reads


class DelayedFetch:
    """Estimates from how the logs grew whether `min_bytes` can be read: no read happens while waiting.

    Partitions report changes through the session, so whatever did not report is as it was when the fetch was parked.
    That includes the partitions of the session that this fetch did not have to look at.
    """

    __slots__ = (
        "_available",
        "_baseline",
        "_estimates",
        "_has_data",
        "_is_large",
        "_moved",
        "_params",
        "_path",
        "_reads",
        "_session",
        "_touched",
    )

    def __init__(self, path: FetchPath, params: FetchParams, session: Readers, *, is_large: bool = False) -> None:
        """`is_large`: it has been read in slices, and whoever waits for it completes the answer in slices."""
        self._path = path
        self._is_large = is_large
        self._params = params
        self._session = session
        self._reads: dict[SessionPartition, PartitionRead] = {}
        self._baseline: dict[SessionPartition, int] = {}
        """The sizes of logs to grow from; empty where any byte is enough."""
        self._estimates: dict[SessionPartition, int] = {}
        """The bytes that a partition would add to the answer, where there are any."""
        self._available = 0
        self._has_data = False
        """There was something to read already: a limit joins all partitions, so all are read again."""
        self._moved: dict[SessionPartition, None] = {}
        self._touched: dict[SessionPartition, None] = {}
        """Partitions that reported a change since the last look."""
        session.waiting.append(self)

    def add(self, reads: Reads) -> None:
        """Take over what was read, in the same step of the loop, and follow these partitions from now on."""
        path = self._path
        self._reads.update(reads)
        for partition, read in reads:
            hosted = None if partition.tp is None else path.hosted(partition.tp)
            if hosted is not None and partition.session is self._session:  # else it has ended, or forgotten this one
                partition.watch(hosted)
                if self._params.min_bytes > 1 and hosted.log is not None:
                    self._baseline[partition] = hosted.log.size_bytes - read.size_bytes
            if read.size_bytes:
                self._has_data = True
                self._available += read.size_bytes
                self._estimates[partition] = read.size_bytes

    def close(self) -> None:
        """The fetch is answered, or nobody waits for it any more."""
        session = self._session
        if self not in session.waiting:
            return
        session.waiting.remove(self)
        self._path.woken.pop(self, None)
        if not session.id and not self._is_large:
            for partition in self._reads:
                partition.unwatch()

    def release(self, reads: Reads) -> None:
        """A part of a large fetch is answered."""
        is_ephemeral = not self._session.id
        for partition, _ in reads:
            self._reads.pop(partition, None)
            self._baseline.pop(partition, None)
            if is_ephemeral:
                partition.unwatch()

    # --- while waiting ---------------------------------------------------------------------------------------------

    def on_change(self, partition: SessionPartition) -> None:
        self._touched[partition] = None
        self._path.woken[self] = None

    def try_complete(self) -> Reads | None:
        """Look at the partitions that changed; the answer when that makes enough of all."""
        touched, self._touched = self._touched, {}
        for partition in touched:
            if partition.session is not self._session:  # forgotten by a later request of the session
                continue
            self._moved[partition] = None
            estimate = self._estimate(partition)
            if estimate is None:
                return self._answer()
            self._available += estimate - self._estimates.get(partition, 0)
            self._estimates[partition] = estimate
        return self._answer() if self._available >= self._params.min_bytes else None

    def on_expire(self) -> Reads:
        """Read again everything that was looked at; of a large fetch only the partitions that changed."""
        self._moved.update(self._touched)
        return self._answer(everything=not self._is_large)

    def _answer(self, *, everything: bool = False) -> Reads:
        self.close()
        if not self._is_large:
            everything |= self._has_data
        again = dict.fromkeys(self._reads) | self._moved if everything else self._moved
        count = len(self._reads)
        self._reads.update(self._path.read_all(self._params, sorted(again, key=place_of)))
        reads = list(self._reads.items())
        if len(reads) > count:
            reads.sort(key=lambda read: read[0].place)
        return reads if self._is_large else self._path.answered(self._params, reads)

    def _estimate(self, partition: SessionPartition) -> int | None:
        """The bytes that this partition would add to the answer; None when it has something to tell at once."""
        fetch = partition.fetch
        params = self._params
        hosted = None if partition.tp is None else self._path.hosted(partition.tp)
        if hosted is None:
            return None
        log = readable_log(hosted, fetch.current_leader_epoch, params.require_leader)
        if isinstance(log, ErrorCode) or log.log_end_offset < fetch.fetch_offset:
            return None
        if self._path.owes_high_watermark(params, hosted):
            return None
        partition.watch(hosted)
        if end_of(log, params.isolation) <= fetch.fetch_offset or self._path.is_held_back(params, hosted):
            return 0
        if params.min_bytes <= 1:
            return 1
        before = self._baseline.get(partition, partition.log_size_bytes)
        return max(1, min(log.size_bytes - before, fetch.max_bytes))
