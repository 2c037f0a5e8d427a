"""Proposals of leaders and their outcome; the controller is a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.log.producer_state import AppendOrigin
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)
from klamm.replica import alter_partition_manager
from klamm.replica.alter_partition_manager import AlterPartitionManager
from klamm.replica.append_path import append_records
from klamm.replica.partition import Partition
from tests.support.one_broker import OneBroker, batch
from tests.support.waiting import until

_CLIENT = AppendOrigin.CLIENT
ID = UUID(int=5)
TP = TopicPartition("t", 0)


class Controller:
    """Answers every request with what the test says, in the version asked for; `held` keeps it waiting."""

    def __init__(self) -> None:
        self.requests: list[tuple[AlterPartitionRequest, int]] = []
        self.answers: list[ErrorCode | Exception] = []
        self.code_of: Callable[[PartitionData], ErrorCode] = lambda partition: ErrorCode.NONE
        self.gate = asyncio.Event()
        self.gate.set()

    async def alter_partition(self, request: AlterPartitionRequest, max_version: int) -> AlterPartitionResponse:
        self.requests.append((request, max_version))
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        if answer != ErrorCode.NONE:
            return AlterPartitionResponse(error_code=answer, topics=())
        topics = [
            ResponseTopicData(
                topic_name="" if max_version >= 2 else topic.topic_name,
                topic_id=topic.topic_id,
                partitions=[self._answer(p) for p in topic.partitions],
            )
            for topic in request.topics
        ]
        return AlterPartitionResponse(error_code=0, topics=topics)

    def _answer(self, partition: PartitionData) -> ResponsePartitionData:
        return ResponsePartitionData(
            partition_index=partition.partition_index,
            error_code=self.code_of(partition),
            leader_id=1,
            leader_epoch=partition.leader_epoch,
            isr=[member.broker_id for member in partition.new_isr_with_epochs],
            partition_epoch=partition.partition_epoch + 1,
        )

    def isrs(self) -> list[list[tuple[int, int]]]:
        """(broker, epoch) of every proposal that came, in order."""
        return [
            [(member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs]
            for request, _ in self.requests
            for topic in request.topics
            for partition in topic.partitions
        ]


class Setting:
    def __init__(self, tmp_path: Path) -> None:
        self.one = OneBroker(tmp_path)
        self.controller = Controller()
        self.replicas = self.one.broker.replicas
        self.manager = AlterPartitionManager(
            self.replicas, self.controller, broker_epoch=lambda: 42, loop=self.one.loop
        )
        self.replicas.isr_change_listener = self.manager.submit

    def lead(self, partitions: int = 1, *, topic_id: UUID = ID, leader_epoch: int = 0) -> Partition:
        self.one.lead(
            "t",
            partitions,
            topic_id=topic_id,
            replicas=(1, 2, 3),
            isr=(1, 2),
            leader_epoch=leader_epoch,
            partition_epoch=leader_epoch,
        )
        return self.replicas.partitions[TP]

    def until(self, condition: Callable[[], object]) -> None:
        self.one.run(asyncio.ensure_future(until(condition), loop=self.one.loop))

    def idle(self) -> None:
        self.until(lambda: self.manager._task is None)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    yield made
    made.one.run(asyncio.ensure_future(made.manager.close(), loop=made.one.loop))
    made.one.close()


def test_an_accepted_isr_is_taken_over_and_moves_the_high_watermark(setting: Setting) -> None:
    setting.one.topic_configs["t"] = LogConfig(min_insync_replicas=2)
    partition = setting.lead()
    waiting = append_records(setting.replicas, -1, False, _CLIENT, {TP: batch(b"a")})
    assert isinstance(waiting, asyncio.Future)
    partition.on_follower_fetch(3, 1, 0, elapsed_ms(setting.one.clock), 9)
    setting.manager.submit(partition, (1, 3))
    assert partition.pending_isr == (1, 3) and not waiting.done()
    setting.idle()
    assert partition.isr == partition.maximal_isr == (1, 3) and partition.partition_epoch == 1
    assert setting.one.run(waiting)[TP].error == ErrorCode.NONE
    request, version = setting.controller.requests[0]
    assert (request.broker_id, request.broker_epoch, version) == (1, 42, 3)
    assert setting.controller.isrs() == [[(1, -1), (3, 9)]], "who joins is named with the epoch it fetched in"


def test_a_bug_does_not_freeze_an_isr(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    partition = setting.lead()
    setting.controller.answers = [KeyError("a bug")]
    setting.manager.submit(partition, (1,))
    setting.idle()
    assert partition.isr == (1,) and partition.pending_isr is None
    assert len(setting.controller.requests) == 2
    assert "KeyError: 'a bug'" in caplog.text


def test_changes_that_come_while_one_is_under_way_go_together(setting: Setting) -> None:
    setting.lead(3)
    partitions = list(setting.replicas.partitions.values())
    setting.controller.gate.clear()
    setting.manager.submit(partitions[0], (1,))
    setting.until(lambda: setting.controller.requests)
    setting.manager.submit(partitions[1], (1,))
    setting.manager.submit(partitions[2], (1,))
    setting.controller.gate.set()
    setting.idle()
    counts = [sum(len(t.partitions) for t in request.topics) for request, _ in setting.controller.requests]
    assert counts == [1, 2] and all(partition.isr == (1,) for partition in partitions)
    assert setting.replicas.isr_meters.shrinks.count == 3


def test_very_many_changes_do_not_hold_the_loop(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_partition_manager, "CHANGES_PER_REQUEST", 8)
    monkeypatch.setattr(alter_partition_manager, "SETTLED_PER_STEP", 2)
    setting.lead(20)
    partitions = list(setting.replicas.partitions.values())
    settled: list[int] = []

    def count() -> None:
        settled.append(sum(partition.isr == (1,) for partition in partitions))
        if settled[-1] < len(partitions):
            setting.one.loop.call_soon(count)

    for partition in partitions:
        setting.manager.submit(partition, (1,))
    setting.one.loop.call_soon(count)
    setting.idle()
    sizes = [sum(len(topic.partitions) for topic in request.topics) for request, _ in setting.controller.requests]
    assert sizes == [8, 8, 4]
    assert settled[-1] == len(partitions) and max(after - before for before, after in pairwise(settled)) == 2


def test_changes_that_are_no_longer_current_are_not_sent(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_partition_manager, "CHANGES_PER_REQUEST", 2)
    setting.lead(5)
    partitions = list(setting.replicas.partitions.values())
    for partition in partitions:
        setting.manager.submit(partition, (1,))
    for partition in partitions[:4]:
        partition.reject_isr()
    setting.idle()
    assert setting.controller.isrs() == [[(1, -1)]] and partitions[4].isr == (1,)


@pytest.mark.parametrize("failure", [ConnectionError("gone"), ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER])
def test_an_undecided_change_is_sent_again(setting: Setting, failure: ErrorCode | OSError) -> None:
    partition = setting.lead()
    setting.controller.answers = [failure, failure]
    setting.manager.submit(partition, (1,))
    setting.idle()
    assert len(setting.controller.requests) == 3 and partition.isr == (1,)


def test_a_refused_member_leaves_the_isr_as_it_was(setting: Setting) -> None:
    partition = setting.lead()
    setting.controller.code_of = lambda _: ErrorCode.INELIGIBLE_REPLICA
    setting.manager.submit(partition, (1, 2, 3))
    setting.idle()
    assert partition.isr == (1, 2) and partition.pending_isr is None
    assert setting.replicas.isr_meters.failed_updates.count == 1


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION])
def test_a_proposal_with_an_old_epoch_waits_for_the_next_leader_and_isr(setting: Setting, code: ErrorCode) -> None:
    partition = setting.lead()
    setting.controller.code_of = lambda _: code
    setting.manager.submit(partition, (1, 2, 3))
    setting.idle()
    assert partition.maximal_isr == (1, 2, 3) and len(setting.controller.requests) == 1
    assert partition.isr_to_shrink_to(1 << 60) is None
    setting.lead(leader_epoch=1)
    assert partition.pending_isr is None


def test_an_answer_that_a_new_epoch_overtook_is_not_taken(setting: Setting) -> None:
    partition = setting.lead()
    setting.controller.gate.clear()
    setting.manager.submit(partition, (1,))
    setting.until(lambda: setting.controller.requests)
    setting.lead(leader_epoch=1)
    setting.controller.gate.set()
    setting.idle()
    assert partition.isr == (1, 2) and partition.partition_epoch == 1


def test_topics_without_an_id_go_by_name(setting: Setting) -> None:
    partition = setting.lead(topic_id=ZERO_UUID)
    setting.manager.submit(partition, (1,))
    setting.idle()
    request, version = setting.controller.requests[0]
    assert version == 1 and request.topics[0].topic_name == "t" and partition.isr == (1,)
    assert request.topics[0].partitions[0].new_isr == (1,)
