"""Guards before handlers: refused elements are answered without the handler, in slices if there are many."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any, cast
from uuid import UUID

import pytest

from klamm.apis import delete_topics, describe_configs, describe_groups, fetch, list_offsets, produce
from klamm.apis.api_declaration import Api, at_once, bind
from klamm.broker import Acls
from klamm.controller import events
from klamm.controller.replies import EventReply, TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.wire import Message
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.security.acl.bindings import (
    AclBinding,
    AclEntry,
    AclOperation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from klamm.security.acl.rules import AclRules
from tests.support.one_broker import OneBroker, batch

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MANY = 10_000


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.give(acls=Acls(AclAuthorizer(), cast(Any, None)))
    yield broker
    broker.close()


def allow(one: OneBroker, *grants: tuple[str, AclOperation]) -> None:
    assert one.broker.acls is not None
    one.broker.acls.authorizer.replace_rules(
        AclRules.of(
            AclBinding(
                ResourcePattern(ResourceType.TOPIC, name), AclEntry("User:alice", "*", operation, Permission.ALLOW)
            )
            for name, operation in grants
        )
    )


def context(one: OneBroker, api: Api[Any, Any], version: int) -> RequestContext:
    channel = ChannelContext(principal="User:alice", order=1)
    return RequestContext(api.key, version, client_id="c", channel=channel, now_ms=one.clock.now_ms())


def ask(one: OneBroker, api: Api[Any, Any], request: Message, version: int, ctx: RequestContext | None = None) -> Any:
    (bound,) = bind([api], one.broker)
    result: Any = bound.dispatch(ctx or context(one, api, version), request)
    while isinstance(result, (GeneratorType, asyncio.Future)):
        result = at_once(result) if isinstance(result, GeneratorType) else one.run(result)
    return result


def send(*topics: str, acks: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=batch(b"v"))]
    sent = [TopicProduceData(name=name, partition_data=data) for name in topics]
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=sent)


def errors(response: Any) -> dict[str, int]:
    return {topic.name: topic.partition_responses[0].error_code for topic in response.responses}


def test_without_an_authorizer_there_is_no_guard(tmp_path: Path) -> None:
    broker = OneBroker(tmp_path)
    (bound,) = bind([produce.API], broker.broker)
    assert bound.dispatch.func is produce.API.handle  # type: ignore[attr-defined]
    broker.close()


def test_allowed_topics_are_handled_and_others_refused(one: OneBroker) -> None:
    one.lead("a")
    one.lead("b")
    allow(one, ("a", AclOperation.WRITE))
    assert errors(ask(one, produce.API, send("a", "b", "no"), 9)) == {"a": 0, "b": DENIED, "no": DENIED}
    assert errors(ask(one, produce.API, send("b"), 9)) == {"b": DENIED}
    assert errors(ask(one, produce.API, send("a"), 9)) == {"a": 0}


def test_a_refused_produce_without_acks_closes_the_connection(one: OneBroker) -> None:
    one.lead("a")
    allow(one, ("a", AclOperation.WRITE))
    for topics, closes in ((("a",), False), (("b",), True), (("a", "b"), True)):
        ctx = context(one, produce.API, 9)
        assert ask(one, produce.API, send(*topics, acks=0), 9, ctx) is None
        assert ctx.closes_connection == closes


def many_offsets(count: int) -> ListOffsetsRequest:
    rows = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
    topics = [ListOffsetsTopic(name=f"t{n}", partitions=rows) for n in range(count)]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


def test_many_elements_are_checked_in_slices(one: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kafka.authorizer.logger")
    allow(one, *((f"t{n}", AclOperation.DESCRIBE) for n in range(0, MANY, 2)))
    (bound,) = bind([list_offsets.API], one.broker)
    result: Any = bound.dispatch(context(one, list_offsets.API, 7), many_offsets(MANY))
    steps = 0
    while True:
        try:
            next(result)
        except StopIteration as done:
            response = done.value
            break
        steps += 1
    assert steps >= MANY // 200
    found = {topic.name: topic.partitions[0].error_code for topic in response.topics}
    assert len(found) == MANY
    assert {code for name, code in found.items() if int(name[1:]) % 2} == {DENIED}
    assert {code for name, code in found.items() if not int(name[1:]) % 2} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_denials_are_logged_once_per_name(one: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    allow(one)
    ask(one, produce.API, send("a", "a", "b\nforged line"), 9)
    lines = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    assert len(lines) == 2
    assert lines[0] == (
        "Principal = User:alice is Denied Operation = Write from host = 127.0.0.1 on resource = Topic:LITERAL:a "
        "for request = 0 with resourceRefCount = 1"
    )
    assert "\n" not in lines[1]


def test_allowed_operations_are_logged_at_debug(one: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
    one.lead("a")
    allow(one, ("a", AclOperation.WRITE))
    caplog.set_level(logging.DEBUG, "kafka.authorizer.logger")
    ask(one, produce.API, send("a"), 9)
    assert ["Allowed" in record.getMessage() for record in caplog.records if "authorizer" in record.name] == [True]


def test_remembered_decisions_of_a_produce(one: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The second request finds the decision of the first, until the rules change; DEBUG still has a line for each."""
    one.lead("a")

    def error() -> int:
        return int(ask(one, produce.API, send("a"), 9).responses[0].partition_responses[0].error_code)

    assert [error(), error()] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    allow(one, ("a", AclOperation.WRITE))
    assert [error(), error()] == [ErrorCode.NONE] * 2
    caplog.set_level(logging.DEBUG, "kafka.authorizer.logger")
    assert error() == ErrorCode.NONE
    assert ["Allowed" in record.getMessage() for record in caplog.records if "authorizer" in record.name][-1]
    allow(one)
    assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_configuration_of_a_hidden_topic_is_not_read(one: OneBroker) -> None:
    """The time that ZooKeeper needs would show that the topic exists. This broker has no ZooKeeper."""
    one.lead("there")
    asked = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in ("there", "not-there")]
    (bound,) = bind([describe_configs.API], one.broker)
    steps: Any = bound.dispatch(context(one, describe_configs.API, 4), DescribeConfigsRequest(resources=asked))
    response = at_once(steps)
    assert [(row.error_code, row.error_message) for row in response.results] == [
        (DENIED, "Topic authorization failed.")
    ] * 2


def fetched(session_id: int, epoch: int, *topics: str) -> FetchRequest:
    partition = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=10_000,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=name, partitions=[partition]) for name in topics],
    )


def fetch_errors(response: Any) -> dict[str, int]:
    return {topic.topic: topic.partitions[0].error_code for topic in response.responses}


def test_a_change_of_the_rules_reaches_fetch_sessions(one: OneBroker) -> None:
    """A partition without news is not looked at, except after such a change."""
    one.lead("a")
    one.lead("b")
    allow(one, ("a", AclOperation.READ), ("b", AclOperation.READ))
    first = ask(one, fetch.API, fetched(0, 0, "a", "b"), 12)
    assert fetch_errors(first) == {"a": 0, "b": 0} and first.session_id
    assert fetch_errors(ask(one, fetch.API, fetched(first.session_id, 1), 12)) == {}
    allow(one, ("a", AclOperation.READ))
    assert fetch_errors(ask(one, fetch.API, fetched(first.session_id, 2), 12)) == {"b": DENIED}
    allow(one, ("a", AclOperation.READ), ("b", AclOperation.READ))
    assert fetch_errors(ask(one, fetch.API, fetched(first.session_id, 3), 12)) == {"b": 0}


def test_a_session_does_not_serve_another_principal(one: OneBroker) -> None:
    one.lead("a")
    allow(one, ("a", AclOperation.READ))
    first = ask(one, fetch.API, fetched(0, 0, "a"), 12)
    one.ask_for_anything(produce.API, send("a"), 9)
    ctx = RequestContext(1, 12, channel=ChannelContext(principal="User:bob", order=2), now_ms=one.clock.now_ms())
    assert fetch_errors(ask(one, fetch.API, fetched(first.session_id, 1), 12, ctx)) == {"a": DENIED}


def test_only_a_broker_takes_the_session_of_a_consumer(one: OneBroker) -> None:
    one.lead("a")
    allow(one)
    asked = fetched(0, 0, "a")
    asked.replica_id = 7
    assert fetch_errors(ask(one, fetch.API, asked, 12)) == {"a": DENIED}
    assert [session.is_privileged for session in one.broker.fetch_sessions] == [False]


def test_a_topic_is_not_deleted_by_an_id_that_only_the_controller_knows(one: OneBroker) -> None:
    """Its name is not known here, so no entry was looked at."""

    def script(event: events.ControllerEvent) -> EventReply | None:
        assert isinstance(event, events.DeleteTopics)
        return TopicResults(tuple(TopicResult("secret", topic_id=topic_id) for topic_id in event.topic_ids))

    one.controller.script = script
    allow(one)
    asked = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=UUID(int=9))], timeout_ms=1000)
    (answer,) = ask(one, delete_topics.API, asked, 6).responses
    assert (answer.name, answer.topic_id, answer.error_code) == (None, UUID(int=9), ErrorCode.UNKNOWN_TOPIC_ID)
    assert one.controller.submitted == [events.DeleteTopics((), ())]
    one.controller.script = lambda _: None
    (answer,) = ask(one, delete_topics.API, asked, 6).responses
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


def test_groups_are_refused_one_by_one(one: OneBroker) -> None:
    allow(one)
    request = describe_groups.API.request(groups=["g", "h"])
    response = ask(one, describe_groups.API, request, 5)
    assert {group.group_id: group.error_code for group in response.groups} == dict.fromkeys(
        ("g", "h"), ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
