"""ISR changes of old protocol versions: compare and set in ZooKeeper, and notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.replica.partition import Partition
from klamm.replica.zk_isr_manager import QUIET_MS, ZkIsrManager
from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, Create, GetData, GetDataResult, SetData, SetDataResult
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.model.znodes import decode_partition_state, decode_partitions, encode_partition_state
from tests.support.one_broker import OneBroker
from tests.support.waiting import until

TP = TopicPartition("t", 0)
PATH = paths.partition_state_path("t", 0)


class TreeSession:
    """ZooKeeper without a network. `lose` makes the next write succeed and its answer get lost."""

    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self.tree.create_session(1, 1000, 0)
        self.lose = False
        self.bug: Exception | None = None
        parts = PATH.split("/")[1:-1]
        for path in ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))] + [paths.ISR_CHANGE_NOTIFICATION]:
            self.tree.write(1, Create(path), 0)

    async def set(self, op: SetData) -> SetDataResult:
        if self.bug is not None:
            raise self.bug
        result = self.tree.write(1, op, 0)
        if self.lose:
            self.lose = False
            raise ConnectionLoss(op.path)
        return result

    async def read(self, op: GetData) -> GetDataResult:
        return self.tree.read(op)

    async def create(self, op: Create) -> Any:
        return self.tree.write(1, op, 0)

    def put(self, leader: int, leader_epoch: int, isr: tuple[int, ...]) -> None:
        data = encode_partition_state(LeaderIsrAndControllerEpoch(LeaderAndIsr(leader, leader_epoch, isr), 1))
        exists = PATH in self.tree.nodes
        self.tree.write(1, SetData(PATH, data) if exists else Create(PATH, data), 0)

    def state(self) -> LeaderAndIsr:
        found = self.tree.read(GetData(PATH))
        return decode_partition_state(TP, found.data, found.stat.version).leader_and_isr


class Setting:
    def __init__(self, tmp_path: Path) -> None:
        self.one = OneBroker(tmp_path)
        self.zk = TreeSession()
        self.zk.put(1, 0, (1, 2))
        self.one.lead("t", replicas=(1, 2, 3), isr=(1, 2))
        self.manager = ZkIsrManager(self.one.broker.replicas, cast(Any, self.zk), self.one.loop)

    @property
    def partition(self) -> Partition:
        return self.one.broker.replicas.partitions[TP]

    @property
    def failed(self) -> int:
        return self.one.broker.replicas.isr_meters.failed_updates.count

    def submit(self, isr: tuple[int, ...]) -> None:
        self.manager.submit(self.partition, isr)
        self.until(lambda: not self.manager._tasks)

    def until(self, condition: Callable[[], object]) -> None:
        self.one.run(asyncio.ensure_future(until(condition), loop=self.one.loop))


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    yield made
    made.one.close()


def test_the_leader_writes_the_state_itself(setting: Setting) -> None:
    setting.submit((1, 2, 3))
    assert setting.zk.state() == LeaderAndIsr(1, 0, (1, 2, 3), partition_epoch=1)
    assert (setting.partition.isr, setting.partition.partition_epoch) == ((1, 2, 3), 1)


def test_a_lost_answer_is_recognised(setting: Setting) -> None:
    setting.zk.lose = True
    setting.submit((1,))
    assert (setting.partition.isr, setting.partition.partition_epoch) == ((1,), 1) and setting.failed == 0


def test_a_bug_does_not_freeze_the_isr(setting: Setting) -> None:
    setting.zk.bug = KeyError("a bug")
    setting.submit((1,))
    assert setting.partition.isr == (1, 2) and setting.partition.pending_isr is None
    setting.zk.bug = None
    setting.submit((1,))
    assert setting.zk.state().isr == (1,) and setting.failed == 1


def test_a_state_that_is_no_longer_ours_is_left_alone(setting: Setting) -> None:
    setting.zk.put(2, 1, (2,))
    setting.submit((1,))
    assert setting.zk.state().leader == 2
    assert setting.partition.isr == (1, 2) and setting.partition.pending_isr is None and setting.failed == 1


def test_a_state_that_is_still_ours_is_adopted(setting: Setting) -> None:
    """Kafka's leaders are stuck here until the next election: the cached version never fits again."""
    setting.zk.put(1, 0, (1, 2, 3))
    setting.submit((1,))
    assert (setting.partition.isr, setting.partition.partition_epoch) == ((1, 2, 3), 1) and setting.failed == 1
    setting.submit((1,))
    assert setting.zk.state().isr == (1,)


def test_a_deleted_topic_refuses(setting: Setting) -> None:
    del setting.zk.tree.nodes[PATH]
    setting.submit((1,))
    assert setting.partition.isr == (1, 2) and setting.failed == 1


def test_changes_are_reported_together_once_it_is_quiet(setting: Setting) -> None:
    setting.submit((1,))
    setting.submit((1, 2))
    setting.manager.propagate()
    assert not setting.zk.tree.nodes[paths.ISR_CHANGE_NOTIFICATION].children
    setting.one.clock.elapsed_ms += QUIET_MS + 1
    for _ in range(2):
        setting.manager.propagate()
        setting.until(lambda: not setting.manager._tasks)
    (name,) = list(setting.zk.tree.nodes[paths.ISR_CHANGE_NOTIFICATION].children or ())
    path = paths.isr_change_path(name)
    assert decode_partitions(path, setting.zk.tree.read(GetData(path)).data) == (TP,)


def test_changes_are_reported_after_the_wall_clock_went_back(setting: Setting) -> None:
    setting.submit((1,))
    setting.one.clock.corrected_ms = -3 * 3_600_000
    setting.one.clock.elapsed_ms += QUIET_MS + 1
    setting.manager.propagate()
    setting.until(lambda: not setting.manager._tasks)
    assert len(setting.zk.tree.nodes[paths.ISR_CHANGE_NOTIFICATION].children or ()) == 1
