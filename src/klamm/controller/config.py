"""Settings of the controller core: one frozen value, created by the server from the broker's configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from klamm.model import PRODUCER_IDS_PER_BLOCK, EndPoint
from klamm.security.outgoing import OutgoingSecurity


@dataclass(frozen=True, slots=True, order=True)
class InterBrokerProtocol:
    """`inter.broker.protocol.version`: it fixes the version of every request between brokers."""

    major: int
    minor: int
    iv: int = 99
    """The step within a release ("3.4-IV0" has 0); a bare release means its last step."""

    @classmethod
    def parse(cls, text: str) -> InterBrokerProtocol:
        match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?(?:-IV(\d+))?", text.strip())
        if match is None:
            raise ValueError(f"inter.broker.protocol.version: {text!r} is not a version such as 3.9 or 2.8-IV1")
        iv = int(match[3]) if match[3] is not None else 99
        version = cls(int(match[1]), int(match[2]), iv)
        if not OLDEST <= version <= NEWEST:
            raise ValueError(f"inter.broker.protocol.version: {text!r} is not supported: 2.4 to 3.9 are")
        return version

    def at_least(self, major: int, minor: int, iv: int = 0) -> bool:
        return (self.major, self.minor, self.iv) >= (major, minor, iv)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + ("" if self.iv == 99 else f"-IV{self.iv}")

    @property
    def leader_and_isr_version(self) -> int:
        steps = ((7, 3, 4, 0), (6, 3, 2, 0), (5, 2, 8, 1), (4, 2, 4, 1))
        return next((v for v, *at in steps if self.at_least(*at)), 3)

    @property
    def update_metadata_version(self) -> int:
        steps = ((8, 3, 4, 0), (7, 2, 8, 1), (6, 2, 4, 1))
        return next((v for v, *at in steps if self.at_least(*at)), 5)

    @property
    def stop_replica_version(self) -> int:
        steps = ((4, 3, 4, 0), (3, 2, 6, 0), (2, 2, 4, 1))
        return next((v for v, *at in steps if self.at_least(*at)), 1)

    @property
    def has_alter_partition(self) -> bool:
        """Leaders change the ISR through the controller; in older versions they write the state znode themselves."""
        return self.at_least(2, 7, 2)

    @property
    def has_topic_ids(self) -> bool:
        return self.at_least(2, 8, 0)

    @property
    def has_leader_recovery_state(self) -> bool:
        return self.at_least(3, 2, 0)

    @property
    def has_features(self) -> bool:
        return self.at_least(2, 7, 0)


OLDEST: Final = InterBrokerProtocol(2, 4, 0)
NEWEST: Final = InterBrokerProtocol(3, 9)


BLOCK_SIZE: Final = PRODUCER_IDS_PER_BLOCK


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Kafka's keys as attributes; this broker registers `endpoints` and `rack` in ZooKeeper."""

    broker_id: int
    endpoints: tuple[EndPoint, ...] = ()
    rack: str | None = None
    jmx_port: int = -1
    inter_broker_protocol: InterBrokerProtocol = field(default=NEWEST)
    inter_broker_listener: str = "PLAINTEXT"
    control_plane_listener: str | None = None
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    unclean_shutdown: bool = False
    """Whether this broker's last run ended uncleanly: its logs may have lost their unflushed tails."""
    unclean_replica_wait_ms: int = 300_000
    socket_timeout_ms: int = 30_000
    """`controller.socket.timeout.ms`: limit for connecting to a broker."""
    request_timeout_ms: int = 30_000
    """`request.timeout.ms`: limit for a broker's answer to a control request."""
    max_topic_partitions: int = 100_000
    """Maximum partitions per request: a bound on the work that a client can give the controller."""
    producer_ids_per_block: int = BLOCK_SIZE
    outgoing: OutgoingSecurity = field(default_factory=OutgoingSecurity)

    @property
    def controller_listener(self) -> str:
        return self.control_plane_listener or self.inter_broker_listener
