"""SyncGroup, Heartbeat and LeaveGroup: requests between two rebalances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from klamm.coordinator import rebalance
from klamm.coordinator.config import GroupConfig
from klamm.coordinator.effects import Answer, StoreAssignment, SyncGroupResult
from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.coordinator.join import UNKNOWN_MEMBER_ID, validate_current_member
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class SyncGroup:
    """A SyncGroup request; `protocol_type` and `protocol_name` are None before v5 (KIP-559)."""

    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@lazy_dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member that leaves. An operator removes a static member by its instance id alone: `member_id` is then empty."""

    member_id: str
    group_instance_id: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class MemberResponse:
    identity: MemberIdentity
    error: ErrorCode


def sync(group: GroupMetadata, request: SyncGroup, waiter: Any, now_ms: int) -> bool:
    """Answer `waiter` with the member's assignment: now if there is one, else when the leader has sent it.

    Return whether this request completes the rebalance: it is the first one with the leader's assignment.
    """
    error = _validate_sync(group, request)
    if error is not ErrorCode.NONE:
        group.effects.append(Answer(waiter, SyncGroupResult(error)))
        return False
    member = group.members[request.member_id]
    rebalance.sync_received(group, request.member_id)
    if group.state is GroupState.STABLE:
        rebalance.restart_session(group, member, now_ms)
        result = SyncGroupResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)
        group.effects.append(Answer(waiter, result))
        return False
    group.await_sync(member, waiter)
    if request.member_id != group.leader_id or group.storing_generation == group.generation_id:
        return False
    group.storing_generation = group.generation_id
    assignment = {member_id: request.assignments.get(member_id, b"") for member_id in group.members}
    group.effects.append(StoreAssignment(group.generation_id, assignment))
    return True


def _validate_sync(group: GroupMetadata, request: SyncGroup) -> ErrorCode:
    error = validate_member_and_generation(group, request.member_id, request.group_instance_id, request.generation_id)
    if error is not ErrorCode.NONE:
        return error
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def validate_member_and_generation(
    group: GroupMetadata, member_id: str, group_instance_id: str | None, generation_id: int
) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = validate_current_member(group, member_id, group_instance_id)
    if error is ErrorCode.NONE and generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def heartbeat(
    group: GroupMetadata, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int
) -> ErrorCode:
    """Extend the session. REBALANCE_IN_PROGRESS asks a member to rejoin."""
    error = validate_member_and_generation(group, member_id, group_instance_id, generation_id)
    if error is not ErrorCode.NONE:
        return error
    rebalance.restart_session(group, group.members[member_id], now_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave(group: GroupMetadata, identity: MemberIdentity, config: GroupConfig, now_ms: int) -> ErrorCode:
    member_id = identity.member_id
    if member_id == UNKNOWN_MEMBER_ID:
        instance_id = identity.group_instance_id
        current = None if instance_id is None else group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        rebalance.remove_member_and_update(group, current, config, now_ms)
        return ErrorCode.NONE
    if member_id in group.pending_members:
        rebalance.remove_pending_member(group, member_id, now_ms)
        return ErrorCode.NONE
    error = validate_current_member(group, member_id, identity.group_instance_id)
    if error is ErrorCode.NONE:
        rebalance.remove_member_and_update(group, member_id, config, now_ms)
    return error


def validate_offset_commit(
    group: GroupMetadata, member_id: str, group_instance_id: str | None, generation_id: int
) -> ErrorCode:
    """Members commit in their generation; without a generation only an empty group accepts offsets.

    PreparingRebalance accepts them (members learn of it by heartbeat, KIP-429), CompletingRebalance does not.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if _is_anonymous(member_id, group_instance_id, generation_id):
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = validate_member_and_generation(group, member_id, group_instance_id, generation_id)
    if error is ErrorCode.NONE and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def validate_transactional_offset_commit(
    group: GroupMetadata, member_id: str, group_instance_id: str | None, generation_id: int
) -> ErrorCode:
    """A producer that names a member is fenced like that member (KIP-447), in any state of the group.

    A producer that names none is accepted: versions 0 to 2 cannot, and its transactional id fences it.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if _is_anonymous(member_id, group_instance_id, generation_id):
        return ErrorCode.NONE
    return validate_member_and_generation(group, member_id, group_instance_id, generation_id)


def _is_anonymous(member_id: str, group_instance_id: str | None, generation_id: int) -> bool:
    return generation_id < 0 and member_id == UNKNOWN_MEMBER_ID and group_instance_id is None
