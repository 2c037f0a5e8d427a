"""A group: its members, its state, its timers and its effects. Data and small steps; the rules are elsewhere.

Owner: the `GroupMetadataManager` of the broker that leads the group's offsets partition. Times are milliseconds of a
clock that never goes back. Timers are values: a rule that sets one calls `wake_by`, and the owner of the clock calls
`rebalance.advance` no later than `wake_ms`. Most deadlines move to a later time, which costs nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from klamm.coordinator import consumer_protocol
from klamm.coordinator.effects import Answer, Effect, JoinGroupResult, JoinGroupResultMember, SyncGroupResult
from klamm.coordinator.member_metadata import MemberMetadata, Protocols
from klamm.coordinator.offsets import GroupOffsets
from klamm.errors import ErrorCode


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_VALID_PREVIOUS = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


@dataclass(slots=True)
class InitialDelay:
    """The first rebalance of an empty group waits for more members: `delay_ms` now, `remaining_ms` at most after it."""

    delay_ms: int
    remaining_ms: int


@dataclass(slots=True)
class GroupMetadata:
    group_id: str
    partition: int
    """Its partition of `__consumer_offsets`."""
    state: GroupState = GroupState.EMPTY
    state_since_ms: int | None = None
    """When the state was entered; None if the log did not record it."""
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_members: dict[str, int] = field(default_factory=dict)
    """Member ids issued with MEMBER_ID_REQUIRED and not used yet, with their expiry time."""
    pending_sync_members: dict[str, None] = field(default_factory=dict)
    awaiting_join_count: int = 0
    supported_protocols: Counter[str] = field(default_factory=Counter)
    subscriptions: consumer_protocol.Subscriptions | None = None
    new_member_added: bool = False
    initial_delay: InitialDelay | None = None
    join_deadline_ms: int | None = None
    sync_deadline_ms: int | None = None
    storing_generation: int | None = None
    """The generation whose assignment is being written; a second one for it is refused."""
    wake_ms: int | None = None
    scheduled_wake_ms: int | None = None
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    effects: list[Effect] = field(default_factory=list)

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def wake_by(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        assert self.state in _VALID_PREVIOUS[state], f"group {self.group_id}: {self.state} -> {state}"
        self.state = state
        self.state_since_ms = now_ms

    # Members

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == consumer_protocol.PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_members_joined(self) -> bool:
        return len(self.members) == self.awaiting_join_count and not self.pending_members

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether all members would still have a protocol in common with a member of this type and these protocols."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supported_protocols[name] == size for name in dict(protocols)
        )

    def add(self, member: MemberMetadata, protocol_type: str) -> None:
        assert member.member_id not in self.members
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        if member.awaiting_join is not None:
            self.awaiting_join_count += 1
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove the member and answer its pending requests; the next member becomes the leader."""
        member = self.members.get(member_id)
        if member is not None:
            self.answer_join(member, JoinGroupResult.failed("", ErrorCode.UNKNOWN_MEMBER_ID))
            self.answer_sync(member, SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID))
            del self.members[member_id]
            self._count_protocols(member, -1)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.pop(member_id, None)
        self.pending_sync_members.pop(member_id, None)

    def replace_static_member(self, group_instance_id: str, old_member_id: str, new_member_id: str) -> MemberMetadata:
        """The instance returned with a new member id: the old id is fenced; its place and leadership stay."""
        member = self.members[old_member_id]
        self.answer_join(member, JoinGroupResult.failed(old_member_id, ErrorCode.FENCED_INSTANCE_ID))
        self.answer_sync(member, SyncGroupResult(ErrorCode.FENCED_INSTANCE_ID))
        self.members = {new_member_id if m is member else i: m for i, m in self.members.items()}
        member.member_id = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync_members:
            del self.pending_sync_members[old_member_id]
            self.pending_sync_members[new_member_id] = None
        self.static_members[group_instance_id] = new_member_id
        return member

    def update(
        self, member: MemberMetadata, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def _count_protocols(self, member: MemberMetadata, step: int) -> None:
        for name in dict(member.protocols):
            self.supported_protocols[name] += step
            if not self.supported_protocols[name]:
                del self.supported_protocols[name]

    # Waiters

    def await_join(self, member: MemberMetadata, waiter: Any) -> None:
        """The member's JoinGroup waits for the rebalance; an earlier one is answered with a retriable error."""
        self.answer_join(member, JoinGroupResult.failed(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_join = waiter
        self.awaiting_join_count += 1

    def await_sync(self, member: MemberMetadata, waiter: Any) -> None:
        self.answer_sync(member, SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = waiter

    def answer_join(self, member: MemberMetadata, result: JoinGroupResult) -> None:
        if member.awaiting_join is not None:
            self.effects.append(Answer(member.awaiting_join, result))
            member.awaiting_join = None
            self.awaiting_join_count -= 1

    def answer_sync(self, member: MemberMetadata, result: SyncGroupResult) -> bool:
        if member.awaiting_sync is None:
            return False
        self.effects.append(Answer(member.awaiting_sync, result))
        member.awaiting_sync = None
        return True

    # Generations

    def select_protocol(self) -> str:
        """Each member votes for its first protocol that all members support. On a tie, the protocol with the earlier
        vote wins.
        """
        size = len(self.members)
        candidates = {name for name, count in self.supported_protocols.items() if count == size}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def init_next_generation(self, now_ms: int) -> None:
        self.generation_id += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self.keep_subscriptions()
        self.pending_sync_members.clear()

    def keep_subscriptions(self) -> None:
        """Keeps the subscriptions of a consumer group as they are now."""
        protocol = self.protocol_name
        self.subscriptions = None
        if self.is_consumer_group and (protocol is not None or not self.members):
            subscribed = (b"" if protocol is None else member.metadata(protocol) for member in self.members.values())
            self.subscriptions = consumer_protocol.Subscriptions(subscribed)

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The subscribed topics of a consumer group: none without members, None if every topic counts as subscribed."""
        return None if self.subscriptions is None else self.subscriptions.topics

    def join_result(self, member_id: str, *, members: bool, skip_assignment: bool = False) -> JoinGroupResult:
        """Return the current generation for a member; the leader also gets the `members`."""
        return JoinGroupResult(
            ErrorCode.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or "",
            self._result_members() if members else (),
            skip_assignment,
        )

    def _result_members(self) -> tuple[JoinGroupResultMember, ...]:
        assert self.protocol_name is not None
        return tuple(
            JoinGroupResultMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
            for m in self.members.values()
        )
