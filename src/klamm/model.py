"""The nouns that all layers share. All of them are frozen."""

from __future__ import annotations

import base64
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from klamm.lazy_dataclass import lazy_dataclass

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
"""The leader in an UpdateMetadata that makes caches forget the partition."""
EPOCH_DURING_DELETE: Final = -2
"""The leader epoch of a StopReplica for a topic that is being deleted: it overrides any epoch."""
NO_EPOCH: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
NO_CONTROLLER: Final = -1
INITIAL_LEADER_EPOCH: Final = 0
INITIAL_PARTITION_EPOCH: Final = 0
PRODUCER_IDS_PER_BLOCK: Final = 1000

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""The log of KRaft: no topic of a cluster may have its name."""
CONTROL_LOG_TOPIC: Final = "__klamm_control_log"
REQUEST_LOG_TOPIC: Final = "__klamm_request_log"
SINK_STATE_TOPIC: Final = "__klamm_sink_state"
"""The decisions of exactly-once sinks. Unlike the others, clients write it: the drivers of Spark queries."""
INTERNAL_TOPICS: Final = frozenset(
    {GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, CONTROL_LOG_TOPIC, REQUEST_LOG_TOPIC, SINK_STATE_TOPIC}
)
BROKER_TOPICS: Final = INTERNAL_TOPICS - {SINK_STATE_TOPIC}
"""Internal topics that only brokers write."""

ZERO_UUID: Final = UUID(int=0)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


make_topic_partition: Final[Callable[[tuple[str, int]], TopicPartition]] = partial(tuple.__new__, TopicPartition)
"""`TopicPartition(*pair)` in less than half of its time, for walks over very many partitions."""


class SecurityProtocol(IntEnum):
    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


class TransactionVersion(IntEnum):
    """The levels of the feature `transaction.version`.

    TV_1 allows tagged fields in the records of `__transaction_state`; TV_2 is KIP-890 part 2: every end of a
    transaction bumps the producer's epoch, and Produce and TxnOffsetCommit add their partitions.
    """

    TV_0 = 0
    TV_1 = 1
    TV_2 = 2

    @property
    def bumps_epoch(self) -> bool:
        """Whether the end of each transaction bumps the producer's epoch."""
        return self >= TransactionVersion.TV_2


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    producer_epoch: int


ConnectionOrder = int
"""Position of a connection among all that this broker process accepted: 1, 2, 3, ... The youngest has the largest."""


class LeaderRecoveryState(IntEnum):
    RECOVERED = 0
    RECOVERING = 1


@lazy_dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The leadership of a partition; `partition_epoch` is the data version of its state znode."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int = INITIAL_PARTITION_EPOCH
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED

    def with_leader(self, leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
        """Return the state after an election: every decision of the controller takes one leader epoch."""
        return LeaderAndIsr(
            leader,
            leader_epoch=self.leader_epoch + 1,
            isr=isr,
            partition_epoch=self.partition_epoch,
            leader_recovery_state=self.leader_recovery_state,
        )

    def with_partition_epoch(self, partition_epoch: int) -> LeaderAndIsr:
        """Return the same state with the version that it has in ZooKeeper after the write."""
        return LeaderAndIsr(self.leader, self.leader_epoch, self.isr, partition_epoch, self.leader_recovery_state)


@lazy_dataclass(frozen=True, slots=True)
class LeaderIsrAndControllerEpoch:
    """The content of a state znode. `former_isr` is None where the znode does not list former members."""

    leader_and_isr: LeaderAndIsr
    controller_epoch: int
    former_isr: tuple[int, ...] | None = None
    """Replicas outside the ISR that may have every acknowledged record, as the writer of the znode knew them."""


@lazy_dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The replicas of a partition in preference order, and the replicas that a reassignment adds and removes."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def origin_replicas(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.adding_replicas)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.removing_replicas)

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    def reassign_to(self, target: tuple[int, ...]) -> ReplicaAssignment:
        origin = self.origin_replicas
        full = tuple(dict.fromkeys((*target, *origin)))
        before, after = frozenset(origin), frozenset(target)
        return ReplicaAssignment(
            full,
            adding_replicas=tuple(r for r in full if r not in before),
            removing_replicas=tuple(r for r in full if r not in after),
        )


@lazy_dataclass(frozen=True, slots=True)
class EndPoint:
    """Where one listener of a broker can be reached."""

    listener: str
    host: str
    port: int
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT


@lazy_dataclass(frozen=True, slots=True)
class BrokerEndPoints:
    """A live broker as the controller and every metadata cache know it; `epoch` is the czxid of its znode."""

    id: int
    endpoints: tuple[EndPoint, ...]
    rack: str | None = None
    epoch: int = UNKNOWN_BROKER_EPOCH

    def endpoint(self, listener: str) -> EndPoint | None:
        return next((e for e in self.endpoints if e.listener == listener), None)


def parse_host_port(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Parse `host:port` or `[::1]:port`; a scheme such as `PLAINTEXT://` is ignored. Raises ValueError.

    With `default_port` the port may be missing.
    """
    address = text.strip()
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or port.endswith("]"):  # without a port, the last colon belongs to an IPv6 address
        host, port = address.rpartition("://")[2], ""
    if not port and default_port is not None:
        return host.strip("[]"), default_port
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not an address: expected host:port.")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`. Names other than localhost are not resolved: they are not."""
    if host.lower() in ("localhost", "127.0.0.1", "::1"):
        return True
    import ipaddress  # slow to import, and rarely needed

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def encode_topic_id(topic_id: UUID) -> str:
    """URL-safe Base64 without padding: the text form in ZooKeeper and in `partition.metadata`."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(text: str) -> UUID:
    """Raises ValueError when `text` is not the 22 characters of a topic id."""
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a topic id: 22 characters of URL-safe Base64 are expected")
    return UUID(bytes=raw)
