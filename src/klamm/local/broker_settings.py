"""The arguments of a LocalCluster, checked before anything starts, and the properties of each broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from klamm.config import KafkaConfig
from klamm.errors import ConfigError
from klamm.local.security_choice import UNSECURED, SecurityChoice

BrokerConfigs = Mapping[str, object] | Mapping[int, Mapping[str, object]] | Mapping[str | int, object]
Properties = dict[str, object]

TEST_DEFAULTS: Final[Mapping[str, object]] = {
    "replica.lag.time.max.ms": 2000,
    "replica.fetch.wait.max.ms": 200,
    "controlled.shutdown.retry.backoff.ms": 100,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "klamm.control.log.enable": False,
    "klamm.unclean.replica.wait.ms": 10_000,
}
"""Short timeouts, so that tests of failures take seconds, and no control log. `broker_configs` overrides them."""

_LAST_PORT: Final = 65535
_ANY_ADDRESS: Final = "127.0.0.1:0"


class ClusterSettings:
    """The checked arguments. Invalid ones raise ValueError and name the argument."""

    def __init__(
        self,
        brokers: int,
        configs: BrokerConfigs,
        ports: Iterable[int],
        defaults: Mapping[str, object],
        security: SecurityChoice = UNSECURED,
    ) -> None:
        if not isinstance(brokers, int) or brokers < 1:
            raise ValueError(f"brokers cannot be {brokers!r}: a cluster needs at least one.")
        self.broker_ids = tuple(range(1, brokers + 1))
        self.ports = _checked_ports(list(ports), brokers)
        self._security = security
        self._defaults = {**defaults_by_size(brokers), **defaults, **security.broker_keys()}
        self._shared = {key: value for key, value in configs.items() if not isinstance(key, int)}
        self._own = {key: _mapping(key, value) for key, value in configs.items() if isinstance(key, int)}
        self._check_configs()

    def of_broker(self, broker_id: int) -> Properties:
        """Return the broker's keys without those that the supervisor sets."""
        return {**self._defaults, **self._shared, **self._own.get(broker_id, {})}

    def is_set(self, key: str) -> bool:
        """Whether the caller has set a key for a broker; defaults do not count."""
        return key in self._shared or any(key in own for own in self._own.values())

    def listeners(self, broker_id: int, data: str, control: str) -> Properties:
        """Return the keys of the broker's listeners at these addresses.

        The second listener exists if `control.plane.listener.name` is set, and `listeners` is not.
        """
        name = self.control_plane_listener(broker_id)
        own, protocol = self._security.listener, self._security.protocol.name
        if name is None:
            return {"listeners": f"{own}://{data}"}
        return {
            "listeners": f"{own}://{data},{name}://{control}",
            "listener.security.protocol.map": f"{own}:{protocol},{name}:{protocol}",
            "inter.broker.listener.name": own,
        }

    def advertised(self, broker_id: int, data: str, control: str) -> Properties:
        """Return the keys that make others use these addresses instead of those of the listeners."""
        own, name = self._security.listener, self.control_plane_listener(broker_id)
        return {"advertised.listeners": f"{own}://{data}" + ("" if name is None else f",{name}://{control}")}

    def control_plane_listener(self, broker_id: int) -> str | None:
        """Return the name of the control plane listener that the supervisor adds, None if it adds none."""
        given = self.of_broker(broker_id)
        name = given.get("control.plane.listener.name")
        return None if name is None or "listeners" in given else str(name)

    def _check_configs(self) -> None:
        if unknown := [broker_id for broker_id in self._own if broker_id not in self.broker_ids]:
            there = ", ".join(map(str, self.broker_ids))
            raise ValueError(f"broker_configs has settings of broker {unknown[0]}, but the brokers are {there}.")
        # Brokers without settings of their own are identical: checking one of them is enough.
        for broker_id in {self.broker_ids[0], *self._own}:
            sources = dict.fromkeys(self._defaults, "defaults") | dict.fromkeys(self._shared, "broker_configs")
            sources |= dict.fromkeys(self._own.get(broker_id, ()), f"broker_configs of broker {broker_id}")
            try:
                listeners = self.listeners(broker_id, _ANY_ADDRESS, _ANY_ADDRESS)
                KafkaConfig({**listeners, **self.of_broker(broker_id)}, sources=sources)
            except ConfigError as error:
                raise ValueError(str(error)) from None


def _mapping(broker_id: int, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"broker_configs of broker {broker_id} cannot be {value!r}: expected keys with values.")
    return value


def _checked_ports(ports: list[int], brokers: int) -> dict[int, int]:
    """Return the ports by broker id; 0 picks a free port."""
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
    """Return defaults for a cluster size.

    A single broker should survive long pauses, because no other broker waits for it.
    """
    return {
        "offsets.topic.replication.factor": min(3, brokers),
        "klamm.control.log.replication.factor": min(3, brokers),
        "klamm.request.trace.topic.replication.factor": min(3, brokers),
        "zookeeper.session.timeout.ms": 30000 if brokers == 1 else 2000,
    }


def property_text(value: object) -> str:
    """Return a value as a properties file has it: a backslash is an escape there."""
    return str(value).lower() if isinstance(value, bool) else str(value).replace("\\", "\\\\")
