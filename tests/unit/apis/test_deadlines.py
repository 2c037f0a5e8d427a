"""One timeout covers all waits of a request. Requests are answered even if the controller does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.apis import (
    allocate_producer_ids,
    alter_partition,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
)
from klamm.apis.api_declaration import Api
from klamm.apis.deadlines import Deadline
from klamm.controller import events
from klamm.controller.replies import PartitionResult, PartitionResults, TopicResult, TopicResults
from klamm.model import TopicPartition
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from klamm.protocol.messages.alter_partition import AlterPartitionRequest
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from klamm.protocol.wire import Message
from tests.support.one_broker import OneBroker

TIMEOUT_MS = 1_000
SLOW_MS = 700
CREATE = CreateTopicsRequest(
    topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())],
    timeout_ms=TIMEOUT_MS,
)
GROW = CreatePartitionsRequest(
    topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)], timeout_ms=TIMEOUT_MS, validate_only=False
)
DELETE = DeleteTopicsRequest(topic_names=["gone"], timeout_ms=TIMEOUT_MS)
ELECT = ElectLeadersRequest(
    election_type=0, topic_partitions=[TopicPartitions(topic="gone", partitions=[0])], timeout_ms=TIMEOUT_MS
)


@pytest.mark.parametrize(
    ("api", "request_", "version", "owner"),
    [
        (create_topics.API, CREATE, 4, "topic_purgatory"),
        (create_partitions.API, GROW, 1, "topic_purgatory"),
        (delete_topics.API, DELETE, 3, "topic_purgatory"),
        (elect_leaders.API, ELECT, 1, "election_purgatory"),
    ],
    ids=["CreateTopics", "CreatePartitions", "DeleteTopics", "ElectLeaders"],
)
def test_time_that_the_controller_used_is_not_given_again(
    one: OneBroker,
    monkeypatch: pytest.MonkeyPatch,
    api: Api[Any, Any],
    request_: Message,
    version: int,
    owner: str,
) -> None:
    waited: list[int] = []
    now = [one.loop.time()]

    def reply(event: events.ControllerEvent) -> Any:
        now[0] += SLOW_MS / 1000
        if isinstance(event, events.ReplicaLeaderElection):
            return PartitionResults((PartitionResult(TopicPartition("gone", 0)),))
        names = ["gone"] if isinstance(event, events.DeleteTopics) else ["t"]
        return TopicResults(tuple(TopicResult(name, num_partitions=1, replication_factor=1) for name in names))

    def watch(keys: Any, timeout_ms: int, try_complete: Any, on_expire: Any, on_key: Any) -> Any:
        waited.append(timeout_ms)
        return on_expire()

    one.controller.script = reply
    monkeypatch.setattr(getattr(one.broker, owner), "try_complete_else_watch", watch)
    monkeypatch.setattr(one.loop, "time", lambda: now[0])
    one.ask(api, request_, version)
    assert waited == [TIMEOUT_MS - SLOW_MS]


@pytest.mark.parametrize(
    ("api", "request_", "version"),
    [
        (alter_partition.API, AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=()), 3),
        (allocate_producer_ids.API, AllocateProducerIdsRequest(broker_id=1, broker_epoch=1), 0),
        (controlled_shutdown.API, ControlledShutdownRequest(broker_id=1, broker_epoch=1), 3),
    ],
    ids=["AlterPartition", "AllocateProducerIds", "ControlledShutdown"],
)
def test_brokers_are_answered_even_when_zookeeper_is_not_there(
    one: OneBroker, monkeypatch: pytest.MonkeyPatch, api: Api[Any, Any], request_: Message, version: int
) -> None:
    given: list[int | None] = []
    submit = one.controller.submit

    def note(event: events.ControllerEvent, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        given.append(timeout_ms)
        return submit(event, timeout_ms)

    monkeypatch.setattr(one.controller, "submit", note)
    one.ask(api, request_, version)
    assert given == [one.broker.config.controller_socket_timeout_ms]


def test_a_deadline_is_never_negative() -> None:
    loop = asyncio.new_event_loop()
    assert Deadline(loop, -5).remaining_ms == Deadline(loop, 0).remaining_ms == 0
    loop.close()
