"""The nouns of access control: resources, operations, entries, bindings and the filters that select them.

Codes and names are Kafka's: codes on the wire, names in ZooKeeper and in tools.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

WILDCARD: Final = "*"
"""The name of a literal resource that stands for all of its type, and the host that stands for all."""
ANY_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""
_USER: Final = "User:"


class _Named(IntEnum):
    @property
    def title(self) -> str:
        """The name in ZooKeeper and in tools, such as TransactionalId."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def is_unknown(self) -> bool:
        return self == 0


class ResourceType(_Named):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Named):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(_Named):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


N = TypeVar("N", bound=_Named)
SUPPORTED: Final[dict[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that exist for each type of resource."""


def of_code(kind: type[N], code: int) -> N:
    """Return the member with this code; UNKNOWN if there is none."""
    return kind(code) if code in kind._value2member_map_ else kind(0)


def of_name(kind: type[N], name: str) -> N:
    """Return the member of a name in any of Kafka's spellings: TransactionalId, TRANSACTIONAL_ID, transactional-id."""
    wanted = name.replace("_", "").replace("-", "").upper()
    return next((member for member in kind if member.name.replace("_", "") == wanted), kind(0))


def is_principal(text: str) -> bool:
    """Return whether the text is `type:name`, neither of them empty."""
    kind, separator, name = text.partition(":")
    return bool(kind and separator and name)


class ResourcePattern(NamedTuple):
    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.type.title}:{self.pattern.name}:{self.name}"


class AclEntry(NamedTuple):
    """`principal` may do `operation` from `host`, or may not."""

    principal: str
    host: str
    operation: AclOperation
    permission: Permission


class AclBinding(NamedTuple):
    resource: ResourcePattern
    entry: AclEntry


class ResourceFilter(NamedTuple):
    """Selects resources. MATCH selects every pattern that applies to a resource of this name."""

    type: ResourceType
    name: str | None
    pattern: PatternType

    def matches(self, resource: ResourcePattern) -> bool:
        if self.type not in (ResourceType.ANY, resource.type):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != PatternType.MATCH:
            return self.name == resource.name
        if resource.pattern == PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name in (self.name, WILDCARD)

    def named(self) -> tuple[ResourcePattern, ...]:
        """Return the only resources that can match; none if the filter does not name them."""
        if self.name is None or self.type == ResourceType.ANY or self.pattern == PatternType.MATCH:
            return ()
        patterns = (PatternType.LITERAL, PatternType.PREFIXED) if self.pattern == PatternType.ANY else (self.pattern,)
        return tuple(ResourcePattern(self.type, self.name, pattern) for pattern in patterns)


class EntryFilter(NamedTuple):
    """Selects entries; None and ANY select all."""

    principal: str | None
    host: str | None
    operation: AclOperation
    permission: Permission

    def matches(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )


class BindingFilter(NamedTuple):
    resource: ResourceFilter
    entry: EntryFilter

    @property
    def is_unknown(self) -> bool:
        return not (self.resource.type and self.resource.pattern and self.entry.operation and self.entry.permission)


def problem_of(binding: AclBinding) -> str | None:
    """Return why a binding cannot be added; None if it can."""
    resource, entry = binding
    if resource.type < ResourceType.TOPIC or resource.pattern < PatternType.LITERAL:
        return "The type of the resource and of its pattern must be known and specific."
    if entry.operation < AclOperation.ALL or entry.permission < Permission.DENY:
        return "The operation and the permission must be known and specific."
    if resource.type == ResourceType.CLUSTER and resource.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not resource.name:
        return "Invalid empty resource name"
    if "/" in resource.name:
        return f"The name of a resource cannot contain a slash: {resource.name}"
    if not is_principal(entry.principal):
        return f"{entry.principal!r} is not a principal: expected a type and a name, such as {_USER}alice."
    return None if entry.host else "Invalid empty host"
