"""Planning on the driver before tasks run: the partitions, and the start and end of each range."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar
from uuid import UUID

from klamm.client.client_errors import UnknownTopicError
from klamm.client.cluster_client import READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from klamm.client.patience import MISSING_PARTITION, MISSING_TOPIC, planning
from klamm.clock import Clock, SystemClock
from klamm.model import TopicPartition
from klamm.spark.source.data_loss import loss
from klamm.spark.source.read_options import EARLIEST, LATEST, OffsetSpec, OptionError, ReadOptions
from klamm.spark.source.source_offsets import OffsetRange

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Planner:
    """Asks the cluster. Each public method has one deadline, `klamm.client.patience.planning`, for all its requests."""

    def __init__(
        self,
        options: ReadOptions,
        client: ClusterClient,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self.client = client
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._isolation = READ_COMMITTED if options.read_committed else READ_UNCOMMITTED
        self._cached: tuple[TopicPartition, ...] = ()
        self._cached_until = float("-inf")

    @property
    def topic_ids(self) -> Mapping[str, UUID]:
        return self.client.topic_ids

    def partitions(self, expected: frozenset[TopicPartition] = frozenset()) -> tuple[TopicPartition, ...]:
        """Return the partitions to read, sorted.

        Asks several times if one of the `expected` is missing: a broker that has just started may not know all
        partitions. Raises OptionError if a named topic does not exist and nothing was expected.
        """
        if self._clock.monotonic() < self._cached_until:
            return self._cached
        polling = MISSING_PARTITION if expected else MISSING_TOPIC
        with self._one_deadline():
            found = self._find()
            for _ in range(polling.tries):
                if expected <= set(found) and (found or self._options.subscription.pattern is not None):
                    break
                self._sleep(polling.every_ms / 1000)
                found = self._find()
        self._refuse_unknown(found, expected)
        if self._options.metadata_cache_ttl_ms > 0:
            self._cached = found
            self._cached_until = self._clock.monotonic() + self._options.metadata_cache_ttl_ms / 1000
        return found

    def _find(self) -> tuple[TopicPartition, ...]:
        wanted = self._options.subscription
        names = None if wanted.pattern is not None else wanted.topics or sorted({tp.topic for tp in wanted.partitions})
        topics = self.client.topics(names, wanted.pattern)
        found = [TopicPartition(name, index) for name, indexes in topics.items() for index in indexes]
        return tuple(sorted(set(found) & set(wanted.partitions) if wanted.partitions else found))

    def _refuse_unknown(self, found: tuple[TopicPartition, ...], expected: frozenset[TopicPartition]) -> None:
        wanted = self._options.subscription
        known = {tp.topic for tp in found}
        once = {tp.topic for tp in expected}
        for topic in wanted.topics:
            if topic not in known and topic not in once:
                raise OptionError(f"Option 'subscribe' names topic {topic!r}, which does not exist.")
        for tp in wanted.partitions:
            if tp not in found and tp not in expected:
                raise OptionError(f"Option 'assign' names {tp}, which does not exist.")

    def earliest(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        return self._asked(lambda: self.client.earliest(tps))

    def latest(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        """Return the high watermarks, or the last stable offsets with read_committed."""
        return self._asked(lambda: self.client.latest(tps, self._isolation))

    def high_watermarks(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        return self._asked(lambda: self.client.latest(tps, READ_UNCOMMITTED))

    def starting(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        """Return where a new query begins. Raises OptionError if the option does not match the existing partitions."""
        spec = self._options.starting
        times = _times(spec, tps, "starting")
        if times is None:
            return self._specified(spec, tps, "startingOffsets")
        found = self._asked(lambda: self.client.list_offsets(times, self._isolation))
        late = tuple(tp for tp, offset in found.items() if offset is None)
        if late and self._options.starting_strategy == "error":
            raise OptionError(
                f"{late[0]} has no record at or after timestamp {times[late[0]]}; "
                "startingOffsetsByTimestampStrategy=latest would begin at its end."
            )
        return self._filled(found, late)

    def starting_stream(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        """Like `starting`, but raises OptionError for offsets beyond the end of the log."""
        starts = self.starting(tps)
        if self._options.starting.offsets is not None:
            self._refuse_beyond(self._options.starting, self.latest(tps), "startingOffsets")
        return starts

    def ending(self, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        """Return where a batch query ends. A timestamp after all records means the end of the log."""
        spec = self._options.ending
        times = _times(spec, tps, "ending")
        if times is None:
            return self._specified(spec, tps, "endingOffsets")
        found = self._asked(lambda: self.client.list_offsets(times, self._isolation))
        return self._filled(found, tuple(tp for tp, offset in found.items() if offset is None))

    def batch_ranges(self) -> list[OffsetRange]:
        """Return the ranges of a batch query. Deleted or future offsets are reported before a task runs."""
        with self._one_deadline():
            tps = self.partitions()
            starts, ends = self.starting(tps), self.ending(tps)
            first, last = self.earliest(tps), self.latest(tps)
        self._refuse_beyond(self._options.starting, last, "startingOffsets")
        self._refuse_beyond(self._options.ending, last, "endingOffsets")
        ranges: list[OffsetRange] = []
        for tp in tps:
            start, end = starts[tp], min(ends[tp], last[tp])
            if start < first[tp] and start < end:
                why = f"retention or DeleteRecords removed them, the log begins at {first[tp]}"
                loss(OffsetRange(tp, start, min(first[tp], end)), why, self._options)
                start = first[tp]
            if start < end:
                ranges.append(OffsetRange(tp, start, end))
        return ranges

    def _refuse_beyond(self, spec: OffsetSpec, last: Mapping[TopicPartition, int], name: str) -> None:
        """An offset beyond the end of the log is a wrong option, not a loss. With failOnDataLoss=false it is a
        warning."""
        end = "the last stable offset is" if self._options.read_committed else "the log ends at"
        for tp, offset in (spec.offsets or {}).items():
            if offset <= last[tp]:
                continue
            sentence = f"Option '{name}' names offset {offset} of {tp}, which is beyond its end: {end} {last[tp]}."
            if self._options.fail_on_data_loss:
                raise OptionError(f"{sentence} -1 means the end. failOnDataLoss=false reads the records that exist.")
            _log.warning("%s The query reads the records that exist.", sentence)

    def _specified(self, spec: OffsetSpec, tps: tuple[TopicPartition, ...], name: str) -> dict[TopicPartition, int]:
        wanted = spec.offsets if spec.offsets is not None else dict.fromkeys(tps, spec.offset)
        _check_same(wanted, tps, name)
        found = {tp: offset for tp, offset in wanted.items() if offset >= 0}
        found |= self.earliest(tuple(tp for tp, offset in wanted.items() if offset == EARLIEST))
        found |= self.latest(tuple(tp for tp, offset in wanted.items() if offset == LATEST))
        return found

    def _filled(
        self, found: Mapping[TopicPartition, int | None], late: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, int]:
        return {tp: offset for tp, offset in found.items() if offset is not None} | self.latest(late)

    def _asked(self, ask: Callable[[], T]) -> T:
        """Ask about partitions that exist: a broker that does not know one of them yet is asked again."""
        with self._one_deadline():
            for _ in range(self._options.offset_retries):
                try:
                    return ask()
                except UnknownTopicError:
                    self._sleep(MISSING_TOPIC.every_ms / 1000)
            return ask()

    def _one_deadline(self) -> AbstractContextManager[None]:
        options = self._options
        call = self.client.config.patience
        return self.client.within(planning(call, options.offset_retries, options.offset_retry_interval_ms))


def _times(spec: OffsetSpec, tps: tuple[TopicPartition, ...], side: str) -> Mapping[TopicPartition, int] | None:
    if spec.timestamp is not None:
        return dict.fromkeys(tps, spec.timestamp)
    if spec.timestamps is not None:
        _check_same(spec.timestamps, tps, f"{side}OffsetsByTimestamp")
    return spec.timestamps


def _check_same(named: Mapping[TopicPartition, int], tps: tuple[TopicPartition, ...], name: str) -> None:
    there: defaultdict[str, list[int]] = defaultdict(list)
    for tp in tps:
        there[tp.topic].append(tp.partition)
    for tp in sorted(named.keys() - set(tps)):
        if tp.topic not in there:
            raise OptionError(f"Option '{name}' names topic {tp.topic!r}, which is not read: {_topics(there)}.")
        known = ", ".join(map(str, there[tp.topic][:10])) + (", ..." if len(there[tp.topic]) > 10 else "")
        raise OptionError(f"Option '{name}' names {tp}, which is not read: topic {tp.topic!r} has partitions {known}.")
    if missing := sorted(set(tps) - named.keys()):
        shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise OptionError(
            f"Option '{name}' must name every partition that is read; it lacks {shown}. -1 is latest, -2 earliest."
        )


def _topics(there: Iterable[str]) -> str:
    names = sorted(there)
    return f"the query reads {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}" if names else "there is none"
