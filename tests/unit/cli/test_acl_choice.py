"""The entries that options of `klamm acl` describe are those of kafka-acls."""

from __future__ import annotations

import pytest

from klamm.cli.acl_choice import Access, Resources, bindings_to_add, filters_to_list, filters_to_remove
from klamm.cli.output import Failure
from klamm.security.acl.bindings import AclOperation, PatternType, Permission, ResourceType

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
        allow_principals=["User:a", "User:b"], allow_hosts=["h1", "h2"], operations=["Read", "describe-configs"]
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
