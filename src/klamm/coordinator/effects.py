"""The effects of a group's rules: answers to send, and the group to be written to its log."""

from __future__ import annotations

from typing import Any

from klamm.coordinator.member_metadata import Protocols
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class JoinGroupResultMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@lazy_dataclass(frozen=True, slots=True)
class JoinGroupResult:
    error: ErrorCode
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinGroupResultMember, ...] = ()
    skip_assignment: bool = False

    @classmethod
    def failed(cls, member_id: str, error: ErrorCode) -> JoinGroupResult:
        return cls(error, member_id)


@lazy_dataclass(frozen=True, slots=True)
class SyncGroupResult:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@lazy_dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request of `waiter`."""

    waiter: Any
    result: JoinGroupResult | SyncGroupResult


@lazy_dataclass(frozen=True, slots=True)
class StoreAssignment:
    """The leader's assignment of this generation, one entry per member."""

    generation_id: int
    assignment: dict[str, bytes]


@lazy_dataclass(frozen=True, slots=True)
class StoreStaticMember:
    """A static member of a stable group returned with a new id; keeps the old state in case the write fails."""

    generation_id: int
    group_instance_id: str
    old_member_id: str
    new_member_id: str
    old_protocols: Protocols
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int
    old_leader_id: str | None
    skip_assignment: bool


@lazy_dataclass(frozen=True, slots=True)
class StoreEmpty:
    """The group has lost its last member."""

    generation_id: int


Store = StoreAssignment | StoreStaticMember | StoreEmpty
"""Write the group as it is now; then call `rebalance.on_stored` with the outcome."""

Effect = Answer | Store
