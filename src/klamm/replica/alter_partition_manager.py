"""ISR changes through the controller (KIP-497): leaders' proposals, sent in AlterPartition requests.

One request is in flight at a time and carries the changes proposed meanwhile, up to a limit. An undecided change (no
controller, a lost answer) is sent again until the controller answers or the partition gets a new leader epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from klamm.client.patience import ISR_CHANGE
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH, ZERO_UUID, TopicPartition
from klamm.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    ResponsePartitionData,
    TopicData,
)

if TYPE_CHECKING:
    from klamm.replica.partition import Partition
    from klamm.replica.replica_manager import ReplicaManager

log = logging.getLogger("klamm.state_change")

_HIGHEST_WITHOUT_IDS: Final = 1
_HIGHEST: Final = 3
CHANGES_PER_REQUEST: Final = 200
"""A follower that stops fetching may leave the ISRs of all partitions. The controller decides as many at once."""
SETTLED_PER_STEP: Final = 20
"""Decisions that are applied before the loop serves others: about half a millisecond, with their log lines."""

REJECTED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
WAIT_FOR_CONTROLLER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The controller has newer state: the change stays undecided, and its next LeaderAndIsr settles it."""


class AlterPartitionChannel(Protocol):
    """Sends a request to the current controller; retries until it is answered."""

    def alter_partition(
        self, request: AlterPartitionRequest, max_version: int
    ) -> Awaitable[AlterPartitionResponse]: ...


class IsrChange(NamedTuple):
    """One proposal. It is current while the partition still waits for exactly this one."""

    partition: Partition
    isr: tuple[int, ...]
    leader_epoch: int
    topic_id: UUID

    @property
    def is_current(self) -> bool:
        partition = self.partition
        return partition.pending_isr is self.isr and partition.leader_epoch == self.leader_epoch and partition.is_leader


class AlterPartitionManager:
    """`submit` is the ReplicaManager's `isr_change_listener`. Lives on the broker loop."""

    def __init__(
        self,
        replicas: ReplicaManager,
        channel: AlterPartitionChannel,
        *,
        broker_epoch: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        has_topic_ids: bool = True,
    ) -> None:
        self._replicas = replicas
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._loop = loop
        self._has_topic_ids = has_topic_ids
        self._unsent: dict[TopicPartition, IsrChange] = {}
        self._task: asyncio.Task[None] | None = None
        self._problem = ""
        self._is_closed = False

    def submit(self, partition: Partition, isr: tuple[int, ...]) -> None:
        """Propose `isr`; until the decision the partition uses the larger of both sets."""
        if self._is_closed:
            return
        partition.propose_isr(isr)
        change = IsrChange(partition, isr, partition.leader_epoch, partition.topic_id)
        self._unsent[partition.topic_partition] = change
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="alter-partition")

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Send until nothing is left."""
        try:
            while self._unsent:
                changes = self._take()
                if not changes:
                    await asyncio.sleep(0)
                    continue
                try:
                    response = await self._send(changes)
                    is_unsettled = response is None or await self._on_response(changes, response)
                except Exception:  # A bug. A proposal that nobody decides would freeze the ISR of its partition.
                    log.exception("handling AlterPartition failed, trying again")
                    self._requeue(changes)
                    is_unsettled = True
                if is_unsettled:
                    await asyncio.sleep(ISR_CHANGE.pause_s())
        finally:
            self._task = None

    def _take(self) -> dict[TopicPartition, IsrChange]:
        """Take the oldest changes that are not sent; drop those that are no longer current."""
        oldest = list(islice(self._unsent.items(), CHANGES_PER_REQUEST))
        for tp, _ in oldest:
            del self._unsent[tp]
        return {tp: change for tp, change in oldest if change.is_current}

    async def _send(self, changes: dict[TopicPartition, IsrChange]) -> AlterPartitionResponse | None:
        by_id = self._has_topic_ids and all(change.topic_id != ZERO_UUID for change in changes.values())
        request = build_request(self._replicas.broker_id, self._broker_epoch(), changes)
        try:
            return await self._channel.alter_partition(request, _HIGHEST if by_id else _HIGHEST_WITHOUT_IDS)
        except OSError as failure:
            self._warn_once(f"no answer: {failure}")
            self._requeue(changes)
            return None

    def _warn_once(self, problem: str) -> None:
        """Log a lasting problem once."""
        if problem != self._problem:
            log.warning("sending AlterPartition to the controller failed, trying again: %s", problem)
        self._problem = problem

    def _requeue(self, changes: dict[TopicPartition, IsrChange]) -> None:
        """Keep newer proposals that were made meanwhile."""
        for tp, change in changes.items():
            self._unsent.setdefault(tp, change)

    async def _on_response(self, changes: dict[TopicPartition, IsrChange], response: AlterPartitionResponse) -> bool:
        """Apply the response, in steps. Return whether something must be sent again later."""
        if response.error_code != ErrorCode.NONE:
            self._warn_once(ErrorCode.of(response.error_code).name)
            self._requeue(changes)
            return True
        self._problem = ""
        names = {change.topic_id: tp.topic for tp, change in changes.items()}
        answered: dict[TopicPartition, ResponsePartitionData] = {}
        for topic in response.topics:
            name = topic.topic_name or names.get(topic.topic_id, "")
            answered.update({TopicPartition(name, data.partition_index): data for data in topic.partitions})
        again: dict[TopicPartition, IsrChange] = {}
        for number, (tp, change) in enumerate(changes.items(), 1):
            if not self._settle(change, answered.get(tp)):
                again[tp] = change
            if number % SETTLED_PER_STEP == 0:
                await asyncio.sleep(0)
        self._requeue(again)
        return bool(again)

    def _settle(self, change: IsrChange, data: ResponsePartitionData | None) -> bool:
        """Apply the controller's decision on one partition; returns False if it must be asked again."""
        if not change.is_current:
            return True
        partition, replicas = change.partition, self._replicas
        error = ErrorCode.UNKNOWN_SERVER_ERROR if data is None else ErrorCode.of(data.error_code)
        if error == ErrorCode.NONE and data is not None:
            return self._commit(change, data)
        log.info("%s: the controller rejected the ISR %s: %s", partition.topic_partition, list(change.isr), error.name)
        if error in REJECTED:
            replicas.isr_meters.failed_updates.mark()
            partition.reject_isr()
            return True
        if error in WAIT_FOR_CONTROLLER:
            replicas.isr_meters.failed_updates.mark()
            return True
        return False

    def _commit(self, change: IsrChange, data: ResponsePartitionData) -> bool:
        before = change.partition.isr
        if not change.partition.commit_isr(
            data.isr, data.leader_epoch, data.partition_epoch, elapsed_ms(self._replicas.clock)
        ):
            return True
        after_isr_change(self._replicas, change.partition, before)
        return True


def after_isr_change(replicas: ReplicaManager, partition: Partition, before: Sequence[int]) -> None:
    """Update meters and counts after a change of the ISR, and wake requests that wait for the high watermark."""
    tp = partition.topic_partition
    log.info("%s: ISR %s -> %s at partition epoch %d", tp, list(before), list(partition.isr), partition.partition_epoch)
    if len(partition.isr) > len(before):
        replicas.isr_meters.expands.mark()
    elif len(partition.isr) < len(before):
        replicas.isr_meters.shrinks.mark()
    replicas.counters.refresh(partition)
    replicas.complete_after_high_watermark(tp)


def build_request(broker_id: int, broker_epoch: int, changes: dict[TopicPartition, IsrChange]) -> AlterPartitionRequest:
    """Return the request in a form that every version can encode."""
    topics: dict[tuple[str, UUID], list[PartitionData]] = {}
    for tp, change in changes.items():
        topics.setdefault((tp.topic, change.topic_id), []).append(_partition_data(change))
    return AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        topics=[
            TopicData(topic_name=name, topic_id=topic_id, partitions=each) for (name, topic_id), each in topics.items()
        ],
    )


def _partition_data(change: IsrChange) -> PartitionData:
    partition = change.partition
    return PartitionData(
        partition_index=partition.topic_partition.partition,
        leader_epoch=change.leader_epoch,
        new_isr=change.isr,
        new_isr_with_epochs=[
            BrokerState(broker_id=member, broker_epoch=_broker_epoch(partition, member)) for member in change.isr
        ],
        partition_epoch=partition.partition_epoch,
    )


def _broker_epoch(partition: Partition, member: int) -> int:
    """A joining replica is accepted only as the incarnation that has fetched; members are not checked."""
    remote = partition.remotes.get(member)
    return UNKNOWN_BROKER_EPOCH if remote is None or member in partition.isr else remote.broker_epoch
