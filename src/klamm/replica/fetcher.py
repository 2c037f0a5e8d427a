"""One task that copies partitions from one leader: it fetches, appends, truncates, and backs off after failures.

Kafka's ReplicaFetcherThread. Code that changes state does not await. Between a request and its answer, a partition may
be removed, or added again in a new leader epoch, so an answer applies only to the state for which it was requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import ErrorCode
from klamm.log.epoch_correction import correct_epochs
from klamm.log.leader_epoch_cache import EpochEndOffset
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchResponse, PartitionData
from klamm.replica import gauges, leader_requests
from klamm.replica.fetch_session_handler import PARTITIONS_PER_SLICE, SESSION_ERRORS, BuiltRequest, FetchSessionHandler
from klamm.replica.fetch_state import FIRST_DELAY_MS, DelayedStates, PartitionFetchState, claim
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.leader_requests import LeaderConnection
from klamm.replica.truncation import Reset, truncation_for

if TYPE_CHECKING:
    from klamm.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

BYTES_PER_SLICE: Final = 1 << 20
"""Records that are appended before the loop serves others."""
_NONE: Final = ErrorCode.NONE
_STATS: Final = ("kafka.server", "FetcherStats")


Connect = Callable[[int], Awaitable[LeaderConnection]]
"""Open a connection to a broker. Raises ConnectionError if it is unreachable or its address is unknown."""


class ReplicaFetcher:
    """Owns the fetch states of its partitions. `failed` partitions wait for the controller's next LeaderAndIsr."""

    def __init__(
        self,
        name: str,
        leader_id: int,
        config: FetcherConfig,
        *,
        replicas: ReplicaManager,
        connect: Connect,
        broker_epoch: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self.leader_id = leader_id
        self.states: dict[TopicPartition, PartitionFetchState] = {}
        self.failed: dict[TopicPartition, ErrorCode] = {}
        self.has_crashed = False
        self.requests = replicas.metrics.meter(*_STATS, "RequestsPerSec", {"clientId": name})
        self.bytes = replicas.metrics.meter(*_STATS, "BytesPerSec", {"clientId": name})
        self._config = config
        self._replicas = replicas
        self._connect = connect
        self._broker_epoch = broker_epoch
        self._loop = loop
        self._session = FetchSessionHandler(config)
        self._delayed = DelayedStates()
        self._truncating: dict[TopicPartition, PartitionFetchState] = {}
        self._out_of_range: dict[TopicPartition, PartitionFetchState] = {}
        self._throttled: dict[TopicPartition, PartitionFetchState] = {}
        self._behind: dict[TopicPartition, PartitionFetchState] = {}
        """Partitions that lag, or whose lag is unknown."""
        self._unchecked: dict[TopicPartition, PartitionFetchState] = {}
        """Those of them that may have to be held back, or no longer: they are new, or the throttles have changed."""
        self._throttle_change_count = 0
        self._connection: LeaderConnection | None = None
        self._connection_failures = 0
        self._wake = asyncio.Event()

    # --- which partitions ----------------------------------------------------------------------------------------

    def add(self, states: Iterable[PartitionFetchState]) -> None:
        for state in states:
            tp = state.tp
            self.remove((tp,))
            self.states[tp] = self._behind[tp] = state
            gauges.register_lag(self._replicas.metrics, self.name, state)
            self._resume(state)
        self.wake()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.failed.pop(tp, None)
            if self.states.pop(tp, None) is not None:
                gauges.remove_lag(self._replicas.metrics, self.name, tp)
                self._session.remove(tp)
                self._delayed.remove(tp)
                for some in (self._truncating, self._out_of_range, self._throttled, self._behind, self._unchecked):
                    some.pop(tp, None)

    def wake(self) -> None:
        """Wake up: there is new work."""
        self._wake.set()

    def on_brokers_change(self) -> None:
        """The live brokers changed: an unreachable leader may have an address now."""
        if self._connection is None:
            self.wake()

    def remove_metrics(self) -> None:
        for name in ("RequestsPerSec", "BytesPerSec"):
            self._replicas.metrics.remove(*_STATS, name, {"clientId": self.name})
        for tp in self.states:
            gauges.remove_lag(self._replicas.metrics, self.name, tp)

    @property
    def is_idle(self) -> bool:
        return not self.states and not self.failed

    @property
    def max_lag(self) -> int:
        return max((max(state.lag, 0) for state in self._behind.values()), default=0)

    # --- the task ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.do_work()
                except OSError as failure:
                    self._on_connection_failure(failure)
                    await self._rest(self._connection_delay_s())
                except Exception:
                    log.exception("%s: handling a response of broker %d failed", self.name, self.leader_id)
                    self.has_crashed = True
                    self._disconnect()
                    await self._rest(self._config.backoff_ms / 1000)
        finally:
            self._disconnect()

    async def do_work(self) -> None:
        """Run one round: due truncations, resets and fetches."""
        await self._end_delays()
        await self._hold_back()
        if not (self._truncating or self._out_of_range or len(self._session)):
            await self._rest(self._seconds_to_next())
            return
        connection = await self._connected()
        if self._truncating:
            await self._truncate(connection)
        if self._out_of_range:
            await self._reset_offsets(connection)
        await self._hold_back()
        if len(self._session):
            await self._fetch(connection)
        self.has_crashed = False

    async def _connected(self) -> LeaderConnection:
        if self._connection is None:
            self._connection = await self._connect(self.leader_id)
        return self._connection

    def _on_connection_failure(self, failure: OSError) -> None:
        if self._connection is not None or not self._connection_failures:
            reason = str(failure) or "no answer in time"
            log.info("%s: connecting to broker %d failed: %s", self.name, self.leader_id, reason)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._session.reset()

    def _connection_delay_s(self) -> float:
        delay_ms = min(FIRST_DELAY_MS << self._connection_failures, self._config.backoff_ms)
        self._connection_failures = min(self._connection_failures + 1, 16)
        return delay_ms / 1000

    async def _rest(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    # --- delays --------------------------------------------------------------------------------------------------

    def _delay(self, state: PartitionFetchState) -> None:
        self._session.remove(state.tp)
        state.delay(self._loop.time(), self._config.backoff_ms)
        self._delayed.put(state)

    async def _end_delays(self) -> None:
        now, count = self._loop.time(), 0
        while (state := self._delayed.pop_due(now)) is not None:
            self._resume(state)
            count += 1
            if count % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _resume(self, state: PartitionFetchState) -> None:
        if state.is_truncating:
            self._truncating[state.tp] = state
            return
        self._session.put(state)
        if state.tp in self._behind:
            self._unchecked[state.tp] = state

    async def _hold_back(self) -> None:
        """While the quota is exceeded, do not request throttled partitions that lag.

        Only partitions that may change are visited, in slices.
        """
        quota = self._replicas.quotas.follower
        if self._throttle_change_count != quota.change_count:
            self._throttle_change_count = quota.change_count
            self._unchecked = dict(self._behind)
        elif not quota.has_throttled:
            self._unchecked.clear()
        is_exceeded = quota.has_throttled and quota.is_exceeded
        visited = self._unchecked if is_exceeded else self._throttled
        while visited:
            for state in list(islice(visited.values(), PARTITIONS_PER_SLICE)):
                del visited[state.tp]
                if is_exceeded and quota.is_throttled(state.tp):
                    self._hold_back_if_behind(state)
                elif not is_exceeded or self._throttled.pop(state.tp, None) is not None:
                    self._resume(state)
            if visited:
                await asyncio.sleep(0)

    def _hold_back_if_behind(self, state: PartitionFetchState) -> None:
        if state.tp in self._behind and self._session.is_asked_for(state):
            self._session.remove(state.tp)
            self._throttled[state.tp] = state

    def _seconds_to_next(self) -> float | None:
        """Return the seconds until a delayed partition may be fetched again."""
        due = self._delayed.next_due()
        waits = [] if due is None else [due - self._loop.time()]
        if self._throttled:
            waits.append(self._replicas.quotas.follower.seconds_to_wait())
        return max(0.0, min(waits)) if waits else None

    def _fail(self, state: PartitionFetchState, error: ErrorCode) -> None:
        """Stop fetching the partition until its leader epoch changes."""
        log.warning("%s: stopped fetching %s: %s", self.name, state.tp, error.name)
        self.remove((state.tp,))
        self.failed[state.tp] = error

    # --- fetching ------------------------------------------------------------------------------------------------

    async def _fetch(self, connection: LeaderConnection) -> None:
        wait_ms = self._config.max_wait_ms
        if (seconds := self._seconds_to_next()) is not None:
            wait_ms = min(wait_ms, int(seconds * 1000) + 1)
        request, version = await self._build(wait_ms)
        response: FetchResponse = await connection.send(request, version)
        self._connection_failures = 0
        self.requests.count += 1
        error = ErrorCode.of(response.error_code) if response.error_code else _NONE
        self._session.on_response(error, response.session_id)
        if error is not _NONE:
            if error not in SESSION_ERRORS:
                log.warning("%s: broker %d rejected a fetch: %s", self.name, self.leader_id, error.name)
                await self._rest(self._config.backoff_ms / 1000)
            return
        count = size_bytes = 0
        for topic in response.responses:
            for data in topic.partitions:
                own_bytes = len(data.records) if data.records else 0
                if count == PARTITIONS_PER_SLICE or (count and size_bytes + own_bytes > BYTES_PER_SLICE):
                    await asyncio.sleep(0)
                    count = size_bytes = 0
                state = self._session.asked(topic.topic, topic.topic_id, data.partition_index)
                if state is not None and state.is_current:
                    self._on_partition(state, data)
                count += 1
                size_bytes += own_bytes

    async def _build(self, wait_ms: int) -> BuiltRequest:
        """A request after a lost connection names every partition: it is built in slices."""
        steps = self._session.building(wait_ms, self._broker_epoch())
        while True:
            try:
                next(steps)
            except StopIteration as done:
                built: BuiltRequest = done.value
                return built
            await asyncio.sleep(0)

    def _on_partition(self, state: PartitionFetchState, data: PartitionData) -> None:
        if data.error_code:
            self._on_error(state, ErrorCode.of(data.error_code))
        elif data.diverging_epoch is not None:
            diverging = EpochEndOffset(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
            self._cut(state, truncation_for(state.log, diverging).offset)
        else:
            self._append(state, data)

    def _on_error(self, state: PartitionFetchState, error: ErrorCode) -> None:
        """Retry later: the controller informs leader and follower at about the same time."""
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self._fail(state, error)
        elif error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._session.remove(state.tp)
            self._out_of_range[state.tp] = state
        else:
            log.debug("%s: %s: %s", self.name, state.tp, error.name)
            self._delay(state)

    def _append(self, state: PartitionFetchState, data: PartitionData) -> None:
        assert state.fetch_offset == state.log.log_end_offset, f"{state.tp} was changed meanwhile"
        records: Any = data.records if data.records is not None else b""
        result = state.partition.append_records_to_follower(records, data.high_watermark, data.log_start_offset)
        if result.error:
            log.error(
                "%s: %s: appending the records of the leader failed: %s", self.name, state.tp, result.error_message
            )
            if result.error == ErrorCode.KAFKA_STORAGE_ERROR and state.log.disk.is_failed:
                self._fail(state, result.error)
            else:  # too many open files: the disk has not failed
                self._delay_change(state)
            return
        state.failures = 0
        if result.bytes:
            stats, partition = self._replicas.topic_stats, state.partition
            stats.replication_bytes_in.count += result.bytes
            if partition.adding_replicas and partition.broker_id in partition.adding_replicas:
                stats.reassignment_bytes_in.count += result.bytes
            self.bytes.count += result.bytes
            quota = self._replicas.quotas.follower
            if quota.has_throttled and quota.is_throttled(state.tp):
                quota.record(result.bytes)
            state.follow_log()
            self._session.put(state)
        elif state.log.log_start_offset != state.reported_log_start_offset:
            self._session.put(state)  # a DeleteRecords waits until the leader knows
        state.lag = max(0, data.high_watermark - state.fetch_offset)
        if state.lag:
            if state.tp not in self._behind:
                self._behind[state.tp] = self._unchecked[state.tp] = state
        else:
            self._behind.pop(state.tp, None)
        if self._replicas.woken_fetches:
            self._replicas.complete_woken_fetches()

    # --- truncating ----------------------------------------------------------------------------------------------

    def _cut(self, state: PartitionFetchState, offset: int, *, is_complete: bool = True) -> None:
        hosted = state.log
        if offset < hosted.high_watermark:
            log.warning(
                "%s: truncating %s to offset %d, below its high watermark: %s", self.name, state.tp, offset, hosted
            )
        elif offset < hosted.log_end_offset:
            log.info("%s: truncating %s to offset %d: %s", self.name, state.tp, offset, hosted)
        error = hosted.truncate_to(offset)
        if error == ErrorCode.NONE:
            state.is_truncating = not is_complete
        self._after_change(state, error)

    def _after_change(self, state: PartitionFetchState, error: ErrorCode) -> None:
        state.partition.changed()
        self._replicas.complete_woken_fetches()
        if error == ErrorCode.NONE:
            state.follow_log()
            self._resume(state)
        elif error == ErrorCode.KAFKA_STORAGE_ERROR and not state.log.disk.is_failed:
            self._delay_change(state)
        else:
            self._fail(state, error)

    def _delay_change(self, state: PartitionFetchState) -> None:
        """Try again later: too many files are open. The log may have been truncated, so it may end earlier now."""
        state.follow_log()
        self._delay(state)

    async def _truncate(self, connection: LeaderConnection) -> None:
        """Before the first fetch of a leader epoch, find out where the logs diverge."""
        asked = []
        for state in [*self._truncating.values()]:
            if state.last_fetched_epoch < 0:
                del self._truncating[state.tp]
                self._cut(state, state.log.high_watermark)
            else:
                asked.append(state)
        if not asked:
            return
        ends = await leader_requests.end_offsets_for_epochs(connection, self._config, asked)
        for state in asked:
            if claim(self._truncating, state) and state.is_current:
                self._on_epoch_end(state, *ends[state.tp])

    def _on_epoch_end(self, state: PartitionFetchState, error: ErrorCode, end: EpochEndOffset) -> None:
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self._fail(state, error)
        elif error != ErrorCode.NONE:
            self._delay(state)
        else:
            truncation = truncation_for(state.log, end)
            self._cut(state, truncation.offset, is_complete=truncation.is_complete)

    async def _reset_offsets(self, connection: LeaderConnection) -> None:
        """The requested offset is out of range: ask for the start and end of the leader's log."""
        states = [*self._out_of_range.values()]
        resets = await leader_requests.resets(connection, self._config, states)
        for state in states:
            if claim(self._out_of_range, state) and state.is_current:
                self._on_reset(state, resets[state.tp])

    def _on_reset(self, state: PartitionFetchState, reset: Reset | ErrorCode) -> None:
        if isinstance(reset, ErrorCode):
            if reset == ErrorCode.FENCED_LEADER_EPOCH:
                self._fail(state, reset)
            else:
                self._delay(state)
            return
        log.warning(
            "%s: resuming %s at offset %d; %s is out of range on the leader",
            self.name,
            state.tp,
            reset.fetch_offset,
            state.log,
        )
        if reset.is_full:
            self._after_change(state, state.log.truncate_fully_and_start_at(reset.fetch_offset))
        elif reset.fetch_offset < state.log.log_end_offset:
            self._cut(state, reset.fetch_offset)
        elif state.last_fetched_epoch > state.leader_epoch:
            self._correct_epochs(state)
        else:
            self._delay(state)

    def _correct_epochs(self, state: PartitionFetchState) -> None:
        """The log has a newer leader epoch than the leader, which rejects fetches of it for as long as it leads."""
        log.error(
            "%s: %s has records of leader epoch %d, but its leader has epoch %d; correcting its leader epochs",
            self.name,
            state.tp,
            state.last_fetched_epoch,
            state.leader_epoch,
        )
        error = correct_epochs(state.log, state.leader_epoch)
        state.is_truncating = state.is_truncating or state.log.latest_epoch is None
        self._after_change(state, error)
