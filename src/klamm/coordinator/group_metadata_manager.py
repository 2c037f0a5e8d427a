"""Owns the groups of the offsets partitions that this broker leads: loading, writing, unloading.

A partition is loaded when this broker becomes its leader and unloaded when it no longer is; leader epochs order
the two, so that a late notification does not undo a newer one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.clock import Clock
from klamm.coordinator import rebalance
from klamm.coordinator.config import GroupConfig
from klamm.coordinator.deferred import Deferred, all_of
from klamm.coordinator.draining import drained
from klamm.coordinator.effects import Answer, Store
from klamm.coordinator.expiry import expired_offsets
from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.coordinator.group_writer import CheckedOffsets, GroupWriter, Target
from klamm.coordinator.memory import Budget, members_bytes
from klamm.coordinator.metrics import GroupMetrics
from klamm.coordinator.offsets_loader import OffsetsLoader
from klamm.coordinator.offsets_log import GIVEN_UP, GroupLog, TransactionalProducer
from klamm.coordinator.ordered_appends import OrderedAppends
from klamm.coordinator.partition_reading import read_partition
from klamm.coordinator.partitioning import partition_for
from klamm.coordinator.scheduler import Scheduler, Wakeups
from klamm.coordinator.transactional_offsets import Marker
from klamm.errors import ErrorCode
from klamm.model import GROUP_METADATA_TOPIC, ConnectionOrder, TopicPartition

_log = logging.getLogger("klamm.coordinator")

WORK_PER_SLICE: Final = 120
"""Work on groups before the loop serves others, in units of about two microseconds. A group costs one."""
CHECKS_PER_UNIT: Final = 5
"""Offsets that are looked at for one unit."""
DELETION_COST: Final = 20
"""Units of work for the batch that deletes offsets or a group; `TOMBSTONE_COST` is added for each of its records."""
TOMBSTONE_COST: Final = 2
OFFSETS_PER_PART: Final = 50
"""Offsets of one group that are checked, and deleted if they have expired, without a pause."""


@dataclass(slots=True, eq=False)
class OffsetsPartition:
    """One partition of `__consumer_offsets` that this broker leads."""

    index: int
    last_before_election: ConnectionOrder = 0
    """The youngest connection that this broker had accepted when it became the leader."""
    is_loading: bool = True
    groups: dict[str, GroupMetadata] = field(default_factory=dict)
    open_transactions: dict[int, dict[str, None]] = field(default_factory=dict)
    """By producer id: the groups that have offsets of its open transaction."""


class GroupMetadataManager:
    def __init__(
        self,
        log: GroupLog,
        clock: Clock,
        config: GroupConfig,
        scheduler: Scheduler,
        metrics: GroupMetrics,
        known_partition_count: Callable[[], int | None],
        last_connection: Callable[[], ConnectionOrder] = lambda: 0,
    ) -> None:
        self._log = log
        self._clock = clock
        self._config = config
        self._scheduler = scheduler
        self._metrics = metrics
        self._known_partition_count = known_partition_count
        self._last_connection = last_connection
        self.members_budget = Budget(config.members_max_bytes, lambda: sum(map(members_bytes, self.groups())))
        metadata_budget = Budget(
            config.offset_metadata_total_bytes, lambda: sum(group.offsets.metadata_bytes for group in self.groups())
        )
        self._wakeups = Wakeups()
        self._partitions: dict[int, OffsetsPartition] = {}
        order = OrderedAppends(log, self._partitions.get)
        self._writer = GroupWriter(log, order, clock, config, metadata_budget, scheduler.spawn)
        self.check_offsets = self._writer.check_offsets
        self._epochs: dict[int, int] = {}
        metrics.register(self.groups)

    def now_ms(self) -> int:
        """The clock of sessions and deadlines: it never goes back."""
        return round(self._clock.monotonic() * 1000)

    # --- which groups are here -----------------------------------------------------------------------------------

    def partition_for(self, group_id: str) -> int:
        """By the partition count that all brokers see; before the topic exists, by the one it will be created with."""
        return partition_for(group_id, self._known_partition_count() or self._config.offsets_topic_num_partitions)

    def status(self, group_id: str) -> ErrorCode:
        """Return NONE if this broker coordinates the group and has loaded it."""
        partition = self._partitions.get(self.partition_for(group_id))
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition.is_loading else ErrorCode.NONE

    def is_confirmed(self, group_id: str) -> bool:
        """Whether this broker coordinates the group beyond doubt. One that was paused may have been succeeded."""
        return self._log.is_confirmed(self.partition_for(group_id))

    @property
    def is_loading(self) -> bool:
        return any(partition.is_loading for partition in self._partitions.values())

    def groups(self) -> Iterator[GroupMetadata]:
        for partition in list(self._partitions.values()):
            yield from list(partition.groups.values())

    def get(self, group_id: str) -> GroupMetadata | None:
        partition = self._partitions.get(self.partition_for(group_id))
        return None if partition is None else partition.groups.get(group_id)

    def get_or_add(self, group_id: str) -> GroupMetadata:
        """Return the group, created if necessary; its partition must be loaded."""
        partition = self._partitions[self.partition_for(group_id)]
        group = partition.groups.get(group_id)
        if group is None:
            group = GroupMetadata(group_id, partition.index, state_since_ms=self.now_ms())
            partition.groups[group_id] = group
        return group

    # --- effects and time ----------------------------------------------------------------------------------------

    def perform(self, group: GroupMetadata) -> None:
        """Carry out the effects of the rules: answers, writes, and the group's next timer."""
        while group.effects:
            for effect in group.take_effects():
                if isinstance(effect, Answer):
                    effect.waiter.complete(effect.result)
                else:
                    self._store(group, effect)
        if self._wakeups.schedule(group) and group.wake_ms is not None:
            self._scheduler.wake_at(group.wake_ms)

    def _store(self, group: GroupMetadata, store: Store) -> None:
        def on_stored(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                _log.warning(
                    "writing group %s generation %d failed: %s", group.group_id, store.generation_id, error.name
                )
            rebalance.on_stored(group, store, error, self._config, self.now_ms())
            self.perform(group)

        self._writer.store_group(group, store, self.now_ms()).then(on_stored)

    def advance(self) -> int | None:
        """Process due timers; returns the next deadline."""
        now_ms = self.now_ms()
        while (group := self._wakeups.pop_due(now_ms)) is not None:
            rebalance.advance(group, self._config, now_ms)
            self.perform(group)
        return self._wakeups.next_ms()

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(self, group: GroupMetadata, offsets: CheckedOffsets) -> Deferred[dict[TopicPartition, ErrorCode]]:
        self._metrics.offset_commits.mark(len(offsets.accepted) + len(offsets.refused))
        return self._writer.commit(group, offsets)

    def commit_in_transaction(
        self,
        group_id: str,
        offsets: CheckedOffsets,
        producer: TransactionalProducer,
        admit: Callable[[], GroupMetadata | ErrorCode],
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """`admit` returns the group that accepts the offsets; it is called after the transaction was verified."""
        self._metrics.offset_commits.mark(len(offsets.accepted) + len(offsets.refused))
        index = self.partition_for(group_id)

        def open_transaction() -> GroupMetadata | ErrorCode:
            group = admit()
            if isinstance(group, ErrorCode):
                return group
            partition = self._partitions[index]
            if producer.is_older_than(partition.last_before_election):
                return GIVEN_UP
            partition.open_transactions.setdefault(producer.producer_id, {})[group_id] = None
            return group

        committed = self._writer.commit_in_transaction(Target(group_id, index), offsets, producer, open_transaction)
        committed.then(lambda _: self._forget_ended(index, producer.producer_id, group_id))
        return committed

    def _forget_ended(self, index: int, producer_id: int, group_id: str) -> None:
        """The group no longer waits for the producer if none of its offsets is pending."""
        partition = self._partitions.get(index)
        groups = None if partition is None else partition.open_transactions.get(producer_id)
        if partition is None or groups is None:
            return
        group = partition.groups.get(group_id)
        if group is None or not group.offsets.transactional.has(producer_id):
            groups.pop(group_id, None)
            if not groups:
                del partition.open_transactions[producer_id]

    def delete_offsets(self, group: GroupMetadata, partitions: Sequence[TopicPartition]) -> Deferred[ErrorCode]:
        """An empty group that loses its last offset is deleted too, once the tombstones are written."""
        result: Deferred[ErrorCode] = Deferred()

        def on_deleted(error: ErrorCode) -> None:
            owner = self._partitions.get(group.partition)
            is_here = owner is not None and owner.groups.get(group.group_id) is group
            if error is ErrorCode.NONE and is_here and _is_abandoned(group):
                self.delete_group(group).then(result.complete)
            else:
                result.complete(error)

        self._writer.delete(group, partitions, with_group=False).then(on_deleted)
        return result

    def delete_group(self, group: GroupMetadata) -> Deferred[ErrorCode]:
        """No member can join a dead group. It is deleted once the tombstones are written; if that fails, it stays."""
        assert group.state is GroupState.EMPTY
        since_ms = group.state_since_ms
        group.transition_to(GroupState.DEAD, self.now_ms())
        owner = self._partitions.get(group.partition)

        def on_deleted(error: ErrorCode) -> ErrorCode:
            is_here = owner is not None and owner is self._partitions.get(group.partition)
            if error is ErrorCode.NONE and is_here and owner is not None:
                owner.groups.pop(group.group_id, None)
            elif is_here:
                group.state, group.state_since_ms = GroupState.EMPTY, since_ms
            return error

        return self._writer.delete(group, list(group.offsets.partitions()), with_group=True).map(on_deleted)

    def expire_offsets(self) -> Iterator[None]:
        """The cleaning pass: expired offsets, and empty groups without offsets, in slices."""
        timestamp_ms, now_ms = self._clock.now_ms(), self.now_ms()
        removed = 0
        room = WORK_PER_SLICE
        for group in drained(self.groups()):
            # Checked and deleted without a pause: an offset that is committed in a pause must not be deleted.
            for part in _parts(list(group.offsets.committed)):
                if room <= 0:
                    yield
                    room = WORK_PER_SLICE
                if group.state is GroupState.STABLE and group.subscriptions is not None:
                    yield from group.subscriptions.reading()
                room -= 1 + len(part) // CHECKS_PER_UNIT
                if group.state is GroupState.DEAD:
                    break
                expired = expired_offsets(
                    group, part, self._config.offsets_retention_ms, timestamp_ms=timestamp_ms, now_ms=now_ms
                )
                removed += len(expired)
                room -= self._remove(group, expired)
        self._metrics.offset_expirations.mark(removed)
        yield

    def _remove(self, group: GroupMetadata, partitions: Sequence[TopicPartition]) -> int:
        """Delete these offsets; with the last of them an empty group goes too. Return the cost in units of work."""
        is_last = len(partitions) == len(group.offsets.committed)
        if is_last and _is_quiet(group):
            self.delete_group(group)
        elif partitions:
            self.delete_offsets(group, partitions)
        else:
            return 0
        return DELETION_COST + TOMBSTONE_COST * len(partitions)

    def remove_deleted_partitions(self, deleted: Iterable[TopicPartition]) -> Iterator[None]:
        """The topics were deleted: delete their committed offsets in every group."""
        partitions = dict.fromkeys(deleted)
        room = WORK_PER_SLICE
        for group in drained(self.groups()):
            if room <= 0:
                yield
                room = WORK_PER_SLICE
            room -= 1 + min(group.offsets.count, len(partitions)) // CHECKS_PER_UNIT
            if group.state is not GroupState.DEAD and (known := group.offsets.known(partitions)):
                room -= self._remove(group, known)
        yield

    def complete_transaction(self, producer_id: int, markers: Mapping[int, int], *, commit: bool) -> Deferred[None]:
        """Markers were written: partition by partition, the offsets before the marker are committed or dropped.

        Done when all of them are: then the producer may send the offsets of its next transaction.
        """
        ended: list[Deferred[None]] = []
        for index, offset in markers.items():
            partition = self._partitions.get(index)
            if partition is None or partition.is_loading:
                continue  # The marker is in the log: the broker that loads the partition reads it.
            for group_id in list(partition.open_transactions.get(producer_id, ())):
                ended.append(Deferred())
                marker = Marker(offset, commit)
                self._writer.run(self._end_transaction(partition, group_id, producer_id, marker, ended[-1]))
        return all_of(ended).map(lambda _: None)

    def _end_transaction(
        self, partition: OffsetsPartition, group_id: str, producer_id: int, marker: Marker, ended: Deferred[None]
    ) -> Iterator[None]:
        try:
            if (group := partition.groups.get(group_id)) is not None:
                yield from group.offsets.end_transaction(producer_id, marker)
        except GeneratorExit:  # The broker stops: the next one that loads the partition reads the marker.
            ended.complete(None)
            raise
        if self._partitions.get(partition.index) is partition:
            self._forget_ended(partition.index, producer_id, group_id)
        ended.complete(None)

    # --- leadership ----------------------------------------------------------------------------------------------

    def on_election(self, index: int, leader_epoch: int) -> None:
        """This broker leads the offsets partition: load its groups, unless loaded already."""
        if leader_epoch < self._epochs.get(index, leader_epoch):
            return
        self._epochs[index] = leader_epoch
        if index not in self._partitions:
            partition = self._partitions[index] = OffsetsPartition(index, self._last_connection())
            self._scheduler.spawn(self._load(partition))

    def on_resignation(self, index: int, leader_epoch: int | None) -> None:
        """Another broker leads the offsets partition, or none: unload its groups and answer their waiters."""
        if leader_epoch is not None:
            if leader_epoch < self._epochs.get(index, leader_epoch):
                return
            self._epochs[index] = leader_epoch
        partition = self._partitions.pop(index, None)
        if partition is None:
            return
        now_ms = self.now_ms()
        for group in partition.groups.values():
            rebalance.unload(group, now_ms)
            self.perform(group)

    def resign_all(self) -> None:
        for index in list(self._partitions):
            self.on_resignation(index, None)

    def _load(self, partition: OffsetsPartition) -> Iterator[None]:
        started = self._clock.monotonic()
        loader = OffsetsLoader(partition.index)
        yield
        read = read_partition(
            self._log, GROUP_METADATA_TOPIC, partition.index, loader.add, self._config.offsets_load_buffer_size
        )
        for error in read:
            if self._partitions.get(partition.index) is not partition:
                return
            if error is not ErrorCode.NONE:
                _log.error("reading __consumer_offsets-%d failed: %s", partition.index, error.name)
                del self._partitions[partition.index]
                return
            yield
        now_ms = self.now_ms()
        partition.open_transactions = loader.open_transactions
        partition.groups = {group.group_id: group for group in loader.groups(now_ms, self._clock.now_ms())}
        partition.is_loading = False
        for group in list(partition.groups.values()):
            rebalance.on_loaded(group, self._config, now_ms)
            self.perform(group)
        self._metrics.on_loaded((self._clock.monotonic() - started) * 1000)


def _parts(partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    """Yield the partitions in parts: at least one, which may be empty."""
    for start in range(0, len(partitions) or 1, OFFSETS_PER_PART):
        yield partitions[start : start + OFFSETS_PER_PART]


def _is_quiet(group: GroupMetadata) -> bool:
    """Whether the group has no members, and no commit, transaction or join in progress."""
    pending = group.offsets.pending or group.offsets.transactional or group.pending_members
    return group.state is GroupState.EMPTY and not pending


def _is_abandoned(group: GroupMetadata) -> bool:
    return _is_quiet(group) and not group.offsets.committed
