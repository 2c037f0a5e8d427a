"""The stage of an aimed scenario of transactions. The checkers of transactions must find nothing afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.coordinator.transaction.transaction_metadata import MAX_PRODUCER_EPOCH, TransactionState
from klamm.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.sim.aimed.cluster_stage import AimedStage
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.transactions.anomalies import check_anomalies
from klamm.sim.transactions.committed_reader import CommittedReader
from klamm.sim.transactions.observations import Observations, Recorder, Seen
from klamm.sim.transactions.txn_quiet import check_logs, check_stable

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
SETTINGS: Final[dict[str, object]] = {
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 300,
    "offsets.topic.num.partitions": 1,
}
REPAIRED: Final[dict[str, object]] = {"klamm.transaction.version": 2}
"""The setting of a cluster that speaks the repaired protocol."""


@dataclass(frozen=True)
class Aim:
    """An aimed scenario and the cluster that it needs."""

    act: Callable[[Stage], Awaitable[None]]
    settings: Mapping[str, object] = field(default_factory=dict)
    max_epoch: int = MAX_PRODUCER_EPOCH
    without: tuple[str, ...] = ()
    """Settings of every stage that this one leaves at their defaults."""


class Stage(AimedStage):
    def __init__(self, cluster: SimCluster, aim: Aim) -> None:
        common = {name: value for name, value in SETTINGS.items() if name not in aim.without}
        super().__init__(cluster, {**common, **aim.settings})
        self.recorder = Recorder()
        self._act = aim.act
        cluster.max_producer_epoch = aim.max_epoch

    async def run(self) -> None:
        await super().run()
        check_anomalies(await self._observe())
        check_logs(self.cluster)

    async def _perform(self) -> None:
        await self._act(self)

    def _check_quiet(self) -> None:
        check_stable(self.cluster, ())
        super()._check_quiet()

    async def _observe(self) -> Observations:
        logs: dict[TopicPartition, tuple[Seen, ...]] = {}
        for tp in self.tps:
            reader = CommittedReader("auditor", self._admin, tp, Recorder())
            logs[tp] = await self.as_admin(self._read_all(reader))
        return self.recorder.observations(logs, {})

    async def _read_all(self, reader: CommittedReader) -> tuple[Seen, ...]:
        found: list[Seen] = []
        (log,) = {node.broker.logs.logs[reader.tp].log_end_offset for node in self.nodes if node.broker is not None}
        while reader.offset < log:
            poll = await reader.poll(max_bytes=100_000)
            found += () if poll is None else poll.records
        return tuple(found)

    def transactions_of(self, transactional_id: str) -> TopicPartition:
        return TopicPartition(TRANSACTION_STATE_TOPIC, self._any_broker().transactions.partition_for(transactional_id))

    def offsets_of(self, group: str) -> TopicPartition:
        return TopicPartition(GROUP_METADATA_TOPIC, self._any_broker().groups.partition_for(group))

    async def coordinator(self, transactional_id: str) -> SimNode:
        """The leader of the transactional id's partition, whose topic is created if necessary."""
        await self._find(TRANSACTION_KEY, transactional_id, TRANSACTION_STATE_TOPIC)
        return await self.leader(self.transactions_of(transactional_id))

    async def completed(self, coordinator: SimNode, transactional_id: str) -> None:
        """Wait until the markers of a commit are written and its completion is stored, as its coordinator knows."""
        broker = coordinator.broker
        assert broker is not None

        def is_completed() -> bool:
            value = broker.transactions.describe(transactional_id).value
            return value is not None and value.state is TransactionState.COMPLETE_COMMIT

        await self.wait(is_completed, "the transaction is complete")

    async def group_coordinator(self, group: str) -> SimNode:
        await self._find(GROUP_KEY, group, GROUP_METADATA_TOPIC)
        return await self.leader(self.offsets_of(group))

    async def _find(self, key_type: int, key: str, topic: str) -> None:
        while topic not in self._any_broker().metadata.snapshot.topics:
            node = next(node for node in self.nodes if node.broker is not None)
            await self.ask(node, FindCoordinatorRequest(key=key, key_type=key_type), 3)
            await asyncio.sleep(0.05)
