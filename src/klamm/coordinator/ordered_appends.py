"""Appends to `__consumer_offsets` in the order of the calls, although large batches are built in a worker.

While a batch of a partition is being built, all later batches of that partition wait behind it. A batch is appended
only if this broker has led the partition without interruption since the call. Otherwise the groups were loaded again
meanwhile, and the batch would contradict them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from klamm.coordinator.deferred import Deferred
from klamm.coordinator.offsets_log import Appended, OffsetsLog
from klamm.errors import ErrorCode

Send = Callable[[bytes], Deferred[Appended]]
"""Hands a batch to the log."""


@dataclass(slots=True, eq=False)
class _Write:
    partition: int
    term: object
    send: Send
    batch: bytes | None
    error: ErrorCode = ErrorCode.NONE
    appended: Deferred[Appended] = field(default_factory=Deferred)

    @property
    def is_built(self) -> bool:
        return self.batch is not None or self.error is not ErrorCode.NONE


class OrderedAppends:
    """Owner: the GroupWriter. `term` returns an object that stands for the uninterrupted leadership of a partition."""

    def __init__(self, log: OffsetsLog, term: Callable[[int], object]) -> None:
        self._log = log
        self._term = term
        self._queues: dict[int, deque[_Write]] = {}

    def append(self, partition: int, batch: bytes, send: Send) -> Deferred[Appended]:
        if partition not in self._queues:
            return send(batch)
        return self._put(partition, batch, send).appended

    def build_and_append(self, partition: int, build: Callable[[], bytes], send: Send) -> Deferred[Appended]:
        """Append the result of `build`, a pure function that takes too long for the loop."""
        write = self._put(partition, None, send)

        def on_built(batch: bytes | None) -> None:
            write.batch = batch
            write.error = ErrorCode.UNKNOWN_SERVER_ERROR if batch is None else ErrorCode.NONE
            self._drain(partition)

        self._log.build(build).then(on_built)
        return write.appended

    def _put(self, partition: int, batch: bytes | None, send: Send) -> _Write:
        write = _Write(partition, self._term(partition), send, batch)
        self._queues.setdefault(partition, deque()).append(write)
        return write

    def _drain(self, partition: int) -> None:
        """Append the batches that are built, from the oldest on. The callbacks of one may append others."""
        queue = self._queues.get(partition)
        if queue is None:
            return
        while queue and queue[0].is_built:
            write = queue.popleft()
            self._append(write).then(write.appended.complete)
        if not queue and self._queues.get(partition) is queue:
            del self._queues[partition]

    def _append(self, write: _Write) -> Deferred[Appended]:
        if write.batch is None:
            return Deferred.of(Appended(write.error))
        if write.term is None or self._term(write.partition) is not write.term:
            return Deferred.of(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return write.send(write.batch)
