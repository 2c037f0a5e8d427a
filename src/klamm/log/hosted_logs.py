"""Which logs a broker hosts, and in which directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from klamm.log.jobs import Flushable
from klamm.log.log import Log
from klamm.model import TopicPartition

LOGS_PER_SLICE: Final = 30
"""How many logs periodic work handles before the loop serves others: below a millisecond if little is due."""
_Slice = dict[TopicPartition, Log]


class HostedLogs:
    """Owner: the `LogManager`. Logs on a directory that has failed are not hosted."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, Log] = {}
        self._by_topic: dict[str, dict[TopicPartition, Log]] = {}
        self._counts: Counter[str] = Counter()
        self._slices: list[_Slice] = []
        self._slice_of: dict[TopicPartition, _Slice] = {}
        self._with_room: list[_Slice] = []
        """Slices from which logs were removed. New logs fill them first."""

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        return self._logs

    def get(self, tp: TopicPartition) -> Log | None:
        return self._logs.get(tp)

    def add(self, log: Log) -> None:
        tp = log.topic_partition
        self._logs[tp] = self._by_topic.setdefault(tp.topic, {})[tp] = log
        self._counts[log.log_dir] += 1
        part = self._slice_of.get(tp) or self._part_with_room()
        part[tp] = log
        self._slice_of[tp] = part
        if self._with_room and self._with_room[-1] is part and len(part) >= LOGS_PER_SLICE:
            self._with_room.pop()

    def _part_with_room(self) -> _Slice:
        if self._with_room:
            return self._with_room[-1]
        if not self._slices or len(self._slices[-1]) >= LOGS_PER_SLICE:
            self._slices.append({})
        return self._slices[-1]

    def remove(self, tp: TopicPartition) -> Log | None:
        log = self._logs.pop(tp, None)
        if log is not None:
            self.forget(log)
        return log

    def remove_dir(self, log_dir: str) -> dict[TopicPartition, Log]:
        """Remove all logs of a directory. The caller calls `forget` for each: that takes longer."""
        logs = {tp: log for tp, log in self._logs.items() if log.log_dir == log_dir}
        for tp in logs:
            del self._logs[tp]
        return logs

    def forget(self, log: Log) -> None:
        tp = log.topic_partition
        self._counts[log.log_dir] -= 1
        del self._by_topic[tp.topic][tp]
        if not self._by_topic[tp.topic]:
            del self._by_topic[tp.topic]
        part = self._slice_of.get(tp)
        if part is not None and part[tp] is log:
            if len(part) >= LOGS_PER_SLICE:
                self._with_room.append(part)
            del part[tp], self._slice_of[tp]

    @property
    def topics(self) -> Collection[str]:
        return self._by_topic.keys()

    def of_topic(self, topic: str) -> Collection[Log]:
        return self._by_topic.get(topic, {}).values()

    def in_dir(self, log_dir: str) -> list[Log]:
        return [log for log in self._logs.values() if log.log_dir == log_dir]

    def count_in(self, log_dir: str) -> int:
        return self._counts[log_dir]

    def is_in_use(self, log: Flushable) -> bool:
        """Whether the log is still hosted: it may have been deleted, or replaced by another one."""
        return self._logs.get(log.topic_partition) is log

    def slices(self) -> Iterator[list[Log]]:
        """Yield all logs in slices, so that the loop can serve others in between.

        Logs that are added meanwhile may be among them. Some may no longer be in use: see `is_in_use`. The slices are
        kept up to date, because a list of all logs would hold the loop for more than a millisecond.
        """
        for part in self._slices:
            if part:
                yield list(part.values())

    def slices_in_use(self) -> Iterator[list[Log]]:
        """Like `slices`, without the logs that were deleted meanwhile."""
        return (list(filter(self.is_in_use, part)) for part in self.slices())
