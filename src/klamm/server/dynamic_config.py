"""Applies configuration changes to running logs, replicas and the controller. `settings` handles the network's keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.config.repository import TOPIC_DEFAULT_KEYS
from klamm.controller.controller_runner import ControllerHandle
from klamm.controller.events import TopicUncleanLeaderElectionEnable, UncleanLeaderElectionEnable
from klamm.log import LogConfig
from klamm.replica.replication_quota import throttled_partitions

LOGS_PER_SLICE: Final = 50
"""Logs and partitions that get a configuration between two turns of the loop: each takes 5 to 10 us."""
_TOPIC_COST: Final = 10
"""The cost of computing a topic's configuration, in logs."""
_END: Final = object()
_UNCLEAN: Final = "unclean.leader.election.enable"
_RATES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


class TopicConfigPass:
    """Applies the configurations of topics to their logs and partitions, in slices: a default concerns all of them.

    Owner: the broker loop. A topic that changes again meanwhile is visited again, so that the newest setting remains.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[str, None] = {}
        self._steps: Iterator[None] | None = None
        self._room = 0

    def add(self, topics: Iterable[str]) -> None:
        """Apply as much as fits into a slice at once, and the rest in later turns of the loop."""
        self._waiting.update(dict.fromkeys(topics))
        if self._steps is None:
            self._steps = self._apply_all()
            self._step(self._steps)

    def _step(self, steps: Iterator[None]) -> None:
        self._room = LOGS_PER_SLICE
        self._steps = None  # a failure does not block later changes
        if next(steps, _END) is not _END:
            self._steps = steps
            self._broker.loop.call_soon(self._step, steps)

    def _apply_all(self) -> Iterator[None]:
        logs, replicas, configs = self._broker.logs, self._broker.replicas, self._broker.configs
        while self._waiting:
            topic = next(iter(self._waiting))
            del self._waiting[topic]
            config = LogConfig.from_properties(configs.topic_config(topic))
            self._room -= _TOPIC_COST
            for _ in chain(logs.config_pass(topic, config), replicas.topic_config_pass(topic)):
                self._room -= 1
                if self._room <= 0:
                    yield


def follow_topic_configs(broker: Broker, controller: ControllerHandle) -> None:
    """Apply changed topic configurations and broker defaults to live logs, and try unclean elections."""
    changes = TopicConfigPass(broker)

    def on_topic(topic: str, effective: Mapping[str, str]) -> None:
        changes.add([topic])
        if broker.configs.topic_overrides(topic).get(_UNCLEAN) == "true" and controller.is_active:
            controller.notify(TopicUncleanLeaderElectionEnable(topic))

    def on_defaults(old: KafkaConfig, new: KafkaConfig) -> None:
        broker.logs.default_config = LogConfig.from_properties(broker.configs.topic_config(""))
        changes.add(broker.logs.topics)
        if new.unclean_leader_election_enable != old.unclean_leader_election_enable:
            controller.notify(UncleanLeaderElectionEnable(new.unclean_leader_election_enable))

    broker.configs.on_topic_change(on_topic)
    broker.configs.on_change(TOPIC_DEFAULT_KEYS, on_defaults)


def follow_throttles(broker: Broker) -> None:
    """Apply throttle rates and throttled replicas to the quotas, including those set before the start."""
    quotas = broker.replicas.quotas

    def on_topic(topic: str, effective: Mapping[str, str]) -> None:
        overrides = broker.configs.topic_overrides(topic)
        for side, quota in (("leader", quotas.leader), ("follower", quotas.follower)):
            text = overrides.get(f"{side}.replication.throttled.replicas", "")
            replicas = [pair.strip() for pair in text.split(",") if pair.strip()]
            quota.throttle(topic, throttled_partitions(replicas, broker.id))

    def on_rates(_: KafkaConfig, new: KafkaConfig) -> None:
        quotas.leader.limit = new.leader_replication_throttled_rate
        quotas.follower.limit = new.follower_replication_throttled_rate
        broker.replicas.log_dir_moves.max_bytes_per_s = new.replica_alter_log_dirs_io_max_bytes_per_second

    broker.configs.on_topic_change(on_topic)
    broker.configs.on_change(_RATES, on_rates)
    for topic in broker.configs.topics_with_overrides():
        on_topic(topic, {})
    on_rates(broker.config, broker.config)
