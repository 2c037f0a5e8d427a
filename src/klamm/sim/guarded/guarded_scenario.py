"""The scenario of level 2 with an authorizer.

Senders are distinguished by their hosts: brokers may do what brokers do, the intruder may do nothing, and a client that
is denied during the run is refused by every broker from then on. A super user, who logs in from the intruder's host, is
served. A clerk may do nearly everything, and brokers do not report more than that.
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
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.client_mechanisms import SaslCredentials
from klamm.security.sasl.mechanisms import PLAIN
from klamm.security.secret import Secret
from klamm.sim.checkers import require
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster
from klamm.sim.cluster_runner import GROUP, Scenario
from klamm.sim.guarded import clerk, intruder, more_attempts, second_checks, views
from klamm.sim.guarded.clerk import Clerk
from klamm.sim.guarded.intruder import Intruder
from klamm.zk.client.batches import levels_of
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, SetData

LATE: Final = "latecomer"
ROOT: Final = "root"
"""The super user: the only client that logs in."""
_PASSWORD: Final = "of-root"
SASL_PORT: Final = 9093
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
        cluster.settings |= {
            "authorizer.class.name": ACL_AUTHORIZER,
            "allow.everyone.if.no.acl.found": True,
            "super.users": f"User:{ROOT}",
            "sasl.enabled.mechanisms": PLAIN,
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'PlainLoginModule required user_{ROOT}="{_PASSWORD}";'
            ),
        }
        cluster.listeners["SASL_PLAINTEXT"] = SASL_PORT
        self._write_entries()
        self._intruder = Intruder(cluster, GROUP)

    def _write_entries(self) -> None:
        brokers = [_entry(AclOperation.CLUSTER_ACTION, node.host) for node in self._cluster.nodes.values()]
        operators = [_entry(operation) for operation in _OF_OPERATORS]
        entries = {
            ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME): [
                *brokers,
                *operators,
                *(_denied(intruder.HOST, operation) for operation in _OF_OPERATORS),
                _denied_to_clerk(ResourceType.CLUSTER),
            ],
            ResourcePattern(ResourceType.TOPIC, WILDCARD): [
                _entry(AclOperation.DESCRIBE),
                _denied(intruder.HOST, AclOperation.WRITE),
            ],
            ResourcePattern(ResourceType.TOPIC, second_checks.CREATABLE): [_entry(AclOperation.CREATE)],
            ResourcePattern(ResourceType.TOPIC, more_attempts.HIDDEN_PREFIX, PatternType.PREFIXED): _open(),
            ResourcePattern(ResourceType.TOPIC, more_attempts.SHOWN): [
                _entry(AclOperation.READ),
                _denied(intruder.HOST, AclOperation.WRITE),
            ],
            ResourcePattern(ResourceType.TRANSACTIONAL_ID, WILDCARD): [
                _entry(AclOperation.ALL, second_checks.PREPARER)
            ],
            ResourcePattern(ResourceType.TRANSACTIONAL_ID, views.OPEN): [_entry(AclOperation.WRITE)],
        }
        for name in self._topics:
            entries[ResourcePattern(ResourceType.TOPIC, name)] = _open_but(ResourceType.TOPIC)
        entries[ResourcePattern(ResourceType.GROUP, GROUP)] = _open_but(ResourceType.GROUP)
        entries[ResourcePattern(ResourceType.TRANSACTIONAL_ID, intruder.TRANSACTIONAL_ID)] = _open()
        made = [Create(path) for path in levels_of(PERSISTENT_PATHS)]
        made += [Create(path_of(resource), stored.encode_acl(found)) for resource, found in entries.items()]
        require(self._cluster.zookeeper.operate(*made), "the entries could not be written")

    async def _start_clients(self) -> None:
        await super()._start_clients()
        cluster = self._cluster
        await self._prepare()
        process = cluster.client_process(intruder.HOST)
        await self._while_watching(cluster.loop.spawn(process, self._intruder.try_everything()))
        await self._report_operations()
        await self._serve_super_user()
        await self._deny_latecomer()
        self._clients.append(cluster.loop.spawn(process, self._intruder.run()))

    async def _prepare(self) -> None:
        cluster = self._cluster
        client = Client(second_checks.PREPARER, cluster.addresses, Random(cluster.rng.getrandbits(64)))
        work = second_checks.prepare(client, self._tps[0], intruder.TRANSACTIONAL_ID)
        await self._while_watching(cluster.loop.spawn(cluster.client_process(client.name), work))

    async def _report_operations(self) -> None:
        cluster = self._cluster
        asking = Clerk(cluster)
        process = cluster.client_process(asking.name)
        await self._while_watching(cluster.loop.spawn(process, asking.try_everything()))
        found = cluster.loop.spawn(process, self._intruder.coordinator())
        await self._while_watching(found)
        await self._while_watching(cluster.loop.spawn(process, asking.ask_about(GROUP, found.result())))

    async def _serve_super_user(self) -> None:
        """A super user may do everything, even where entries deny it to the host of the intruder."""
        cluster = self._cluster
        security = ClientSecurity(sasl=SaslCredentials(PLAIN, ROOT, Secret(_PASSWORD)))
        addresses = {node.id: (node.host, SASL_PORT) for node in cluster.nodes.values()}
        client = Client(ROOT, addresses, Random(cluster.seed), security)
        process = cluster.client_process(intruder.HOST)
        for broker_id in cluster.nodes:
            task = cluster.loop.spawn(process, _asks(client, broker_id, self._tps[0].topic))
            await self._while_watching(task)
            require(task.result() == ErrorCode.NONE, f"broker {broker_id} refuses a super user")
        cluster.counts["served super users"] += 1

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
        changed = SetData(path, stored.encode_acl([*_open_but(ResourceType.TOPIC), _denied(LATE)]))
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


def _denied_to_clerk(kind: ResourceType) -> AclEntry:
    return _denied(clerk.HOST, clerk.DENIED[kind])


def _open_but(kind: ResourceType) -> list[AclEntry]:
    """Open to all but the intruder, with one operation denied to the clerk."""
    return [*_open(), _denied_to_clerk(kind)]


def _open() -> list[AclEntry]:
    """Open to all but the intruder."""
    return [_entry(AclOperation.ALL), _denied(intruder.HOST)]
