"""klamm and Apache Kafka in one cluster with SASL_SSL, SCRAM between brokers and AclAuthorizer.

`before` runs with a controller of klamm, `after` with one of Kafka. Brokers of either kind follow the users and the
access control entries that the other kind writes. Then the checks of `mixed_cluster` run as a user with few rights.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, Final

from compat.mixed_cluster import quotas
from compat.mixed_cluster.check import TOPIC, Checks
from compat.mixed_cluster.cluster import Kind, MixedCluster

from klamm.client.blocking_connection import ask_once
from klamm.client.client_errors import AuthenticationError
from klamm.errors import ErrorCode, KlammError
from klamm.local.security_choice import SecurityChoice
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from klamm.protocol.record_batch import Record, build_batch
from klamm.security.acl.bindings import AclOperation, PatternType, Permission, ResourceType
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.mechanisms import SCRAM_SHA_512
from klamm.security.sasl.scram_credential import salted_password

USER: Final = "writer"
KINDS: Final[tuple[Kind, ...]] = ("klamm", "kafka")
PARTITIONS: Final = 6
TIMEOUT_S: Final = 60.0
ITERATIONS: Final = 4096
_SALT: Final = b"a salt of twenty-four b."
_SCRAM_SHA_512: Final = 2
SECURITY: Final = SecurityChoice.of(tls=True, sasl=SCRAM_SHA_512, acls=True)
SETTINGS: Final = {"klamm.admit.unproven.peers": "false"}
"""The authorizer decides: brokers of Kafka are admitted because their user may act as a broker."""


class SecurityChecks:
    """Users and entries that one kind writes and the other follows. Every check waits for all running brokers."""

    def __init__(self, cluster: MixedCluster) -> None:
        self._cluster = cluster

    def prepare(self) -> None:
        """Add the user of the load, through a Kafka broker, and its entries, through a klamm broker."""
        self._upsert(USER, self._cluster.of("kafka")[0])
        self._await_login(USER, True)
        klamm = self._cluster.of("klamm")[0]
        for operation in (AclOperation.WRITE, AclOperation.READ):
            self._allow(klamm, USER, ResourceType.TOPIC, TOPIC, operation)
        self._allow(klamm, USER, ResourceType.GROUP, "group-", AclOperation.READ, PatternType.PREFIXED)

    def follow_users(self) -> None:
        for kind in KINDS:
            broker_id, name = self._cluster.of(kind)[0], f"user-of-{kind}"
            self._upsert(name, broker_id)
            self._await_login(name, True)
            self._delete(name, broker_id)
            self._await_login(name, False)

    def follow_entries(self) -> None:
        """Set entries through one kind, and remove them through the other."""
        topic = "guarded"
        self._cluster.admin.create_topic(topic, PARTITIONS, 1, {})
        leaders = {self._cluster.admin.leader(topic, partition): partition for partition in range(PARTITIONS)}
        if missing := set(self._cluster.running()) - leaders.keys():
            raise KlammError(f"brokers {missing} lead no partition of {topic}")
        for kind, other in zip(KINDS, reversed(KINDS), strict=True):
            name = f"allowed-by-{kind}"
            self._upsert(name, self._cluster.of(kind)[0])
            self._await_login(name, True)
            self._await_produce(name, topic, leaders, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            self._allow(self._cluster.of(kind)[0], name, ResourceType.TOPIC, topic, AclOperation.WRITE)
            self._await_produce(name, topic, leaders, ErrorCode.NONE)
            self._disallow(self._cluster.of(other)[0], name)
            self._await_produce(name, topic, leaders, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        self._cluster.admin.delete_topic(topic)

    def refuse_forgery(self) -> None:
        """A user that may read and write cannot act as a broker, neither towards klamm nor towards Kafka."""
        metadata = UpdateMetadataRequest(
            controller_id=1, controller_epoch=1 << 20, broker_epoch=-1, topic_states=[], live_brokers=[]
        )
        part = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=1 << 40, partition_max_bytes=1 << 20)
        fetch = FetchRequest(
            replica_id=2, max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=TOPIC, partitions=[part])]
        )
        for broker_id in self._cluster.running():
            answer = self._ask(broker_id, metadata, 7, UpdateMetadataResponse, USER)
            _expect(broker_id, "UpdateMetadata", answer.error_code, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            found = self._ask(broker_id, fetch, 11, FetchResponse, USER).responses[0].partitions[0]
            _expect(broker_id, "Fetch as a follower", found.error_code, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    # --- one request -------------------------------------------------------------------------------------------------

    def _ask(self, broker_id: int, request: Any, version: int, response: Any, user: str | None = None) -> Any:
        address = self._cluster.answering()[broker_id]
        security = self._cluster.client_security if user is None else self._cluster.security.client_security(user)
        return ask_once(address, request, version, response, TIMEOUT_S, security=security)

    def _upsert(self, name: str, broker_id: int) -> None:
        self._cluster.security.add_user(name)
        salted = salted_password(SCRAM_SHA_512, self._cluster.security.users[name], _SALT, ITERATIONS)
        upsertion = ScramCredentialUpsertion(
            name=name, mechanism=_SCRAM_SHA_512, iterations=ITERATIONS, salt=_SALT, salted_password=salted
        )
        self._alter_users(broker_id, AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))

    def _delete(self, name: str, broker_id: int) -> None:
        deletion = ScramCredentialDeletion(name=name, mechanism=_SCRAM_SHA_512)
        self._alter_users(broker_id, AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))

    def _alter_users(self, broker_id: int, request: AlterUserScramCredentialsRequest) -> None:
        """The controller changes users: the request goes to it, and `broker_id` says of which kind it should be."""
        kind = self._cluster.kinds[broker_id]
        if self._cluster.kinds[self._cluster.controller()] != kind:
            self._cluster.make_controller(kind)
        answer = self._ask(self._cluster.controller(), request, 0, AlterUserScramCredentialsResponse).results[0]
        _expect(broker_id, "AlterUserScramCredentials", answer.error_code, ErrorCode.NONE)

    def _allow(
        self,
        broker_id: int,
        user: str,
        resource: ResourceType,
        name: str,
        operation: AclOperation,
        pattern: PatternType = PatternType.LITERAL,
    ) -> None:
        creation = AclCreation(
            resource_type=resource,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        answer = self._ask(broker_id, CreateAclsRequest(creations=[creation]), 2, CreateAclsResponse).results[0]
        _expect(broker_id, "CreateAcls", answer.error_code, ErrorCode.NONE)

    def _disallow(self, broker_id: int, user: str) -> None:
        wanted = DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=f"User:{user}",
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        answer = self._ask(broker_id, DeleteAclsRequest(filters=[wanted]), 2, DeleteAclsResponse).filter_results[0]
        _expect(broker_id, "DeleteAcls", answer.error_code, ErrorCode.NONE)

    # --- conditions --------------------------------------------------------------------------------------------------

    def _await_login(self, user: str, wanted: bool) -> None:
        security = self._cluster.security.client_security(user)
        for broker_id in self._cluster.running():
            problem = f"broker {broker_id} {'refuses' if wanted else 'accepts'} {user}"
            self._cluster.wait(partial(self._answers_login, broker_id, security, wanted), problem)

    def _answers_login(self, broker_id: int, security: ClientSecurity, wanted: bool) -> bool:
        address, request = self._cluster.answering()[broker_id], MetadataRequest(topics=[])
        try:
            ask_once(address, request, 9, MetadataResponse, TIMEOUT_S, security=security)
        except AuthenticationError:
            return not wanted
        return wanted

    def _await_produce(self, user: str, topic: str, leaders: dict[int, int], wanted: ErrorCode) -> None:
        for broker_id, partition in leaders.items():
            problem = f"broker {broker_id} does not answer {wanted.name} to {user}"
            self._cluster.wait(partial(self._answers_produce, user, topic, broker_id, partition, wanted), problem)

    def _answers_produce(self, user: str, topic: str, broker_id: int, partition: int, wanted: ErrorCode) -> bool:
        data = PartitionProduceData(index=partition, records=build_batch([Record(0, 0, None, b"guarded")]))
        request = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        answer = self._ask(broker_id, request, 9, ProduceResponse, user)
        return bool(answer.responses[0].partition_responses[0].error_code == wanted)


def _expect(broker_id: int, what: str, found: int, wanted: ErrorCode) -> None:
    if found != wanted:
        raise KlammError(f"broker {broker_id} answers {ErrorCode(found).name} to {what}, not {wanted.name}")


def run(controller: Kind) -> None:
    """Broker 1 is the controller; of 2 and 3 at least one is of the other kind."""
    other: Kind = "kafka" if controller == "klamm" else "klamm"
    kinds: dict[int, Kind] = {1: controller, 2: "klamm", 3: other}
    quick = bool(os.environ.get("KLAMM_QUICK"))
    with MixedCluster(kinds, configs=SETTINGS, security=SECURITY) as cluster:
        guard = SecurityChecks(cluster)
        cluster.security.add_user(USER)
        checks = Checks(cluster, controller, USER)
        cluster.start(1)
        cluster.start(2, 3)
        checks.check("topic created and grown", checks.create)
        checks.check("first user and its entries", guard.prepare)
        checks.check("users of either kind", guard.follow_users)
        checks.check("entries of either kind", guard.follow_entries)
        checks.check("forged requests of brokers are refused", guard.refuse_forgery)
        checks.check(f"the controller is {controller}", lambda: checks.move_controller(controller))
        checks.check("kill -9 of a klamm broker", lambda: checks.kill(2))
        checks.check("consumer group", checks.group)
        if not quick:
            checks.check("preferred leaders", checks.elect)
            checks.check("topic deleted", checks.delete)
            checks.check("quotas set by either kind", lambda: quotas.check(cluster))
        checks.check(f"controlled shutdown, {other} to {controller}", lambda: checks.become(3, controller))
        checks.check(f"controlled shutdown, {controller} to {other}", lambda: checks.become(3, other))
        checks.check(f"the controller moves to {other}", lambda: checks.move_controller(other))
        checks.check(f"kill -9 of the {other} controller", lambda: checks.kill(cluster.controller()))


if __name__ == "__main__":
    run("klamm" if sys.argv[1] == "before" else "kafka")
