"""ISR changes of protocol versions before 2.7-IV2: the leader writes the state znode itself and notifies later.

The write is a compare-and-set on the partition epoch that the leader knows. Changes are reported to the controller in
notifications that gather many partitions; Kafka's pauses keep a flapping ISR from flooding it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from klamm.clock import elapsed_ms
from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.replica.alter_partition_manager import after_isr_change
from klamm.zk.model import paths
from klamm.zk.model.ops import BadVersion, ConnectionLoss, Create, GetData, SetData, ZkError
from klamm.zk.model.znodes import ZnodeFormatError, decode_partition_state, encode_partition_state, encode_partitions

if TYPE_CHECKING:
    from klamm.replica.partition import Partition
    from klamm.replica.replica_manager import ReplicaManager
    from klamm.zk.client.zk_session import ZkSession

log = logging.getLogger("klamm.state_change")

CHECK_INTERVAL_MS: Final = 2_500
QUIET_MS: Final = 5_000
LONGEST_MS: Final = 60_000
RETRY_MS: Final = 100


class ZkIsrManager:
    """`submit` is the ReplicaManager's `isr_change_listener`. Lives on the broker loop."""

    def __init__(self, replicas: ReplicaManager, zk: ZkSession, loop: asyncio.AbstractEventLoop) -> None:
        self._replicas = replicas
        self._zk = zk
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In start order: a set would cancel them in the order of memory addresses."""
        self._changed: dict[TopicPartition, None] = {}
        self._last_change_ms = 0
        self._last_propagation_ms = elapsed_ms(replicas.clock)

    def submit(self, partition: Partition, isr: tuple[int, ...]) -> None:
        partition.propose_isr(isr)
        self._spawn(self._write(partition, isr))

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work, name="zk-isr-change")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # --- the state znode ---------------------------------------------------------------------------------------------

    async def _write(self, partition: Partition, isr: tuple[int, ...]) -> None:
        leader_epoch = partition.leader_epoch
        while partition.pending_isr is isr and partition.leader_epoch == leader_epoch:
            try:
                written = await self._compare_and_set(partition, isr)
            except ConnectionLoss:
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            except (ZkError, ZnodeFormatError) as failure:
                log.warning("%s: writing the ISR failed: %s", partition.topic_partition, failure)
                written = None
            except Exception:  # A bug. A proposal that nobody decides would freeze the ISR.
                log.exception("%s: writing the ISR failed", partition.topic_partition)
                written = None
            self._settle(partition, isr, leader_epoch, written)
            return

    async def _compare_and_set(self, partition: Partition, isr: tuple[int, ...]) -> LeaderAndIsr | None:
        """Return the state in the znode if it is still ours; None if another leader or controller wrote it."""
        assert partition.partition_epoch >= 0, "a negative version would match any"
        wanted = LeaderAndIsr(partition.leader, partition.leader_epoch, isr)
        path = paths.partition_state_path(*partition.topic_partition)
        data = encode_partition_state(LeaderIsrAndControllerEpoch(wanted, partition.controller_epoch))
        try:
            stat = (await self._zk.set(SetData(path, data, partition.partition_epoch))).stat
            return LeaderAndIsr(wanted.leader, wanted.leader_epoch, isr, stat.version)
        except BadVersion:
            found = await self._zk.read(GetData(path))
        state = decode_partition_state(partition.topic_partition, found.data, found.stat.version).leader_and_isr
        is_ours = (state.leader, state.leader_epoch) == (wanted.leader, wanted.leader_epoch)
        return state if is_ours else None

    def _settle(
        self, partition: Partition, isr: tuple[int, ...], leader_epoch: int, written: LeaderAndIsr | None
    ) -> None:
        """After a lost answer our own write is found; any other state that is still ours is adopted."""
        if partition.pending_isr is not isr or partition.leader_epoch != leader_epoch:
            return
        replicas, before = self._replicas, partition.isr
        if written is None or written.isr != isr:
            replicas.isr_meters.failed_updates.mark()
            log.warning("%s: keeping the ISR: cached partition epoch %d differs from ZooKeeper's", *_about(partition))
        if written is None:
            partition.reject_isr()
            return
        if partition.commit_isr(written.isr, leader_epoch, written.partition_epoch, elapsed_ms(replicas.clock)):
            self._changed[partition.topic_partition] = None
            self._last_change_ms = elapsed_ms(replicas.clock)
            after_isr_change(replicas, partition, before)

    # --- notifications -----------------------------------------------------------------------------------------------

    def propagate(self) -> None:
        """The `isr-change-propagation` task, every CHECK_INTERVAL_MS."""
        now_ms = elapsed_ms(self._replicas.clock)
        is_quiet = now_ms - self._last_change_ms > QUIET_MS
        if self._changed and (is_quiet or now_ms - self._last_propagation_ms > LONGEST_MS):
            changed, self._changed = self._changed, {}
            self._last_propagation_ms = now_ms
            self._spawn(self._notify(changed))

    async def _notify(self, changed: dict[TopicPartition, None]) -> None:
        try:
            await self._zk.create(Create(paths.isr_change_path(), encode_partitions(changed), sequential=True))
        except ZkError as failure:
            log.warning("reporting ISR changes of %d partitions failed, trying again: %s", len(changed), failure)
            self._changed = changed | self._changed


def _about(partition: Partition) -> tuple[TopicPartition, int]:
    return partition.topic_partition, partition.partition_epoch
