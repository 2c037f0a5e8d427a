"""The entries that options of `klamm acl` describe are those of kafka-acls."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from klamm.cli import acl
from klamm.cli.acl_choice import (
    Access,
    Resources,
    bindings_to_add,
    filters_of_remaining,
    filters_to_list,
    filters_to_remove,
    nothing_removed,
)
from klamm.cli.app import app
from klamm.cli.output import Failure
from klamm.security.acl.bindings import (
    AclBinding,
    AclEntry,
    AclOperation,
    BindingFilter,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

ALICE = Access(allow_principals=["User:alice"])


def added(resources: Resources, access: Access) -> set[tuple[str, str, str]]:
    return {
        (binding.resource.type.title, binding.entry.permission.title, binding.entry.operation.title)
        for binding in bindings_to_add(resources, access)
    }


def test_all_operations_by_default() -> None:
    assert added(Resources(topics=["t"]), ALICE) == {("Topic", "Allow", "All")}


def test_the_product_of_principals_hosts_and_operations() -> None:
    access = Access(
        allow_principals=["User:a", "User:b"],
        allow_hosts=["10.0.0.1", "2001:db8::1"],
        operations=["Read", "describe-configs"],
    )
    bindings = bindings_to_add(Resources(topics=["t", "u"], pattern="prefixed"), access)
    assert len(bindings) == len(set(bindings)) == 2 * 2 * 2 * 2
    assert {binding.resource.pattern for binding in bindings} == {PatternType.PREFIXED}


def test_denials_beside_permissions() -> None:
    access = Access(allow_principals=["User:*"], deny_principals=["User:bob"], deny_hosts=["10.0.0.1"])
    bindings = bindings_to_add(Resources(cluster=True), access)
    found = {(binding.entry.principal, binding.entry.host, binding.entry.permission) for binding in bindings}
    assert found == {("User:*", "*", Permission.ALLOW), ("User:bob", "10.0.0.1", Permission.DENY)}


def test_roles() -> None:
    producer = Access(allow_principals=["User:p"], producer=True, idempotent=True)
    assert added(Resources(topics=["t"], transactional_ids=["x"]), producer) == {
        ("Topic", "Allow", "Write"),
        ("Topic", "Allow", "Describe"),
        ("Topic", "Allow", "Create"),
        ("TransactionalId", "Allow", "Write"),
        ("TransactionalId", "Allow", "Describe"),
        ("Cluster", "Allow", "IdempotentWrite"),
    }
    consumer = Access(allow_principals=["User:c"], consumer=True)
    assert added(Resources(topics=["t"], groups=["g"]), consumer) == {
        ("Topic", "Allow", "Read"),
        ("Topic", "Allow", "Describe"),
        ("Group", "Allow", "Read"),
    }


def test_removing_selects_the_same_entries_or_all() -> None:
    (chosen,) = filters_to_remove(Resources(topics=["t"], pattern="match"), Access())
    assert chosen.resource.pattern == PatternType.MATCH
    assert chosen.entry == (None, None, AclOperation.ANY, Permission.ANY)
    (chosen,) = filters_to_remove(Resources(topics=["t"]), Access(allow_principals=["User:a"], operations=["Read"]))
    assert chosen.entry == ("User:a", "*", AclOperation.READ, Permission.ALLOW)


def test_entries_that_a_removal_left() -> None:
    chosen = filters_to_remove(
        Resources(topics=["t"]), Access(allow_principals=["User:a"], operations=["Read", "Write"])
    )
    (wide,) = filters_of_remaining(chosen)
    assert wide.resource == (ResourceType.TOPIC, "t", PatternType.ANY)
    assert wide.entry == ("User:a", None, AclOperation.ANY, Permission.ANY)


def test_a_removal_of_nothing_names_the_commands_that_remove() -> None:
    assert "there are no such entries" in nothing_removed([])
    allowed = Access(allow_principals=["User:a b"], allow_hosts=["*", "10.0.0.1"], operations=["Read", "Write"])
    denied = Access(deny_principals=["User:a b"])
    remaining = [
        *bindings_to_add(Resources(topics=["t"]), allowed),
        *bindings_to_add(Resources(topics=["t"], pattern="prefixed"), denied),
        *bindings_to_add(Resources(cluster=True), denied),
    ]
    first, *commands = nothing_removed(remaining).splitlines()
    assert "Other entries remain: 6. To remove them:" in first and "--operation" in first
    assert [command.strip() for command in commands] == [
        "klamm acl remove --topic t --allow-principal 'User:a b' --operation Read --operation Write",
        "klamm acl remove --topic t --allow-principal 'User:a b' --allow-host 10.0.0.1 --operation Read "
        "--operation Write",
        "klamm acl remove --topic t --resource-pattern-type prefixed --deny-principal 'User:a b' --operation All",
        "klamm acl remove --cluster --deny-principal 'User:a b' --operation All",
    ]


TOPIC, PREFIX = (
    ResourcePattern(ResourceType.TOPIC, "t x"),
    ResourcePattern(ResourceType.TOPIC, "t", PatternType.PREFIXED),
)
CLUSTER = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")


def entry(text: str, permission: Permission = Permission.ALLOW) -> AclEntry:
    """The entry of `OPERATION@HOST`."""
    operation, host = text.split("@")
    return AclEntry("User:a", host, AclOperation[operation], permission)


@pytest.mark.parametrize(
    "remaining",
    [
        {AclBinding(TOPIC, entry(each)) for each in ("READ@10.0.0.1", "WRITE@*", "READ@*")},
        {AclBinding(TOPIC, entry(each)) for each in ("READ@10.0.0.1", "WRITE@10.0.0.2", "ALL@*")},
        {
            *(AclBinding(TOPIC, entry(each, Permission.DENY)) for each in ("READ@::1", "READ@*", "WRITE@banana")),
            *(AclBinding(TOPIC, entry(each)) for each in ("DESCRIBE@::1", "WRITE@*")),
            *(AclBinding(PREFIX, entry(each)) for each in ("READ@*", "CREATE@10.0.0.1")),
            *(AclBinding(CLUSTER, entry(each)) for each in ("ALTER@*", "ALTER@10.0.0.1", "CREATE@10.0.0.1")),
        },
    ],
)
def test_the_commands_of_a_removal_of_nothing_remove_exactly_the_remaining_entries(
    remaining: set[AclBinding], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = set(remaining)
    # The product of all operations and hosts has more entries than remain: the commands must not touch the others.
    hosts, operations = {each.entry.host for each in remaining}, {each.entry.operation for each in remaining}
    others = {
        AclBinding(each.resource, each.entry._replace(host=host, operation=operation))
        for each in remaining
        for host in hosts
        for operation in operations
    } - remaining

    def delete(_: str, filters: Sequence[BindingFilter]) -> list[AclBinding]:
        removed = [
            each
            for each in (*left, *others)
            if any(chosen.resource.matches(each.resource) and chosen.entry.matches(each.entry) for chosen in filters)
        ]
        assert not others.intersection(removed)
        left.difference_update(removed)
        return removed

    monkeypatch.setattr(acl, "_delete", delete)
    for command in nothing_removed(remaining).splitlines()[1:]:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output, done.exception)
    assert not left


@pytest.mark.parametrize("host", ["banana", "10.0.0.0/8", "broker.example.com", "", "10.0.0", "[::1]"])
def test_hosts_that_never_match_can_only_be_removed(host: str) -> None:
    for access in (
        Access(allow_principals=["User:a"], allow_hosts=[host]),
        Access(deny_principals=["User:a"], deny_hosts=["*", host]),
    ):
        with pytest.raises(Failure, match="would never match: expected an IP address"):
            bindings_to_add(Resources(topics=["t"]), access)
        assert host in {each.entry.host for each in filters_to_remove(Resources(topics=["t"]), access)}


def test_listing_requires_principals_with_a_type() -> None:
    with pytest.raises(Failure, match="'alice' is not a principal: expected a type and a name, such as User:alice"):
        filters_to_list(Resources(pattern="any"), ["User:bob", "alice"])


def test_listing_without_a_resource_selects_everything() -> None:
    (chosen,) = filters_to_list(Resources(pattern="any"), ())
    assert chosen.resource == (ResourceType.ANY, None, PatternType.ANY)
    assert len(filters_to_list(Resources(topics=["t"], cluster=True), ["User:a", "User:b"])) == 4


@pytest.mark.parametrize(
    ("resources", "access", "problem"),
    [
        (Resources(), ALICE, "Pass a resource"),
        (Resources(topics=["t"]), Access(), "Pass --allow-principal"),
        (Resources(topics=["t"], pattern="match"), ALICE, "selects entries"),
        (Resources(topics=["t"], pattern="x"), ALICE, "literal, prefixed, match or any"),
        (Resources(topics=["t"]), Access(allow_principals=["alice"]), "not a principal"),
        (Resources(groups=["g"]), Access(allow_principals=["User:a"], operations=["Write"]), "does not apply to Group"),
        (Resources(groups=["g"]), Access(allow_principals=["User:a"], producer=True), "--producer requires --topic"),
        (Resources(topics=["t"]), Access(allow_principals=["User:a"], consumer=True), "--topic and --group"),
        (Resources(topics=["t"]), Access(allow_principals=["User:a"], idempotent=True), "requires --producer"),
        (
            Resources(topics=["t"]),
            Access(allow_principals=["User:a"], producer=True, operations=["Read"]),
            "choose the operations",
        ),
        (Resources(topics=["t"]), Access(deny_principals=["User:a"], allow_hosts=["h"]), "requires --allow-principal"),
        (Resources(topics=["t"]), Access(allow_principals=["User:a"], deny_hosts=["h"]), "requires --deny-principal"),
    ],
)
def test_contradictions(resources: Resources, access: Access, problem: str) -> None:
    with pytest.raises(Failure, match=problem):
        bindings_to_add(resources, access)
