"""The scenario of level 2 with an authorizer.

Without logins, hosts tell senders apart: brokers may do what brokers do, the intruder may do nothing, and a client that
is denied during the run is refused by every broker from then on.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from klamm.acl_changes import PERSISTENT_PATHS, path_of
from klamm.config.authorizer_keys import ACL_AUTHORIZER
from klamm.errors import ErrorCode
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.security.acl import stored
from klamm.security.acl.bindings import (
    ANY_PRINCIPAL,
    CLUSTER_NAME,
    WILDCARD,
    AclEntry,
    AclOperation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from klamm.sim.checkers import require
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster
from klamm.sim.cluster_runner import GROUP, Scenario
from klamm.sim.guarded import intruder
from klamm.sim.guarded.intruder import Intruder
from klamm.zk.client.batches import levels_of
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, SetData

LATE: Final = "latecomer"
_OF_OPERATORS: Final = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)


class GuardedScenario(Scenario):
    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        cluster.settings |= {"authorizer.class.name": ACL_AUTHORIZER, "allow.everyone.if.no.acl.found": True}
        self._write_entries()
        self._intruder = Intruder(cluster, GROUP)

    def _write_entries(self) -> None:
        brokers = [_entry(AclOperation.CLUSTER_ACTION, node.host) for node in self._cluster.nodes.values()]
        operators = [_entry(operation) for operation in _OF_OPERATORS]
        entries = {
            ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME): [
                *brokers,
                *operators,
                _denied(intruder.HOST, AclOperation.ALTER),
            ]
        }
        for name in self._topics:
            entries[ResourcePattern(ResourceType.TOPIC, name)] = _open()
        entries[ResourcePattern(ResourceType.GROUP, GROUP)] = _open()
        made = [Create(path) for path in levels_of(PERSISTENT_PATHS)]
        made += [Create(path_of(resource), stored.encode_acl(found)) for resource, found in entries.items()]
        require(self._cluster.zookeeper.operate(*made), "the entries could not be written")

    async def _start_clients(self) -> None:
        await super()._start_clients()
        cluster = self._cluster
        process = cluster.client_process(intruder.HOST)
        await self._while_watching(cluster.loop.spawn(process, self._intruder.try_everything()))
        await self._deny_latecomer()
        self._clients.append(cluster.loop.spawn(process, self._intruder.run()))

    async def _deny_latecomer(self) -> None:
        """A client is served until an entry denies it. The brokers learn of the entry from its notice alone."""
        cluster = self._cluster
        client = Client(LATE, cluster.addresses, Random(cluster.rng.getrandbits(64)))
        process = cluster.client_process(LATE)
        for broker_id in cluster.nodes:
            task = cluster.loop.spawn(process, _asks(client, broker_id, self._tps[0].topic))
            await self._while_watching(task)
            require(task.result() == ErrorCode.NONE, f"broker {broker_id} refuses a client that is allowed")
        resource = ResourcePattern(ResourceType.TOPIC, self._tps[0].topic)
        path = path_of(resource)
        cluster.note(f"{LATE} is denied {resource}")
        changed = SetData(path, stored.encode_acl([*_open(), _denied(LATE)]))
        notice = Create(
            f"{paths.ACL_CHANGES}/{paths.ACL_CHANGE_PREFIX}", stored.encode_acl_change(resource), sequential=True
        )
        require(cluster.zookeeper.operate(changed, notice), "the entry could not be changed")
        for broker_id in cluster.nodes:
            await self._while_watching(cluster.loop.spawn(process, _until_refused(client, broker_id, resource.name)))


async def _asks(client: Client, broker_id: int, topic: str) -> ErrorCode:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    response: Any = await client.ask(broker_id, request, 9)
    return ErrorCode(response.topics[0].error_code)


async def _until_refused(client: Client, broker_id: int, topic: str) -> None:
    for _ in range(100):
        if await _asks(client, broker_id, topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return
        await client.rest()
    require(False, f"broker {broker_id} still serves a client that is denied")


def _entry(operation: AclOperation, host: str = WILDCARD) -> AclEntry:
    return AclEntry(ANY_PRINCIPAL, host, operation, Permission.ALLOW)


def _denied(host: str, operation: AclOperation = AclOperation.ALL) -> AclEntry:
    return AclEntry(ANY_PRINCIPAL, host, operation, Permission.DENY)


def _open() -> list[AclEntry]:
    """Open to all but the intruder."""
    return [_entry(AclOperation.ALL), _denied(intruder.HOST)]
