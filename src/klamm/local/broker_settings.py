"""The arguments of a LocalCluster: checked before anything starts, and what each broker's properties become of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from klamm.config import KafkaConfig
from klamm.errors import ConfigError

BrokerConfigs = Mapping[str, object] | Mapping[int, Mapping[str, object]] | Mapping[str | int, object]
Properties = dict[str, object]

TEST_DEFAULTS: Final[Mapping[str, object]] = {
    "replica.lag.time.max.ms": 2000,
    "replica.fetch.wait.max.ms": 200,
    "controlled.shutdown.retry.backoff.ms": 100,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "klamm.control.log.enable": False,
    "klamm.unclean.replica.wait.ms": 10_000,
}
"""Short times, so that tests of failures take seconds, and no topic of our own. `broker_configs` overrides them."""

_LAST_PORT: Final = 65535
_ANY_LISTENER: Final = "PLAINTEXT://127.0.0.1:0"


class ClusterSettings:
    """What was asked for. Raises ValueError with the argument's name when it cannot be."""

    def __init__(
        self, brokers: int, configs: BrokerConfigs, ports: Iterable[int], defaults: Mapping[str, object]
    ) -> None:
        if not isinstance(brokers, int) or brokers < 1:
            raise ValueError(f"brokers cannot be {brokers!r}: a cluster needs at least one.")
        self.broker_ids = tuple(range(1, brokers + 1))
        self.ports = _checked_ports(list(ports), brokers)
        self._defaults = {**defaults_by_size(brokers), **defaults}
        self._shared = {key: value for key, value in configs.items() if not isinstance(key, int)}
        self._own = {key: _mapping(key, value) for key, value in configs.items() if isinstance(key, int)}
        self._check_configs()

    def of_broker(self, broker_id: int) -> Properties:
        """The broker's keys without those that its cluster gives it."""
        return {**self._defaults, **self._shared, **self._own.get(broker_id, {})}

    def _check_configs(self) -> None:
        if unknown := [broker_id for broker_id in self._own if broker_id not in self.broker_ids]:
            there = ", ".join(map(str, self.broker_ids))
            raise ValueError(f"broker_configs has settings of broker {unknown[0]}, but the brokers are {there}.")
        # Brokers without settings of their own have the same as each other: one of them is enough.
        for broker_id in {self.broker_ids[0], *self._own}:
            sources = dict.fromkeys(self._defaults, "defaults") | dict.fromkeys(self._shared, "broker_configs")
            sources |= dict.fromkeys(self._own.get(broker_id, ()), f"broker_configs of broker {broker_id}")
            try:
                KafkaConfig({"listeners": _ANY_LISTENER, **self.of_broker(broker_id)}, sources=sources)
            except ConfigError as error:
                raise ValueError(str(error)) from None


def _mapping(broker_id: int, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"broker_configs of broker {broker_id} cannot be {value!r}: expected keys with values.")
    return value


def _checked_ports(ports: list[int], brokers: int) -> dict[int, int]:
    """By broker id; 0 for any free one."""
    if not ports:
        return {}
    if len(ports) != brokers:
        raise ValueError(f"ports has {len(ports)} for {brokers} brokers: give one for each, or none at all.")
    if wrong := [port for port in ports if not 0 <= port <= _LAST_PORT]:
        raise ValueError(f"ports has {wrong[0]}: expected numbers from 0 to {_LAST_PORT}.")
    if twice := [port for port in ports if port and ports.count(port) > 1]:
        raise ValueError(f"ports has {twice[0]} more than once.")
    return dict(enumerate(ports, start=1))


def defaults_by_size(brokers: int) -> Properties:
    """A lone broker has nobody who must soon notice its death, and should outlive a busy machine's pauses."""
    return {
        "offsets.topic.replication.factor": min(3, brokers),
        "klamm.control.log.replication.factor": min(3, brokers),
        "zookeeper.session.timeout.ms": 30000 if brokers == 1 else 2000,
    }


def property_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
