"""One member of a group, as the coordinator knows it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors (or whatever the protocol type calls them) a member supports, in its order of preference."""


@dataclass(slots=True)
class MemberMetadata:
    """`awaiting_join` and `awaiting_sync` are the waiters of unanswered requests: opaque to the rules."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    session_deadline_ms: int = 0
    awaiting_join: Any = None
    awaiting_sync: Any = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for `protocol`, which it must support."""
        return next(metadata for name, metadata in self.protocols if name == protocol)

    def vote(self, candidates: Container[str]) -> str:
        """The candidate this member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)
