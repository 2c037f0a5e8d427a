"""Rights that a client lacks, although brokers answer it without an error.

Brokers leave out what a client may not describe, so a listing that lacks everything looks like that of an empty
cluster. They do refuse a client that names a resource. So a request about a name that nobody has shows whether the
client may see all resources: the broker refuses it, or it does not know the name. A right that is denied for single
names only is not found.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final
from uuid import uuid4

from klamm.client.blocking_connection import BlockingConnection
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.security.acl.bindings import CLUSTER_NAME, WILDCARD, AclOperation, ResourceType

_OPERATIONS_VERSION: Final = 9
_CONFIGS_VERSION: Final = 1
_GROUPS_VERSION: Final = 1
_TRANSACTIONS_VERSION: Final = 0
_KEY: Final = "min.insync.replicas"
_TOPIC, _BROKER = 2, 4
"""Types of resources with a configuration."""
_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.CLUSTER: "--cluster",
}
_PLURALS: Final = {
    ResourceType.TOPIC: "topics",
    ResourceType.GROUP: "groups",
    ResourceType.TRANSACTIONAL_ID: "transactional ids",
}
NOT_REPORTED: Final = -(1 << 31)
"""Authorized operations that a broker was not asked for."""


@lazy_dataclass(frozen=True, slots=True)
class MissingRight:
    """An operation on a resource, for which an entry is missing. The name `*` means all resources of the type."""

    operation: AclOperation
    resource_type: ResourceType
    resource_name: str = WILDCARD

    def __str__(self) -> str:
        if self.resource_type is ResourceType.CLUSTER:
            return f"{self.operation.title} on the cluster"
        if self.resource_name == WILDCARD:
            return f"{self.operation.title} on all {_PLURALS[self.resource_type]}"
        return f"{self.operation.title} on {_PLURALS[self.resource_type].removesuffix('s')} {self.resource_name}"

    def as_json(self) -> dict[str, str]:
        """The names of the fields are those of `klamm acl list --json`."""
        return {
            "operation": self.operation.title,
            "resourceType": self.resource_type.title,
            "resourceName": self.resource_name,
        }


def on_topics(operation: AclOperation, name: str = WILDCARD) -> MissingRight:
    return MissingRight(operation, ResourceType.TOPIC, name)


def on_cluster(operation: AclOperation) -> MissingRight:
    return MissingRight(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def grants(missing: Iterable[MissingRight], principal: str) -> list[str]:
    """Return the commands that give the rights to a principal, one per resource, with no right beyond them."""
    commands = []
    for (kind, name), rights in groupby(missing, key=lambda right: (right.resource_type, right.resource_name)):
        operations = " ".join(f"--operation {right.operation.title}" for right in rights)
        resource = _OPTIONS[kind] if kind is ResourceType.CLUSTER else f"{_OPTIONS[kind]} {shlex.quote(name)}"
        commands.append(f"klamm acl add --allow-principal {shlex.quote(principal)} {operations} {resource}")
    return commands


def may(operations: int, operation: AclOperation) -> bool:
    """Whether the authorized operations of a response contain this one."""
    return operations == NOT_REPORTED or bool(operations >> operation & 1)


def _unused_name() -> str:
    return f"no-such-name-{uuid4().hex}"


def missing_for_topics(connection: BlockingConnection) -> list[MissingRight]:
    """Return the rights without which topics are left out of the metadata."""
    return [right for right in _from_metadata(connection) if right.resource_type is ResourceType.TOPIC]


def missing_for_status(connection: BlockingConnection, broker_id: int) -> list[MissingRight]:
    """Return the rights without which the state of the cluster is not complete. `broker_id` is that of the peer."""
    missing = _from_metadata(connection)
    resources = [
        DescribeConfigsResource(resource_type=_TOPIC, resource_name=_unused_name(), configuration_keys=[_KEY]),
        DescribeConfigsResource(resource_type=_BROKER, resource_name=str(broker_id), configuration_keys=[_KEY]),
    ]
    answer = connection.ask(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, _CONFIGS_VERSION)
    codes = {result.resource_type: result.error_code for result in answer.results}
    if codes.get(_TOPIC) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        missing.append(on_topics(AclOperation.DESCRIBE_CONFIGS))
    if codes.get(_BROKER) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        missing.append(on_cluster(AclOperation.DESCRIBE_CONFIGS))
    return sorted(missing, key=lambda right: (right.resource_type, right.operation))


def missing_for_groups(connection: BlockingConnection) -> list[MissingRight]:
    """Return the right without which groups are left out of listings. With Describe on the cluster, none are."""
    if on_cluster(AclOperation.DESCRIBE) not in _from_metadata(connection):
        return []
    request = DescribeGroupsRequest(groups=[_unused_name()])
    answer = connection.ask(request, DescribeGroupsResponse, _GROUPS_VERSION)
    is_refused = any(each.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED for each in answer.groups)
    return [MissingRight(AclOperation.DESCRIBE, ResourceType.GROUP)] if is_refused else []


def missing_for_transactions(connection: BlockingConnection) -> list[MissingRight]:
    """Return the right without which transactional ids are left out of listings."""
    return hidden_transactions(
        connection.ask(transactions_probe(), DescribeTransactionsResponse, _TRANSACTIONS_VERSION)
    )


def transactions_probe() -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=[_unused_name()])


def hidden_transactions(answer: DescribeTransactionsResponse) -> list[MissingRight]:
    """Return the right that the answer to `transactions_probe` shows to be missing."""
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_refused = any(each.error_code == refused for each in answer.transaction_states)
    return [MissingRight(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)] if is_refused else []


def missing_on_topic(connection: BlockingConnection, name: str, operation: AclOperation) -> MissingRight | None:
    """Return the right to an operation on a topic if the client lacks it; None if it does not."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    (topic,) = connection.ask(request, MetadataResponse, _OPERATIONS_VERSION).topics
    if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return on_topics(operation, name)
    if topic.error_code != ErrorCode.NONE or may(topic.topic_authorized_operations, operation):
        return None
    return on_topics(operation, name)


def _from_metadata(connection: BlockingConnection) -> list[MissingRight]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=_unused_name())],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
    )
    answer = connection.ask(request, MetadataResponse, _OPERATIONS_VERSION)
    missing = []
    if any(topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for topic in answer.topics):
        missing.append(on_topics(AclOperation.DESCRIBE))
    if not may(answer.cluster_authorized_operations, AclOperation.DESCRIBE):
        missing.append(on_cluster(AclOperation.DESCRIBE))
    return missing


def sentences(missing: Sequence[MissingRight]) -> list[str]:
    """Return one sentence per right whose lack makes a listing incomplete."""
    return [
        f"The user lacks {right}: {_PLURALS[right.resource_type]} without this right are not shown."
        for right in missing
    ]
