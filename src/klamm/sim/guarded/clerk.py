"""The clerk: a client that may do nearly everything. Brokers must not report that it may do the rest.

Metadata, DescribeCluster and DescribeGroups report the operations that the client may do. These have no error: an
answer with another set of operations is the violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from klamm.apis.metadata import TOPIC_OPERATIONS
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.wire import Message
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.guarded.attempts import Attempt, RefusedClient

HOST: Final = "clerk"
DENIED: Final = {
    ResourceType.CLUSTER: AclOperation.DESCRIBE,
    ResourceType.TOPIC: AclOperation.ALTER,
    ResourceType.GROUP: AclOperation.DELETE,
}
"""Per type of resource, the operation that an entry denies the clerk. Without DESCRIBE, no other one is reported."""
_OF_TOPIC: Final = TOPIC_OPERATIONS & ~(1 << DENIED[ResourceType.TOPIC])
_OF_GROUP: Final = 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE


class Clerk(RefusedClient):
    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(HOST, cluster)

    def attempts(self, node: SimNode, tp: TopicPartition) -> Iterator[Attempt]:
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name=tp.topic)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        yield _reports(asked, 9, lambda response: response.cluster_authorized_operations, 0)
        yield _reports(asked, 9, lambda response: response.topics[0].topic_authorized_operations, _OF_TOPIC)
        described = DescribeClusterRequest(include_cluster_authorized_operations=True)
        yield _reports(described, 0, lambda response: response.cluster_authorized_operations, 0)

    async def ask_about(self, group: str, coordinator: SimNode) -> None:
        described = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
        attempt = _reports(described, 5, lambda response: response.groups[0].authorized_operations, _OF_GROUP)
        await self._send(coordinator, attempt)


def _reports(request: Message, version: int, read: Callable[[Any], int], expected: int) -> Attempt:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return Attempt(
        request, version, lambda response: refused if read(response) == expected else ErrorCode.NONE, refused
    )
