"""The intruder: a client that knows everything and may do nothing.

Each of its requests must be refused with an authorization error, at any moment of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest
from klamm.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.replica.fetch_session import INITIAL_EPOCH
from klamm.security.acl.bindings import AclOperation, PatternType, Permission, ResourceType
from klamm.sim.checkers import Violation
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.guarded import attempts, more_attempts, second_checks, views
from klamm.sim.guarded.attempts import Attempt, RefusedClient, of_cluster

HOST: Final = "mallory"
TRANSACTIONAL_ID: Final = "payments"
_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ID: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_FAR: Final = 1 << 40


class Intruder(RefusedClient):
    def __init__(self, cluster: SimCluster, group: str) -> None:
        super().__init__(HOST, cluster)
        self._group = group

    def attempts(self, node: SimNode, tp: TopicPartition) -> Iterator[Attempt]:
        assert node.broker is not None
        yield from attempts.as_controller(self._cluster, node, tp, node.broker.metadata.controller_id or 0)
        yield from attempts.as_broker(self._cluster, node.id)
        follower = self._rng.choice([other for other in self._cluster.nodes if other != node.id] or [node.id])
        for sender in (follower, -1):
            yield Attempt(attempts.fetch(node, tp, sender), 12, _of_partition("responses"), _TOPIC)
        yield attempts.epoch_ends(tp, follower, _TOPIC)
        yield attempts.commit_marker(tp)
        yield attempts.partitions_of_transaction(tp, TRANSACTIONAL_ID)
        yield from self._of_topics(tp)
        yield from self._of_groups(tp)
        yield from _of_transactions(tp, self._group)
        yield from _of_operators(tp, node.id)

    async def try_everything(self) -> None:
        await super().try_everything()
        controller = await self._controller()
        for attempt in more_attempts.once(self._cluster.partitions[0], self._group, TRANSACTIONAL_ID, controller.id):
            await self._send(controller, attempt)
        for attempt in views.once(self._cluster.partitions[0], TRANSACTIONAL_ID):
            await self._send(controller, attempt)
        for attempt in second_checks.once(self._cluster.partitions[0], self._group, TRANSACTIONAL_ID):
            await self._send(controller, attempt)
        for node in self._cluster.nodes.values():
            await self._send(node, views.offsets(self._cluster.partitions[0]))
            for attempt in second_checks.of_coordinators(self._cluster.partitions[0], TRANSACTIONAL_ID):
                await self._send(node, attempt)
        assert controller.broker is not None
        await self._claim_session(controller, self._cluster.partitions[0])
        topic_id = controller.broker.metadata.topic_id(self._cluster.partitions[0].topic)
        await self._send(controller, views.deleted_by_id(topic_id))
        await self._send(await self.coordinator(), views.groups(self._group))

    async def _claim_session(self, node: SimNode, tp: TopicPartition) -> None:
        """A follower's session may take the place of a consumer's: the intruder must not get such a session."""
        follower = next((other for other in self._cluster.nodes if other != node.id), node.id)
        request = attempts.fetch(node, tp, follower)
        request.session_epoch = INITIAL_EPOCH
        response = await self._client.ask(node.id, request, 12)
        sessions = () if node.broker is None else node.broker.fetch_sessions
        if any(session.is_privileged for session in sessions if session.id == response.session_id):
            raise Violation(f"broker {node.id} gives {self.name} the session of a follower")
        self._cluster.counts["refused sessions of followers"] += 1

    async def coordinator(self) -> SimNode:
        """The broker that lists the group, as soon as one does."""
        while True:
            for node in self._cluster.nodes.values():
                known = [] if node.broker is None else node.broker.groups.list_groups(set(), set())[1]
                if any(overview.group_id == self._group for overview in known):
                    return node
            await self._client.rest()

    async def _controller(self) -> SimNode:
        """The broker that decides on topics. Others refer to it before they check rights."""
        while True:
            for node in self._cluster.nodes.values():
                if node.broker is not None and node.broker.metadata.controller_id == node.id:
                    return node
            await self._client.rest()

    def _of_topics(self, tp: TopicPartition) -> Iterator[Attempt]:
        data = PartitionProduceData(index=tp.partition, records=build_batch([Record(timestamp=0, value=b"forged")]))
        yield Attempt(
            ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=1_000,
                topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
            ),
            9,
            lambda response: response.responses[0].partition_responses[0].error_code,
            _TOPIC,
        )
        asked = ListOffsetsPartition(partition_index=tp.partition, timestamp=-1)
        listed = ListOffsetsTopic(name=tp.topic, partitions=[asked])
        yield Attempt(
            ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[listed]), 7, _of_partition("topics"), _TOPIC
        )
        yield Attempt(
            MetadataRequest(topics=[MetadataRequestTopic(name=tp.topic)], allow_auto_topic_creation=False),
            9,
            lambda response: response.topics[0].error_code,
            _TOPIC,
        )
        deleted = DeleteRecordsTopic(
            name=tp.topic, partitions=[DeleteRecordsPartition(partition_index=tp.partition, offset=-1)]
        )
        yield Attempt(DeleteRecordsRequest(topics=[deleted], timeout_ms=1_000), 2, _of_partition("topics"), _TOPIC)

    def _of_groups(self, tp: TopicPartition) -> Iterator[Attempt]:
        group = self._group
        offset = OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=_FAR, committed_metadata=None
        )
        topic = OffsetCommitRequestTopic(name=tp.topic, partitions=[offset])
        yield Attempt(OffsetCommitRequest(group_id=group, topics=[topic]), 7, _of_partition("topics"), _GROUP)
        fetched = OffsetFetchRequestGroup(group_id=group, topics=None)
        yield Attempt(OffsetFetchRequest(groups=[fetched]), 8, lambda response: response.groups[0].error_code, _GROUP)
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        yield Attempt(join, 5, lambda response: response.error_code, _GROUP)
        leave = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="c1")])
        yield Attempt(leave, 4, lambda response: response.error_code, _GROUP)
        delete = DeleteGroupsRequest(groups_names=[group])
        yield Attempt(delete, 2, lambda response: response.results[0].error_code, _GROUP)


def _of_transactions(tp: TopicPartition, group: str) -> Iterator[Attempt]:
    own: dict[str, Any] = {"transactional_id": TRANSACTIONAL_ID, "producer_id": 1, "producer_epoch": 0}
    fence = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=1_000)
    yield Attempt(fence, 4, lambda response: response.error_code, _ID)
    yield Attempt(EndTxnRequest(**own, committed=True), 3, lambda response: response.error_code, _ID)
    offset = TxnOffsetCommitRequestPartition(
        partition_index=tp.partition, committed_offset=_FAR, committed_metadata=None
    )
    topic = TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[offset])
    yield Attempt(TxnOffsetCommitRequest(**own, group_id=group, topics=[topic]), 3, _of_partition("topics"), _ID)


def _of_operators(tp: TopicPartition, broker_id: int) -> Iterator[Attempt]:
    moved = ReassignablePartition(partition_index=tp.partition, replicas=[broker_id])
    topic = ReassignableTopic(name=tp.topic, partitions=[moved])
    yield of_cluster(AlterPartitionReassignmentsRequest(timeout_ms=1_000, topics=[topic]), 0)
    unclean = TopicPartitions(topic=tp.topic, partitions=[tp.partition])
    yield of_cluster(ElectLeadersRequest(election_type=1, topic_partitions=[unclean], timeout_ms=1_000), 2)
    entry = AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=tp.topic,
        resource_pattern_type=PatternType.LITERAL,
        principal="User:*",
        host=HOST,
        operation=AclOperation.ALL,
        permission_type=Permission.ALLOW,
    )
    yield Attempt(CreateAclsRequest(creations=[entry]), 2, lambda response: response.results[0].error_code, _CLUSTER)
    user = ScramCredentialDeletion(name="admin", mechanism=2)
    removal = AlterUserScramCredentialsRequest(deletions=[user], upsertions=[])
    yield Attempt(removal, 0, lambda response: response.results[0].error_code, _CLUSTER)


def _of_partition(topics: str) -> Callable[[Any], int]:
    """Read the error of the first partition of the first topic."""
    return lambda response: int(getattr(response, topics)[0].partitions[0].error_code)
