"""Deletes replicas that were moved away while this broker could not be informed.

`klamm.replica.stray_replicas` has the rule.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from uuid import UUID

from klamm.broker import Broker
from klamm.metadata import MetadataSnapshot, MetadataUpdate
from klamm.model import NO_EPOCH, ZERO_UUID, TopicPartition
from klamm.replica.state_change import delete_strays
from klamm.replica.stray_replicas import StrayReplicasRule
from klamm.server import read_steps
from klamm.server.background_tasks import Spawn

log = logging.getLogger(__name__)

SLICE: Final = 200
"""Number of logs that are checked before other work has its turn."""


class StrayReplicas:
    """Lives on the broker loop."""

    def __init__(self, broker: Broker, spawn: Spawn) -> None:
        self._broker = broker
        self._spawn = spawn
        self._rule = StrayReplicasRule(_HostedReplicas(broker))

    def start(self) -> None:
        """Listen to metadata, from before the broker registers for the first time."""
        self._broker.metadata.update_listeners.append(self._on_update)

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        if self._rule.on_update(update):
            self._spawn(self._remove())

    async def _remove(self) -> None:
        suspects = await self._suspects()
        if not suspects:
            return
        named = self._rule.named_epochs(suspects)
        epochs = await read_steps.run(self._broker.zk, self._rule.unassigned(suspects))
        deletion = self._broker.replicas.exclusively(lambda: self._delete(epochs, named), in_order=False)
        if isinstance(deletion, asyncio.Future):
            await deletion

    async def _suspects(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        logs = list(self._broker.logs.logs)
        for start in range(0, len(logs), SLICE):
            await asyncio.sleep(0)
            found += self._rule.suspects(self._broker.metadata.snapshot, logs[start : start + SLICE])
        return found

    def _delete(self, epochs: dict[TopicPartition, int], named: dict[TopicPartition, int]) -> None:
        strays = self._rule.strays(epochs, named)
        if strays:
            names = ", ".join(map(str, strays[:10]))
            log.warning("%d replicas were moved away while this broker was offline or lagging: %s", len(strays), names)
            delete_strays(self._broker.replicas, strays)


class _HostedReplicas:
    """Answers the rule's questions about the broker's replicas."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def broker_id(self) -> int:
        return self._broker.id

    def topic_id_of_log(self, tp: TopicPartition) -> UUID | None:
        here = self._broker.logs.get_log(tp)
        return None if here is None else here.topic_id or ZERO_UUID

    def leader_epoch(self, tp: TopicPartition) -> int:
        partition = self._broker.replicas.partitions.get(tp)
        return NO_EPOCH if partition is None else partition.leader_epoch
