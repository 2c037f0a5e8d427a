"""Consumers with `read_committed` in a simulated cluster, on leaders and on followers."""

from __future__ import annotations

from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.sim.clients import RETRIABLE, Client
from klamm.sim.transactions.isolation import committed_records
from klamm.sim.transactions.observations import Poll, Recorder
from klamm.sim.violation import Violation, require

READ_COMMITTED: Final = 1
_VERSION: Final = 11


class CommittedReader:
    """Reads one partition from its beginning and records every poll."""

    def __init__(self, name: str, client: Client, tp: TopicPartition, recorder: Recorder, rack: str = "") -> None:
        self._name = f"{name} of {tp}"
        self._seeks = 0
        self.tp = tp
        self._client = client
        self._recorder = recorder
        self._rack = rack
        self._near: int | None = None
        """The follower that the leader referred it to."""
        self.near_records = 0
        """Number of responses with records from a follower."""
        self.offset = 0

    @property
    def name(self) -> str:
        """The name of its polls since the last seek."""
        return f"{self._name} #{self._seeks}" if self._seeks else self._name

    def seek(self, offset: int) -> None:
        self._seeks += offset != self.offset
        self.offset = offset

    async def run(self) -> None:
        while True:
            await self.poll(max_wait_ms=300)

    async def poll(self, *, max_wait_ms: int = 0, max_bytes: int = 600) -> Poll | None:
        """Return the next records; None if there was no answer."""
        leader, epoch = await self._client.leader(self.tp)
        target = leader if self._near is None else self._near
        try:
            response = await self._client.ask(target, self._request(epoch, max_wait_ms, max_bytes), _VERSION)
        except OSError:
            await self._start_again()
            return None
        result = response.responses[0].partitions[0]
        if target == leader and result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.offset = 0  # `auto.offset.reset=earliest`
        if not await self._is_answer(result.error_code):
            return None
        if target == leader:
            self._near = result.preferred_read_replica if result.preferred_read_replica >= 0 else None
        poll = self._poll_of(result)
        self.near_records += target != leader and bool(poll.records)
        if poll.end > poll.start:
            self._recorder.on_polled(self.name, poll)
        self.offset = poll.end
        return poll

    def _poll_of(self, result: Any) -> Poll:
        aborted = [(it.producer_id, it.first_offset) for it in result.aborted_transactions or ()]
        firsts = [first for _, first in aborted]
        require(firsts == sorted(firsts), f"the aborted transactions of {self.tp} are not sorted: {aborted}")
        records, end = committed_records(bytes(result.records or b""), aborted, self.offset)
        stable = result.last_stable_offset
        message = f"{self.name} was given records up to {end}, but {self.tp} is stable up to {stable} only"
        require(end == self.offset or end <= stable, message)
        return Poll(self.tp, self.offset, records, end)

    async def _is_answer(self, code: int) -> bool:
        if code == ErrorCode.NONE:
            return True
        if code not in RETRIABLE and code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Violation(f"{self.name} was answered {ErrorCode(code).name} for offset {self.offset}")
        await self._start_again()
        return False

    async def _start_again(self) -> None:
        self._near = None
        self._client.forget_leader(self.tp)
        await self._client.rest()

    def _request(self, epoch: int, max_wait_ms: int, max_bytes: int) -> FetchRequest:
        partition = FetchPartition(
            partition=self.tp.partition,
            current_leader_epoch=epoch,
            fetch_offset=self.offset,
            partition_max_bytes=max_bytes,
        )
        topic = FetchTopic(topic=self.tp.topic, partitions=[partition])
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=100_000,
            isolation_level=READ_COMMITTED,
            topics=[topic],
            rack_id=self._rack,
        )
