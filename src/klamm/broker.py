"""The broker as its API handlers see it: the owners of its state, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from klamm.acl_changes import AclChangeListener
from klamm.clock import Clock
from klamm.config import ConfigRepository, KafkaConfig
from klamm.control_log import NO_CONTROL_LOG, ControlLog
from klamm.controller.events import CreateTopics
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from klamm.coordinator.transaction.transaction_feature import TransactionFeature
from klamm.log.log_manager import LogManager
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import NO_CONTROLLER, UNKNOWN_BROKER_EPOCH
from klamm.purgatory import DelayedOperationPurgatory
from klamm.quota.quota_managers import QuotaManagers
from klamm.replica.controller_guard import ControllerGuard
from klamm.replica.fetch_session import FetchSessionCache
from klamm.replica.producer_ids import ProducerIdManager
from klamm.replica.replica_manager import ReplicaManager
from klamm.security.acl.audit import Denials
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.security.outgoing import OutgoingSecurity
from klamm.zk.client.zk_session import ZkSession

if TYPE_CHECKING:
    from klamm.controller.events import CreatableTopic, Event
    from klamm.controller.replies import TopicResults

R = TypeVar("R")
WARNING_INTERVAL_S: Final = 300.0
"""Clients ask for a coordinator many times per second; the log reports only once in a while why they get none."""


class Controller(Protocol):
    """The facade of the controller on the broker loop: `submit` answers NOT_CONTROLLER when it is not active."""

    @property
    def is_active(self) -> bool: ...

    def submit(self, event: Event[R], timeout_ms: int | None = None) -> asyncio.Future[R]: ...


@dataclass(slots=True)
class Registration:
    """The broker's registration in ZooKeeper. `epoch` is the czxid of its znode; the server renews it."""

    epoch: int = UNKNOWN_BROKER_EPOCH

    def renew(self, epoch: int) -> None:
        self.epoch = epoch


class TopicCreation:
    """Asks the controller for topics that clients named and that do not exist. Lives on the broker loop.

    `forward` asks another broker that is the controller; None if there is no other.
    """

    def __init__(self, controller: Controller, configs: ConfigRepository) -> None:
        self._controller = controller
        self._configs = configs
        self._in_creation: set[str] = set()
        self._next_warning_s = float("-inf")
        self.forward: Callable[[tuple[CreatableTopic, ...]], asyncio.Future[TopicResults]] | None = None

    def is_under_way(self, name: str) -> bool:
        """Whether the controller was asked for the topic and has not answered."""
        return name in self._in_creation

    def create(self, topics: tuple[CreatableTopic, ...]) -> asyncio.Future[TopicResults]:
        names = [topic.name for topic in topics]
        self._in_creation.update(names)
        answer = self._ask(topics)
        answer.add_done_callback(lambda _: self._in_creation.difference_update(names))
        return answer

    def _ask(self, topics: tuple[CreatableTopic, ...]) -> asyncio.Future[TopicResults]:
        if self.forward is not None and not self._controller.is_active:
            return self.forward(topics)
        return self._controller.submit(CreateTopics(topics), self._configs.config.request_timeout_ms)

    def may_warn(self, now_s: float) -> bool:
        """Whether a warning is due. If so, the next one is not due for `WARNING_INTERVAL_S`."""
        if now_s < self._next_warning_s:
            return False
        self._next_warning_s = now_s + WARNING_INTERVAL_S
        return True


@dataclass(frozen=True, slots=True)
class Acls:
    """Authorization: the decisions, the changes of entries in ZooKeeper, and the log of what was denied."""

    authorizer: AclAuthorizer
    changes: AclChangeListener
    denials: Denials = field(default_factory=Denials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """`topic_purgatory` holds requests that wait for topics to appear in the metadata or to vanish from it.

    `election_purgatory` holds requests that wait for new leaders. `acls` is None without an authorizer: then every
    client may do everything.
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
    transactions: TransactionCoordinator
    controller: Controller
    controller_guard: ControllerGuard
    metrics: MetricsRegistry
    quotas: QuotaManagers
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIdManager
    topic_purgatory: DelayedOperationPurgatory
    election_purgatory: DelayedOperationPurgatory
    topic_creation: TopicCreation
    zk: ZkSession
    registration: Registration
    control_log: ControlLog = NO_CONTROL_LOG
    features: TransactionFeature = field(default_factory=TransactionFeature)
    outgoing: OutgoingSecurity = field(default_factory=OutgoingSecurity)
    acls: Acls | None = None

    @property
    def config(self) -> KafkaConfig:
        """The current configuration, dynamic changes included."""
        return self.configs.config

    @property
    def broker_epoch(self) -> int:
        return self.registration.epoch

    @property
    def controller_id(self) -> int:
        return self.metadata.controller_id if self.metadata.controller_id >= 0 else NO_CONTROLLER
