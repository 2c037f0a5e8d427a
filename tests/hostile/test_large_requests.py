"""Requests that name very many things. Every API gives the loop back many times while it answers one of them.

Turns of the loop are counted, not milliseconds: a handler that answers without a turn between holds everybody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from types import GeneratorType
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from klamm.apis import ALL
from klamm.apis import alter_client_quotas as alter_quotas
from klamm.apis import describe_producers as describe_producers_api
from klamm.apis import list_offsets as list_offsets_api
from klamm.apis.api_declaration import at_once
from klamm.apis.client_quota_entities import MAX_PARTS
from klamm.apis.missing_topics import MAX_MISSING
from klamm.apis.produce import MOST_BYTES
from klamm.apis.slices import SLICE
from klamm.controller import events
from klamm.controller.replies import (
    AlterPartitionResults,
    EventReply,
    PartitionResult,
    PartitionResults,
    Reassignments,
    TopicResult,
    TopicResults,
)
from klamm.errors import ErrorCode
from klamm.model import LEADER_DURING_DELETE, TRANSACTION_STATE_TOPIC
from klamm.network.request_context import RequestContext
from klamm.protocol.messages import (
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    incremental_alter_configs,
    join_group,
    leader_and_isr,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from klamm.protocol.schema import plan
from klamm.protocol.wire import Message
from klamm.replica.partition import Partition
from tests.property.test_handlers import MemoryZooKeeper
from tests.support.long_form import every
from tests.support.one_broker import batch
from tests.unit.coordinator.test_group_apis import GroupBroker

COUNT = 2000
MOST = 200
"""No API handles more elements than this before it gives the loop back."""
ID = UUID(int=7)
APIS = {api.key: api for api in ALL}


class Case(NamedTuple):
    request: Callable[[Sequence[int]], Message]
    version: int
    answers: Callable[[Any], Sequence[Any]]
    rows: str | None = None
    is_answered_once: bool = False
    """The request names the same thing every time, and the answer does so only once or not at all."""
    is_refused_at_once: bool = False
    """The request is refused for its size before its elements are read, in one short step."""

    def count(self, response: Any) -> int:
        answers = self.answers(response)
        return len(answers) if self.rows is None else sum(len(getattr(answer, self.rows)) for answer in answers)


def structs(kind: Callable[..., Any], field: str, numbers: Sequence[int], **others: Any) -> list[Any]:
    return [kind(**{field: number}, **others) for number in numbers]


def names(numbers: Sequence[int]) -> list[str]:
    return [f"n{number}" for number in numbers]


def resources(kind: Callable[..., Any], numbers: Sequence[int], **others: Any) -> list[Any]:
    return [kind(resource_type=2, resource_name=name, **others) for name in names(numbers)]


def transaction(name: str, partitions: Sequence[int]) -> add_partitions_to_txn.AddPartitionsToTxnTransaction:
    return add_partitions_to_txn.AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=1,
        producer_epoch=0,
        verify_only=True,
        topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(name="t", partitions=partitions)],
    )


def txn_marker(producer_id: int, partitions: Sequence[int]) -> write_txn_markers.WritableTxnMarker:
    return write_txn_markers.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=0,
        transaction_result=True,
        topics=[write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=partitions)],
        coordinator_epoch=0,
    )


def quota_entry(types: Sequence[str], name: str) -> alter_client_quotas.EntryData:
    entity = [alter_client_quotas.EntityData(entity_type=kind, entity_name=name) for kind in types]
    return alter_client_quotas.EntryData(entity=entity, ops=[])


CASES = {
    "Produce": Case(
        lambda n: produce.ProduceRequest(
            transactional_id=None,
            acks=1,
            timeout_ms=1000,
            topic_data=[
                produce.TopicProduceData(
                    name="t", partition_data=structs(produce.PartitionProduceData, "index", n, records=batch(b"x"))
                )
            ],
        ),
        10,
        attrgetter("responses"),
        "partition_responses",
    ),
    "ListOffsets": Case(
        lambda n: list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name="t", partitions=structs(list_offsets.ListOffsetsPartition, "partition_index", n, timestamp=-1)
                )
            ],
        ),
        7,
        attrgetter("topics"),
        "partitions",
    ),
    "OffsetCommit": Case(
        lambda n: offset_commit.OffsetCommitRequest(
            group_id="g",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name="t",
                    partitions=structs(
                        offset_commit.OffsetCommitRequestPartition,
                        "partition_index",
                        n,
                        committed_offset=1,
                        committed_metadata="",
                    ),
                )
            ],
        ),
        8,
        attrgetter("topics"),
        "partitions",
    ),
    "OffsetFetch v7": Case(
        lambda n: offset_fetch.OffsetFetchRequest(
            group_id="g", topics=[offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=n)]
        ),
        7,
        attrgetter("topics"),
        "partitions",
    ),
    "OffsetFetch v8": Case(
        lambda n: offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=[]) for name in names(n)]
        ),
        8,
        attrgetter("groups"),
    ),
    "FindCoordinator": Case(
        lambda n: find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=names(n)),
        4,
        attrgetter("coordinators"),
    ),
    "LeaveGroup": Case(
        lambda n: leave_group.LeaveGroupRequest(
            group_id="g", members=[leave_group.MemberIdentity(member_id=name) for name in names(n)]
        ),
        4,
        attrgetter("members"),
    ),
    "SyncGroup": Case(
        lambda n: sync_group.SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id="m",
            protocol_type="p",
            protocol_name="p",
            assignments=[
                sync_group.SyncGroupRequestAssignment(member_id=name, assignment=b"")
                for name in names(range(10 * len(n)))
            ],
        ),
        5,
        lambda response: (),
        is_answered_once=True,
    ),
    "Metadata": Case(
        lambda n: metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name) for name in names(n)], allow_auto_topic_creation=False
        ),
        12,
        attrgetter("topics"),
    ),
    "ListGroups": Case(
        lambda n: list_groups.ListGroupsRequest(states_filter=names(n), types_filter=names(n)),
        5,
        attrgetter("groups"),
        is_answered_once=True,
    ),
    "DescribeGroups": Case(lambda n: describe_groups.DescribeGroupsRequest(groups=names(n)), 5, attrgetter("groups")),
    "DeleteGroups": Case(lambda n: delete_groups.DeleteGroupsRequest(groups_names=names(n)), 2, attrgetter("results")),
    "CreateTopics": Case(
        lambda n: create_topics.CreateTopicsRequest(
            topics=[
                create_topics.CreatableTopic(
                    name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
                )
                for name in names(n)
            ],
            timeout_ms=0,
        ),
        7,
        attrgetter("topics"),
    ),
    "DeleteTopics by name": Case(
        lambda n: delete_topics.DeleteTopicsRequest(topic_names=names(n), timeout_ms=60_000), 5, attrgetter("responses")
    ),
    "DeleteTopics": Case(
        lambda n: delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=name, topic_id=UUID(int=0)) for name in names(n)],
            timeout_ms=60_000,
        ),
        6,
        attrgetter("responses"),
    ),
    "DeleteRecords": Case(
        lambda n: delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name="t", partitions=structs(delete_records.DeleteRecordsPartition, "partition_index", n, offset=0)
                )
            ],
            timeout_ms=60_000,
        ),
        2,
        attrgetter("topics"),
        "partitions",
    ),
    "OffsetForLeaderEpoch": Case(
        lambda n: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic="t",
                    partitions=structs(
                        offset_for_leader_epoch.OffsetForLeaderPartition, "partition", n, leader_epoch=0
                    ),
                )
            ]
        ),
        4,
        attrgetter("topics"),
        "partitions",
    ),
    "DescribeConfigs": Case(
        lambda n: describe_configs.DescribeConfigsRequest(
            resources=resources(describe_configs.DescribeConfigsResource, n, configuration_keys=None)
        ),
        4,
        attrgetter("results"),
    ),
    "DescribeConfigs, the same": Case(
        lambda n: describe_configs.DescribeConfigsRequest(
            resources=resources(describe_configs.DescribeConfigsResource, [0] * 10 * len(n), configuration_keys=None)
        ),
        4,
        attrgetter("results"),
        is_answered_once=True,
    ),
    "AlterConfigs": Case(
        lambda n: alter_configs.AlterConfigsRequest(
            resources=resources(alter_configs.AlterConfigsResource, [0] * len(n), configs=[]), validate_only=False
        ),
        2,
        attrgetter("responses"),
    ),
    "IncrementalAlterConfigs": Case(
        lambda n: incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=resources(incremental_alter_configs.AlterConfigsResource, [0] * len(n), configs=[]),
            validate_only=False,
        ),
        1,
        attrgetter("responses"),
    ),
    "AlterReplicaLogDirs": Case(
        lambda n: alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            dirs=[
                alter_replica_log_dirs.AlterReplicaLogDir(
                    path="/nowhere",
                    topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name="t", partitions=n)],
                )
            ]
        ),
        2,
        attrgetter("results"),
        "partitions",
    ),
    "DescribeLogDirs": Case(
        lambda n: describe_log_dirs.DescribeLogDirsRequest(
            topics=[describe_log_dirs.DescribableLogDirTopic(topic="t", partitions=n)]
        ),
        4,
        attrgetter("results"),
        is_answered_once=True,
    ),
    "CreatePartitions": Case(
        lambda n: create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(name=name, count=1, assignments=None) for name in names(n)],
            timeout_ms=0,
            validate_only=False,
        ),
        3,
        attrgetter("results"),
    ),
    "ElectLeaders": Case(
        lambda n: elect_leaders.ElectLeadersRequest(
            topic_partitions=[elect_leaders.TopicPartitions(topic="t", partitions=n)]
        ),
        2,
        attrgetter("replica_election_results"),
        "partition_result",
    ),
    "AlterPartitionReassignments": Case(
        lambda n: alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    name="t",
                    partitions=structs(alter_partition_reassignments.ReassignablePartition, "partition_index", n),
                )
            ]
        ),
        0,
        attrgetter("responses"),
        is_answered_once=True,
    ),
    "ListPartitionReassignments": Case(
        lambda n: list_partition_reassignments.ListPartitionReassignmentsRequest(
            topics=[
                list_partition_reassignments.ListPartitionReassignmentsTopics(name="t", partition_indexes=n),
            ]
        ),
        0,
        attrgetter("topics"),
        is_answered_once=True,
    ),
    "OffsetDelete": Case(
        lambda n: offset_delete.OffsetDeleteRequest(
            group_id="g",
            topics=[
                offset_delete.OffsetDeleteRequestTopic(
                    name="t", partitions=structs(offset_delete.OffsetDeleteRequestPartition, "partition_index", n)
                )
            ],
        ),
        0,
        attrgetter("topics"),
        "partitions",
    ),
    "DescribeProducers": Case(
        lambda n: describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name="t", partition_indexes=n)]
        ),
        0,
        attrgetter("topics"),
        "partitions",
    ),
    "AlterPartition": Case(
        lambda n: alter_partition.AlterPartitionRequest(
            broker_id=1,
            broker_epoch=-1,
            topics=[
                alter_partition.TopicData(
                    topic_id=ID,
                    partitions=structs(
                        alter_partition.PartitionData, "partition_index", n, leader_epoch=0, partition_epoch=0
                    ),
                )
            ],
        ),
        3,
        attrgetter("topics"),
        is_answered_once=True,
    ),
    "AddPartitionsToTxn": Case(
        lambda n: add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(name="t", partitions=n)],
        ),
        3,
        attrgetter("results_by_topic_v3_and_below"),
        "results_by_partition",
    ),
    "AddPartitionsToTxn, many transactions": Case(
        lambda n: add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[transaction(name, range(2)) for name in names(n)]
        ),
        5,
        attrgetter("results_by_transaction"),
    ),
    "AddPartitionsToTxn, one transaction": Case(
        lambda n: add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=[transaction("x", n)]),
        5,
        lambda response: response.results_by_transaction[0].topic_results,
        "results_by_partition",
    ),
    "TxnOffsetCommit": Case(
        lambda n: txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=1,
            producer_epoch=0,
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=structs(
                        txn_offset_commit.TxnOffsetCommitRequestPartition,
                        "partition_index",
                        n,
                        committed_offset=1,
                        committed_metadata="",
                    ),
                )
            ],
        ),
        3,
        attrgetter("topics"),
        "partitions",
    ),
    "DescribeTransactions": Case(
        lambda n: describe_transactions.DescribeTransactionsRequest(transactional_ids=names(n)),
        0,
        attrgetter("transaction_states"),
    ),
    "DescribeTransactions, the same": Case(
        lambda n: describe_transactions.DescribeTransactionsRequest(transactional_ids=names([0] * 10 * len(n))),
        0,
        attrgetter("transaction_states"),
        is_answered_once=True,
    ),
    "ListTransactions": Case(
        lambda n: list_transactions.ListTransactionsRequest(
            state_filters=names(range(10 * len(n))), producer_id_filters=range(10 * len(n))
        ),
        1,
        attrgetter("unknown_state_filters"),
        is_answered_once=True,
    ),
    "WriteTxnMarkers, many markers": Case(
        lambda n: write_txn_markers.WriteTxnMarkersRequest(markers=[txn_marker(number, range(2)) for number in n]),
        1,
        attrgetter("markers"),
    ),
    "WriteTxnMarkers, one marker": Case(
        lambda n: write_txn_markers.WriteTxnMarkersRequest(markers=[txn_marker(1, n)]),
        1,
        lambda response: response.markers[0].topics,
        "partitions",
    ),
    "AlterClientQuotas": Case(
        lambda n: alter_client_quotas.AlterClientQuotasRequest(
            entries=[quota_entry(["user"], name) for name in names(n)], validate_only=True
        ),
        1,
        attrgetter("entries"),
    ),
    "CreateAcls": Case(
        lambda n: create_acls.CreateAclsRequest(
            creations=[
                create_acls.AclCreation(
                    resource_type=2, resource_name=name, principal="User:a", host="*", operation=3, permission_type=3
                )
                for name in names(n)
            ]
        ),
        2,
        attrgetter("results"),
    ),
    "DeleteAcls": Case(
        lambda n: delete_acls.DeleteAclsRequest(
            filters=[
                delete_acls.DeleteAclsFilter(
                    resource_type_filter=2,
                    resource_name_filter=name,
                    principal_filter=None,
                    host_filter=None,
                    operation=1,
                    permission_type=1,
                )
                for name in names(n)
            ]
        ),
        2,
        attrgetter("filter_results"),
    ),
    "AlterClientQuotas, one entity": Case(
        lambda n: alter_client_quotas.AlterClientQuotasRequest(
            entries=[quota_entry(names(range(10 * len(n))), "x")], validate_only=True
        ),
        1,
        attrgetter("entries"),
        is_answered_once=True,
        is_refused_at_once=True,
    ),
    "AlterUserScramCredentials": Case(
        lambda n: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[
                alter_user_scram_credentials.ScramCredentialDeletion(name=name, mechanism=1) for name in names(n)
            ],
            upsertions=[],
        ),
        0,
        attrgetter("results"),
    ),
    "DescribeUserScramCredentials": Case(
        lambda n: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            users=[describe_user_scram_credentials.UserName(name=name) for name in names(n)]
        ),
        0,
        attrgetter("results"),
    ),
}


ELSEWHERE = {
    "Fetch": "test_fetch.py",
    "LeaderAndIsr": "test_a_large_control_request_is_refused_in_slices",
    "StopReplica": "the controller sends slices; a request of anybody else is refused whole",
    "UpdateMetadata": "the controller sends slices; a request of anybody else is refused whole",
    "JoinGroup": "test_a_member_with_very_many_protocols_is_refused",
    "DescribeClientQuotas": "the third component is refused: there are two types",
}
"""APIs with arrays that are not in CASES, and why."""


def test_every_api_with_an_array_is_tried() -> None:
    tried = {APIS[case.request(range(1)).KEY].name for case in CASES.values()}
    with_arrays = {
        api.name
        for api in ALL
        if any(slot.present and slot.type.is_array for slot in plan(api.request, api.versions[1]).fields)
    }
    assert tried.isdisjoint(ELSEWHERE)
    assert with_arrays == tried | set(ELSEWHERE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupBroker]:
    broker = GroupBroker(tmp_path_factory.mktemp("broker"))
    broker.give(zk=MemoryZooKeeper())
    broker.lead_offsets_topic()
    broker.lead("t", 2, topic_id=ID)
    transactions = broker.broker.transactions
    transactions.startup()
    broker.lead(TRANSACTION_STATE_TOPIC)
    while transactions.describe("x").error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        broker.spin()
    yield broker
    transactions.shutdown()
    broker.spin()
    broker.close()


@pytest.fixture
def one(shared: GroupBroker) -> GroupBroker:
    shared.controller.submitted.clear()
    shared.controller.script = accept
    case = CASES["OffsetCommit"]
    answer(shared, case.request(range(2)), case.version)
    return shared


def accept(event: events.ControllerEvent) -> EventReply | None:
    """As a controller that does what it is asked; the broker's metadata does not show it."""
    match event:
        case events.CreateTopics() | events.CreatePartitions():
            return TopicResults(tuple(TopicResult(topic.name, num_partitions=1) for topic in event.topics))
        case events.DeleteTopics():
            return TopicResults(tuple(TopicResult(name) for name in event.names))
        case events.ApiPartitionReassignment():
            return PartitionResults(tuple(PartitionResult(tp, ErrorCode.NONE) for tp, _ in event.reassignments))
        case events.ReplicaLeaderElection():
            return PartitionResults(tuple(PartitionResult(tp, ErrorCode.NONE) for tp in event.partitions or ()))
        case events.ListPartitionReassignments():
            return Reassignments()
        case events.AlterPartition():
            return AlterPartitionResults()
    return None


def answer(one: GroupBroker, request: Message, version: int) -> tuple[Any, int]:
    """The response as the client reads it, and how often the loop could turn before."""
    return finished(one, one.dispatch(APIS[request.KEY], request, version), version)


def finished(one: GroupBroker, result: Any, version: int) -> tuple[Any, int]:
    turns = 0
    while True:
        if isinstance(result, GeneratorType):
            try:
                next(result)
                turns += 1
            except StopIteration as done:
                result = done.value
                assert not isinstance(result, GeneratorType), "the network layer runs the steps of a handler once"
        elif isinstance(result, asyncio.Future):
            while not result.done():
                one.loop.call_soon(one.loop.stop)
                one.loop.run_forever()
                turns += 1
            result = result.result()
        else:
            return one.as_read(result, version), turns


@pytest.mark.parametrize("name", every(4, CASES))
def test_the_loop_turns_while_a_large_request_is_answered(one: GroupBroker, name: str) -> None:
    case = CASES[name]
    response, turns = answer(one, case.request(range(COUNT)), case.version)
    if case.is_refused_at_once:
        (refused,) = case.answers(response)
        assert turns == 0 and refused.error_code == ErrorCode.INVALID_REQUEST
        return
    assert turns >= COUNT // MOST // 2
    if not case.is_answered_once:
        assert case.count(response) == COUNT
        assert len(case.answers(response)) == (1 if case.rows else COUNT)


ROWS = [name for name, case in CASES.items() if case.rows]


@pytest.mark.parametrize("name", every(4, ROWS))
def test_a_large_request_has_the_answers_of_small_ones(one: GroupBroker, name: str) -> None:
    case = CASES[name]
    assert case.rows is not None
    (small,) = case.answers(answer(one, case.request(range(COUNT - 5, COUNT)), case.version)[0])
    (whole,) = case.answers(answer(one, case.request(range(COUNT)), case.version)[0])
    assert getattr(whole, case.rows)[-5:] == getattr(small, case.rows)
    assert whole != small


def test_events_for_the_controller_are_no_larger_than_a_part(one: GroupBroker) -> None:
    for name in ("CreatePartitions", "AlterPartition", "ListPartitionReassignments"):
        answer(one, CASES[name].request(range(COUNT)), CASES[name].version)
    submitted = one.controller.submitted
    assert len({type(event) for event in submitted}) == 3
    assert max(len(value) for event in submitted for value in fields_of(event) if isinstance(value, tuple)) <= MOST


def fields_of(event: events.ControllerEvent) -> list[Any]:
    return [(), *(getattr(event, name) for name in event.__dataclass_fields__)]


def test_asking_about_very_many_topics_creates_a_few_at_a_time(one: GroupBroker) -> None:
    count = 10 * MAX_MISSING
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in names(range(count))]
    )
    response, _ = answer(one, request, 9)
    codes = [topic.error_code for topic in response.topics]
    assert codes[:MAX_MISSING] == [ErrorCode.LEADER_NOT_AVAILABLE] * MAX_MISSING
    assert set(codes[MAX_MISSING:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    (event,) = (event for event in one.controller.submitted if isinstance(event, events.CreateTopics))
    assert len(event.topics) == MAX_MISSING


def test_a_partition_that_is_named_twice_far_apart_is_refused(one: GroupBroker) -> None:
    case = CASES["ListOffsets"]
    response, _ = answer(one, case.request([*range(COUNT), 0]), case.version)
    codes = [partition.error_code for partition in response.topics[0].partitions]
    assert codes[0] == codes[-1] == ErrorCode.INVALID_REQUEST and codes[1] == ErrorCode.NONE


def test_offsets_of_a_group_are_deleted_although_it_vanishes_on_the_way(one: GroupBroker) -> None:
    case = CASES["OffsetDelete"]
    response, _ = answer(one, case.request(range(COUNT)), case.version)
    assert response.error_code == ErrorCode.NONE
    assert [p.error_code for p in response.topics[0].partitions[:2]] == [ErrorCode.NONE] * 2
    assert one.broker.groups.fetch_offsets("g", None) == {}


def test_all_offsets_of_a_group_are_fetched_in_slices(one: GroupBroker) -> None:
    one.update_metadata({"many": range(COUNT)})
    request: Any = CASES["OffsetCommit"].request(range(COUNT))
    request.topics[0].name = "many"
    answer(one, request, CASES["OffsetCommit"].version)
    asked = [offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None)] * 10
    response, turns = answer(one, offset_fetch.OffsetFetchRequest(groups=asked), 8)
    assert turns >= COUNT // MOST
    assert sum(len(topic.partitions) for topic in response.groups[0].topics) == COUNT + 2


def test_all_offsets_of_a_group_are_read_in_slices(one: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    request: Any = CASES["OffsetCommit"].request(range(COUNT))
    answer(one, request, CASES["OffsetCommit"].version)
    sizes: list[int] = []
    fetch_offsets = one.broker.groups.fetch_offsets

    def noting(group_id: str, partitions: Sequence[Any], **others: Any) -> Any:
        sizes.append(len(partitions))
        return fetch_offsets(group_id, partitions, **others)

    monkeypatch.setattr(one.broker.groups, "fetch_offsets", noting)
    asked = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None)
    response, _ = answer(one, offset_fetch.OffsetFetchRequest(groups=[asked]), 8)
    found = sum(len(topic.partitions) for topic in response.groups[0].topics)
    assert found == sum(sizes) >= COUNT
    assert max(sizes) <= SLICE


def test_a_member_with_very_many_protocols_is_refused(one: GroupBroker) -> None:
    protocols = [join_group.JoinGroupRequestProtocol(name=name, metadata=b"") for name in names(range(COUNT))]
    response, _ = answer(one, one.join_request(protocols=protocols), 5)
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_very_many_settings_of_one_resource_are_refused(one: GroupBroker) -> None:
    configs = [alter_configs.AlterableConfig(name=key, value="") for key in names(range(COUNT))]
    changed = alter_configs.AlterConfigsResource(resource_type=4, resource_name="1", configs=configs)
    altered, _ = answer(one, alter_configs.AlterConfigsRequest(resources=[changed], validate_only=False), 2)
    assert altered.responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert "1000 settings" in altered.responses[0].error_message


def test_an_entity_of_quotas_with_very_many_parts_is_refused(one: GroupBroker) -> None:
    parts = [alter_client_quotas.EntityData(entity_type=name, entity_name=name) for name in names(range(COUNT))]
    request = alter_client_quotas.AlterClientQuotasRequest(
        entries=[alter_client_quotas.EntryData(entity=parts, ops=[])], validate_only=False
    )
    response, _ = answer(one, request, 1)
    (entry,) = response.entries
    assert entry.error_code == ErrorCode.INVALID_REQUEST
    assert [part.entity_type for part in entry.entity] == list(names(range(MAX_PARTS)))


def test_a_client_without_rights_gets_a_short_answer_about_a_long_entity() -> None:
    parts = [alter_client_quotas.EntityData(entity_type=name, entity_name=name) for name in names(range(COUNT))]
    request = alter_client_quotas.AlterClientQuotasRequest(
        entries=[alter_client_quotas.EntryData(entity=parts, ops=[])], validate_only=False
    )
    response = alter_quotas._refused(RequestContext(49, 1), request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    (entry,) = response.entries
    assert entry.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert [part.entity_type for part in entry.entity] == list(names(range(MAX_PARTS)))


@pytest.mark.parametrize("version", [1, 4, 7])
def test_a_large_control_request_is_refused_in_slices(one: GroupBroker, version: int) -> None:
    states = structs(
        leader_and_isr.LeaderAndIsrPartitionState,
        "partition_index",
        range(COUNT),
        topic_name="t",
        controller_epoch=0,
        leader=2,
        leader_epoch=9,
        isr=(2,),
        partition_epoch=9,
        replicas=(1, 2),
    )
    request = leader_and_isr.LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=0,
        live_leaders=(),
        ungrouped_partition_states=states if version < 2 else (),
        topic_states=[leader_and_isr.LeaderAndIsrTopicState(topic_name="t", topic_id=ID, partition_states=states)],
    )
    response, turns = answer(one, request, version)
    answers = response.partition_errors if version < 5 else response.topics[0].partition_errors
    assert [error.partition_index for error in answers] == list(range(COUNT))
    assert {error.error_code for error in answers} == {response.error_code} == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert turns >= COUNT // MOST // 2


class Counting:
    """Counts the calls of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0
        self._function = function

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self._function(*args)


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Counting:
    counting = Counting(getattr(owner, name))
    monkeypatch.setattr(owner, name, counting)
    return counting


def started(one: GroupBroker, request: Message, version: int) -> asyncio.Future[Any]:
    """A request that waits for the broker's metadata."""
    result = one.dispatch(APIS[request.KEY], request, version)
    while True:
        if isinstance(result, GeneratorType):
            result = at_once(result)
        assert isinstance(result, asyncio.Future)
        if not result.done():
            one.spin()
        if not result.done():
            return result
        result = result.result()


class TestWaiting:
    """A request that waits for very many changes looks at each of them a few times, not at all after each."""

    COUNT = 1000
    PER_UPDATE = 100
    MOST_LOOKS = 5 * COUNT

    def update(self, one: GroupBroker, **fields: Any) -> None:
        for start in range(0, self.COUNT, self.PER_UPDATE):
            one.update_metadata(
                {name: (0,) for name in names(range(start, start + self.PER_UPDATE))}, version=7, **fields
            )

    def test_topics_are_created(self, one: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        request: Any = CASES["CreateTopics"].request(range(self.COUNT))
        request.timeout_ms = 60_000
        looks = counted(monkeypatch, one.broker.metadata, "has_leaders")
        waiting = started(one, request, 4)
        self.update(one)
        response, _ = finished(one, waiting, 4)
        assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}
        assert len(response.topics) == self.COUNT <= looks.calls <= self.MOST_LOOKS

    def test_topics_are_deleted(self, one: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.update(one)
        request = delete_topics.DeleteTopicsRequest(topic_names=names(range(self.COUNT)), timeout_ms=60_000)
        looks = counted(monkeypatch, one.broker.metadata, "contains")
        waiting = started(one, request, 5)
        self.update(one, leader=LEADER_DURING_DELETE)
        response, _ = finished(one, waiting, 5)
        assert {topic.error_code for topic in response.responses} == {ErrorCode.NONE}
        assert len(response.responses) == self.COUNT <= looks.calls <= self.MOST_LOOKS

    def test_leaders_are_elected(self, one: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.update(one, leader=2, brokers=(1, 2))
        request = elect_leaders.ElectLeadersRequest(
            topic_partitions=[
                elect_leaders.TopicPartitions(topic=name, partitions=[0]) for name in names(range(self.COUNT))
            ],
            timeout_ms=60_000,
        )
        looks = counted(monkeypatch, one.broker.metadata, "partition")
        waiting = started(one, request, 2)
        self.update(one, leader=1, leader_epoch=1, brokers=(1, 2))
        response, _ = finished(one, waiting, 2)
        results = [result for topic in response.replica_election_results for result in topic.partition_result]
        assert {result.error_code for result in results} == {ErrorCode.NONE}
        assert len(results) == self.COUNT <= looks.calls <= self.MOST_LOOKS


class Name(str):
    """Counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_ids_are_not_compared_with_all_names(one: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for as many names as ids took minutes: each id's name was looked for among all the names."""
    monkeypatch.setattr(one.broker.metadata, "topic_name", lambda topic_id: Name(f"id{topic_id.int}"))
    by_name = [delete_topics.DeleteTopicState(name=name, topic_id=UUID(int=0)) for name in names(range(COUNT))]
    by_id = [delete_topics.DeleteTopicState(name=None, topic_id=UUID(int=n + 1)) for n in range(COUNT)]
    request = delete_topics.DeleteTopicsRequest(topics=by_name + by_id, timeout_ms=60_000)
    one.controller.script = lambda event: None
    Name.compared = 0
    response, _ = answer(one, request, 6)
    assert len(response.responses) == 2 * COUNT
    assert Name.compared <= 5 * COUNT


HOSTED = 60
"""Partitions whose logs have to be opened."""
MOST_LOGS = 10


@pytest.mark.parametrize(
    ("request_", "version", "owner", "name"),
    [
        (
            list_offsets.ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    list_offsets.ListOffsetsTopic(
                        name="hosted",
                        partitions=structs(
                            list_offsets.ListOffsetsPartition, "partition_index", range(HOSTED), timestamp=5
                        ),
                    )
                ],
            ),
            7,
            list_offsets_api,
            "offset_for_timestamp",
        ),
        (
            delete_records.DeleteRecordsRequest(
                topics=[
                    delete_records.DeleteRecordsTopic(
                        name="hosted",
                        partitions=structs(
                            delete_records.DeleteRecordsPartition, "partition_index", range(HOSTED), offset=0
                        ),
                    )
                ],
                timeout_ms=60_000,
            ),
            2,
            Partition,
            "delete_records",
        ),
        (
            describe_producers.DescribeProducersRequest(
                topics=[describe_producers.TopicRequest(name="hosted", partition_indexes=range(HOSTED))]
            ),
            0,
            describe_producers_api,
            "_partition",
        ),
    ],
    ids=["ListOffsets", "DeleteRecords", "DescribeProducers"],
)
def test_few_logs_are_used_between_two_turns(
    one: GroupBroker, monkeypatch: pytest.MonkeyPatch, request_: Message, version: int, owner: Any, name: str
) -> None:
    one.lead("hosted", HOSTED)
    uses = 0
    real = getattr(owner, name)

    def use(*args: Any, **options: Any) -> Any:
        nonlocal uses
        uses += 1
        return real(*args, **options)

    monkeypatch.setattr(owner, name, use)
    handling = one.dispatch(APIS[request_.KEY], request_, version)
    per_turn = [uses]
    assert isinstance(handling, GeneratorType)
    for _ in handling:
        per_turn.append(uses)
    assert uses == HOSTED
    assert max(after - before for before, after in pairwise([0, *per_turn, uses])) <= MOST_LOGS


def produce_of(sizes: Mapping[str, Sequence[int]]) -> produce.ProduceRequest:
    """One batch per partition, with values of these sizes."""
    topics = [
        produce.TopicProduceData(
            name=name,
            partition_data=[
                produce.PartitionProduceData(index=index, records=batch(bytes(size)))
                for index, size in enumerate(values)
            ],
        )
        for name, values in sizes.items()
    ]
    return produce.ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=topics)


class TestLargeRecords:
    """A Produce with few partitions and many bytes."""

    SIZES: Mapping[str, Sequence[int]] = {
        "large": (400_000,) * 5,
        "mixed": (1_000_000, 10, 10, 500_000, 10, 500_000, 2 * MOST_BYTES, 10),
        "small": (10,) * 5,
    }
    TOO_LARGE = ("mixed", 6)

    def appended(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
        found: list[tuple[str, int, int]] = []
        real = Partition.append_records_to_leader

        def append(partition: Partition, records: Any, *args: Any) -> Any:
            found.append((*partition.topic_partition, len(records)))
            return real(partition, records, *args)

        monkeypatch.setattr(Partition, "append_records_to_leader", append)
        return found

    def test_few_bytes_are_appended_between_two_turns(self, one: GroupBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, sizes in self.SIZES.items():
            one.lead(name, len(sizes))
        appended = self.appended(monkeypatch)
        handling = one.dispatch(APIS[0], produce_of(self.SIZES), 9)
        assert isinstance(handling, GeneratorType)
        per_turn: list[list[int]] = []
        response: Any = None
        while response is None:
            before = len(appended)
            try:
                next(handling)
            except StopIteration as done:
                response = done.value
            per_turn.append([size for _, _, size in appended[before:]])
        assert all(sum(sizes) <= MOST_BYTES or len(sizes) == 1 for sizes in per_turn)
        expected = [(name, index) for name, sizes in self.SIZES.items() for index in range(len(sizes))]
        assert [(name, index) for name, index, _ in appended] == expected
        answers = [(topic.name, row) for topic in response.responses for row in topic.partition_responses]
        assert [topic.name for topic in response.responses] == list(self.SIZES)
        assert [(name, row.index) for name, row in answers] == expected
        failed = {(name, row.index): row.error_code for name, row in answers if row.error_code}
        assert failed == {self.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE}

    def test_a_request_that_fits_into_one_turn_takes_one(
        self, one: GroupBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one.lead("fitting", 5)
        appended = self.appended(monkeypatch)
        response = one.dispatch(APIS[0], produce_of({"fitting": (MOST_BYTES // 5 - 100,) * 5}), 9)
        assert isinstance(response, produce.ProduceResponse) and len(appended) == 5
