"""An UpdateMetadata request as a value, independent of its version."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import LEADER_DURING_DELETE, NO_CONTROLLER, NO_EPOCH, ZERO_UUID, BrokerEndPoints, TopicPartition

MAX_PARTITIONS: Final = 2_000
"""Partitions per request. Larger updates are split. A full slice is always followed by another, possibly empty one."""
SLICING_CLIENT: Final = "klamm-controller-"
"""Prefix of the client id of klamm's controllers, which split updates. Kafka's use their broker id, and do not."""


@lazy_dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as UpdateMetadata describes it; `partition_epoch` is the version of its state znode.

    `controller_epoch` and `broker_epoch` are those of the request: its sender, and the registration of this broker that
    it is for. The controller epoch in the znode is not kept, because it does not order states (`is_older_than`).
    """

    topic: str
    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    broker_epoch: int = NO_EPOCH

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def is_deletion(self) -> bool:
        return self.leader == LEADER_DURING_DELETE

    def is_older_than(self, known: PartitionState) -> bool:
        """Return whether this state is older than `known`, as after a request that was overtaken.

        A state of a later controller, or for a later registration of this broker, is newer: it was read from ZooKeeper
        since. Otherwise the znode decides. It was not deleted in between: this broker would have received that.

        The controller epoch in a state does not order states. Kafka's controller sends its own epoch with a state that
        it has only read; klamm's sends the epoch that it read from the znode. So (6, 4, 8), (2, 4, 8) and (7, 4, 8), as
        controller epoch, leader epoch and version, can be one state. The state (7, 4, 0) is older than (7, 4, 8). If a
        topic without id was created again, it is newer than (6, 4, 8).
        """
        return (self.controller_epoch, self.broker_epoch, self.leader_epoch, self.partition_epoch) < (
            known.controller_epoch,
            known.broker_epoch,
            known.leader_epoch,
            known.partition_epoch,
        )


@lazy_dataclass(frozen=True, slots=True)
class TopicUpdate:
    """The changed partitions of a topic; a zero topic id means none."""

    name: str
    partitions: tuple[PartitionState, ...]
    topic_id: UUID = ZERO_UUID


@lazy_dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """`live_brokers` is always complete; `topics` holds the changes; `broker_epoch` is the receiver's incarnation.

    `is_sliced`: its controller sends at most `MAX_PARTITIONS` at once.
    """

    controller_id: int = NO_CONTROLLER
    controller_epoch: int = NO_EPOCH
    live_brokers: tuple[BrokerEndPoints, ...] = ()
    topics: tuple[TopicUpdate, ...] = ()
    broker_epoch: int = NO_EPOCH
    is_sliced: bool = False

    @property
    def is_last_slice(self) -> bool:
        """Whether no further slice of this update follows."""
        return not self.is_sliced or sum(len(topic.partitions) for topic in self.topics) != MAX_PARTITIONS
