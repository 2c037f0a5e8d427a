"""Transitions of a group between generations, and its timers.

PreparingRebalance collects JoinGroups until every member has joined or the rebalance timeout is over. The first
rebalance of an empty group waits `group.initial.rebalance.delay.ms` for more members, and longer while new ones arrive.
CompletingRebalance waits for the leader's assignment. Stable has it. Empty has no members; Dead is removed.
"""

from __future__ import annotations

from typing import Final, assert_never

from klamm.coordinator.config import GroupConfig
from klamm.coordinator.effects import (
    JoinGroupResult,
    Store,
    StoreAssignment,
    StoreEmpty,
    StoreStaticMember,
    SyncGroupResult,
)
from klamm.coordinator.group_metadata import GroupMetadata, GroupState, InitialDelay
from klamm.coordinator.member_metadata import MemberMetadata
from klamm.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""Maximum wait of a new member for its first answer, because it cannot send heartbeats before."""
SMALLEST_REARM_MS: Final = 1_000
"""Minimum interval of a timer that is set again: no member that joined can lead, or a member still waits."""

_CAN_REBALANCE = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)


def restart_session(group: GroupMetadata, member: MemberMetadata, now_ms: int, timeout_ms: int | None = None) -> None:
    """The member is alive: extend its session by the session timeout."""
    member.session_deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
    group.wake_by(member.session_deadline_ms)


def maybe_prepare_rebalance(group: GroupMetadata, config: GroupConfig, now_ms: int) -> None:
    if group.state in _CAN_REBALANCE:
        prepare_rebalance(group, config, now_ms)


def prepare_rebalance(group: GroupMetadata, config: GroupConfig, now_ms: int) -> None:
    """Start a rebalance; it completes at once if every member has already joined."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        _reset_and_propagate_error(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
    group.pending_sync_members.clear()
    group.sync_deadline_ms = None
    group.storing_generation = None
    if group.state is GroupState.EMPTY:
        delay_ms = config.initial_rebalance_delay_ms
        group.initial_delay = InitialDelay(delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        _set_join_deadline(group, now_ms + delay_ms)
    else:
        group.initial_delay = None
        _set_join_deadline(group, now_ms + group.rebalance_timeout_ms)
    group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
    try_complete_join(group, now_ms)


def _set_join_deadline(group: GroupMetadata, deadline_ms: int) -> None:
    group.join_deadline_ms = deadline_ms
    group.wake_by(deadline_ms)


def try_complete_join(group: GroupMetadata, now_ms: int) -> None:
    """End PreparingRebalance when no member is waited for. The initial delay always runs to its end."""
    if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay is None and group.all_members_joined:
        _complete_join(group, now_ms)


def _complete_join(group: GroupMetadata, now_ms: int) -> None:
    """Continue with the members that joined. Dynamic members that did not are removed; static ones keep their place."""
    for member in list(group.members.values()):
        if member.awaiting_join is None and not member.is_static:
            group.remove(member.member_id)
    if group.members and not _elect_joined_leader(group):
        _set_join_deadline(group, now_ms + max(group.rebalance_timeout_ms, SMALLEST_REARM_MS))
        return
    group.join_deadline_ms = None
    group.initial_delay = None
    group.init_next_generation(now_ms)
    if group.state is GroupState.EMPTY:
        group.effects.append(StoreEmpty(group.generation_id))
        return
    for member in group.members.values():
        group.answer_join(member, group.join_result(member.member_id, members=member.member_id == group.leader_id))
        restart_session(group, member, now_ms)
        member.is_new = False
        group.pending_sync_members[member.member_id] = None
    group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms
    group.wake_by(group.sync_deadline_ms)


def _elect_joined_leader(group: GroupMetadata) -> bool:
    """Keep the leader if it joined, else choose the first member that did; returns False if none did."""
    assert group.leader_id is not None
    if group.members[group.leader_id].awaiting_join is not None:
        return True
    joined = next((m.member_id for m in group.members.values() if m.awaiting_join is not None), None)
    if joined is None:
        return False
    group.leader_id = joined
    return True


def remove_member_and_update(group: GroupMetadata, member_id: str, config: GroupConfig, now_ms: int) -> None:
    """The member left or timed out: the others take over its work."""
    group.remove(member_id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare_rebalance(group, config, now_ms)
    else:
        try_complete_join(group, now_ms)


def remove_pending_member(group: GroupMetadata, member_id: str, now_ms: int) -> None:
    group.remove(member_id)
    try_complete_join(group, now_ms)


def sync_received(group: GroupMetadata, member_id: str) -> None:
    group.pending_sync_members.pop(member_id, None)
    if not group.pending_sync_members:
        group.sync_deadline_ms = None


# The log's answer


def on_stored(group: GroupMetadata, store: Store, error: ErrorCode, config: GroupConfig, now_ms: int) -> None:
    """The write of `store` ended. If the group has changed meanwhile, its newer state stays."""
    match store:
        case StoreAssignment():
            if group.state is GroupState.COMPLETING_REBALANCE and store.generation_id == group.generation_id:
                _assignment_stored(group, store, error, config, now_ms)
        case StoreStaticMember():
            _static_member_stored(group, store, error, now_ms)
        case StoreEmpty():
            # Without the record, an older generation comes back after a fail-over and its members time out.
            pass
        case _:
            assert_never(store)


def _assignment_stored(
    group: GroupMetadata, store: StoreAssignment, error: ErrorCode, config: GroupConfig, now_ms: int
) -> None:
    group.storing_generation = None
    if error is not ErrorCode.NONE:
        _reset_and_propagate_error(group, error, now_ms)
        prepare_rebalance(group, config, now_ms)
        return
    for member in group.members.values():
        member.assignment = store.assignment.get(member.member_id, b"")
        result = SyncGroupResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)
        if group.answer_sync(member, result):
            restart_session(group, member, now_ms)
    group.transition_to(GroupState.STABLE, now_ms)


def _reset_and_propagate_error(group: GroupMetadata, error: ErrorCode, now_ms: int) -> None:
    for member in group.members.values():
        member.assignment = b""
        if group.answer_sync(member, SyncGroupResult(error)):
            restart_session(group, member, now_ms)


def _static_member_stored(group: GroupMetadata, store: StoreStaticMember, error: ErrorCode, now_ms: int) -> None:
    """Answer the returned member. A rebalance that began meanwhile keeps its JoinGroup and will answer it."""
    member = group.members.get(store.new_member_id)
    if member is None or group.state is not GroupState.STABLE or group.generation_id != store.generation_id:
        return
    if error is not ErrorCode.NONE:
        group.answer_join(member, JoinGroupResult.failed("", error))
        group.update(member, store.old_protocols, store.old_rebalance_timeout_ms, store.old_session_timeout_ms)
        group.replace_static_member(store.group_instance_id, store.new_member_id, store.old_member_id)
        restart_session(group, member, now_ms)
        return
    is_leader = group.leader_id == store.new_member_id
    if store.skip_assignment:
        result = group.join_result(store.new_member_id, members=is_leader, skip_assignment=is_leader)
    else:
        result = group.join_result(store.new_member_id, members=False)
        result = _with_leader(result, store.old_leader_id)
    group.answer_join(member, result)


def _with_leader(result: JoinGroupResult, leader_id: str | None) -> JoinGroupResult:
    """Before v9 a returned static leader is shown its old id as the leader, so that it assigns nothing."""
    return JoinGroupResult(
        result.error,
        result.member_id,
        result.generation_id,
        result.protocol_type,
        result.protocol_name,
        leader_id or "",
    )


# Time


def advance(group: GroupMetadata, config: GroupConfig, now_ms: int) -> None:
    """Process timers due at `now_ms` and set the next `wake_ms`."""
    _expire_pending_members(group, now_ms)
    _expire_sessions(group, config, now_ms)
    if group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
        _join_deadline(group, config, now_ms)
    if group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
        _sync_deadline(group, config, now_ms)
    group.wake_ms = _next_deadline(group)


def _next_deadline(group: GroupMetadata) -> int | None:
    if group.state is GroupState.DEAD:
        return None
    deadlines = [member.session_deadline_ms for member in group.members.values()]
    deadlines += group.pending_members.values()
    deadlines += [d for d in (group.join_deadline_ms, group.sync_deadline_ms) if d is not None]
    return min(deadlines, default=None)


def _expire_pending_members(group: GroupMetadata, now_ms: int) -> None:
    for member_id in [m for m, deadline_ms in group.pending_members.items() if deadline_ms <= now_ms]:
        remove_pending_member(group, member_id, now_ms)


def _expire_sessions(group: GroupMetadata, config: GroupConfig, now_ms: int) -> None:
    """Members with a pending request cannot send heartbeats: only a new member that waits too long is expired."""
    for member in [m for m in group.members.values() if m.session_deadline_ms <= now_ms]:
        if group.members.get(member.member_id) is not member or member.session_deadline_ms > now_ms:
            continue
        waits = member.awaiting_join is not None or member.awaiting_sync is not None
        if waits and not member.is_new:
            restart_session(group, member, now_ms, max(member.session_timeout_ms, SMALLEST_REARM_MS))
        else:
            remove_member_and_update(group, member.member_id, config, now_ms)


def _join_deadline(group: GroupMetadata, config: GroupConfig, now_ms: int) -> None:
    initial = group.initial_delay
    if initial is None or not group.new_member_added or initial.remaining_ms == 0:
        group.initial_delay = None
        _complete_join(group, now_ms)
        return
    group.new_member_added = False
    delay_ms = min(config.initial_rebalance_delay_ms, initial.remaining_ms)
    group.initial_delay = InitialDelay(delay_ms, max(initial.remaining_ms - initial.delay_ms, 0))
    _set_join_deadline(group, now_ms + delay_ms)


def _sync_deadline(group: GroupMetadata, config: GroupConfig, now_ms: int) -> None:
    """Remove members that joined the new generation but never sent SyncGroup: they block the group."""
    group.sync_deadline_ms = None
    late = list(group.pending_sync_members)
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not late:
        return
    for member_id in late:
        group.remove(member_id)
    prepare_rebalance(group, config, now_ms)


def unload(group: GroupMetadata, now_ms: int) -> None:
    """Send all waiting members to the group's new coordinator; this broker no longer coordinates it, or stops."""
    group.transition_to(GroupState.DEAD, now_ms)
    for member in group.members.values():
        group.answer_join(member, JoinGroupResult.failed(member.member_id, ErrorCode.NOT_COORDINATOR))
        group.answer_sync(member, SyncGroupResult(ErrorCode.NOT_COORDINATOR))
    group.join_deadline_ms = group.sync_deadline_ms = group.wake_ms = None


def on_loaded(group: GroupMetadata, config: GroupConfig, now_ms: int) -> None:
    """Members of a loaded group have a full session timeout to contact their new coordinator."""
    if len(group.members) > config.max_size:
        prepare_rebalance(group, config, now_ms)
    for member in group.members.values():
        restart_session(group, member, now_ms)
