"""Maps ZooKeeper's notifications to events. A notification says only that something changed."""

from __future__ import annotations

from klamm.controller.events import (
    BrokerChange,
    BrokerModifications,
    ControllerChange,
    ControllerEvent,
    ElectionTrigger,
    ElectionType,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    Reelect,
    RegistrationDeleted,
    ReplicaLeaderElection,
    TopicChange,
    TopicDeletion,
    ZkPartitionReassignment,
)
from klamm.model import TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import EventType, WatchEvent

_CHILDREN: dict[str, ControllerEvent] = {
    paths.BROKER_IDS: BrokerChange(),
    paths.TOPICS: TopicChange(),
    paths.DELETE_TOPICS: TopicDeletion(),
    paths.ISR_CHANGE_NOTIFICATION: IsrChangeNotification(),
    paths.LOG_DIR_EVENT_NOTIFICATION: LogDirEventNotification(),
}
_ORDERS: dict[str, ControllerEvent] = {
    paths.REASSIGN_PARTITIONS: ZkPartitionReassignment(),
    paths.PREFERRED_REPLICA_ELECTION: ReplicaLeaderElection(None, ElectionType.PREFERRED, ElectionTrigger.ZK),
}


def event_of(watch: WatchEvent) -> ControllerEvent | None:
    """Return the event; None if the controller does not need it."""
    if watch.type is EventType.CHILDREN_CHANGED:
        return _CHILDREN.get(watch.path)
    if watch.path == paths.CONTROLLER:
        return Reelect() if watch.type is EventType.DELETED else ControllerChange()
    if watch.path in _ORDERS:  # in any case the watch is used up, and only a read arms it again
        return _ORDERS[watch.path]
    if watch.type is EventType.DATA_CHANGED:
        return _data_changed(watch.path)
    broker = paths.number_of(watch.path.removeprefix(f"{paths.BROKER_IDS}/"))
    return RegistrationDeleted(broker) if watch.type is EventType.DELETED and broker is not None else None


def _data_changed(path: str) -> ControllerEvent | None:
    parts = path.split("/")[1:]
    match parts:
        case ["brokers", "ids", name] if (broker := paths.number_of(name)) is not None:
            return BrokerModifications(broker)
        case ["brokers", "topics", topic]:
            return PartitionModifications(topic)
        case ["brokers", "topics", topic, "partitions", name, "state"] if (n := paths.number_of(name)) is not None:
            return PartitionReassignmentIsrChange(TopicPartition(topic, n))
        case _:
            return None
