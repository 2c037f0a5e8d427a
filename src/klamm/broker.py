"""The broker as its API handlers see it: the owners of its state, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from klamm.clock import Clock
from klamm.config import ConfigRepository, KafkaConfig
from klamm.control_log import NO_CONTROL_LOG, ControlLog
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.log.log_manager import LogManager
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import NO_CONTROLLER, UNKNOWN_BROKER_EPOCH
from klamm.purgatory import DelayedOperationPurgatory
from klamm.replica.controller_guard import ControllerGuard
from klamm.replica.fetch_session import FetchSessionCache
from klamm.replica.gauges import register_purgatory
from klamm.replica.producer_ids import ProducerIdManager
from klamm.replica.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from klamm.controller.events import ControllerEvent, CreatableTopic
    from klamm.controller.replies import TopicResults


class Controller(Protocol):
    """The facade of the controller on the broker loop: `submit` answers NOT_CONTROLLER when it is not active."""

    @property
    def is_active(self) -> bool: ...

    def submit(self, event: ControllerEvent, timeout_ms: int | None = None) -> asyncio.Future[Any]: ...


@dataclass(slots=True)
class Broker:
    """`broker_epoch` is the czxid of the broker's znode, set when it has registered.

    `topics` waits for topics to appear
    in or vanish from the metadata, `elections` for new leaders. `topics_in_creation` are those the controller was asked
    to create because a client named them, and has not answered. `offsets_topic_reminder` is the time of the monotonic
    clock before which the log does not say again that the offsets topic cannot be created.
    """

    id: int
    cluster_id: str
    configs: ConfigRepository
    clock: Clock
    loop: asyncio.AbstractEventLoop
    metadata: MetadataCache
    logs: LogManager
    replicas: ReplicaManager
    groups: GroupCoordinator
    controller: Controller
    controller_guard: ControllerGuard
    metrics: MetricsRegistry
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIdManager
    topics: DelayedOperationPurgatory
    elections: DelayedOperationPurgatory
    topics_in_creation: set[str] = field(default_factory=set)
    offsets_topic_reminder: float = float("-inf")
    zk: Any = None
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    control_log: ControlLog = NO_CONTROL_LOG
    ask_controller_to_create: Callable[[tuple[CreatableTopic, ...]], asyncio.Future[TopicResults]] | None = None
    """Creates topics through another broker that is the controller; None where there is no other."""

    def __post_init__(self) -> None:
        register_purgatory(self.metrics, self.topics)
        register_purgatory(self.metrics, self.elections)

    @property
    def config(self) -> KafkaConfig:
        """The configuration that holds now, dynamic changes included."""
        return self.configs.config

    @property
    def controller_id(self) -> int:
        return self.metadata.controller_id if self.metadata.controller_id >= 0 else NO_CONTROLLER
