"""Control requests of very many partitions hold the loop for a slice at a time: their elements per step are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import pytest

from klamm.apis import leader_and_isr, stop_replica, update_metadata
from klamm.apis.api_declaration import Api, at_once
from klamm.apis.slices import SLICE
from klamm.log import LogManager
from klamm.metadata.update import MAX_PARTITIONS
from klamm.model import TopicPartition
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.wire import Message
from klamm.replica import state_change
from klamm.replica.state_change import StateChangeResult, StopReplica
from tests.support.one_broker import OneBroker


class Counting:
    """Calls of a function since the last step, and the most in one step."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self._now = 0
        self.most = self.total = 0

    def __call__(self, *args: Any, **others: Any) -> Any:
        self._now += 1
        return self._real(*args, **others)

    def end_step(self) -> None:
        self.most, self.total, self._now = max(self.most, self._now), self.total + self._now, 0


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Counting:
    counting = Counting(getattr(owner, name))
    monkeypatch.setattr(owner, name, counting)
    return counting


def in_steps(one: OneBroker, api: Api[Any, Any], request: Message, version: int, *countings: Counting) -> Any:
    """Handle the request as the network layer does, and end a step of the counters wherever the loop is given back."""
    result = one.dispatch(api, request, version)
    while True:
        for each in countings:
            each.end_step()
        if isinstance(result, GeneratorType):
            try:
                next(result)
            except StopIteration as done:
                result = done.value
        elif isinstance(result, asyncio.Future):
            if result.done():
                result = result.result()
            else:
                one.spin()
        else:
            return result


class Asked:
    """Logs of which none exists."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def __contains__(self, tp: object) -> bool:
        return bool(self._counting(tp))


def update(one: OneBroker, count: int) -> UpdateMetadataRequest:
    states = [
        UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=1,
            leader_epoch=0,
            isr=(1,),
            zk_version=0,
            replicas=(1,),
        )
        for index in range(count)
    ]
    topic = UpdateMetadataTopicState(topic_name="t", partition_states=states)
    epoch = one.controller_epoch
    return UpdateMetadataRequest(controller_id=1, controller_epoch=epoch, topic_states=[topic], live_brokers=())


def test_metadata_is_converted_in_slices_and_replaced_in_one_step(
    one: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = counted(monkeypatch, update_metadata, "PartitionState")
    sizes = set()
    steps = one.dispatch(update_metadata.API, update(one, MAX_PARTITIONS), 8)
    while isinstance(steps, GeneratorType):
        converted.end_step()
        sizes.add(one.broker.metadata.partition_count("t"))
        try:
            next(steps)
        except StopIteration as done:
            steps = done.value
    assert steps.error_code == 0
    assert converted.total == MAX_PARTITIONS and converted.most <= SLICE
    assert sizes == {None} and one.broker.metadata.partition_count("t") == MAX_PARTITIONS


def test_a_small_update_is_answered_at_once(one: OneBroker) -> None:
    assert one.dispatch(update_metadata.API, update(one, 2), 8).error_code == 0


def test_an_update_that_was_overtaken_by_a_later_controller_is_refused(one: OneBroker) -> None:
    slow = one.dispatch(update_metadata.API, update(one, MAX_PARTITIONS), 8)
    assert isinstance(slow, GeneratorType)
    next(slow)
    one.broker.replicas.check_controller_epoch(one.controller_epoch + 1)
    assert at_once(slow).error_code != 0
    assert one.broker.metadata.partition_count("t") is None


def test_logs_of_a_leader_and_isr_are_looked_for_in_slices(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5 * SLICE
    one.ask(update_metadata.API, update(one, count), 8)
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=2,
            leader_epoch=0,
            isr=(2,),
            partition_epoch=0,
            replicas=(2,),
            adding_replicas=(),
            removing_replicas=(),
        )
        for index in range(count)
    ]
    request = LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=one.controller_epoch,
        topic_states=[LeaderAndIsrTopicState(topic_name="t", partition_states=states)],
        live_leaders=(),
    )
    asked = Counting(lambda _: False)
    monkeypatch.setattr(LogManager, "logs", Asked(asked))
    response = in_steps(one, leader_and_isr.API, request, 7, asked)
    assert response.error_code == 0
    assert asked.total == count and asked.most <= SLICE


def test_replicas_are_stopped_and_reported_in_slices(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5 * SLICE
    states = [
        StopReplicaPartitionState(partition_index=index, leader_epoch=-1, delete_partition=True)
        for index in range(count)
    ]
    request = StopReplicaRequest(
        controller_id=1,
        controller_epoch=one.controller_epoch,
        topic_states=[StopReplicaTopicState(topic_name="t", partition_states=states)],
    )
    read = counted(monkeypatch, stop_replica, "StopReplica")
    reported = counted(monkeypatch, stop_replica, "StopReplicaPartitionError")
    response = in_steps(one, stop_replica.API, request, 4, read, reported)
    assert [error.error_code for error in response.partition_errors] == [0] * count
    assert read.total == reported.total == count
    assert max(read.most, reported.most) <= SLICE


def test_checkpoints_of_many_deleted_logs_are_written_one_file_per_step(
    one: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.lead("t", 20)
    amended = counted(monkeypatch, one.broker.logs.checkpoints._writer, "amend")
    stops = [StopReplica(TopicPartition("t", index), delete=True) for index in range(20)]
    for _ in state_change._stop_in_slices(one.broker.replicas, stops, StateChangeResult()):
        amended.end_step()
    amended.end_step()
    assert one.broker.logs.get_log(TopicPartition("t", 0)) is None
    assert amended.total == 3 and amended.most == 1
