"""Applies configuration changes to running logs, replicas and the controller. `settings` handles the network's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.config.repository import TOPIC_DEFAULT_KEYS
from klamm.controller.controller_runner import ControllerHandle
from klamm.controller.events import TopicUncleanLeaderElectionEnable, UncleanLeaderElectionEnable
from klamm.log import LogConfig
from klamm.replica.replication_quota import throttled_partitions

_UNCLEAN: Final = "unclean.leader.election.enable"
_RATES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


def follow_topic_configs(broker: Broker, controller: ControllerHandle) -> None:
    """Apply changed topic configurations and broker defaults to live logs, and try unclean elections."""

    def apply(topic: str) -> None:
        broker.logs.update_config(topic, LogConfig.from_properties(broker.configs.topic_config(topic)))
        broker.replicas.on_topic_config_change(topic)

    def on_topic(topic: str, effective: Mapping[str, str]) -> None:
        apply(topic)
        if broker.configs.topic_overrides(topic).get(_UNCLEAN) == "true" and controller.is_active:
            controller.notify(TopicUncleanLeaderElectionEnable(topic))

    def on_defaults(old: KafkaConfig, new: KafkaConfig) -> None:
        broker.logs.default_config = LogConfig.from_properties(broker.configs.topic_config(""))
        for topic in dict.fromkeys(tp.topic for tp in broker.logs.logs):
            apply(topic)
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
