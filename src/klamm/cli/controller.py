"""Requests that only the controller answers and librdkafka does not know: over klamm's own codec."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.cli.client import TIMEOUT_S, unreachable
from klamm.cli.cluster import Address, parse_address
from klamm.cli.output import fail
from klamm.errors import ErrorCode
from klamm.protocol.wire import Message

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse

R = TypeVar("R", bound=Message)
ANSWER_S: Final = 60.0
SEARCH_S: Final = 30.0
"""For a controller. One that dies is replaced when its session has ended, by default after 18 s."""
_PAUSE_S: Final = 0.2


def metadata(servers: str, topics: Iterable[str]) -> MetadataResponse:
    """What the first broker that answers knows of these topics and of the cluster."""
    from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
    from klamm.testing.wire_client import send_request

    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
    )
    for address in [parse_address(server) for server in servers.split(",")]:
        try:
            return send_request(address, request, 9, MetadataResponse, TIMEOUT_S)
        except OSError:
            continue
    fail(unreachable(servers))


def partitions_of(servers: str, topic: str) -> dict[int, list[int]]:
    """The replicas of each partition. A topic that is not there is a failure."""
    (found,) = metadata(servers, [topic]).topics
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        fail(f"There is no topic {topic}.")
    if found.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
        fail(f"Topic {topic}: {ErrorCode(found.error_code).name}.")
    return {partition.partition_index: list(partition.replica_nodes) for partition in found.partitions}


def ask_controller(servers: str, request: Message, version: int, answer: type[R]) -> R:
    """The controller's answer. One that moves or is elected just now is looked for again, for a while."""
    from klamm.testing.wire_client import send_request

    deadline = time.monotonic() + SEARCH_S
    while True:
        address = _controller(servers)
        if address is not None:
            try:
                told = send_request(address, request, version, answer, ANSWER_S)
            except OSError:
                told = None
            if told is not None and getattr(told, "error_code", 0) != ErrorCode.NOT_CONTROLLER:
                return told
        if time.monotonic() > deadline:
            fail(f"The cluster at {servers} has no controller that answers; `klamm cluster status` tells more.")
        time.sleep(_PAUSE_S)


def _controller(servers: str) -> Address | None:
    view = metadata(servers, ())
    return next(((node.host, node.port) for node in view.brokers if node.node_id == view.controller_id), None)


def reason(code: int, message: str | None) -> str:
    """`INVALID_REPLICA_ASSIGNMENT: Replica assignment has brokers that are not alive: 9.`"""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    text = (message or "").strip()
    return f"{name}: {text}" if text.endswith(".") else f"{name}: {text}." if text else f"{name}."
