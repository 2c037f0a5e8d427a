"""CreateTopics, DeleteTopics, CreatePartitions and what else goes to the controller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.apis import (
    allocate_producer_ids,
    alter_partition,
    alter_partition_reassignments,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
    list_partition_reassignments,
)
from klamm.apis.api_declaration import RequestContext
from klamm.apis.controller_parts import MOST
from klamm.config.entries import ConfigSource
from klamm.controller import events
from klamm.controller.replies import (
    AlterPartitionResult,
    AlterPartitionResults,
    ControlledShutdownResult,
    EventReply,
    PartitionResult,
    PartitionResults,
    Reassignments,
    TopicResult,
    TopicResults,
)
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, LeaderAndIsr, LeaderRecoveryState, ReplicaAssignment, TopicPartition
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from klamm.protocol.messages.alter_partition import AlterPartitionRequest, BrokerState, PartitionData, TopicData
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from klamm.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.support.one_broker import OneBroker

TP = TopicPartition("t", 0)
ID = UUID(int=5)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def topic(name: str = "t", partitions: int = 2, replication: int = 1, **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        assignments=[],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def create(*topics: CreatableTopic, **fields: Any) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=topics, **{"timeout_ms": 1000, **fields})


def only(response: CreateTopicsResponse) -> CreatableTopicResult:
    assert len(response.topics) == 1
    return response.topics[0]


class TestCreateTopics:
    @pytest.mark.parametrize("version", range(0, 8))
    def test_the_answer_comes_when_the_metadata_is_there(self, one: OneBroker, version: int) -> None:
        one.controller.script = one.create_as_asked
        result = only(one.ask(create_topics.API, create(topic(retention_ms="1000")), version))
        assert result.error_code == 0 and one.broker.metadata.has_leaders("t", range(2))
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (2, 1)
            configs = {config.name: (config.value, config.config_source) for config in result.configs or ()}
            assert configs["retention.ms"] == ("1000", 1) and configs["cleanup.policy"] == ("delete", 5)
        assert (result.topic_id != ZERO_UUID) is (version >= 7)
        event = one.controller.submitted[0]
        assert event == events.CreateTopics(
            (events.CreatableTopic("t", 2, 1, (), (("retention.ms", "1000"),)),), validate_only=False
        )

    def test_configurations_name_their_source(self, tmp_path: Path) -> None:
        one = OneBroker(tmp_path / "other", {"log.retention.hours": "2"})
        one.broker.configs.set_broker("1", {"log.segment.bytes": "1000000"})
        one.controller.script = one.create_as_asked
        result = only(one.ask(create_topics.API, create(topic(max_message_bytes="7000")), 7))
        configs = {config.name: (config.value, config.config_source) for config in result.configs or ()}
        assert configs["max.message.bytes"] == ("7000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        assert configs["retention.ms"] == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
        assert configs["segment.bytes"] == ("1000000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert configs["cleanup.policy"] == ("delete", ConfigSource.DEFAULT_CONFIG)
        one.close()

    def test_it_waits_for_every_leader(self, one: OneBroker) -> None:
        one.controller.script = lambda event: TopicResults((TopicResult("t", num_partitions=2),))
        waiting = one.dispatch(create_topics.API, create(topic(), timeout_ms=30_000), 7)
        assert isinstance(waiting, asyncio.Future)
        one.update_metadata({"t": [0]})
        one.spin()
        assert not waiting.done()
        one.update_metadata({"t": [1]})
        assert only(one.run(waiting)).error_code == 0 and one.broker.topic_purgatory.size == 0

    @pytest.mark.parametrize("timeout_ms", [0, 1])
    def test_without_time_the_topic_is_created_and_the_error_is_7(self, one: OneBroker, timeout_ms: int) -> None:
        one.controller.script = lambda event: TopicResults((TopicResult("t", num_partitions=1),))
        result = only(one.ask(create_topics.API, create(topic(), timeout_ms=timeout_ms), 7))
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT

    def test_validate_only_does_not_wait(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        result = only(one.ask(create_topics.API, create(topic(), validate_only=True, timeout_ms=0), 7))
        assert result.error_code == 0 and not one.broker.metadata.contains("t")
        assert result.num_partitions == 2

    def test_a_bad_configuration_is_refused_and_the_other_topic_made(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        request = create(
            topic("bad", retention_ms="soon"), topic("unknown", no_such="1"), topic("null", retention_ms=None)
        )
        request.topics = [*request.topics, topic("good")]
        response = one.ask(create_topics.API, request, 7)
        assert [(r.name, r.error_code) for r in response.topics] == [
            ("bad", ErrorCode.INVALID_CONFIG),
            ("unknown", ErrorCode.INVALID_CONFIG),
            ("null", ErrorCode.INVALID_CONFIG),
            ("good", 0),
        ]
        assert all(r.error_message for r in response.topics[:3])

    def test_the_log_of_kraft_is_not_a_topic(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        response = one.ask(create_topics.API, create(topic("__cluster_metadata")), 7)
        assert [r.error_code for r in response.topics] == [ErrorCode.INVALID_REQUEST]
        assert response.topics[0].error_message == "Creation of internal topic __cluster_metadata is prohibited."

    def test_a_topic_named_twice(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        result = only(one.ask(create_topics.API, create(topic(), topic()), 7))
        assert result.error_code == ErrorCode.INVALID_REQUEST and not one.broker.metadata.contains("t")

    def test_explicit_assignments(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        asked = topic(partitions=-1, replication=-1)
        asked.assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]
        assert only(one.ask(create_topics.API, create(asked), 7)).error_code == 0
        event = one.controller.submitted[0]
        assert isinstance(event, events.CreateTopics) and event.topics[0].assignments == ((0, (1,)),)
        asked.num_partitions = 1
        assert only(one.ask(create_topics.API, create(asked), 7)).error_code == ErrorCode.INVALID_REQUEST

    def test_not_the_controller(self, one: OneBroker) -> None:
        assert only(one.ask(create_topics.API, create(topic()), 7)).error_code == ErrorCode.NOT_CONTROLLER
        bad = create(topic("twice"), topic("twice"), topic("bad", no_such="1"))
        response = one.ask(create_topics.API, bad, 7)
        assert {r.error_code for r in response.topics} == {ErrorCode.NOT_CONTROLLER}


class TestDeleteTopics:
    def deleted(self, one: OneBroker) -> None:
        def script(event: events.ControllerEvent) -> EventReply | None:
            assert isinstance(event, events.DeleteTopics)
            results = [TopicResult(name) for name in event.names]
            unknown = TopicResult("", ErrorCode.UNKNOWN_TOPIC_ID)
            results += [TopicResult("t") if topic_id == ID else unknown for topic_id in event.topic_ids]
            for name in {result.name for result in results if not result.error}:
                one.update_metadata({name: [0]}, leader=-2, topic_id=ID)
            return TopicResults(tuple(results))

        one.controller.script = script

    @pytest.mark.parametrize("version", range(0, 7))
    def test_by_name(self, one: OneBroker, version: int) -> None:
        one.lead("t", topic_id=ID)
        self.deleted(one)
        request = DeleteTopicsRequest(
            topic_names=["t"], topics=[DeleteTopicState(name="t", topic_id=ZERO_UUID)], timeout_ms=1000
        )
        response = one.ask(delete_topics.API, request, version)
        assert [(r.name, r.error_code) for r in response.responses] == [("t", 0)]
        assert not one.broker.metadata.contains("t")

    @pytest.mark.parametrize("version", range(0, 7))
    def test_an_empty_name_is_answered_with_itself(self, one: OneBroker, version: int) -> None:
        unknown = TopicResult("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        one.controller.script = lambda _: TopicResults((unknown,))
        topics = [DeleteTopicState(name="", topic_id=ZERO_UUID)]
        request = DeleteTopicsRequest(topic_names=[""], topics=topics, timeout_ms=1000)
        response = one.ask(delete_topics.API, request, version)
        assert [(r.name, r.error_code) for r in response.responses] == [("", unknown.error)]

    def test_by_id(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        self.deleted(one)
        topics = [
            DeleteTopicState(topic_id=ID),
            DeleteTopicState(topic_id=UUID(int=9)),
            DeleteTopicState(name="t", topic_id=ID),
        ]
        response = one.ask(delete_topics.API, DeleteTopicsRequest(topics=topics[:2], timeout_ms=1000), 6)
        assert [(r.name, r.topic_id, r.error_code) for r in response.responses] == [
            ("t", ID, 0),
            (None, UUID(int=9), ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        twice = one.ask(delete_topics.API, DeleteTopicsRequest(topics=topics[1:2] * 2, timeout_ms=1000), 6)
        assert [r.error_code for r in twice.responses] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
        both = one.ask(delete_topics.API, DeleteTopicsRequest(topics=topics[2:], timeout_ms=1000), 6)
        assert both.responses[0].error_code == ErrorCode.INVALID_REQUEST

    def test_a_topic_that_is_named_twice_is_deleted(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        self.deleted(one)
        request = DeleteTopicsRequest(topic_names=["t", "t"], timeout_ms=1000)
        response = one.ask(delete_topics.API, request, 5)
        assert [(r.name, r.error_code) for r in response.responses] == [("t", 0), ("t", 0)]
        assert one.controller.submitted[-1] == events.DeleteTopics(("t",), ())

    def test_a_topic_by_its_name_and_by_its_id(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        self.deleted(one)
        topics = [DeleteTopicState(name="t", topic_id=ZERO_UUID), DeleteTopicState(topic_id=ID)]
        response = one.ask(delete_topics.API, DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6)
        assert [(r.name, r.error_code) for r in response.responses] == [("t", 0), ("t", 0)]
        assert one.controller.submitted[-1] == events.DeleteTopics(("t",), ())

    def test_the_controller_is_asked_for_very_many_topics_in_parts(self, one: OneBroker) -> None:
        names = [f"t{number}" for number in range(2 * MOST + 1)]

        def script(event: events.ControllerEvent) -> EventReply | None:
            assert isinstance(event, events.DeleteTopics)
            return TopicResults(tuple(TopicResult(name, UNKNOWN, message=name) for name in event.names))

        one.controller.script = script
        request = DeleteTopicsRequest(topic_names=[*names, "t0"], timeout_ms=1000)
        response = one.ask(delete_topics.API, request, 5)
        assert [(r.name, r.error_code) for r in response.responses] == [(name, UNKNOWN) for name in [*names, "t0"]]
        assert all(r.error_message == r.name for r in response.responses)
        parts = [names[:MOST], names[MOST : 2 * MOST], names[2 * MOST :]]
        assert one.controller.submitted == [events.DeleteTopics(tuple(part), ()) for part in parts]

    def test_a_controller_that_is_replaced_between_two_parts(self, one: OneBroker) -> None:
        """The first part was carried out. A client retries the others."""
        accepted = tuple(TopicResult(f"t{number}", UNKNOWN if number else ErrorCode.NONE) for number in range(MOST))
        replies = [TopicResults(accepted)]
        one.controller.script = lambda event: replies.pop() if replies else None
        one.lead("t0")
        names = [f"t{number}" for number in range(3 * MOST)]
        request = DeleteTopicsRequest(topic_names=names, timeout_ms=30_000)
        waiting = one.begin(delete_topics.API, request, 5)
        while not waiting.done() and one.broker.topic_purgatory.size == 0:
            one.spin()
        assert not waiting.done(), "the first topic still exists"
        one.update_metadata({"t0": [0]}, leader=-2)
        response = one.run(waiting)
        assert [r.name for r in response.responses] == names
        expected = [0, *[UNKNOWN] * (MOST - 1), *[ErrorCode.NOT_CONTROLLER] * 2 * MOST]
        assert [r.error_code for r in response.responses] == expected
        assert len(one.controller.submitted) == 2, "the third part is not asked for"

    def test_a_replaced_controller_and_topics_that_are_named_by_id(self, one: OneBroker) -> None:
        replies = [TopicResults(tuple(TopicResult("", ErrorCode.UNKNOWN_TOPIC_ID) for _ in range(MOST)))]
        one.controller.script = lambda event: replies.pop() if replies else None
        topics = [DeleteTopicState(topic_id=UUID(int=number + 1)) for number in range(MOST + 1)]
        response = one.ask(delete_topics.API, DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6)
        assert [r.topic_id for r in response.responses] == [topic.topic_id for topic in topics]
        expected = [ErrorCode.UNKNOWN_TOPIC_ID] * MOST + [ErrorCode.NOT_CONTROLLER]
        assert [r.error_code for r in response.responses] == expected

    def test_it_waits_until_the_topic_is_gone(self, one: OneBroker) -> None:
        one.lead("t", 2)
        one.controller.script = lambda event: TopicResults((TopicResult("t"),))
        waiting = one.dispatch(delete_topics.API, DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), 5)
        one.update_metadata({"t": [0]}, leader=-2)
        one.spin()
        assert not waiting.done()
        one.update_metadata({"t": [1]}, leader=-2)
        assert one.run(waiting).responses[0].error_code == 0

    def test_the_time_runs_out(self, one: OneBroker) -> None:
        one.lead("t")
        one.controller.script = lambda event: TopicResults((TopicResult("t"),))
        response = one.ask(delete_topics.API, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1), 5)
        assert response.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT

    def test_errors_of_the_controller(self, one: OneBroker) -> None:
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        assert one.ask(delete_topics.API, request, 5).responses[0].error_code == ErrorCode.NOT_CONTROLLER
        by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=UUID(int=9))], timeout_ms=1000)
        assert one.ask(delete_topics.API, by_id, 6).responses[0].error_code == ErrorCode.NOT_CONTROLLER
        one.controller.script = lambda event: TopicResults((TopicResult("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),))
        response = one.ask(delete_topics.API, request, 5)
        assert response.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_deletion_may_be_disabled(self, tmp_path: Path) -> None:
        one = OneBroker(tmp_path, {"delete.topic.enable": "false"})
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        assert one.ask(delete_topics.API, request, 2).responses[0].error_code == ErrorCode.INVALID_REQUEST
        assert one.ask(delete_topics.API, request, 3).responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
        one.close()


class TestCreatePartitions:
    def request(
        self, *names: str, assignments: list[CreatePartitionsAssignment] | None = None, **fields: Any
    ) -> CreatePartitionsRequest:
        topics = [CreatePartitionsTopic(name=name, count=2, assignments=assignments) for name in names]
        return CreatePartitionsRequest(topics=topics, **{"timeout_ms": 1000, "validate_only": False, **fields})

    @pytest.mark.parametrize("version", range(0, 4))
    def test_the_answer_comes_when_the_metadata_is_there(self, one: OneBroker, version: int) -> None:
        one.lead("t")

        def script(event: events.ControllerEvent) -> EventReply | None:
            one.update_metadata({"t": [1]})
            return TopicResults((TopicResult("t"),))

        one.controller.script = script
        response = one.ask(
            create_partitions.API,
            self.request("t", assignments=[CreatePartitionsAssignment(broker_ids=[1])]),
            version,
        )
        assert [(r.name, r.error_code) for r in response.results] == [("t", 0)]
        assert one.controller.submitted == [events.CreatePartitions((events.CreatablePartitions("t", 2, ((1,),)),))]

    def test_errors(self, one: OneBroker) -> None:
        one.lead("t")
        for names in (("t",), ("t", "t")):
            other = one.ask(create_partitions.API, self.request(*names), 3)
            assert [r.error_code for r in other.results] == [ErrorCode.NOT_CONTROLLER]
        one.controller.script = lambda event: TopicResults(())
        twice = one.ask(create_partitions.API, self.request("t", "t"), 3)
        assert [r.error_code for r in twice.results] == [ErrorCode.INVALID_REQUEST]
        one.controller.script = lambda event: TopicResults((TopicResult("t"),))
        late = one.ask(create_partitions.API, self.request("t", timeout_ms=1), 3)
        assert [r.error_code for r in late.results] == [ErrorCode.REQUEST_TIMED_OUT]
        dry = one.ask(create_partitions.API, self.request("t", validate_only=True), 3)
        assert [r.error_code for r in dry.results] == [0]


@pytest.mark.parametrize("version", [2, 3])
def test_controlled_shutdown(one: OneBroker, version: int) -> None:
    request = ControlledShutdownRequest(broker_id=2, broker_epoch=9)
    assert one.ask(controlled_shutdown.API, request, version).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    one.controller.script = lambda event: ControlledShutdownResult(remaining=(TP,))
    response = one.ask(controlled_shutdown.API, request, version)
    assert [(p.topic_name, p.partition_index) for p in response.remaining_partitions] == [("t", 0)]
    assert one.controller.submitted[-1] == events.ControlledShutdown(2, 9)


@pytest.mark.parametrize("version", range(0, 4))
def test_controlled_shutdown_without_a_broker_epoch(one: OneBroker, version: int) -> None:
    """-1 means that a version carries no epoch: anybody could send it in the name of a broker."""
    one.controller.script = lambda event: ControlledShutdownResult()
    request = ControlledShutdownRequest(broker_id=2, broker_epoch=-1)
    assert one.ask(controlled_shutdown.API, request, version).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert not one.controller.submitted


@pytest.mark.parametrize("version", range(0, 4))
def test_alter_partition(one: OneBroker, version: int) -> None:
    partition = PartitionData(
        partition_index=0,
        leader_epoch=3,
        new_isr=[1, 2],
        new_isr_with_epochs=[BrokerState(broker_id=1, broker_epoch=7), BrokerState(broker_id=2)],
        partition_epoch=4,
    )
    request = AlterPartitionRequest(
        broker_id=1, broker_epoch=9, topics=[TopicData(topic_name="t", topic_id=ID, partitions=[partition])]
    )
    assert one.ask(alter_partition.API, request, version).error_code == ErrorCode.NOT_CONTROLLER
    state = LeaderAndIsr(1, 3, (1, 2), 5, LeaderRecoveryState.RECOVERED)
    results = (
        AlterPartitionResult("t", ID, 0, ErrorCode.NONE, state),
        AlterPartitionResult("t", ID, 1, ErrorCode.FENCED_LEADER_EPOCH),
    )
    one.controller.script = lambda event: AlterPartitionResults(partitions=results)
    response = one.ask(alter_partition.API, request, version)
    answers = response.topics[0].partitions
    assert [(p.partition_index, p.error_code, p.partition_epoch) for p in answers] == [(0, 0, 5), (1, 74, -1)]
    event = one.controller.submitted[-1]
    assert isinstance(event, events.AlterPartition)
    assert event.version == version and event.partitions[0].new_isr == (1, 2)
    assert event.partitions[0].isr_broker_epochs == ((7, -1) if version >= 3 else ())
    assert event.partitions[0].topic == ("t" if version < 2 else "")


@pytest.mark.parametrize(
    ("error", "pause_ms"),
    [(ErrorCode.UNKNOWN_SERVER_ERROR, 50), (ErrorCode.NOT_CONTROLLER, 50), (ErrorCode.INVALID_REQUEST, 0)],
)
def test_a_leader_of_kafka_does_not_repeat_alter_partition_without_a_pause(
    one: OneBroker, error: ErrorCode, pause_ms: int
) -> None:
    """Its manager proposes the same ISR again as soon as it has read one of these errors."""
    partition = PartitionData(partition_index=0, leader_epoch=3, new_isr=[1], partition_epoch=4)
    request = AlterPartitionRequest(
        broker_id=1, broker_epoch=9, topics=[TopicData(topic_name="t", partitions=[partition])]
    )
    one.controller.script = lambda _: AlterPartitionResults(partitions=(AlterPartitionResult("t", ID, 0, error),))
    ctx = RequestContext(alter_partition.API.key, 1)
    answer = alter_partition.handle(one.broker, ctx, request)
    assert isinstance(answer, asyncio.Future)
    assert one.run(answer).topics[0].partitions[0].error_code == error
    assert ctx.throttle_time_ms == pause_ms


def test_allocate_producer_ids(one: OneBroker) -> None:
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=2)
    assert one.ask(allocate_producer_ids.API, request, 0).error_code == ErrorCode.NOT_CONTROLLER
    one.controller.script = one.create_as_asked
    response = one.ask(allocate_producer_ids.API, request, 0)
    assert (response.error_code, response.producer_id_start, response.producer_id_len) == (0, 6, 3)


class TestElectLeaders:
    @pytest.mark.parametrize("version", range(0, 3))
    def test_it_waits_for_the_preferred_leader(self, one: OneBroker, version: int) -> None:
        one.update_metadata({"t": [0]}, leader=2, replicas=(1, 2), isr=(1, 2), brokers=(1, 2))
        one.controller.script = lambda event: PartitionResults((PartitionResult(TP),))
        request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=30_000)
        waiting = one.dispatch(elect_leaders.API, request, version)
        one.spin()
        assert not waiting.done()
        one.update_metadata({"t": [0]}, leader=1, leader_epoch=1, replicas=(1, 2), isr=(1, 2), brokers=(1, 2))
        response = one.run(waiting)
        assert response.replica_election_results[0].partition_result[0].error_code == 0

    def test_all_partitions_leaves_out_those_that_need_none(self, one: OneBroker) -> None:
        results = (PartitionResult(TP, ErrorCode.ELECTION_NOT_NEEDED), PartitionResult(TopicPartition("u", 0)))
        one.controller.script = lambda event: PartitionResults(results)
        response = one.ask(elect_leaders.API, ElectLeadersRequest(topic_partitions=None), 2)
        assert [r.topic for r in response.replica_election_results] == ["u"]
        assert one.controller.submitted == [events.ReplicaLeaderElection(None)]

    def test_errors(self, one: OneBroker) -> None:
        request = ElectLeadersRequest(topic_partitions=None, election_type=9)
        assert one.ask(elect_leaders.API, request, 2).error_code == ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize("is_active", [True, False])
    @pytest.mark.parametrize("asked", [None, [TopicPartitions(topic="t", partitions=[0])]])
    def test_a_broker_that_is_not_the_controller_answers_for_each_partition(
        self, one: OneBroker, asked: list[TopicPartitions] | None, is_active: bool
    ) -> None:
        """Also one that was it when the event was put."""
        one.lead("t")
        one.controller.is_active = is_active
        answer = one.ask(elect_leaders.API, ElectLeadersRequest(topic_partitions=asked), 2)
        reported = [(r.topic, p.error_code) for r in answer.replica_election_results for p in r.partition_result]
        assert (answer.error_code, reported) == (0, [("t", ErrorCode.NOT_CONTROLLER)])


def test_very_many_reassignments_are_asked_for_in_parts(one: OneBroker) -> None:
    def script(event: events.ControllerEvent) -> EventReply | None:
        assert isinstance(event, events.ApiPartitionReassignment)
        if len(one.controller.submitted) > 3:
            return None
        return PartitionResults(tuple(PartitionResult(tp) for tp, _ in event.reassignments))

    one.controller.script = script
    indexes = range(2 * MOST)
    partitions = [ReassignablePartition(partition_index=index, replicas=[1]) for index in indexes]
    topics = [ReassignableTopic(name=name, partitions=partitions) for name in ("t", "u")]
    response = one.ask(alter_partition_reassignments.API, AlterPartitionReassignmentsRequest(topics=topics[:1]), 0)
    assert response.error_code == 0 and len(one.controller.submitted) == 2
    assert [p.partition_index for p in response.responses[0].partitions] == list(indexes)
    one.controller.submitted.clear()
    response = one.ask(alter_partition_reassignments.API, AlterPartitionReassignmentsRequest(topics=topics), 0)
    assert response.error_code == ErrorCode.NONE, "three parts were carried out; the fourth met another controller"
    reported = [p.error_code for answered in response.responses for p in answered.partitions]
    assert reported == [ErrorCode.NONE] * 3 * MOST + [ErrorCode.NOT_CONTROLLER] * MOST
    assert [[p.partition_index for p in answered.partitions] for answered in response.responses] == [[*indexes]] * 2


def test_reassignments(one: OneBroker) -> None:
    partitions = [ReassignablePartition(partition_index=0, replicas=[2, 3]), ReassignablePartition(partition_index=1)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=partitions)])
    assert one.ask(alter_partition_reassignments.API, request, 0).error_code == ErrorCode.NOT_CONTROLLER
    one.controller.script = lambda event: PartitionResults(
        (PartitionResult(TP, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),)
    )
    response = one.ask(alter_partition_reassignments.API, request, 0)
    assert response.responses[0].partitions[0].error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert one.controller.submitted[-1] == events.ApiPartitionReassignment(
        ((TP, (2, 3)), (TopicPartition("t", 1), None))
    )
    assignment = ReplicaAssignment((1, 2, 3), (3,), (1,))
    one.controller.script = lambda event: Reassignments(((TP, assignment),))
    asked = ListPartitionReassignmentsRequest(
        topics=[ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
    )
    listed = one.ask(list_partition_reassignments.API, asked, 0)
    partition = listed.topics[0].partitions[0]
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ([1, 2, 3], [3], [1])
    assert one.controller.submitted[2:] == [events.ListPartitionReassignments((TP,))]
