"""Checks of produced records that take too long for the broker loop.

Most batches are validated where they are appended. A large batch, or one that unpacks to a lot, is validated in a
thread instead. Requests that need the thread, and all later requests for their partitions, are appended in the order
of their arrival, so that neither the order of a partition nor the sequence of an idempotent producer is disturbed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, TypeVar

from klamm.clock import Clock
from klamm.errors import ErrorCode, ProtocolError
from klamm.log.log_config import LogConfig
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.log.validator import Checked, Rejection, is_plain, max_unpacked_bytes, validate, validate_packed
from klamm.metrics import ConversionStats
from klamm.model import TopicPartition
from klamm.protocol.compression import UnpackedTooLargeError
from klamm.protocol.message_set import CorruptMessageError, is_message_set, to_batch
from klamm.protocol.record_batch import ATTRIBUTES_POSITION, COMPRESSION_MASK, RECORD_BATCH_OVERHEAD
from klamm.replica.partition import Partition

T = TypeVar("T")
AppendResults: TypeAlias = dict[TopicPartition, AppendResult]
RecordsBytes: TypeAlias = "memoryview | bytes | bytearray"
Append: TypeAlias = "Callable[[Mapping[TopicPartition, Checked]], AppendResults | asyncio.Future[AppendResults]]"

INLINE_RECORDS: Final = 1_000
"""Records of one request that are parsed on the loop, at about a microsecond each."""
INLINE_UNPACKED_BYTES: Final = 128 * 1024
"""Maximum uncompressed size of a batch that is checked on the loop."""
MAX_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Maximum bytes that wait for the thread. Further requests get a retriable error."""
MOST_BYTES: Final = 1 << 20
"""Records that are appended in one step of the loop. A larger request takes one step."""
LEAST_COST: Final = 10
"""Base cost of a compressed batch: decompression takes time too."""
_PLAIN_RECORDS: Final = 10
"""Uncompressed records of ordinary topics that cost as much as one whose timestamp or key is inspected.

They are checked many at a time: a quarter of a microsecond each, and much less if all have the same size.
"""
_COUNT: Final = Struct(">i")
_FLAGS: Final = ATTRIBUTES_POSITION + 1


class _Converted(NamedTuple):
    """Messages of one partition that became a record batch."""

    topic: str
    record_count: int
    memory_bytes: int
    seconds: float


class _Waiting(NamedTuple):
    records: Mapping[TopicPartition, RecordsBytes]
    checked: dict[TopicPartition, Checked]
    check: Future[dict[TopicPartition, Checked]]
    converted: list[_Converted]
    """Written by the worker until `check` is done."""
    append: Append
    answer: asyncio.Future[AppendResults]
    size_bytes: int


class RecordChecks:
    """Owner: the broker loop. Without a worker every batch is validated where it is appended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        partitions: Mapping[TopicPartition, Partition],
        conversions: ConversionStats,
    ) -> None:
        self._conversions = conversions
        self._loop = loop
        self._clock = clock
        self._partitions = partitions
        self._worker: Executor | None = None
        self._queue: deque[_Waiting] = deque()
        self._busy: Counter[TopicPartition] = Counter()
        self._waiting_bytes = 0
        self._is_draining = False
        """Whether checked records are appended in the next turn of the loop: they are too many for this one."""

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run work of the same kind (a pure function of bytes) in the worker."""
        if self._worker is None:
            done: asyncio.Future[T] = self._loop.create_future()
            done.set_result(work())
            return done
        return asyncio.wrap_future(self._worker.submit(work), loop=self._loop)

    def start(self, worker: Executor) -> None:
        self._worker = worker

    def shutdown(self) -> None:
        """Finish running checks, and append their records if this broker still leads the partition."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=True)
            while self._queue and self._queue[0].check.done():
                self._append_next()

    def are_needed(self, records: Mapping[TopicPartition, RecordsBytes]) -> bool:
        """Whether `run` may have work. False for uncompressed batches of few records."""
        if self._worker is None:
            return False
        if self._busy:
            return True
        for data in records.values():
            if len(data) > RECORD_BATCH_OVERHEAD and (data[_FLAGS] & COMPRESSION_MASK or _count(data) > INLINE_RECORDS):
                return True
        return False

    def run(
        self, records: Mapping[TopicPartition, RecordsBytes], append: Append, *, convert: bool = False
    ) -> AppendResults | asyncio.Future[AppendResults]:
        """Validate compressed and large batches, then call `append` with the results; at once if nothing takes long.

        With `convert` messages of formats 0 and 1 become record batches first.
        """
        now_ms = self._clock.now_ms()
        checked: dict[TopicPartition, Checked] = {}
        heavy: dict[TopicPartition, Callable[[], Checked]] = {}
        converted: list[_Converted] = []
        budget = INLINE_RECORDS
        for tp, data in records.items():
            partition = self._partitions.get(tp)
            log = partition.log if partition is not None and partition.is_leader else None
            if log is not None and convert and is_message_set(data):
                heavy[tp] = partial(self._convert, memoryview(data), log.config, now_ms, tp.topic, converted)
                continue
            if log is None or len(data) <= RECORD_BATCH_OVERHEAD:
                continue
            is_packed = bool(data[_FLAGS] & COMPRESSION_MASK)
            cost = max(_count(data), LEAST_COST if is_packed else 0)
            if not is_packed and is_plain(log.config):
                cost //= _PLAIN_RECORDS
            view = memoryview(data)
            result: Checked | None = None
            if is_packed and cost <= budget:
                result = validate_packed(view, log.config, now_ms, INLINE_UNPACKED_BYTES)
            if result is not None:
                checked[tp] = result
            elif is_packed or cost > budget:
                heavy[tp] = partial(_check, view, log.config, now_ms)
                cost = 0
            budget -= cost
        if self._worker is None:
            checked |= _check_all(heavy)
            self._record(converted)
            return append(checked)
        if not heavy and not any(tp in self._busy for tp in records):
            return append(checked)
        return self._wait(records, checked, heavy, converted, append)

    def _wait(
        self,
        records: Mapping[TopicPartition, RecordsBytes],
        checked: dict[TopicPartition, Checked],
        heavy: Mapping[TopicPartition, Callable[[], Checked]],
        converted: list[_Converted],
        append: Append,
    ) -> AppendResults | asyncio.Future[AppendResults]:
        size_bytes = sum(len(data) for data in records.values())
        worker = self._worker
        if worker is None or self._waiting_bytes + size_bytes > max(MAX_WAITING_BYTES, size_bytes):
            message = "too many record batches wait to be checked: try again"
            return append({tp: Rejection(ErrorCode.REQUEST_TIMED_OUT, message) for tp in records})
        loop = self._loop
        self._waiting_bytes += size_bytes
        self._busy.update(records.keys())
        answer: asyncio.Future[AppendResults] = loop.create_future()
        check = worker.submit(_check_all, heavy)
        self._queue.append(_Waiting(records, checked, check, converted, append, answer, size_bytes))
        check.add_done_callback(lambda _: loop.call_soon_threadsafe(self._drain))
        return answer

    def _drain(self) -> None:
        """Append checked records, oldest request first. The next turn continues if they are too many for this one."""
        if self._is_draining:
            return
        size_bytes = 0
        while self._queue and self._queue[0].check.done():
            size_bytes += self._queue[0].size_bytes
            if size_bytes > MOST_BYTES and size_bytes != self._queue[0].size_bytes:
                self._is_draining = True
                self._loop.call_soon(self._drain_more)
                return
            self._append_next()

    def _drain_more(self) -> None:
        self._is_draining = False
        self._drain()

    def _append_next(self) -> None:
        """Append the records of the oldest request. The requests behind it wait until this is done."""
        waiting = self._queue[0]
        self._record(waiting.converted)
        try:
            done = waiting.append(waiting.checked | waiting.check.result())
        except Exception as error:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
        else:
            _deliver(done, waiting.answer)
        self._queue.popleft()
        self._waiting_bytes -= waiting.size_bytes
        self._busy.subtract(waiting.records.keys())
        for tp in waiting.records:
            if not self._busy[tp]:
                del self._busy[tp]

    def _record(self, converted: list[_Converted]) -> None:
        self._conversions.record(
            [(done.topic, done.record_count) for done in converted],
            sum(done.seconds for done in converted) * 1000,
            sum(done.memory_bytes for done in converted),
        )

    def _convert(
        self, view: memoryview, config: LogConfig, now_ms: int, topic: str, converted: list[_Converted]
    ) -> Checked:
        """Convert a message set of an old client to a record batch, in the worker."""
        started = self._clock.monotonic()
        try:
            data, count, memory_bytes = to_batch(view, max_unpacked_bytes(config))
        except CorruptMessageError as e:
            return Rejection(ErrorCode.CORRUPT_MESSAGE, str(e))
        except UnpackedTooLargeError as e:
            return Rejection(ErrorCode.MESSAGE_TOO_LARGE, str(e))
        except ProtocolError as e:
            return Rejection(ErrorCode.INVALID_RECORD, str(e))
        seconds = self._clock.monotonic() - started
        try:
            result = _check(memoryview(data), config, now_ms)
        except ProtocolError as e:
            return Rejection(ErrorCode.INVALID_RECORD, str(e))
        if not isinstance(result, Rejection):
            converted.append(_Converted(topic, count, memory_bytes, seconds))
        return result


def _count(data: RecordsBytes) -> int:
    """Return the record count of the header. An impossible count is refused before any record is read."""
    count: int = _COUNT.unpack_from(data, RECORD_BATCH_OVERHEAD - _COUNT.size)[0]
    return count


def _check(view: memoryview, config: LogConfig, now_ms: int) -> Checked:
    """Check a batch in the worker, on a frozen configuration."""
    return validate(view, config, AppendOrigin.CLIENT, now_ms, is_plain=is_plain(config))


def _check_all(heavy: Mapping[TopicPartition, Callable[[], Checked]]) -> dict[TopicPartition, Checked]:
    """Check all batches in the worker."""
    return {tp: check() for tp, check in heavy.items()}


def _deliver(done: AppendResults | asyncio.Future[AppendResults], answer: asyncio.Future[AppendResults]) -> None:
    if answer.done():
        return
    if not isinstance(done, asyncio.Future):
        answer.set_result(done)
        return

    def settle(future: asyncio.Future[AppendResults]) -> None:
        if answer.done():
            return
        if future.cancelled():
            answer.cancel()
        elif (error := future.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(future.result())

    done.add_done_callback(settle)
