"""AclAuthorizer: decides whether a principal may do an operation, by super users and access control entries.

The decision is a function of the rules in force. It is remembered until the rules change, so that the hot path costs
one look-up, whatever the number of rules.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from klamm.security.acl.bindings import SUPPORTED, AclOperation, ResourceType
from klamm.security.acl.rules import AclRules

MOST_REMEMBERED: Final = 20_000
"""Decisions that are kept. Clients choose names, so their number and length need limits."""
_LONGEST_REMEMBERED: Final = 255
"""The length of names whose decisions are kept: topics have at most 249 characters."""


class AclAuthorizer:
    """Kafka's `AclAuthorizer`: the owner of the rules in force. Lives on the broker loop."""

    __slots__ = ("_allows_without_rules", "_rules", "remembered", "super_users")

    def __init__(self, super_users: Collection[str] = (), *, allow_everyone_if_no_acl_found: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self._allows_without_rules = allow_everyone_if_no_acl_found
        self._rules = AclRules()
        self.remembered: dict[tuple[str, str, AclOperation, ResourceType, str | None], bool] = {}
        """Decisions by the rules in force. The hot path looks here first; another dict replaces this one."""

    @property
    def rules(self) -> AclRules:
        return self._rules

    def replace_rules(self, rules: AclRules) -> None:
        self._rules = rules
        self.remembered = {}

    def is_allowed(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Return whether the operation on this resource is allowed."""
        key = (principal, host, operation, kind, name)
        known = self.remembered.get(key)
        return known if known is not None else self._decide(principal, host, operation, kind, name)

    def is_allowed_on_any(self, principal: str, host: str, operation: AclOperation, kind: ResourceType) -> bool:
        """Return whether the operation is allowed on at least one resource of this type."""
        key = (principal, host, operation, kind, None)
        known = self.remembered.get(key)
        return known if known is not None else self._decide(principal, host, operation, kind, None)

    def is_open(self, principal: str, kind: ResourceType, name: str) -> bool:
        """Return whether only `allow.everyone.if.no.acl.found` allows the principal what it may do on this resource."""
        return (
            self._allows_without_rules and principal not in self.super_users and not self._rules.has_entries(kind, name)
        )

    def operations(self, principal: str, host: str, kind: ResourceType, name: str) -> int:
        """Return the operations that are allowed on a resource, as the bits of the protocol (KIP-430)."""
        return sum(
            1 << operation for operation in SUPPORTED[kind] if self.is_allowed(principal, host, operation, kind, name)
        )

    def _decide(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str | None) -> bool:
        if principal in self.super_users:
            decision = True
        elif name is None:
            decision = self._rules.is_allowed_on_any(
                principal, host, operation, kind, if_none_found=self._allows_without_rules
            )
        else:
            decision = self._rules.is_allowed(
                principal, host, operation, kind, name, if_none_found=self._allows_without_rules
            )
        if name is not None and len(name) > _LONGEST_REMEMBERED:
            return decision
        if len(self.remembered) >= MOST_REMEMBERED:
            self.remembered = {}
        self.remembered[principal, host, operation, kind, name] = decision
        return decision
