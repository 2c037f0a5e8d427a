"""The scenario of level 2 with an authorizer.

Senders are distinguished by their hosts. Brokers may do what brokers do. The intruder may do nothing. If a client is
denied during the run, every broker refuses it from then on. A super user who logs in from the intruder's host is
served. Of two other users that log in, entries allow one and deny the other. A clerk may do nearly everything, and
brokers do not report more than that. In every second run, resources without entries are closed.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from klamm.acl_changes import PERSISTENT_PATHS, path_of
from klamm.config.authorizer_keys import ACL_AUTHORIZER
from klamm.errors import ErrorCode
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest
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
from klamm.sim.guarded.fetch_sessions import QUIET, KnownSession
from klamm.sim.guarded.intruder import Intruder
from klamm.sim.guarded.proofs import peer_secret, proof_of
from klamm.sim.loop import SimProcess
from klamm.zk.client.batches import levels_of
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, SetData

LATE: Final = "latecomer"
ROOT: Final = "root"
"""The super user."""
CAROL, DAVE = "carol", "dave"
"""Users with entries of their own, which allow Carol and deny Dave. Both log in from the same host."""
USERS: Final = (ROOT, CAROL, DAVE)
OFFICE: Final = "office"
OF_CAROL, NOT_OF_DAVE, UNLISTED = "of-carol", "not-of-dave", "without-entries"
"""Groups: one that only Carol may describe, one that all but Dave may use, one without entries."""
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
        self._topics[QUIET.topic] = (1, min(3, len(cluster.nodes)))
        self._is_open_without_entries = cluster.seed % 2 == 0
        self._sasl_addresses = {node.id: (node.host, SASL_PORT) for node in cluster.nodes.values()}
        users = " ".join(f'user_{name}="{_password(name)}"' for name in USERS)
        cluster.settings |= {
            "authorizer.class.name": ACL_AUTHORIZER,
            "allow.everyone.if.no.acl.found": self._is_open_without_entries,
            "super.users": f"User:{ROOT}",
            "sasl.enabled.mechanisms": PLAIN,
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"PlainLoginModule required {users};",
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
            entries[ResourcePattern(ResourceType.TOPIC, name)] = _of_topic()
        entries[ResourcePattern(ResourceType.GROUP, GROUP)] = _open_but(ResourceType.GROUP)
        entries[ResourcePattern(ResourceType.GROUP, OF_CAROL)] = [_for_user(CAROL, Permission.ALLOW)]
        entries[ResourcePattern(ResourceType.GROUP, NOT_OF_DAVE)] = [
            _entry(AclOperation.ALL),
            _for_user(DAVE, Permission.DENY),
        ]
        if not self._is_open_without_entries:
            entries[ResourcePattern(ResourceType.GROUP, views.OPEN)] = [_entry(AclOperation.ALL)]
        entries[ResourcePattern(ResourceType.TRANSACTIONAL_ID, intruder.TRANSACTIONAL_ID)] = _open()
        made = [Create(path) for path in levels_of(PERSISTENT_PATHS)]
        made += [Create(path_of(resource), stored.encode_acl(found)) for resource, found in entries.items()]
        made.append(Create(path_of(ResourcePattern(ResourceType.TOPIC, more_attempts.UNREADABLE)), b"{"))
        require(self._cluster.zookeeper.operate(*made), "the entries could not be written")

    async def _start_clients(self) -> None:
        await super()._start_clients()
        cluster = self._cluster
        await self._distinguish_users()
        await self._prepare()
        process = cluster.client_process(intruder.HOST)
        await self._while_watching(cluster.loop.spawn(process, self._intruder.try_everything()))
        await self._report_operations()
        await self._serve_super_user()
        await self._refuse_proof_without_login()
        await self._protect_session_of_user()
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

    def _logged_in(self, name: str) -> Client:
        security = ClientSecurity(sasl=SaslCredentials(PLAIN, name, Secret(_password(name))))
        return Client(name, self._sasl_addresses, Random(self._cluster.seed), security)

    async def _distinguish_users(self) -> None:
        """Entries for a user are for nobody else. A setting decides about a group without entries."""
        cluster = self._cluster
        process = cluster.client_process(OFFICE)
        for name, group, is_allowed in (
            (CAROL, OF_CAROL, True),
            (DAVE, OF_CAROL, False),
            (CAROL, NOT_OF_DAVE, True),
            (DAVE, NOT_OF_DAVE, False),
            (CAROL, UNLISTED, self._is_open_without_entries),
        ):
            client = self._logged_in(name)
            for broker_id in cluster.nodes:
                task = cluster.loop.spawn(process, _may_describe(client, broker_id, group))
                await self._while_watching(task)
                does = "refuses" if is_allowed else "serves"
                require(task.result() == is_allowed, f"broker {broker_id} {does} a request of {name} about {group}")
        cluster.counts["refused users"] += 1

    async def _refuse_proof_without_login(self) -> None:
        """The proof of a broker does not replace the login on a listener that needs one."""
        cluster = self._cluster
        security = proof_of(1, peer_secret(cluster))
        client = Client(OFFICE, self._sasl_addresses, Random(cluster.seed), security)
        broker_id = next(iter(cluster.nodes))
        task = cluster.loop.spawn(cluster.client_process(OFFICE), _is_answered(client, broker_id))
        await self._while_watching(task)
        require(not task.result(), f"broker {broker_id} serves a broker that has not logged in")
        cluster.counts["refused proofs"] += 1

    async def _protect_session_of_user(self) -> None:
        """Another user on the same host must not continue a session."""
        cluster = self._cluster
        process = cluster.client_process(OFFICE)
        carol, dave = self._logged_in(CAROL), self._logged_in(DAVE)
        session = await self._session_of(carol, process)
        await self._while_watching(cluster.loop.spawn(process, session.check_refused(dave, "another user's")))
        cluster.counts["refused sessions"] += 1

    async def _session_of(self, client: Client, process: SimProcess) -> KnownSession:
        """Open a session at the leader of the quiet partition."""
        cluster = self._cluster
        found = cluster.loop.spawn(process, client.leader(QUIET))
        await self._while_watching(found)
        session = KnownSession(found.result()[0])
        await self._while_watching(cluster.loop.spawn(process, session.open(client)))
        return session

    async def _serve_super_user(self) -> None:
        """A super user may do everything, even where entries deny it to the host of the intruder."""
        cluster = self._cluster
        client = self._logged_in(ROOT)
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
        session = await self._session_of(client, process)
        thief = Client(intruder.HOST, cluster.addresses, Random(cluster.seed))
        stolen = session.check_refused(thief, "another host's")
        await self._while_watching(cluster.loop.spawn(cluster.client_process(intruder.HOST), stolen))
        await self._while_watching(cluster.loop.spawn(process, session.read_all(client)))
        for name in (self._tps[0].topic, QUIET.topic):
            self._deny_topic(name)
            for broker_id in cluster.nodes:
                await self._while_watching(cluster.loop.spawn(process, _until_refused(client, broker_id, name)))
        await self._while_watching(cluster.loop.spawn(process, session.check_refused(client, "denied meanwhile")))

    def _deny_topic(self, name: str) -> None:
        """Deny a topic to the latecomer."""
        resource = ResourcePattern(ResourceType.TOPIC, name)
        path = path_of(resource)
        self._cluster.note(f"{LATE} is denied {resource}")
        changed = SetData(path, stored.encode_acl([*_of_topic(), _denied(LATE)]))
        notice = Create(
            f"{paths.ACL_CHANGES}/{paths.ACL_CHANGE_PREFIX}", stored.encode_acl_change(resource), sequential=True
        )
        require(self._cluster.zookeeper.operate(changed, notice), "the entry could not be changed")


async def _asks(client: Client, broker_id: int, topic: str) -> ErrorCode:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    response: Any = await client.ask(broker_id, request, 9)
    return ErrorCode(response.topics[0].error_code)


async def _may_describe(client: Client, broker_id: int, group: str) -> bool:
    response: Any = await client.ask(broker_id, DescribeGroupsRequest(groups=[group]), 5)
    return bool(response.groups[0].error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED)


async def _is_answered(client: Client, broker_id: int) -> bool:
    try:
        await client.ask(broker_id, MetadataRequest(topics=[]), 9)
    except OSError:
        return False
    return True


async def _until_refused(client: Client, broker_id: int, topic: str) -> None:
    for _ in range(100):
        if await _asks(client, broker_id, topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return
        await client.rest()
    require(False, f"broker {broker_id} still serves a client that is denied")


def _password(name: str) -> str:
    return f"of-{name}"


def _for_user(name: str, permission: Permission) -> AclEntry:
    return AclEntry(f"User:{name}", WILDCARD, AclOperation.ALL, permission)


def _entry(operation: AclOperation, host: str = WILDCARD) -> AclEntry:
    return AclEntry(ANY_PRINCIPAL, host, operation, Permission.ALLOW)


def _denied(host: str, operation: AclOperation = AclOperation.ALL) -> AclEntry:
    return AclEntry(ANY_PRINCIPAL, host, operation, Permission.DENY)


def _denied_to_clerk(kind: ResourceType) -> AclEntry:
    return _denied(clerk.HOST, clerk.DENIED[kind])


def _of_topic() -> list[AclEntry]:
    return [*_open_but(ResourceType.TOPIC), _for_user(DAVE, Permission.DENY)]


def _open_but(kind: ResourceType) -> list[AclEntry]:
    """Open to all but the intruder, with one operation denied to the clerk."""
    return [*_open(), _denied_to_clerk(kind)]


def _open() -> list[AclEntry]:
    """Open to all but the intruder."""
    return [_entry(AclOperation.ALL), _denied(intruder.HOST)]
