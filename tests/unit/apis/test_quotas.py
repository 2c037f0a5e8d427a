"""Quotas in handlers: a Fetch over its quota, and topics beyond the controller mutation quota."""

from __future__ import annotations

import asyncio
from types import GeneratorType
from typing import Any, TypeVar
from uuid import UUID

import pytest

from klamm.apis import create_partitions, create_topics, delete_topics, fetch, metadata
from klamm.apis.api_declaration import Api, at_once
from klamm.apis.controller_parts import MOST
from klamm.config.client_quotas import DEFAULT, QuotaEntity
from klamm.controller import events
from klamm.controller.replies import EventReply, TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse, ForgottenTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.wire import Message, decode, encode_bytes
from tests.support.one_broker import OneBroker
from tests.unit.apis.test_fetch import append, only, request, values

Resp = TypeVar("Resp", bound=Message)
ID = UUID(int=77)
EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
LARGE = b"x" * 2000


def limit(one: OneBroker, **quotas: float) -> None:
    properties = {key: str(value) for key, value in quotas.items()}
    one.broker.configs.client_quotas.set_entity(QuotaEntity(client_id=DEFAULT), properties)


class TestFetch:
    def ask(self, one: OneBroker, req: FetchRequest, version: int = 13, **context: Any) -> FetchResponse:
        return one.ask(fetch.API, req, version, **context)

    def test_a_response_over_the_quota_is_empty_until_the_time_is_over(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        for _ in range(4):
            append(one, LARGE)
        limit(one, consumer_byte_rate=500)
        one_batch = request(partition_max_bytes=1)
        assert values(only(self.ask(one, one_batch))) == [LARGE]
        assert values(only(self.ask(one, one_batch))) == [LARGE]
        assert one.last_context.throttle_time_ms == 0
        assert not self.ask(one, one_batch).responses
        waits = [one.last_context.throttle_time_ms]
        while waits[-1]:
            one.clock.elapsed_ms += waits[-1] + 1
            answer = self.ask(one, one_batch)
            waits.append(one.last_context.throttle_time_ms)
            assert bool(answer.responses) == (waits[-1] == 0)
        assert sum(waits) <= 15_000, "at the latest when the windows are over"

    def test_no_more_is_read_than_the_windows_allow(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        for _ in range(4):
            append(one, LARGE)
        limit(one, consumer_byte_rate=500)
        assert len(values(only(self.ask(one, request())))) == 2, "5000 bytes are two batches"
        assert one.last_context.throttle_time_ms == 0

    def test_a_batch_above_all_windows_is_sent_once_per_span(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        append(one, LARGE)
        limit(one, consumer_byte_rate=10)
        assert values(only(self.ask(one, request()))) == [LARGE]
        assert one.last_context.throttle_time_ms > 100_000
        assert not self.ask(one, request()).responses

    def test_followers_are_exempt(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID, replicas=(1, 2))
        append(one, LARGE)
        limit(one, consumer_byte_rate=10)
        for _ in range(3):
            assert only(self.ask(one, request(replica_id=2))).records
            assert one.last_context.throttle_time_ms == 0

    @pytest.mark.parametrize("version", [12, 13])
    def test_a_session_loses_nothing_by_an_empty_answer(self, one: OneBroker, version: int) -> None:
        one.lead("t", 2, topic_id=ID)
        append(one, LARGE, index=0)
        limit(one, consumer_byte_rate=250)
        opened = self.ask(one, request({0: 0, 1: 0}, session_epoch=0), version)
        assert opened.session_id
        append(one, LARGE, index=1)
        again: dict[str, Any] = {"session_id": opened.session_id}
        throttled = self.ask(one, request({0: 1}, session_epoch=1, **again), version)
        assert not throttled.responses and throttled.session_id == opened.session_id
        one.clock.elapsed_ms += 11_000
        found = only(self.ask(one, request({}, session_epoch=2, **again), version))
        assert found.partition_index == 1 and values(found) == [LARGE]

    def test_an_empty_answer_opens_no_session(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        append(one, LARGE)
        limit(one, consumer_byte_rate=250)
        assert self.ask(one, request(session_epoch=0)).session_id
        throttled = self.ask(one, request(session_epoch=0))
        assert not throttled.responses and throttled.session_id == 0
        assert len(one.broker.fetch_sessions) == 1

    def test_a_fetch_in_slices(self, one: OneBroker) -> None:
        count = 501
        one.lead("t", count, topic_id=ID)
        append(one, LARGE, index=500)
        limit(one, consumer_byte_rate=250)
        everything = dict.fromkeys(range(count), 0)
        answer = self.ask(one, request(everything, session_epoch=-1))
        assert sum(bool(part.records) for part in answer.responses[0].partitions) == 1
        assert not self.ask(one, request(everything, session_epoch=-1)).responses
        forgotten = [ForgottenTopic(topic_id=ID, topic="t", partitions=[0])]
        one.clock.elapsed_ms += 20_000
        assert self.ask(one, request(everything, session_epoch=0, forgotten_topics_data=forgotten)).responses


def ask(one: OneBroker, api: Api[Any, Resp], req: Message, version: int) -> tuple[Resp, int]:
    """The response and the throttle time; the controller's own requests have other contexts."""
    ctx = one.context(req.KEY, version)
    received, _ = decode(type(req), version, encode_bytes(req, version))
    result: Any = api.handle(one.broker, ctx, received)
    while isinstance(result, (GeneratorType, asyncio.Future)):
        result = at_once(result) if isinstance(result, GeneratorType) else one.run(result)
    return one.as_read(result, version), ctx.throttle_time_ms


def create(one: OneBroker, version: int, *names: str, partitions: int = 1, dry: bool = False) -> tuple[list[int], int]:
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
        for name in names
    ]
    req = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=dry)
    response, throttle_time_ms = ask(one, create_topics.API, req, version)
    return [topic.error_code for topic in response.topics], throttle_time_ms


class TestMutations:
    @pytest.fixture
    def one(self, one: OneBroker) -> OneBroker:
        """Eleven windows of a partition per second: a client may create eleven at once, and one more topic."""
        limit(one, controller_mutation_rate=1)
        one.controller.script = self.script(one)
        return one

    def script(self, one: OneBroker) -> Any:
        def delete(name: str) -> TopicResult:
            state = one.broker.metadata.snapshot.topics.get(name)
            if state is None:
                return TopicResult(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            one.update_metadata({name: list(range(len(state.partitions)))}, leader=-2)
            return TopicResult(name)

        def reply(event: events.ControllerEvent) -> EventReply | None:
            if isinstance(event, events.CreateTopics):
                return one.create_as_asked(event)
            if isinstance(event, events.CreatePartitions):
                for topic in event.topics:
                    one.lead(topic.name, topic.count)
                return TopicResults(tuple(TopicResult(topic.name) for topic in event.topics))
            if isinstance(event, events.DeleteTopics):
                return TopicResults(tuple(delete(name) for name in event.names))
            return None

        return reply

    def test_strict_from_version_6_on(self, one: OneBroker) -> None:
        assert create(one, 6, "a", "b", partitions=6) == ([0, 0], 0)
        assert create(one, 6, "c", "d") == ([EXCEEDED, EXCEEDED], 1000)
        one.clock.elapsed_ms += 1000
        assert create(one, 7, "c", "d") == ([0, EXCEEDED], 1000)

    def test_older_versions_are_only_throttled(self, one: OneBroker) -> None:
        assert create(one, 5, "a", "b", partitions=6) == ([0, 0], 1000)
        assert create(one, 5, "c") == ([0], 2000)

    def test_a_request_that_fails_or_only_validates_costs_nothing(self, one: OneBroker) -> None:
        one.lead("exists", 50)
        assert create(one, 7, "no/name", "exists", partitions=11)[0] == [17, ErrorCode.TOPIC_ALREADY_EXISTS]
        assert create(one, 7, "a", partitions=100, dry=True) == ([0], 0)
        assert create(one, 7, "a", "b", "c", partitions=11)[0] == [0, 0, EXCEEDED]
        assert create(one, 7, "exists")[0] == [ErrorCode.TOPIC_ALREADY_EXISTS], "the quota comes after the checks"

    def test_another_broker_than_the_controller_does_not_charge(self, one: OneBroker) -> None:
        one.controller.is_active = False
        one.controller.script = lambda event: None
        for _ in range(3):
            assert create(one, 7, "a", partitions=100) == ([ErrorCode.NOT_CONTROLLER], 0)
        assert not len(one.broker.quotas.mutations.accounts)

    @pytest.mark.parametrize(("version", "error"), [(3, EXCEEDED), (2, ErrorCode.NONE)])
    def test_partitions(self, one: OneBroker, version: int, error: ErrorCode) -> None:
        one.lead("t", 1)
        for count, expected in ((13, ErrorCode.NONE), (14, error)):
            topic = CreatePartitionsTopic(name="t", count=count, assignments=None)
            req = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
            response, throttle_time_ms = ask(one, create_partitions.API, req, version)
            assert response.results[0].error_code == expected
        assert throttle_time_ms == (1000 if error else 2000)

    @pytest.mark.parametrize(("version", "error"), [(5, EXCEEDED), (4, ErrorCode.NONE)])
    def test_deletions(self, one: OneBroker, version: int, error: ErrorCode) -> None:
        for name, count in (("a", 12), ("b", 1)):
            one.lead(name, count)
        req = DeleteTopicsRequest(topic_names=["a", "none", "b", "a"], timeout_ms=1000)
        response, throttle_time_ms = ask(one, delete_topics.API, req, version)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [topic.error_code for topic in response.responses] == [0, unknown, error, 0]
        assert throttle_time_ms == (1000 if error else 2000)

    def test_deletions_in_parts_are_settled_part_by_part(self, one: OneBroker) -> None:
        """The second part meets another controller: only its topics are not charged."""
        one.lead("first", 10)
        one.lead("last", 2)
        names = ["first", *(f"none-{number}" for number in range(MOST)), "last"]
        answer = one.controller.script
        one.controller.script = lambda event: answer(event) if len(one.controller.submitted) == 1 else None
        response, _ = ask(one, delete_topics.API, DeleteTopicsRequest(topic_names=names, timeout_ms=1000), 5)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        expected = [0, *[unknown] * (MOST - 1), *[ErrorCode.NOT_CONTROLLER] * 2]
        assert [topic.error_code for topic in response.responses] == expected
        one.controller.script = answer
        assert create(one, 7, "a", "b", "c")[0] == [0, 0, EXCEEDED]

    def test_deletions_by_id(self, one: OneBroker) -> None:
        one.lead("a", 12)
        one.lead("b", 1, topic_id=ID)
        topics = [DeleteTopicState(name="a", topic_id=ZERO_UUID), DeleteTopicState(name=None, topic_id=ID)]
        response, _ = ask(one, delete_topics.API, DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6)
        assert [(topic.name, topic.error_code) for topic in response.responses] == [("a", 0), ("b", EXCEEDED)]

    def test_topics_that_a_metadata_request_creates_are_charged(self, one: OneBroker) -> None:
        topics = [MetadataRequestTopic(name=f"auto-{number}") for number in range(12)]
        one.ask(metadata.API, MetadataRequest(topics=topics, allow_auto_topic_creation=True), 8)
        assert create(one, 7, "late")[0] == [EXCEEDED]
