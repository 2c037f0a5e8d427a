"""The entries that options of `klamm acl` describe, as Kafka's `kafka-acls` reads them. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from klamm.cli.output import fail
from klamm.security.acl.bindings import (
    CLUSTER_NAME,
    SUPPORTED,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclOperation,
    BindingFilter,
    EntryFilter,
    PatternType,
    Permission,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    is_principal,
    of_name,
)

_PRODUCER: Final = {
    ResourceType.TOPIC: ("WRITE", "DESCRIBE", "CREATE"),
    ResourceType.TRANSACTIONAL_ID: ("WRITE", "DESCRIBE"),
}
_CONSUMER: Final = {ResourceType.TOPIC: ("READ", "DESCRIBE"), ResourceType.GROUP: ("READ",)}
Values = Sequence[str] | None
"""The values of an option that may be repeated, or None if it was not passed."""
_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.CLUSTER: "--cluster",
}
_NO_RESOURCE: Final = "Pass a resource: --topic NAME, --group ID, --transactional-id ID or --cluster."


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """`pattern` is the type of all patterns. The cluster has one name."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    cluster: bool = False
    pattern: str = "literal"

    @classmethod
    def named(cls, topics: Values, groups: Values, transactional_ids: Values, cluster: bool, pattern: str) -> Resources:
        """The resources of a command's options."""
        return cls(
            topics=topics or (),
            groups=groups or (),
            transactional_ids=transactional_ids or (),
            cluster=cluster,
            pattern=pattern,
        )

    def filters(self) -> list[ResourceFilter]:
        pattern = of_name(PatternType, self.pattern)
        if pattern.is_unknown:
            fail(f"--resource-pattern-type cannot be {self.pattern!r}: expected literal, prefixed, match or any.")
        named = [
            *((ResourceType.TOPIC, name) for name in self.topics),
            *((ResourceType.GROUP, name) for name in self.groups),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids),
        ]
        found = [ResourceFilter(kind, name, pattern) for kind, name in named]
        if self.cluster:
            found.append(ResourceFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The principals, hosts and operations of entries."""

    allow_principals: Sequence[str] = ()
    deny_principals: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    deny_hosts: Sequence[str] = ()
    operations: Sequence[str] = ()
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False

    @classmethod
    def chosen(
        cls,
        principals: tuple[Values, Values],
        hosts: tuple[Values, Values],
        operations: Values,
        *,
        producer: bool,
        consumer: bool,
        idempotent: bool,
    ) -> Access:
        """The access of a command's options. Principals and hosts are given as (allowed, denied)."""
        return cls(
            allow_principals=principals[0] or (),
            deny_principals=principals[1] or (),
            allow_hosts=hosts[0] or (),
            deny_hosts=hosts[1] or (),
            operations=operations or (),
            producer=producer,
            consumer=consumer,
            idempotent=idempotent,
        )

    def check(self) -> None:
        if (self.producer or self.consumer) and (self.operations or self.deny_principals or self.deny_hosts):
            fail("--producer and --consumer choose the operations: pass neither --operation nor --deny-... with them.")
        if self.idempotent and not self.producer:
            fail("--idempotent requires --producer.")
        if self.allow_hosts and not self.allow_principals:
            fail("--allow-host requires --allow-principal.")
        if self.deny_hosts and not self.deny_principals:
            fail("--deny-host requires --deny-principal.")
        _check_principals((*self.allow_principals, *self.deny_principals))

    def check_hosts(self) -> None:
        """Refuse hosts that no connection has. Entries of others can be removed, because brokers accept them."""
        for option, hosts in (("--allow-host", self.allow_hosts), ("--deny-host", self.deny_hosts)):
            for host in hosts:
                if not _is_host(host):
                    fail(
                        f"{option} {host!r} would never match: expected an IP address, or {WILDCARD} for all. "
                        "Names and ranges are not supported, as in Kafka."
                    )

    def entries(self, operations: Iterable[AclOperation]) -> list[AclEntry]:
        chosen = list(operations)
        return [
            AclEntry(principal, host, operation, permission)
            for permission, principals, hosts in (
                (Permission.ALLOW, self.allow_principals, self.allow_hosts),
                (Permission.DENY, self.deny_principals, self.deny_hosts),
            )
            for principal in principals
            for host in hosts or (WILDCARD,)
            for operation in chosen
        ]

    def operations_on(self, kind: ResourceType) -> list[AclOperation]:
        if not (self.producer or self.consumer):
            return [_operation(name, kind) for name in self.operations or ("All",)]
        names: list[str] = []
        if self.producer:
            names += _PRODUCER.get(kind, ())
        if self.consumer:
            names += _CONSUMER.get(kind, ())
        if self.idempotent and kind == ResourceType.CLUSTER:
            names.append("IDEMPOTENT_WRITE")
        return [AclOperation[name] for name in dict.fromkeys(names)]


def _check_principals(principals: Iterable[str]) -> None:
    for principal in principals:
        if not is_principal(principal):
            fail(f"{principal!r} is not a principal: expected a type and a name, such as User:alice.")


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return text == WILDCARD
    return True


def _operation(name: str, kind: ResourceType) -> AclOperation:
    operation = of_name(AclOperation, name)
    valid = (AclOperation.ALL, *SUPPORTED[kind])
    if operation not in valid:
        fail(f"--operation {name} does not apply to {kind.title}: expected {', '.join(each.title for each in valid)}.")
    return operation


def _filters(resources: Resources, access: Access) -> list[ResourceFilter]:
    access.check()
    chosen = resources.filters()
    if access.idempotent and not resources.cluster:
        chosen.append(ResourceFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    if not chosen:
        fail(_NO_RESOURCE)
    if access.producer and not resources.topics:
        fail("--producer requires --topic.")
    if access.consumer and not (resources.topics and resources.groups):
        fail("--consumer requires --topic and --group.")
    return chosen


def bindings_to_add(resources: Resources, access: Access) -> list[AclBinding]:
    chosen = _filters(resources, access)
    access.check_hosts()
    if any(each.pattern < PatternType.LITERAL for each in chosen):
        fail(f"--resource-pattern-type {resources.pattern} selects entries: pass literal or prefixed to add some.")
    if not (access.allow_principals or access.deny_principals):
        fail("Pass --allow-principal or --deny-principal.")
    return [
        AclBinding(ResourcePattern(each.type, each.name or "", each.pattern), entry)
        for each in chosen
        for entry in access.entries(access.operations_on(each.type))
    ]


def filters_to_remove(resources: Resources, access: Access) -> list[BindingFilter]:
    """Without a principal, all entries of the resources are selected."""
    chosen = _filters(resources, access)
    if not (access.allow_principals or access.deny_principals):
        if access.operations or access.producer or access.consumer:
            fail("Pass --allow-principal or --deny-principal with --operation, --producer or --consumer.")
        return [BindingFilter(each, _ANY_ENTRY) for each in chosen]
    return [
        BindingFilter(each, EntryFilter(*entry))
        for each in chosen
        for entry in access.entries(access.operations_on(each.type))
    ]


def filters_of_remaining(filters: Iterable[BindingFilter]) -> list[BindingFilter]:
    """Select all entries of the principals on the resources, whatever their operations and hosts."""
    wide = (
        BindingFilter(
            resource if resource.pattern == PatternType.MATCH else resource._replace(pattern=PatternType.ANY),
            _ANY_ENTRY._replace(principal=entry.principal),
        )
        for resource, entry in filters
    )
    return list(dict.fromkeys(wide))


def nothing_removed(remaining: Iterable[AclBinding]) -> str:
    """Return what a command reports that removed nothing, with the commands that remove the remaining entries.

    A command removes every operation from every host that it names. The hosts of a principal may differ in their
    operations, so each host has its own command.
    """
    commands: dict[tuple[str, ...], list[str]] = {}
    entries = sorted(remaining)
    for resource, entry in entries:
        head = (*_resource_options(resource), *_principal_options(entry), *_host_options(entry))
        commands.setdefault(head, []).append(f"--operation {entry.operation.title}")
    if not commands:
        return "Nothing was removed: there are no such entries. `klamm acl list` shows all."
    lines = "\n".join(f"  klamm acl remove {shlex.join(head)} {' '.join(words)}" for head, words in commands.items())
    return (
        "Nothing was removed: no entry has exactly these operations and hosts. Without --operation, only entries of "
        "the operation All match; without a host, only entries of all hosts. Other entries remain: "
        f"{len(entries)}. To remove them:\n{lines}"
    )


def _resource_options(resource: ResourcePattern) -> tuple[str, ...]:
    option = _OPTIONS[resource.type]
    chosen = (option,) if resource.type == ResourceType.CLUSTER else (option, resource.name)
    if resource.pattern == PatternType.LITERAL:
        return chosen
    return (*chosen, "--resource-pattern-type", resource.pattern.name.lower())


def _principal_options(entry: AclEntry) -> tuple[str, ...]:
    return f"--{entry.permission.title.lower()}-principal", entry.principal


def _host_options(entry: AclEntry) -> tuple[str, ...]:
    """Without a host, a command means the entries of all hosts."""
    return () if entry.host == WILDCARD else (f"--{entry.permission.title.lower()}-host", entry.host)


def filters_to_list(resources: Resources, principals: Sequence[str]) -> list[BindingFilter]:
    _check_principals(principals)
    everything = ResourceFilter(ResourceType.ANY, None, PatternType.ANY)
    entries = [_ANY_ENTRY._replace(principal=principal) for principal in principals] or [_ANY_ENTRY]
    return [BindingFilter(each, entry) for each in resources.filters() or [everything] for entry in entries]


_ANY_ENTRY: Final = EntryFilter(None, None, AclOperation.ANY, Permission.ANY)
