"""Requests to the controller that librdkafka does not support, over klamm's own client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from klamm.cli.client import TIMEOUT_S, addresses_by_answer, no_such_topic, unreachable
from klamm.cli.cluster_control import Address
from klamm.cli.output import fail, note
from klamm.client.patience import CONTROLLER_SEARCH, Deadline, repeated_for
from klamm.clock import SystemClock
from klamm.errors import ErrorCode
from klamm.protocol.wire import Message

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse

R = TypeVar("R", bound=Message)
_SENT: Final = " The request was sent to a controller that did not answer, so it may still take effect."
_LIST_MOVES: Final = 46
"""ListPartitionReassignments changes nothing."""
_SILENT_S: Final = 1.0
"""A longer search is reported."""
_SEARCH_S: Final = (CONTROLLER_SEARCH.last_attempt_ms or 0) / 1000


@dataclass(frozen=True, slots=True)
class ControllerReply(Generic[R]):
    """`is_repeat`: the request was sent before and may have taken effect without a response."""

    answer: R
    is_repeat: bool


class ControllerClient:
    """The current controller. If it moves or is being elected, it is looked up again within `timeout_s`."""

    def __init__(self, servers: str, timeout_s: float = _SEARCH_S, answer_s: float | None = None) -> None:
        """A response may take `answer_s`, by default longer than the search, at most a minute."""
        self.servers = servers
        self._search_s = min(max(timeout_s, 0.0), _SEARCH_S)
        longest_s = min(CONTROLLER_SEARCH.request_s, max(timeout_s, 0.0) + TIMEOUT_S)
        self._answer_s = longest_s if answer_s is None else answer_s

    def ask(
        self, request: Message, version: int, answer: type[R], is_refused: Callable[[R], bool] | None = None
    ) -> ControllerReply[R]:
        """`is_refused` returns whether the response says that another broker is the controller."""
        search_ms, answer_ms = int(self._search_s * 1000), int(self._answer_s * 1000)
        deadline = Deadline(repeated_for(CONTROLLER_SEARCH, search_ms, answer_ms), SystemClock())
        is_repeat = has_warned = False
        refused = is_refused or _is_not_controller
        while True:
            address = self._address(deadline)
            if address is not None:
                reply, was_sent = self._exchange(address, request, version, answer, deadline)
                if reply is not None and not refused(reply):
                    return ControllerReply(reply, is_repeat)
                is_repeat |= was_sent
            if not deadline.may_repeat:
                may_happen = is_repeat and request.KEY != _LIST_MOVES
                fail(
                    f"The cluster at {self.servers} has no controller that answers (looked for {self._search_s:g} s); "
                    f"`klamm cluster status` shows more.{_SENT if may_happen else ''}"
                )
            if deadline.elapsed_ms >= _SILENT_S * 1000 and not has_warned:
                note(f"No controller answers yet; looking for one for {self._search_s:g} s.")
                has_warned = True
            time.sleep(deadline.patience.pause_s())

    def _address(self, deadline: Deadline) -> Address | None:
        _, view = metadata(self.servers, (), deadline)
        return next(((node.host, node.port) for node in view.brokers if node.node_id == view.controller_id), None)

    def _exchange(
        self, address: Address, request: Message, version: int, answer: type[R], deadline: Deadline
    ) -> tuple[R | None, bool]:
        """Return the response, if there is one, and whether the request may have arrived."""
        from klamm.cli.broker_requests import connect

        was_sent = False
        try:
            with connect(address, deadline.request_ms / 1000) as connection:
                connection.timeout_ms = deadline.request_ms
                was_sent = True
                return connection.ask(request, answer, version), was_sent
        except OSError:
            return None, was_sent


def _is_not_controller(reply: Message) -> bool:
    return bool(getattr(reply, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER)


def metadata(
    servers: str, topics: Iterable[str] | None, deadline: Deadline | None = None
) -> tuple[Address, MetadataResponse]:
    """Return the first broker that answers, and its metadata of these topics, or of all, and of the cluster."""
    from klamm.cli.broker_requests import ask
    from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

    request = MetadataRequest(
        topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )
    for address in addresses_by_answer(servers):
        timeout_s = TIMEOUT_S if deadline is None else min(TIMEOUT_S, deadline.request_ms / 1000)
        try:
            return address, ask(address, request, 9, MetadataResponse, timeout_s)
        except OSError:
            continue
    fail(unreachable(servers))


def partitions_of(servers: str, topic: str) -> dict[int, list[int]]:
    """Return the replicas of each partition. Fails if the topic does not exist."""
    _, found = replicas_of(servers, [topic])
    return found[topic]


def replicas_of(servers: str, topics: Iterable[str]) -> tuple[Address, dict[str, dict[int, list[int]]]]:
    """Return the replicas of the topics' partitions, and the broker that reported them."""
    address, view = metadata(servers, topics)
    found: dict[str, dict[int, list[int]]] = {}
    for topic in view.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            fail(no_such_topic(str(topic.name)))
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            fail(f"Topic {topic.name}: {ErrorCode(topic.error_code).name}.")
        found[str(topic.name)] = {each.partition_index: list(each.replica_nodes) for each in topic.partitions}
    return address, found


def reason(code: int, message: str | None) -> str:
    """`INVALID_REPLICA_ASSIGNMENT: Replica assignment has brokers that are not alive: 9.`"""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    text = (message or "").strip()
    return f"{name}: {text}" if text.endswith(".") else f"{name}: {text}." if text else f"{name}."
