"""The brokers that the controller knows: registered ones, those shutting down, and their failed log directories."""

from __future__ import annotations

from collections.abc import Mapping, Set

from klamm.model import BrokerEndPoints, TopicPartition


class Brokers:
    """Part of the `ControllerContext`. The mappings are for reading; the methods change them."""

    def __init__(self) -> None:
        self._registered: dict[int, BrokerEndPoints] = {}
        self._shutting_down: set[int] = set()
        self._offline_logs: dict[int, set[TopicPartition]] = {}

    @property
    def live_or_shutting_down(self) -> Mapping[int, BrokerEndPoints]:
        return self._registered

    @property
    def shutting_down(self) -> Set[int]:
        return self._shutting_down

    @property
    def offline_logs(self) -> Mapping[int, Set[TopicPartition]]:
        """By broker: the partitions whose log is in a directory that failed."""
        return self._offline_logs

    @property
    def live_ids(self) -> frozenset[int]:
        """Brokers that may lead and join an ISR: those that are shutting down are not among them."""
        return frozenset(b for b in self._registered if b not in self._shutting_down)

    def ids(self) -> tuple[int, ...]:
        """All brokers that receive control requests, in order."""
        return tuple(sorted(self._registered))

    def is_replica_online(self, broker: int, tp: TopicPartition, *, include_shutting_down: bool = False) -> bool:
        if broker not in self._registered or (broker in self._shutting_down and not include_shutting_down):
            return False
        return tp not in self._offline_logs.get(broker, ())

    def online(
        self, replicas: tuple[int, ...], tp: TopicPartition, *, include_shutting_down: bool = False
    ) -> tuple[int, ...]:
        """Those of `replicas` that are online, in the same order."""
        if not self._offline_logs and (include_shutting_down or not self._shutting_down):  # nearly always
            registered = self._registered
            for replica in replicas:
                if replica not in registered:
                    return tuple([r for r in replicas if r in registered])
            return replicas
        return tuple(r for r in replicas if self.is_replica_online(r, tp, include_shutting_down=include_shutting_down))

    def add(self, broker: BrokerEndPoints) -> None:
        self._registered[broker.id] = broker

    def remove(self, broker: int) -> None:
        self._registered.pop(broker, None)
        self._shutting_down.discard(broker)
        self._offline_logs.pop(broker, None)

    def start_shutdown(self, broker: int) -> None:
        self._shutting_down.add(broker)

    def lose_log(self, broker: int, tp: TopicPartition) -> None:
        """The directory of this log has failed."""
        self._offline_logs.setdefault(broker, set()).add(tp)

    def regain_log(self, broker: int, tp: TopicPartition) -> None:
        logs = self._offline_logs.get(broker)
        if logs is not None:
            logs.discard(tp)
            if not logs:
                del self._offline_logs[broker]

    def regain_all_logs(self, broker: int) -> None:
        """The broker has started: its log directories are assumed to work until it reports otherwise."""
        self._offline_logs.pop(broker, None)

    def forget_partition(self, tp: TopicPartition) -> None:
        for broker in list(self._offline_logs):
            self.regain_log(broker, tp)
