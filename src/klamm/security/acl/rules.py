"""AclRules: a frozen set of access control entries, indexed so that a decision does not depend on their number.

An operation on a resource looks at the entries of the literal name, of the wildcard and of every prefix of the name
that has entries. Prefixes are found by length: one look-up per length that occurs, at most as many as the name has
characters. Per resource, the operations that entries allow or deny are bits, kept per principal and host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from klamm.security.acl.bindings import (
    ANY_PRINCIPAL,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

Entries = frozenset[AclEntry]
Changes = Mapping[ResourcePattern, Entries]
"""Resources with all their entries from now on; none removes the resource."""

_EVERYTHING: Final = (1 << len(AclOperation)) - 1
_DENY: Final = Permission.DENY
_ALL: Final = AclOperation.ALL
_IMPLIED_BY: Final = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}


def _address(host: str) -> str:
    """Return an IPv6 address as sockets write it: Kafka writes 0:0:0:0:0:0:0:1 for ::1."""
    from ipaddress import ip_address  # rarely needed, and slow to import

    try:
        return ip_address(host).compressed
    except ValueError:
        return host


def _bit(operation: AclOperation) -> int:
    return _EVERYTHING if operation == _ALL else 1 << operation


_DENIED_BY: Final = [1 << operation for operation in AclOperation]
_ALLOWED_BY: Final = [
    1 << operation | sum(1 << implying for implying in _IMPLIED_BY.get(operation, ())) for operation in AclOperation
]
"""Per operation, the bits of which one allows it."""


class _ResourceRules:
    """The entries of one resource pattern."""

    __slots__ = ("allowed", "denied", "entries")

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.allowed: dict[tuple[str, str], int] = {}
        """The operations that are allowed, as bits, per principal and host."""
        self.denied: dict[tuple[str, str], int] = {}
        for principal, written_host, operation, permission in entries:
            bits = self.denied if permission == _DENY else self.allowed
            host = _address(written_host) if ":" in written_host else written_host
            bits[principal, host] = bits.get((principal, host), 0) | _bit(operation)


class _TypeRules:
    """The rules of one type of resource. Frozen: a change makes another one."""

    __slots__ = ("allowed_of", "denied_of", "lengths", "literal", "prefixed")

    def __init__(
        self,
        literal: dict[str, _ResourceRules],
        prefixed: dict[str, _ResourceRules],
        allowed_of: dict[str, frozenset[ResourcePattern]],
        denied_of: dict[str, frozenset[ResourcePattern]],
    ) -> None:
        self.literal = literal
        self.prefixed = prefixed
        self.lengths = sorted({len(name) for name in prefixed})
        self.allowed_of = allowed_of
        """Per principal, the resources with an entry that allows it something."""
        self.denied_of = denied_of

    def applying_to(self, name: str) -> list[_ResourceRules]:
        found = []
        literal = self.literal
        if (rules := literal.get(WILDCARD)) is not None:
            found.append(rules)
        if name != WILDCARD and (rules := literal.get(name)) is not None:
            found.append(rules)
        longest = len(name)
        for length in self.lengths:
            if length > longest:
                break
            if (rules := self.prefixed.get(name[:length])) is not None:
                found.append(rules)
        return found

    def of(self, resource: ResourcePattern) -> _ResourceRules | None:
        names = self.literal if resource.pattern == PatternType.LITERAL else self.prefixed
        return names.get(resource.name)

    def changed(self, changes: Changes) -> _TypeRules:
        """Return the rules with some resources replaced. Copies what has a row per resource, not the entries."""
        literal, prefixed = dict(self.literal), dict(self.prefixed)
        allowed_of, denied_of = dict(self.allowed_of), dict(self.denied_of)
        gained: dict[tuple[bool, str], set[ResourcePattern]] = {}
        lost: dict[tuple[bool, str], set[ResourcePattern]] = {}
        for resource, entries in changes.items():
            names = literal if resource.pattern == PatternType.LITERAL else prefixed
            before = names.pop(resource.name, None)
            if before is not None:
                _note(lost, resource, before.entries)
            if entries:
                names[resource.name] = _ResourceRules(entries)
                _note(gained, resource, entries)
        for is_denied, principal in lost.keys() | gained.keys():
            index = denied_of if is_denied else allowed_of
            key = is_denied, principal
            resources = index.get(principal, frozenset()) - lost.get(key, set()) | gained.get(key, set())
            if resources:
                index[principal] = resources
            else:
                index.pop(principal, None)
        return _TypeRules(literal, prefixed, allowed_of, denied_of)


def _note(index: dict[tuple[bool, str], set[ResourcePattern]], resource: ResourcePattern, entries: Entries) -> None:
    for principal, _, _, permission in entries:
        index.setdefault((permission == _DENY, principal), set()).add(resource)


_NO_RULES: Final = _TypeRules({}, {}, {}, {})


class AclRules:
    """All entries of the cluster. A change returns another value; the decisions are functions of it."""

    __slots__ = ("_by_type",)

    def __init__(self, by_type: Mapping[ResourceType, _TypeRules] | None = None) -> None:
        self._by_type: dict[ResourceType, _TypeRules] = dict(by_type or {})

    @classmethod
    def of(cls, bindings: Iterable[AclBinding]) -> AclRules:
        gathered: dict[ResourcePattern, set[AclEntry]] = {}
        for resource, entry in bindings:
            gathered.setdefault(resource, set()).add(entry)
        return cls().changed({resource: frozenset(entries) for resource, entries in gathered.items()})

    def changed(self, changes: Changes) -> AclRules:
        """Return the rules with the entries of some resources replaced."""
        by_type: dict[ResourceType, dict[ResourcePattern, Entries]] = {}
        for resource, entries in changes.items():
            by_type.setdefault(resource.type, {})[resource] = entries
        return AclRules(
            self._by_type | {kind: self._by_type.get(kind, _NO_RULES).changed(some) for kind, some in by_type.items()}
        )

    def entries(self, resource: ResourcePattern) -> Entries:
        rules = self._by_type.get(resource.type, _NO_RULES).of(resource)
        return frozenset() if rules is None else rules.entries

    def resources(self) -> Iterator[ResourcePattern]:
        for kind, rules in self._by_type.items():
            for pattern, names in ((PatternType.LITERAL, rules.literal), (PatternType.PREFIXED, rules.prefixed)):
                for name in names:
                    yield ResourcePattern(kind, name, pattern)

    def has_entries(self, kind: ResourceType, name: str) -> bool:
        """Return whether any entry applies to the resource, whoever it names."""
        rules = self._by_type.get(kind)
        return rules is not None and bool(rules.applying_to(name))

    def is_allowed(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        kind: ResourceType,
        name: str,
        *,
        if_none_found: bool = False,
    ) -> bool:
        """Return whether the entries allow the operation: one allows it, or implies it, and none denies it.

        `if_none_found` is the answer if the resource has no entries at all.
        """
        rules = self._by_type.get(kind)
        found = rules.applying_to(name) if rules is not None else ()
        if not found:
            return if_none_found
        asked = (principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD)
        allowed = denied = 0
        for one in found:
            for key in asked:
                allowed |= one.allowed.get(key, 0)
                denied |= one.denied.get(key, 0)
        return not denied & _DENIED_BY[operation] and bool(allowed & _ALLOWED_BY[operation])

    def is_allowed_on_any(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        kind: ResourceType,
        *,
        if_none_found: bool = False,
    ) -> bool:
        """Return whether the operation is allowed on at least one resource of a type (KIP-679).

        A resource with an entry that allows it counts unless entries deny the whole resource; `if_none_found` allows
        all that is not denied for the wildcard.
        """
        rules = self._by_type.get(kind, _NO_RULES)
        denied = {
            (resource.pattern, resource.name)
            for resource in _concerned(rules.denied_of, principal)
            if (found := rules.of(resource)) is not None and _has(found.denied, principal, host, operation)
        }
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        if if_none_found:
            return True
        prefixes = {name for pattern, name in denied if pattern == PatternType.PREFIXED}
        for resource in _concerned(rules.allowed_of, principal):
            found = rules.of(resource)
            if found is None or not _has(found.allowed, principal, host, operation):
                continue
            if resource.pattern == PatternType.LITERAL:
                if resource.name == WILDCARD:
                    return True
                if (PatternType.LITERAL, resource.name) in denied:
                    continue
            if not prefixes or not _has_prefix(resource.name, prefixes):
                return True
        return False


def _concerned(index: dict[str, frozenset[ResourcePattern]], principal: str) -> Iterator[ResourcePattern]:
    yield from index.get(principal, ())
    yield from index.get(ANY_PRINCIPAL, ())


def _has(bits: dict[tuple[str, str], int], principal: str, host: str, operation: AclOperation) -> bool:
    found = 0
    for key in ((principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD)):
        found |= bits.get(key, 0)
    return bool(found & 1 << operation)


def _has_prefix(name: str, prefixes: set[str]) -> bool:
    return any(name[:length] in prefixes for length in range(1, len(name) + 1))
