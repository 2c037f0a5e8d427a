"""Streaming reads: where each micro-batch ends, decided on the driver.

`latestOffset` waits up to option `pollMs` for new records, so that an idle query does not spin. The end of a batch
records where the batch begins if the previous offset does not (`_from`), so a repeated batch reads the same records. It
also holds the topics' ids, so a topic that was deleted and created again is recognised, even if the query did not run
at that time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from klamm.client.patience import GROUP_COMMIT
from klamm.clock import SystemClock
from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.source.client_options import driver_client
from klamm.spark.source.data_loss import loss
from klamm.spark.source.planner import Planner
from klamm.spark.source.read_options import ReadOptions
from klamm.spark.source.reader import input_partitions, read_range
from klamm.spark.source.source_offsets import (
    OffsetRange,
    SourceOffset,
    available,
    by_topic,
    is_delayed,
    parse_source_offset,
    rate_limit,
    source_offset,
)

if TYPE_CHECKING:
    from klamm.spark.decode.value_schema import ValueSchema

_log = logging.getLogger(__name__)

_FIRST_WAIT_S: Final = 0.005
_LONGEST_WAIT_S: Final = 0.05
_CREATED_AGAIN: Final = "the topic was deleted and created again"


class KlammStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver while the query runs; its state is never pickled."""

    def __init__(self, options: ReadOptions, schema: StructType, value_schema: ValueSchema | None = None) -> None:
        self._options = options
        self._schema = schema
        self._value_schema = value_schema
        self._clock = SystemClock()
        self._planner: Planner | None = None
        self._initial: SourceOffset | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._latest: dict[TopicPartition, int] | None = None
        self._last_trigger_ms: int | None = None
        self._ids: dict[str, UUID] = {}
        self._committed: Mapping[TopicPartition, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_value_schema": self._value_schema}

    # --- what Spark calls ---

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            planner = self._planning()
            offsets = planner.starting_stream(planner.partitions())
            self._remember_ids()
            self._initial = source_offset(offsets, is_initial=True, topic_ids=self._ids)
        return self._initial.to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        planner = self._planning()
        self._target = planner.latest(planner.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return `start` itself, unchanged, if there is nothing new."""
        began = parse_source_offset(start)
        self._commit_group(began)
        wait_s = _FIRST_WAIT_S
        deadline = self._clock.monotonic() + self._options.poll_ms / 1000
        tps = self._partitions(began)
        while True:
            end = self._end_of_batch(began, tps, limit)
            if end is not None:
                return end.to_dict()
            if self._target is not None or self._clock.monotonic() >= deadline:
                return start
            time.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, 1.5 * wait_s)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return by_topic(self._latest) if self._latest is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        began, ended = parse_source_offset(start), parse_source_offset(end)
        begins = {**began.offsets, **ended.resolved_from}
        unknown = tuple(tp for tp in ended.offsets if tp not in begins)
        if unknown:  # the offset was not written by this source
            begins |= self._planning().earliest(unknown)
        ranges = [OffsetRange(tp, begins[tp], last) for tp, last in sorted(ended.offsets.items())]
        ids = {**self._ids, **ended.topic_ids}
        return list(input_partitions(self._of_these_topics(ranges, ended.topic_ids), self._options, ids))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, self._value_schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this one batch late, and never for the last one, so `latestOffset` commits instead."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.client.close()
            self._planner = None

    def _of_these_topics(self, ranges: list[OffsetRange], ids: Mapping[str, UUID]) -> list[OffsetRange]:
        """Drop the ranges of a repeated batch whose topics were deleted and created again since."""
        wanted = [r for r in ranges if r.size > 0]
        planner = self._planning()
        if {r.tp.topic for r in wanted if r.tp.topic in ids} - planner.topic_ids.keys():
            planner.partitions(frozenset(r.tp for r in ranges))
        recreated = self._recreated(ids)
        for r in wanted:
            if r.tp.topic in recreated:
                loss(r, _CREATED_AGAIN, self._options)
        return [r for r in wanted if r.tp.topic not in recreated]

    # --- where a batch ends ---

    def _end_of_batch(
        self, began: SourceOffset, tps: tuple[TopicPartition, ...], limit: ReadLimit
    ) -> SourceOffset | None:
        """Return None if there is nothing to read, or not enough."""
        new = tuple(tp for tp in tps if tp not in began.offsets)
        resolved = dict(began.offsets) if began.is_initial else {}
        resolved |= self._begin_new(new)
        last = self._not_before(began, self._latest_of(began, tps))
        resets = self._resets(began, last)
        resolved |= resets
        start = {tp: offset for tp, offset in {**began.offsets, **resolved}.items() if tp in last}
        end = self._limited(start, last, limit)
        if end is None and resets:
            end = start
        # A position that was moved back is stored at once, even without records: a second move could pass new ones.
        if end is None or (end == began.offsets and not resets and not available(start, end)):
            return None
        resolved = {tp: offset for tp, offset in resolved.items() if tp in end}
        return source_offset(end, resolved, topic_ids={**began.topic_ids, **self._ids})

    def _latest_of(self, began: SourceOffset, tps: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        if self._target is None:
            self._latest = self._planning().latest(tps)
            return self._latest
        # the state when the query began; newer partitions wait for the next query
        if began.is_initial:  # resolved after the target, so it may be newer; later that would count as a loss
            self._target |= {tp: max(self._target.get(tp, 0), offset) for tp, offset in began.offsets.items()}
        self._latest = self._target
        known = {tp: self._target.get(tp, offset) for tp, offset in began.offsets.items() if tp in tps}
        return known | {tp: self._target[tp] for tp in tps if tp in self._target and tp not in began.offsets}

    def _not_before(self, began: SourceOffset, last: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Keep a position beyond the last stable offset if the log has it: earlier runs were read_uncommitted."""
        ahead = tuple(tp for tp, end in last.items() if end < began.offsets.get(tp, end))
        if not ahead or not self._options.read_committed:
            return last
        recreated = self._recreated({**self._ids, **began.topic_ids})
        ahead = tuple(tp for tp in ahead if tp.topic not in recreated)
        ends = self._planning().high_watermarks(ahead)
        return last | {tp: began.offsets[tp] for tp in ahead if ends[tp] >= began.offsets[tp]}

    def _limited(
        self, start: Mapping[TopicPartition, int], last: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int] | None:
        least = self._options.min_offsets_per_trigger
        now_ms = self._clock.now_ms()
        if (
            least is not None
            and self._target is None
            and is_delayed(
                available=available(start, last),
                min_offsets=least,
                last_trigger_ms=self._last_trigger_ms,
                now_ms=now_ms,
                max_trigger_delay_ms=self._options.max_trigger_delay_ms,
            )
        ):
            return None
        if available(start, last):
            self._last_trigger_ms = now_ms
        return rate_limit(limit.max_rows, start, last) if isinstance(limit, ReadMaxRows) else dict(last)

    def _begin_new(self, new: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        """Read partitions that appeared while the query runs from their beginning."""
        if not new:
            return {}
        found = self._planning().earliest(new)
        for tp, offset in found.items():
            if offset > 0:
                loss(
                    OffsetRange(tp, 0, offset),
                    "the partition is new to the query and does not begin at 0",
                    self._options,
                )
        self._remember_ids()
        return found

    def _resets(self, began: SourceOffset, last: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return where to continue in partitions whose log is not the one read before."""
        recreated = self._recreated({**self._ids, **began.topic_ids})
        found: dict[TopicPartition, int] = {}
        for tp, end in last.items():
            start = began.offsets.get(tp)
            if start is None:
                continue
            if tp.topic in recreated:
                loss(OffsetRange(tp, start, max(end, start + 1)), _CREATED_AGAIN, self._options)
                found |= self._planning().earliest((tp,))
            elif end < start:
                why = f"the log ends at {end}: an unclean election truncated it, or the topic was created again"
                loss(OffsetRange(tp, end, start), why, self._options)
                found[tp] = end
        self._ids.update({topic: self._planning().topic_ids[topic] for topic in recreated})
        return found

    def _recreated(self, ids: Mapping[str, UUID]) -> set[str]:
        found = self._planning().topic_ids
        return {topic for topic, known in ids.items() if found.get(topic, known) != known}

    def _partitions(self, began: SourceOffset) -> tuple[TopicPartition, ...]:
        tps = self._planning().partitions(frozenset(began.offsets))
        gone = sorted(began.offsets.keys() - set(tps))
        for tp in gone:
            start = began.offsets[tp]
            loss(
                OffsetRange(tp, start, start + 1), "the partition was deleted with all its later records", self._options
            )
        self._remember_ids()
        return tps

    # --- state ---

    def _planning(self) -> Planner:
        if self._planner is None:
            servers, client_options = self._options.bootstrap_servers, self._options.client
            self._planner = Planner(self._options, driver_client(servers, client_options))
        return self._planner

    def _remember_ids(self) -> None:
        for topic, topic_id in self._planning().topic_ids.items():
            self._ids.setdefault(topic, topic_id)

    def _commit_group(self, began: SourceOffset) -> None:
        """Commit `began` as the position of the consumer group of option commitGroup: everything before it is done."""
        group = self._options.commit_group
        if group is None or began.is_initial or began.offsets == self._committed:
            return
        try:
            client = self._planning().client
            with client.within(GROUP_COMMIT):
                client.commit_offsets(group, began.offsets)
            self._committed = dict(began.offsets)
        except KlammError as e:
            _log.warning("committing the offsets of group %s failed: %s", group, e)
