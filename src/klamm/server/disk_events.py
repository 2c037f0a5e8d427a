"""The broker's reactions to its disks: flushed records wake requests, a failed directory takes partitions offline."""

from __future__ import annotations

import asyncio

from klamm.broker import Broker
from klamm.log.log_manager import LogEvents
from klamm.model import TopicPartition
from klamm.server import log_dir_notes
from klamm.server.background_tasks import Spawn


class DiskEvents:
    """Passes the events of a `LogManager` on to `receiver`.

    The logs are loaded before the other owners exist. A directory that fails meanwhile needs no reaction: the broker
    starts without it.
    """

    def __init__(self) -> None:
        self.receiver = LogEvents()

    def relay(self) -> LogEvents:
        return LogEvents(
            on_dir_failure=lambda log_dir, sentence: self.receiver.on_dir_failure(log_dir, sentence),
            on_dir_revival=lambda log_dir: self.receiver.on_dir_revival(log_dir),
            on_flushed=lambda tp, recovery_point: self.receiver.on_flushed(tp, recovery_point),
        )


class DiskReactions:
    """Lives on the broker loop."""

    def __init__(self, broker: Broker, spawn: Spawn) -> None:
        self._broker = broker
        self._spawn = spawn

    def events(self) -> LogEvents:
        return LogEvents(self._on_dir_failure, self._on_dir_revival, self._on_flushed)

    def request_leader_and_isr(self) -> None:
        """Leave a notification, which the controller answers with a LeaderAndIsr of all replicas on this broker."""
        self._spawn(log_dir_notes.leave_note(self._broker.zk, self._broker.id))

    def _on_flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        self._broker.replicas.on_flushed(tp, recovery_point)

    def _on_dir_failure(self, log_dir: str, sentence: str) -> None:
        """Called inside the failing operation, so the consequences are posted."""
        self._broker.loop.call_soon_threadsafe(lambda: self._spawn(self._take_offline(log_dir)))

    async def _take_offline(self, log_dir: str) -> None:
        for _ in self._broker.replicas.log_dir_failure_pass(log_dir):
            await asyncio.sleep(0)
        self.request_leader_and_isr()

    def _on_dir_revival(self, log_dir: str) -> None:
        self._broker.replicas.on_log_dir_revival(log_dir)
        self.request_leader_and_isr()
