"""`klamm acl list|add|remove`: access control lists, with the options of Kafka's `kafka-acls`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer
from klamm.cli.completion import topic_names
from klamm.cli.output import fail, say, table

if TYPE_CHECKING:
    from klamm.security.acl.bindings import AclBinding, BindingFilter

_VERSION: Final = 2
app = typer.Typer(help="Show and change access control lists.", no_args_is_help=True)

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="NAME",
        help="A topic; * is all topics.",
        autocompletion=topic_names,
    ),
]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A consumer group; * is all groups.")]
TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id; * is all ids.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Pattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help="literal or prefixed; `list` and `remove` also accept any (both types of this name) and match (all "
        "patterns that apply to this name).",
    ),
]
AllowPrincipals = Annotated[
    list[str] | None, typer.Option("--allow-principal", metavar="TYPE:NAME", help="Allow this principal: User:alice.")
]
DenyPrincipals = Annotated[
    list[str] | None,
    typer.Option(
        "--deny-principal", metavar="TYPE:NAME", help="Deny this principal; a denial overrides every allowance."
    ),
]
AllowHosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="ADDRESS", help="Allow from this IP address only; from all by default."),
]
DenyHosts = Annotated[
    list[str] | None,
    typer.Option("--deny-host", metavar="ADDRESS", help="Deny from this IP address only; from all by default."),
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="NAME", help="Read, Write, Describe, ...; the operation All by default."),
]
Producer = Annotated[bool, typer.Option("--producer", help="The operations of a producer on --topic.")]
Consumer = Annotated[bool, typer.Option("--consumer", help="The operations of a consumer on --topic and --group.")]
Idempotent = Annotated[bool, typer.Option("--idempotent", help="With --producer: IdempotentWrite on the cluster.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: Cluster = False,
    resource_pattern_type: Pattern = "any",
    principal: Annotated[
        list[str] | None, typer.Option("--principal", metavar="TYPE:NAME", help="Only entries of this principal.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """List entries: all of them, or those of resources and principals."""
    from klamm.cli.acl_choice import Resources, filters_to_list

    resources = Resources.named(topic, group, transactional_id, cluster, resource_pattern_type)
    found: dict[AclBinding, None] = {}
    for chosen in filters_to_list(resources, principal or ()):
        found.update(dict.fromkeys(_describe(bootstrap_server, chosen)))
    _show(sorted(found), as_json)


@app.command()
def add(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: Cluster = False,
    resource_pattern_type: Pattern = "literal",
    allow_principal: AllowPrincipals = None,
    deny_principal: DenyPrincipals = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Add entries, one for each resource, principal, host and operation."""
    from klamm.cli.acl_choice import Access, Resources, bindings_to_add

    resources = Resources.named(topic, group, transactional_id, cluster, resource_pattern_type)
    principals, hosts = (allow_principal, deny_principal), (allow_host, deny_host)
    access = Access.chosen(principals, hosts, operation, producer=producer, consumer=consumer, idempotent=idempotent)
    bindings = bindings_to_add(resources, access)
    _create(bootstrap_server, bindings)
    _show(bindings, as_json, f"Added {len(bindings)} entries.")


@app.command()
def remove(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: Cluster = False,
    resource_pattern_type: Pattern = "literal",
    allow_principal: AllowPrincipals = None,
    deny_principal: DenyPrincipals = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    force: Annotated[bool, typer.Option("--force", help="Remove all entries of a resource without asking.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove the entries with exactly these principals, hosts and operations.

    Without --operation, only entries of the operation All are removed. Without --allow-host or --deny-host, only
    entries of all hosts are removed. Without a principal, all entries of the resources are removed. If no entry
    matches, the command fails and reports which entries of the principals remain.
    """
    from klamm.cli.acl_choice import Access, Resources, filters_of_remaining, filters_to_remove, nothing_removed

    resources = Resources.named(topic, group, transactional_id, cluster, resource_pattern_type)
    principals, hosts = (allow_principal, deny_principal), (allow_host, deny_host)
    access = Access.chosen(principals, hosts, operation, producer=producer, consumer=consumer, idempotent=idempotent)
    filters = filters_to_remove(resources, access)
    if not (allow_principal or deny_principal or force):
        doomed = [binding for chosen in filters for binding in _describe(bootstrap_server, chosen)]
        if doomed and not typer.confirm(f"Remove {len(doomed)} entries of all principals?", err=True):
            fail("Nothing was removed.")
    if not (removed := _delete(bootstrap_server, filters)):
        remaining = {b for chosen in filters_of_remaining(filters) for b in _describe(bootstrap_server, chosen)}
        fail(nothing_removed(remaining))
    _show(removed, as_json, f"Removed {len(removed)} entries.")


def _show(bindings: Sequence[AclBinding], as_json: bool, summary: str | None = None) -> None:
    if as_json:
        say(json.dumps([_as_json(binding) for binding in bindings]))
        return
    rows = [tuple(_as_json(binding).values()) for binding in bindings]
    if rows or summary is None:
        table(("Resource", "Name", "Pattern", "Principal", "Permission", "Operation", "Host"), rows)
    if summary is not None:
        say(summary)


def _as_json(binding: AclBinding) -> dict[str, str]:
    resource, entry = binding
    return {
        "resourceType": resource.type.title,
        "resourceName": resource.name,
        "patternType": resource.pattern.name.lower(),
        "principal": entry.principal,
        "permission": entry.permission.title,
        "operation": entry.operation.title,
        "host": entry.host,
    }


def _describe(servers: str, chosen: BindingFilter) -> Iterable[AclBinding]:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

    answer = ask_any(servers, DescribeAclsRequest(**_fields(chosen)), _VERSION, DescribeAclsResponse)
    _check(answer.error_code, answer.error_message, "The entries cannot be listed")
    return [
        _binding(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
        for resource in answer.resources
        for acl in resource.acls
    ]


def _create(servers: str, bindings: Sequence[AclBinding]) -> None:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse

    creations = [
        AclCreation(
            resource_type=resource.type,
            resource_name=resource.name,
            resource_pattern_type=resource.pattern,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for resource, entry in bindings
    ]
    answer = ask_any(servers, CreateAclsRequest(creations=creations), _VERSION, CreateAclsResponse)
    for binding, result in zip(bindings, answer.results, strict=True):
        _check(result.error_code, result.error_message, f"The entry of {binding.resource} was not added")


def _delete(servers: str, filters: Sequence[BindingFilter]) -> list[AclBinding]:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse

    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_fields(chosen)) for chosen in filters])
    removed: list[AclBinding] = []
    for result in ask_any(servers, request, _VERSION, DeleteAclsResponse).filter_results:
        _check(result.error_code, result.error_message, "The entries were not removed")
        for acl in result.matching_acls:
            binding = _binding(acl.resource_type, acl.resource_name, acl.pattern_type, acl)
            _check(acl.error_code, acl.error_message, f"An entry of {binding.resource} was not removed")
            removed.append(binding)
    return removed


def _fields(chosen: BindingFilter) -> dict[str, Any]:
    resource, entry = chosen
    return {
        "resource_type_filter": resource.type,
        "resource_name_filter": resource.name,
        "pattern_type_filter": resource.pattern,
        "principal_filter": entry.principal,
        "host_filter": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


class _Acl(Protocol):
    """An entry as responses carry it."""

    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def _binding(kind: int, name: str, pattern: int, acl: _Acl) -> AclBinding:
    from klamm.security.acl.bindings import (
        AclBinding,
        AclEntry,
        AclOperation,
        PatternType,
        Permission,
        ResourcePattern,
        ResourceType,
        of_code,
    )

    return AclBinding(
        ResourcePattern(of_code(ResourceType, kind), name, of_code(PatternType, pattern)),
        AclEntry(
            acl.principal, acl.host, of_code(AclOperation, acl.operation), of_code(Permission, acl.permission_type)
        ),
    )


def _check(code: int, message: str | None, what: str) -> None:
    from klamm.errors import ErrorCode

    if code != ErrorCode.NONE:
        fail(f"{what}: {ErrorCode(code).name}: {message or 'the broker returned no reason.'}")
