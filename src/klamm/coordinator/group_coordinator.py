"""The facade for API handlers: it checks that the group is hosted here, applies the rules and sends the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

from klamm.coordinator import membership
from klamm.coordinator import rebalance as rules
from klamm.coordinator.config import GroupConfig
from klamm.coordinator.deferred import Deferred, all_of
from klamm.coordinator.effects import JoinGroupResult, SyncGroupResult
from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.coordinator.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.join import UNKNOWN_MEMBER_ID, JoinGroup, join
from klamm.coordinator.membership import MemberIdentity, MemberResponse, SyncGroup
from klamm.coordinator.memory import MEMBER_COST, protocols_bytes
from klamm.coordinator.metrics import GroupMetrics
from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.coordinator.offsets_log import TransactionalProducer
from klamm.coordinator.scheduler import Scheduler
from klamm.coordinator.transactional_offsets import OFFSETS_PER_SLICE
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import GROUP_METADATA_TOPIC, TopicPartition

Leadership = Sequence[tuple[TopicPartition, int]]


@lazy_dataclass(frozen=True, slots=True)
class FetchedOffset:
    """`value` None: nothing is committed for the partition."""

    value: OffsetAndMetadata | None
    error: ErrorCode = ErrorCode.NONE


@lazy_dataclass(frozen=True, slots=True)
class GroupOverview:
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


@lazy_dataclass(frozen=True, slots=True)
class MemberSummary:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@lazy_dataclass(frozen=True, slots=True)
class GroupSummary:
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberSummary, ...] = ()


class GroupCoordinator:
    def __init__(
        self,
        manager: GroupMetadataManager,
        config: GroupConfig,
        scheduler: Scheduler,
        metrics: GroupMetrics,
        new_uuid: Callable[[], str],
    ) -> None:
        self.config = config
        self._manager = manager
        self._scheduler = scheduler
        self._metrics = metrics
        self._new_uuid = new_uuid
        self._is_active = False
        self._next_expiry_ms = 0

    def startup(self) -> None:
        self._is_active = True
        self._next_expiry_ms = self._manager.now_ms() + self.config.offsets_retention_check_interval_ms
        self.advance()

    def shutdown(self) -> None:
        """Answer all waiting members; from now on every request is COORDINATOR_NOT_AVAILABLE."""
        self._is_active = False
        self._scheduler.stop()
        self._manager.resign_all()

    def advance(self) -> None:
        """Process due timers (sessions, rebalances, offsets) and schedule the next call."""
        if not self._is_active:
            return
        now_ms = self._manager.now_ms()
        if self._next_expiry_ms <= now_ms:
            self._next_expiry_ms = now_ms + self.config.offsets_retention_check_interval_ms
            self._scheduler.spawn(self._manager.expire_offsets())
        next_ms = self._manager.advance()
        self._scheduler.wake_at(self._next_expiry_ms if next_ms is None else min(next_ms, self._next_expiry_ms))

    # --- membership ----------------------------------------------------------------------------------------------

    def join_group(self, group_id: str, request: JoinGroup) -> Deferred[JoinGroupResult]:
        error = self._status(group_id)
        if error is ErrorCode.NONE and not self._accepts_session(request.session_timeout_ms):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        group = self._manager.get(group_id) if error is ErrorCode.NONE else None
        if error is ErrorCode.NONE and group is None:
            error = self._refuse_new_group(request)
        if error is ErrorCode.NONE:
            error = self._refuse_memory(group, request)
        if error is not ErrorCode.NONE:
            return Deferred.of(JoinGroupResult.failed(request.member_id, error))
        group = group or self._manager.get_or_add(group_id)
        waiter: Deferred[JoinGroupResult] = Deferred()
        join(group, request, waiter, new_uuid=self._new_uuid, config=self.config, now_ms=self._manager.now_ms())
        self._manager.perform(group)
        return waiter

    def _accepts_session(self, session_timeout_ms: int) -> bool:
        return self.config.min_session_timeout_ms <= session_timeout_ms <= self.config.max_session_timeout_ms

    def _refuse_new_group(self, request: JoinGroup) -> ErrorCode:
        """Only a member without an id that names its protocols can create a group."""
        if request.member_id != UNKNOWN_MEMBER_ID:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _refuse_memory(self, group: GroupMetadata | None, request: JoinGroup) -> ErrorCode:
        """Limits the memory of members. A member that does not grow may always rejoin."""
        size = protocols_bytes(request.protocols)
        if size > self.config.record_max_bytes:
            return ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's answer if the group's record is too large for the log.
        member = group.members.get(request.member_id) if group is not None else None
        if member is not None and size <= protocols_bytes(member.protocols):
            return ErrorCode.NONE
        size += MEMBER_COST + 2 * len(request.client_id)
        has_room = self._manager.members_budget.has_room(size, self._manager.now_ms())
        return ErrorCode.NONE if has_room else ErrorCode.GROUP_MAX_SIZE_REACHED

    def sync_group(self, group_id: str, request: SyncGroup) -> Deferred[SyncGroupResult]:
        error = self._status(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance was lost with the old coordinator, and older clients do not expect 14 here.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        group = self._manager.get(group_id) if error is ErrorCode.NONE else None
        if group is None:
            return Deferred.of(SyncGroupResult(error or ErrorCode.UNKNOWN_MEMBER_ID))
        waiter: Deferred[SyncGroupResult] = Deferred()
        if membership.sync(group, request, waiter, self._manager.now_ms()):
            self._metrics.completed_rebalances.mark()
        self._manager.perform(group)
        return waiter

    def heartbeat(
        self, group_id: str, member_id: str, generation_id: int, group_instance_id: str | None = None
    ) -> ErrorCode:
        error = self._status(group_id)
        if error is not ErrorCode.NONE:
            # While the group is loading, its members are not known here.
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = self._manager.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        result = membership.heartbeat(group, member_id, group_instance_id, generation_id, self._manager.now_ms())
        self._manager.perform(group)
        return result

    def leave_group(
        self, group_id: str, members: Sequence[MemberIdentity]
    ) -> tuple[ErrorCode, tuple[MemberResponse, ...]]:
        error = self._status(group_id)
        if error is not ErrorCode.NONE:
            return error, ()
        group = self._manager.get(group_id)
        if group is None:
            return ErrorCode.NONE, tuple(MemberResponse(m, ErrorCode.UNKNOWN_MEMBER_ID) for m in members)
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        now_ms = self._manager.now_ms()
        left = tuple(MemberResponse(m, membership.leave(group, m, self.config, now_ms)) for m in members)
        self._manager.perform(group)
        return ErrorCode.NONE, left

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> Generator[None, None, Deferred[dict[TopicPartition, ErrorCode]]]:
        """Check `offsets` in slices, then commit all of them in one step, in the generation that the group has then."""
        member = MemberIdentity(member_id, group_instance_id)
        group = self._commit_target(group_id, member, generation_id)
        if isinstance(group, ErrorCode):
            return Deferred.of(dict.fromkeys(offsets, group))
        checked = yield from self._manager.check_offsets(offsets)
        group = self._commit_target(group_id, member, generation_id)
        if isinstance(group, ErrorCode):
            return Deferred.of(dict.fromkeys(offsets, group))
        if (known := group.members.get(member_id)) is not None:
            rules.restart_session(group, known, self._manager.now_ms())
        return self._manager.commit(group, checked)

    def _commit_target(self, group_id: str, member: MemberIdentity, generation_id: int) -> GroupMetadata | ErrorCode:
        """Return the group, created if necessary, if the member may commit its offsets now; otherwise the error."""
        error = self._status(group_id, allow_empty=True)
        if error is not ErrorCode.NONE:
            return error
        group = self._manager.get(group_id)
        if group is None and generation_id >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        group = group or self._manager.get_or_add(group_id)
        error = membership.validate_offset_commit(group, member.member_id, member.group_instance_id, generation_id)
        return group if error is ErrorCode.NONE else error

    def commit_offsets_in_transaction(
        self,
        group_id: str,
        member: MemberIdentity,
        generation_id: int,
        producer: TransactionalProducer,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> Generator[None, None, Deferred[dict[TopicPartition, ErrorCode]]]:
        """Write `offsets` as part of the producer's transaction: they count when it is committed.

        The transaction is verified first. Then member and generation are checked, with the group as it is by then.
        """
        error = self._status(group_id)
        if error is not ErrorCode.NONE:
            return Deferred.of(dict.fromkeys(offsets, error))
        checked = yield from self._manager.check_offsets(offsets)

        def admit() -> GroupMetadata | ErrorCode:
            error = self._status(group_id)
            if error is not ErrorCode.NONE:
                return error
            group = self._manager.get(group_id) or GroupMetadata(group_id, self._manager.partition_for(group_id))
            error = membership.validate_transactional_offset_commit(
                group, member.member_id, member.group_instance_id, generation_id
            )
            return self._manager.get_or_add(group_id) if error is ErrorCode.NONE else error

        return self._manager.commit_in_transaction(group_id, checked, producer, admit)

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset] | ErrorCode:
        """Return the committed offsets of `partitions`, or of all, in any state of the group."""
        error = self._status(group_id, allow_empty=True)
        if error is not ErrorCode.NONE:
            return error
        if require_stable and not self._manager.is_confirmed(group_id):
            return ErrorCode.NOT_COORDINATOR
        group = self._manager.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return {tp: FetchedOffset(None) for tp in partitions or ()}
        offsets = group.offsets
        return {
            tp: FetchedOffset(None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if require_stable and offsets.is_unstable(tp)
            else FetchedOffset(offsets.get(tp))
            for tp in (offsets.committed if partitions is None else partitions)
        }

    def committed_partitions(self, group_id: str) -> list[TopicPartition] | ErrorCode:
        """Return the partitions for which the group has committed an offset."""
        error = self._status(group_id, allow_empty=True)
        if error is not ErrorCode.NONE:
            return error
        group = self._manager.get(group_id)
        return [] if group is None or group.state is GroupState.DEAD else list(group.offsets.committed)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> Generator[None, None, Deferred[dict[TopicPartition, ErrorCode] | ErrorCode]]:
        """Delete offsets of an empty group, or of a consumer group's unsubscribed topics (KIP-496).

        Subscriptions and partitions are looked at in slices, again if the group has changed meanwhile.
        """
        free: list[TopicPartition] = []
        seen: tuple[object, ...] = ()
        while True:
            group = self._deletion_target(group_id)
            if isinstance(group, ErrorCode):
                return Deferred.of(group)
            now = (group, group.state is GroupState.EMPTY, group.subscriptions)
            if seen and all(before is after for before, after in zip(seen, now, strict=True)):
                break
            seen = now
            free = yield from _free(group, partitions)
        errors = dict.fromkeys(partitions, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        self._metrics.offset_deletions.mark(len(free))
        return self._manager.delete_offsets(group, free).map(lambda e: {**errors, **dict.fromkeys(free, e)})

    def _deletion_target(self, group_id: str) -> GroupMetadata | ErrorCode:
        error = self._status(group_id)
        if error is not ErrorCode.NONE:
            return error
        group = self._manager.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_deletable = group.state is GroupState.EMPTY or group.is_consumer_group
        return group if is_deletable else ErrorCode.NON_EMPTY_GROUP

    # --- administration ------------------------------------------------------------------------------------------

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> tuple[ErrorCode, list[GroupOverview]]:
        """The groups of this broker, in any of `states` and of any of `types` (both without regard to case)."""
        if not self._is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._manager.is_loading else ErrorCode.NONE
        wanted = {state.lower() for state in states}
        if types and "classic" not in {group_type.lower() for group_type in types}:
            return error, []
        return error, [
            GroupOverview(group.group_id, group.protocol_type or "", group.state.value)
            for group in self._manager.groups()
            if not wanted or group.state.value.lower() in wanted
        ]

    def member_ids(self, group_id: str) -> frozenset[str]:
        """Return the members of a group; none if the group is not known here."""
        group = self._manager.get(group_id)
        return frozenset() if group is None else frozenset(group.members)

    def describe_group(self, group_id: str) -> tuple[ErrorCode, GroupSummary]:
        """An unknown group is described as Dead; metadata and assignments are shown in the Stable state only."""
        error = self._status(group_id, allow_empty=True)
        if error is not ErrorCode.NONE:
            return error, GroupSummary("")
        group = self._manager.get(group_id)
        if group is None:
            return ErrorCode.NONE, GroupSummary(GroupState.DEAD.value)
        protocol = group.protocol_name if group.state is GroupState.STABLE else None
        return ErrorCode.NONE, GroupSummary(
            group.state.value, group.protocol_type or "", protocol or "", _summaries(group, protocol)
        )

    def delete_groups(self, group_ids: Iterable[str]) -> Deferred[dict[str, ErrorCode]]:
        ids = list(dict.fromkeys(group_ids))
        return all_of([self._delete_group(group_id) for group_id in ids]).map(
            lambda errors: dict(zip(ids, errors, strict=True))
        )

    def _delete_group(self, group_id: str) -> Deferred[ErrorCode]:
        error = self._status(group_id, allow_empty=True)
        if error is not ErrorCode.NONE:
            return Deferred.of(error)
        group = self._manager.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return Deferred.of(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY:
            return Deferred.of(ErrorCode.NON_EMPTY_GROUP)
        return self._manager.delete_group(group)

    # --- the cluster ---------------------------------------------------------------------------------------------

    def partition_for(self, group_id: str) -> int:
        return self._manager.partition_for(group_id)

    def on_leadership_change(self, became_leader: Leadership, became_follower: Leadership) -> None:
        """Listener of the ReplicaManager: only partitions of `__consumer_offsets` matter."""
        for tp, leader_epoch in became_follower:
            if tp.topic == GROUP_METADATA_TOPIC:
                self._manager.on_resignation(tp.partition, leader_epoch if leader_epoch >= 0 else None)
        for tp, leader_epoch in became_leader:
            if tp.topic == GROUP_METADATA_TOPIC:
                self._manager.on_election(tp.partition, leader_epoch)

    def on_partitions_deleted(self, partitions: Sequence[TopicPartition]) -> None:
        """Called with the partitions that an UpdateMetadata deleted."""
        if partitions:
            self._scheduler.spawn(self._manager.remove_deleted_partitions(partitions))

    def on_transaction_completed(self, producer_id: int, markers: Mapping[int, int], *, commit: bool) -> Deferred[None]:
        """A transaction's marker is in these offsets partitions, each at the given offset of its log.

        Done when the offsets of the transaction are committed or dropped.
        """
        return self._manager.complete_transaction(producer_id, markers, commit=commit)

    def _status(self, group_id: str, *, allow_empty: bool = False) -> ErrorCode:
        """Return why the request cannot be served here. The empty group id is allowed where old consumers used it."""
        if not group_id and not allow_empty:
            return ErrorCode.INVALID_GROUP_ID
        if not self._is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._manager.status(group_id)


def _free(group: GroupMetadata, partitions: Sequence[TopicPartition]) -> Generator[None, None, list[TopicPartition]]:
    """Those of `partitions` whose offsets the group does not need, in slices."""
    is_empty = group.state is GroupState.EMPTY
    if not is_empty and group.subscriptions is not None:
        yield from group.subscriptions.reading()
    topics = frozenset[str]() if is_empty else group.subscribed_topics
    if topics is None:
        return []
    free: list[TopicPartition] = []
    for start in range(0, len(partitions), OFFSETS_PER_SLICE):
        if start:
            yield
        free += [tp for tp in partitions[start : start + OFFSETS_PER_SLICE] if tp.topic not in topics]
    return free


def _summaries(group: GroupMetadata, protocol: str | None) -> tuple[MemberSummary, ...]:
    return tuple(
        MemberSummary(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            b"" if protocol is None else member.metadata(protocol),
            b"" if protocol is None else member.assignment,
        )
        for member in group.members.values()
    )
