"""ClusterAdmin: topics, the controller, leaders and in-sync replicas of a local cluster, over Kafka's protocol."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from klamm.client.blocking_connection import ask_once
from klamm.client.client_errors import AuthenticationError
from klamm.client.patience import LOCAL_CHANGE, LOCAL_REQUEST
from klamm.errors import ErrorCode, KlammError
from klamm.local.broker_names import brokers_are
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from klamm.protocol.wire import Message
from klamm.security.client_security import ClientSecurity

T = TypeVar("T")
R = TypeVar("R", bound=Message)
Addresses = Mapping[int, tuple[str, int]]

CLIENT_ID: Final = "klamm-local"
_CHANGE_MS: Final = LOCAL_REQUEST.request_ms
_LOOKUP_S: Final = 0.5
_BROKER_RESOURCE: Final = 4
_RETRIABLE: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)


class BrokerProcesses(Protocol):
    """The brokers of a cluster on this machine, as ClusterAdmin sees them."""

    @property
    def client_security(self) -> ClientSecurity:
        """How requests to the brokers are secured."""

    def answering(self) -> Addresses:
        """Return the addresses of the brokers that run and can answer."""

    def ended(self) -> Collection[int]:
        """Return the brokers that have ended; their leadership does not count even if others still report it."""

    def why_silent(self) -> str | None:
        """Return why no broker answers if that cannot change by itself."""

    def why_unknown(self, topic: str, partition: int) -> str | None:
        """Return why a partition that no broker knows will not appear; None if it may."""

    def check(self, problem: str, *, is_late: bool) -> None:
        """Raise KlammError if waiting for the solution of `problem` is pointless, or if `is_late`."""


class ClusterAdmin:
    """Asks the running brokers of a local cluster, and waits for the answers for at most `timeout_s`."""

    def __init__(self, brokers: BrokerProcesses, *, timeout_s: float) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s
        self._next_lookup_s = 0.0

    def create_topic(self, name: str, partitions: int, replication_factor: int, config: Mapping[str, object]) -> None:
        configs = [CreatableTopicConfig(name=key, value=str(value)) for key, value in config.items()]
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=configs,
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_CHANGE_MS)

        def attempt() -> tuple[int, str | None]:
            result = self._ask_controller(request, 5, CreateTopicsResponse).topics[0]
            return result.error_code, result.error_message

        done = ErrorCode.TOPIC_ALREADY_EXISTS if self._partition(name, 0) is None else None
        self._until_accepted(f"Topic {name} was not created", attempt, done)
        self.wait(
            lambda: all(self._knows_leaders(broker_id, name, partitions) for broker_id in self._brokers.answering()),
            f"Not every broker learned the leaders of {name}",
        )

    def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=_CHANGE_MS)

        def attempt() -> tuple[int, str | None]:
            return self._ask_controller(request, 4, DeleteTopicsResponse).responses[0].error_code, None

        done = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self._partition(name, 0) is not None else None
        self._until_accepted(f"Topic {name} was not deleted", attempt, done)

    def alter_broker_config(self, broker_id: int, values: Mapping[str, str]) -> None:
        """Change dynamic settings of a broker."""
        configs = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in values.items()]
        resource = AlterConfigsResource(resource_type=_BROKER_RESOURCE, resource_name=str(broker_id), configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

        def attempt() -> tuple[int, str | None]:
            result = self._ask_broker(broker_id, request, 1, IncrementalAlterConfigsResponse).responses[0]
            return result.error_code, result.error_message

        self._until_accepted(f"The settings of broker {broker_id} were not changed", attempt, None)

    def controller_id(self) -> int:
        return self._ask(self._controller, "There is no controller")

    def live_brokers(self) -> set[int]:
        return {broker.node_id for view in self._views() for broker in view.brokers}

    def leader(self, topic: str, partition: int) -> int:
        """Return a leader that runs. A broker that has ended is never returned, even if others still report it."""
        problem = f"{topic}-{partition} has no leader"

        def find() -> int | None:
            found = self._known_partition(topic, partition, problem)
            if found is None or found.leader_id < 0 or found.leader_id in self._brokers.ended():
                return None
            return found.leader_id

        return self._ask(find, problem, lambda: self._why_no_leader(topic, partition))

    def isr(self, topic: str, partition: int) -> list[int]:
        problem = f"{topic}-{partition} is not known"
        found = self._ask(lambda: self._known_partition(topic, partition, problem), problem)
        return list(found.isr_nodes)

    def wait_until_acquainted(self, running: Collection[int], deadline: float) -> None:
        """Wait until every running broker knows all the others and a controller."""

        def known() -> bool:
            return all(
                (view := self._metadata(broker_id)) is not None
                and view.controller_id >= 0
                and {broker.node_id for broker in view.brokers} >= set(running)
                for broker_id in sorted(running)
            )

        self.wait(known, "The brokers did not find each other", deadline)

    def wait_until_accepted(self, security: ClientSecurity, problem: str) -> None:
        """Wait until every answering broker accepts these credentials."""
        request = ApiVersionsRequest()
        timeout_s = LOCAL_REQUEST.request_ms / 1000

        def accepted() -> bool:
            for address in self._brokers.answering().values():
                try:
                    ask_once(
                        address, request, 0, ApiVersionsResponse, timeout_s, client_id=CLIENT_ID, security=security
                    )
                except (OSError, AuthenticationError):
                    return False
            return True

        self.wait(accepted, problem)

    def wait(
        self,
        condition: Callable[[], T | None],
        problem: str,
        deadline: float | None = None,
        why_late: Callable[[], str] = lambda: "",
    ) -> T:
        """Repeat until the result is neither None nor False, and return it."""
        deadline = time.monotonic() + self._timeout_s if deadline is None else deadline
        while (result := condition()) is None or result is False:
            is_late = time.monotonic() > deadline
            self._brokers.check(f"{problem} in time{why_late()}" if is_late else problem, is_late=is_late)
            time.sleep(LOCAL_REQUEST.pause_s())
        return result

    def _ask(self, condition: Callable[[], T | None], problem: str, why_late: Callable[[], str] = lambda: "") -> T:
        """Wait for a condition that only a broker can answer; fail at once if none can."""

        def answer() -> T | None:
            if not self._brokers.answering() and (why := self._brokers.why_silent()) is not None:
                raise KlammError(f"{problem}: {why}.")
            return condition()

        return self.wait(answer, problem, why_late=why_late)

    def _metadata(self, broker_id: int, topic: str | None = None) -> MetadataResponse | None:
        topics = [] if topic is None else [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        address = self._brokers.answering().get(broker_id)
        if address is None:
            return None
        with contextlib.suppress(OSError, AuthenticationError):  # the latter until the broker knows its users
            timeout_s = LOCAL_REQUEST.request_ms / 1000
            security = self._brokers.client_security
            return ask_once(address, request, 7, MetadataResponse, timeout_s, client_id=CLIENT_ID, security=security)
        return None

    def _views(self, topic: str | None = None) -> Iterable[MetadataResponse]:
        views = (self._metadata(broker_id, topic) for broker_id in self._brokers.answering())
        return (view for view in views if view is not None)

    def _controller(self) -> int | None:
        """Return the controller that most brokers report: one that lost its connection may still report an old one."""
        said = [view.controller_id for view in self._views() if view.controller_id in self._brokers.answering()]
        return max(set(said), key=lambda broker_id: (said.count(broker_id), broker_id)) if said else None

    def _known_partition(self, topic: str, partition: int, problem: str) -> MetadataResponsePartition | None:
        """Return the partition, None if it may still appear. Raises KlammError if it does not exist."""
        if (found := self._partition(topic, partition)) is not None or time.monotonic() < self._next_lookup_s:
            return found
        self._next_lookup_s = time.monotonic() + _LOOKUP_S
        if (why := self._brokers.why_unknown(topic, partition)) is not None:
            raise KlammError(f"{problem}: {why}.")
        return None

    def _partition(self, topic: str, partition: int) -> MetadataResponsePartition | None:
        """Return the newest state of a partition that a running broker knows: the one with the highest leader epoch."""
        found = [
            candidate
            for view in self._views(topic)
            for described in view.topics
            for candidate in described.partitions
            if described.error_code == ErrorCode.NONE and candidate.partition_index == partition
        ]
        return max(found, key=lambda candidate: candidate.leader_epoch) if found else None

    def _why_no_leader(self, topic: str, partition: int) -> str:
        found = self._partition(topic, partition)
        if found is None:
            return ": no broker that answers knows it"
        isr, ended = sorted(found.isr_nodes), self._brokers.ended()
        if not isr or not all(replica in ended for replica in isr):
            return f": in sync are {', '.join(map(str, isr)) or 'none of its replicas'}"
        return f": {brokers_are(isr)} not running, and no other replica is in sync"

    def _knows_leaders(self, broker_id: int, topic: str, partitions: int) -> bool:
        view = self._metadata(broker_id, topic)
        if view is None or not view.topics or view.topics[0].error_code != ErrorCode.NONE:
            return False
        known = view.topics[0].partitions
        return len(known) == partitions and all(part.leader_id >= 0 for part in known)

    def _ask_controller(self, request: Message, version: int, answer: type[R]) -> R:
        return self._ask_broker(self.controller_id(), request, version, answer)

    def _ask_broker(self, broker_id: int, request: Message, version: int, answer: type[R]) -> R:
        address = self._brokers.answering().get(broker_id)
        if address is None:
            raise ConnectionRefusedError("the broker is gone")
        timeout_s, security = LOCAL_CHANGE.request_ms / 1000, self._brokers.client_security
        return ask_once(address, request, version, answer, timeout_s, client_id=CLIENT_ID, security=security)

    def _until_accepted(
        self, problem: str, attempt: Callable[[], tuple[int, str | None]], when_done: ErrorCode | None
    ) -> None:
        """Repeat the attempt until it is accepted.

        `when_done` is the error of a second attempt whose first took effect but was not answered in time.
        """
        is_unanswered = False

        def accepted() -> bool | None:
            nonlocal is_unanswered
            try:
                code, message = attempt()
            except OSError as error:
                is_unanswered |= not isinstance(error, ConnectionRefusedError)
                return None
            if code in _RETRIABLE:
                is_unanswered |= code == ErrorCode.REQUEST_TIMED_OUT
                return None
            if is_unanswered and code == when_done:
                return True
            if code != ErrorCode.NONE:
                detail = f" ({message.rstrip('.')})" if message else ""
                raise KlammError(f"{problem}: {ErrorCode(code).name}{detail}.")
            return True

        self._ask(accepted, problem)
