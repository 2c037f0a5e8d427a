"""A fetch that waits until there is enough to read. Looking again costs what moved, not what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.replica.partition_reader import end_of, readable_log

if TYPE_CHECKING:
    from klamm.replica.fetch_path import Fetches, FetchParams, FetchPath, Reads


class DelayedFetch:
    """Estimates from how the logs grew whether `min_bytes` can be read: no read happens while waiting.

    Whoever changes a partition tells by `on_key`, so what was not told of is as it was when the fetch was parked.
    """

    __slots__ = ("_available", "_baseline", "_estimates", "_fetches", "_moved", "_params", "_path", "_places", "_reads")

    def __init__(self, path: FetchPath, params: FetchParams, fetches: Fetches, reads: Reads) -> None:
        self._path = path
        self._params = params
        self._fetches = fetches
        self._reads = reads
        self._places: dict[TopicPartition, Sequence[int]] = {tp: (place,) for place, (tp, _) in enumerate(fetches)}
        if len(self._places) < len(fetches):  # a client that names a partition twice
            self._places = _places_of(fetches)
        self._baseline: list[int] | None = None
        """The sizes to grow from; not needed where any byte is enough."""
        if params.min_bytes > 1:
            self._baseline = [path.log_size_bytes(tp) - read.size_bytes for tp, read in reads]
        self._estimates = [read.size_bytes for _, read in reads]
        self._available = sum(self._estimates)
        self._moved: set[int] | None = set() if self._available == 0 else None
        """The places that have changed. None: there was something to read already, so a limit joins all of them."""

    def on_key(self, tp: TopicPartition) -> Reads | None:
        """Looks at the one partition that changed; the answer when that makes enough of all."""
        for place in self._places[tp]:
            estimate = self._estimate(place)
            if self._moved is not None:
                self._moved.add(place)
            if estimate is None:
                return self._answer()
            self._available += estimate - self._estimates[place]
            self._estimates[place] = estimate
        return self._answer() if self._available >= self._params.min_bytes else None

    def on_expire(self) -> Reads:
        """Everything is read again."""
        return self._path.answered(self._params, self._path.read_all(self._params, self._fetches))

    def _answer(self) -> Reads:
        if self._moved is None:
            return self.on_expire()
        places = sorted(self._moved)
        fresh = self._path.read_all(self._params, [self._fetches[place] for place in places])
        for place, read in zip(places, fresh, strict=True):
            self._reads[place] = read
        return self._path.answered(self._params, self._reads)

    def _estimate(self, place: int) -> int | None:
        """The bytes that this partition would add to the answer; None when it has something to tell at once."""
        tp, fetch = self._fetches[place]
        params = self._params
        partition = self._path.hosted(tp)
        if partition is None:
            return None
        log = readable_log(partition, fetch.current_leader_epoch, params.require_leader)
        if isinstance(log, ErrorCode) or log.log_end_offset < fetch.fetch_offset:
            return None
        if self._path.owes_high_watermark(params, partition):
            return None
        if end_of(log, params.isolation) <= fetch.fetch_offset or self._path.is_held_back(params, partition):
            return 0
        if self._baseline is None:
            return 1
        return max(1, min(log.size_bytes - self._baseline[place], fetch.max_bytes))


def _places_of(fetches: Fetches) -> dict[TopicPartition, Sequence[int]]:
    places: dict[TopicPartition, list[int]] = {}
    for place, (tp, _) in enumerate(fetches):
        places.setdefault(tp, []).append(place)
    return dict(places)
