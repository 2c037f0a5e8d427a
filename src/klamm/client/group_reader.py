"""Consumer groups as their coordinators report them: states, members, assignments, committed offsets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from klamm.client.blocking_connection import BlockingConnection
from klamm.client.broker_calls import ask_each
from klamm.client.client_errors import ClientError, RetriableError, error_name, is_retriable
from klamm.client.cluster_client import GROUP, ClusterClient
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TopicPartition
from klamm.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

_ONE_GROUP: Final = 7
"""From version 8 on, OffsetFetch has another form for several groups."""
_CONSUMER: Final = "consumer"
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


@lazy_dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    coordinator: int
    state: str
    protocol_type: str


@lazy_dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartition, ...] | None
    """None if the assignment is not that of a consumer."""


@lazy_dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[GroupMember, ...]


class GroupReader:
    """Reads the groups of a cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def groups(self) -> tuple[list[ListedGroup], list[str]]:
        """Return the groups of all coordinators that answer, and a sentence per broker that does not."""
        answers, problems = ask_each(self._client, ListGroupsRequest(), ListGroupsResponse, _check_listing)
        found = {
            each.group_id: ListedGroup(each.group_id, broker_id, each.group_state, each.protocol_type)
            for broker_id, answer in answers.items()
            for each in answer.groups
        }
        return sorted(found.values(), key=lambda group: group.group_id), problems

    def describe(self, group: str) -> GroupDescription:
        """Return the state and the members of a group; a group that does not exist is `Dead`."""
        request = DescribeGroupsRequest(groups=[group])

        def attempt() -> GroupDescription:
            (found,) = self._coordinator(group).ask(request, DescribeGroupsResponse).groups
            _check(found.error_code, f"group {group}")
            return _description(found)

        return self._client.retry(f"the state of group {group}", attempt)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return all offsets that the group has committed."""
        request = OffsetFetchRequest(group_id=group, topics=None)

        def attempt() -> dict[TopicPartition, int]:
            connection = self._coordinator(group)
            version = connection.version(OffsetFetchRequest, _ONE_GROUP)
            answer = connection.ask(request, OffsetFetchResponse, version)
            _check(answer.error_code, f"the offsets of group {group}")
            return {
                TopicPartition(topic.name, part.partition_index): part.committed_offset
                for topic in answer.topics
                for part in topic.partitions
                if part.error_code == ErrorCode.NONE and part.committed_offset >= 0
            }

        return self._client.retry(f"the offsets of group {group}", attempt)

    def _coordinator(self, group: str) -> BlockingConnection:
        return self._client.connection(self._client.coordinators([group], GROUP)[group])


def consumer_assignment(data: bytes | memoryview) -> tuple[TopicPartition, ...]:
    """Decode an assignment of Kafka's consumer protocol. Raises ValueError for anything else."""
    view = bytes(data)
    if not view:
        return ()
    try:
        position = _INT16.size
        (topics,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        found: list[TopicPartition] = []
        for _ in range(topics):
            (length,) = _INT16.unpack_from(view, position)
            position += _INT16.size
            if length < 0 or position + length > len(view):
                raise ValueError("a topic's name is longer than the assignment")
            topic = view[position : position + length].decode()
            position += length
            (count,) = _INT32.unpack_from(view, position)
            position += _INT32.size
            if count < 0 or position + count * _INT32.size > len(view):
                raise ValueError("there are more partitions than bytes")
            found += [
                TopicPartition(topic, number) for (number,) in _INT32.iter_unpack(view[position : position + 4 * count])
            ]
            position += 4 * count
    except struct.error as error:
        raise ValueError("the assignment ends too early") from error
    return tuple(sorted(found))


def _description(found: DescribedGroup) -> GroupDescription:
    is_consumer = found.protocol_type == _CONSUMER
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host.lstrip("/"),
            member.group_instance_id,
            _assignment(member.member_assignment) if is_consumer else None,
        )
        for member in found.members
    )
    return GroupDescription(found.group_id, found.group_state, found.protocol_type, found.protocol_data, members)


def _assignment(data: bytes | memoryview) -> tuple[TopicPartition, ...] | None:
    """None for bytes that are not an assignment: a member may send anything."""
    try:
        return consumer_assignment(data)
    except ValueError:
        return None


def _check(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        problem = f"{what}: {error_name(code)}"
        raise RetriableError(problem) if is_retriable(code) else ClientError(f"The broker rejected {problem}.")


def _check_listing(answer: ListGroupsResponse) -> None:
    _check(answer.error_code, "a list of its groups")


def owners(members: Sequence[GroupMember]) -> dict[TopicPartition, GroupMember]:
    """Return the member of each assigned partition."""
    return {tp: member for member in members for tp in member.assignment or ()}
