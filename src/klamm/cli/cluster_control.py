"""Whether a cluster can make decisions: the state of its controller and of ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.errors import ErrorCode
from klamm.model import NO_CONTROLLER, TopicPartition

if TYPE_CHECKING:
    from klamm.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
    from klamm.protocol.messages.metadata import MetadataResponse

Address = tuple[str, int]
_BROKER: Final = 4


@dataclass(frozen=True, slots=True)
class Control:
    """The controller that the brokers name. `problem` is None if it claims the role itself.

    `adding` has the partitions that are being moved, with their new replicas.
    """

    controller_id: int
    problem: str | None = None
    adding: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)


def find_controller(first: MetadataResponse, views: Mapping[int, MetadataResponse], timeout_s: float) -> Control:
    """Find the controller from the bootstrap server's metadata and the metadata of each broker that answers.

    Brokers name a dead controller until another one is elected. So the named broker is asked for the moves, which only
    the controller knows.
    """
    reports = (first, *views.values())
    nodes = {node.node_id: (node.host, node.port) for view in reversed(reports) for node in view.brokers}
    silent = {node.node_id for node in first.brokers} - views.keys()
    named = dict.fromkeys(view.controller_id for view in reports if view.controller_id != NO_CONTROLLER)
    problems: list[str] = []
    for broker_id in named:
        if broker_id not in nodes:
            problems.append("is not alive")
            continue
        answer = None if broker_id in silent else _ask_for_moves(nodes[broker_id], timeout_s)
        if answer is None:
            problems.append("does not answer")
        elif answer.error_code == ErrorCode.NOT_CONTROLLER:
            problems.append("reports that it is not the controller")
        else:
            return Control(broker_id, None, _adding(answer))
    return Control(next(iter(named)), problems[0]) if named else Control(NO_CONTROLLER, "is not known")


def _ask_for_moves(address: Address, timeout_s: float) -> ListPartitionReassignmentsResponse | None:
    from klamm.cli.broker_requests import ask
    from klamm.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )

    request = ListPartitionReassignmentsRequest(timeout_ms=int(timeout_s * 1000), topics=None)
    try:
        reply = ask(address, request, 0, ListPartitionReassignmentsResponse, timeout_s)
    except OSError:
        return None
    return None if reply.error_code == ErrorCode.REQUEST_TIMED_OUT else reply


def _adding(reply: ListPartitionReassignmentsResponse) -> dict[TopicPartition, frozenset[int]]:
    return {
        TopicPartition(topic.name, each.partition_index): frozenset(each.adding_replicas)
        for topic in reply.topics
        for each in topic.partitions
    }


def zookeeper_answers(broker: Address, timeout_s: float) -> bool | None:
    """Return whether ZooKeeper answers this broker; None if the broker does not report it.

    The request validates an empty change of the brokers' defaults: the broker has to read them from ZooKeeper, and
    writes nothing. Metadata and metrics are served without ZooKeeper, so they do not show it.
    """
    from klamm.cli.broker_requests import ask
    from klamm.protocol.messages.incremental_alter_configs import (
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    nothing = AlterConfigsResource(resource_type=_BROKER, resource_name="", configs=[])
    request = IncrementalAlterConfigsRequest(resources=[nothing], validate_only=True)
    try:
        reply = ask(broker, request, 0, IncrementalAlterConfigsResponse, timeout_s)
    except OSError:
        return False
    codes = {each.error_code for each in reply.responses}
    return True if codes == {ErrorCode.NONE} else False if ErrorCode.REQUEST_TIMED_OUT in codes else None
