"""JoinGroup: rules for new members, and for when they start a rebalance (KIP-62, 345, 394, 559, 800, 814)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from klamm.coordinator import rebalance
from klamm.coordinator.config import GroupConfig
from klamm.coordinator.effects import Answer, JoinGroupResult, StoreStaticMember
from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.coordinator.member_metadata import MemberMetadata, Protocols
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass

UNKNOWN_MEMBER_ID: Final = ""
_LONGEST_ID_PREFIX: Final = 8_000
"""Characters of a client id that go into a member id: together with the UUID it still fits an int16 of bytes."""


@lazy_dataclass(frozen=True, slots=True)
class JoinGroup:
    """A JoinGroup request of any version. The last two fields follow from the version."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    require_known_member_id: bool = True
    supports_skipping_assignment: bool = True


def join(
    group: GroupMetadata,
    request: JoinGroup,
    waiter: Any,
    *,
    new_uuid: Callable[[], str],
    config: GroupConfig,
    now_ms: int,
) -> None:
    """Answer `waiter` now or when the rebalance is complete."""
    if error := _refusal(group, request, config):
        group.effects.append(Answer(waiter, error))
    elif request.member_id == UNKNOWN_MEMBER_ID:
        _join_new_member(group, request, waiter, new_uuid(), config, now_ms)
    elif request.member_id in group.pending_members and request.group_instance_id is None:
        _add_member_and_rebalance(group, request, request.member_id, waiter, config, now_ms)
    else:
        _join_current_member(group, request, waiter, config, now_ms)
    rebalance.try_complete_join(group, now_ms)
    if group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
        rebalance.advance(group, config, now_ms)


def _refusal(group: GroupMetadata, request: JoinGroup, config: GroupConfig) -> JoinGroupResult | None:
    if not _accepts(group, request.member_id, config):
        group.remove(request.member_id)
        return JoinGroupResult.failed(UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
    if group.state is GroupState.DEAD:
        return JoinGroupResult.failed(request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not group.supports_protocols(request.protocol_type, request.protocols):
        return JoinGroupResult.failed(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return None


def _accepts(group: GroupMetadata, member_id: str, config: GroupConfig) -> bool:
    """`group.max.size`: in a rebalance the first to join stay, so that a group above the limit can shrink."""
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            return group.awaiting_join_count < config.max_size or (
                member is not None and member.awaiting_join is not None
            )
        case _:
            return member_id in group.members or len(group.members) < config.max_size


def _join_new_member(
    group: GroupMetadata, request: JoinGroup, waiter: Any, uuid: str, config: GroupConfig, now_ms: int
) -> None:
    instance_id = request.group_instance_id
    prefix = request.client_id if instance_id is None else instance_id
    member_id = f"{prefix[:_LONGEST_ID_PREFIX]}-{uuid}"
    if instance_id is not None and instance_id in group.static_members:
        _replace_static_member(group, request, instance_id, member_id, waiter, config, now_ms)
    elif instance_id is None and request.require_known_member_id:
        group.pending_members[member_id] = now_ms + request.session_timeout_ms
        group.wake_by(now_ms + request.session_timeout_ms)
        group.effects.append(Answer(waiter, JoinGroupResult.failed(member_id, ErrorCode.MEMBER_ID_REQUIRED)))
    else:
        _add_member_and_rebalance(group, request, member_id, waiter, config, now_ms)


def _add_member_and_rebalance(
    group: GroupMetadata, request: JoinGroup, member_id: str, waiter: Any, config: GroupConfig, now_ms: int
) -> None:
    member = MemberMetadata(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        awaiting_join=waiter,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    rebalance.restart_session(group, member, now_ms, rebalance.NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance.maybe_prepare_rebalance(group, config, now_ms)


def _replace_static_member(
    group: GroupMetadata,
    request: JoinGroup,
    instance_id: str,
    new_member_id: str,
    waiter: Any,
    config: GroupConfig,
    now_ms: int,
) -> None:
    """A static member restarted. A stable group only writes a record, unless the protocol changes."""
    old_leader_id = group.leader_id
    old_member_id = group.static_members[instance_id]
    member = group.replace_static_member(instance_id, old_member_id, new_member_id)
    store = StoreStaticMember(
        generation_id=group.generation_id,
        group_instance_id=instance_id,
        old_member_id=old_member_id,
        new_member_id=new_member_id,
        old_protocols=member.protocols,
        old_rebalance_timeout_ms=member.rebalance_timeout_ms,
        old_session_timeout_ms=member.session_timeout_ms,
        old_leader_id=old_leader_id,
        skip_assignment=request.supports_skipping_assignment,
    )
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    group.await_join(member, waiter)
    rebalance.restart_session(group, member, now_ms)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        group.keep_subscriptions()
        group.effects.append(store)
    elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        # The leader may have been sent the old id already: the new one would get no assignment.
        rebalance.prepare_rebalance(group, config, now_ms)


def validate_current_member(group: GroupMetadata, member_id: str, group_instance_id: str | None) -> ErrorCode:
    """The instance id, if given, must belong to this member id, and the member to the group."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _join_current_member(
    group: GroupMetadata, request: JoinGroup, waiter: Any, config: GroupConfig, now_ms: int
) -> None:
    error = validate_current_member(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        group.effects.append(Answer(waiter, JoinGroupResult.failed(request.member_id, error)))
        return
    member = group.members[request.member_id]
    is_leader = group.leader_id == request.member_id
    unchanged = member.protocols == request.protocols
    if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
        # It may not have received the answer to its first request.
        result = group.join_result(request.member_id, members=is_leader)
        group.effects.append(Answer(waiter, result))
    elif group.state is GroupState.STABLE and unchanged and not is_leader:
        group.effects.append(Answer(waiter, group.join_result(request.member_id, members=False)))
    else:
        # A leader joins again to have the group assigned again: the topics may have changed.
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        group.await_join(member, waiter)
        rebalance.maybe_prepare_rebalance(group, config, now_ms)
