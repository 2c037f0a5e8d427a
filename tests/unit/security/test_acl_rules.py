"""The authorizer's decisions, compared with a naive reading of Kafka's rules over every entry."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.security.acl.authorizer import MOST_REMEMBERED, AclAuthorizer
from klamm.security.acl.bindings import (
    SUPPORTED,
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    of_name,
    problem_of,
)
from klamm.security.acl.rules import AclRules

ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
NAMES = ("a", "ab", "abc", "b", "*", "orders")
PRINCIPALS = ("User:alice", "User:bob", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
OPERATIONS = tuple(operation for operation in AclOperation if operation >= AclOperation.ALL)


def allow(name: str, operation: AclOperation, principal: str = "User:alice", **other: Any) -> AclBinding:
    return binding(name, operation, ALLOW, principal, **other)


def deny(name: str, operation: AclOperation, principal: str = "User:alice", **other: Any) -> AclBinding:
    return binding(name, operation, DENY, principal, **other)


def binding(
    name: str,
    operation: AclOperation,
    permission: Permission,
    principal: str = "User:alice",
    *,
    host: str = "*",
    kind: ResourceType = TOPIC,
    pattern: PatternType = LITERAL,
) -> AclBinding:
    return AclBinding(ResourcePattern(kind, name, pattern), AclEntry(principal, host, operation, permission))


def naive(
    bindings: Iterable[AclBinding],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
    *,
    if_none_found: bool,
) -> bool:
    def applies(resource: ResourcePattern) -> bool:
        if resource.type != kind:
            return False
        if resource.pattern == PREFIXED:
            return name.startswith(resource.name)
        return resource.name in (name, "*")

    found = [entry for resource, entry in bindings if applies(resource)]
    if not found:
        return if_none_found

    def matches(entry: AclEntry, permission: Permission, wanted: AclOperation) -> bool:
        return (
            entry.permission == permission
            and entry.principal in (principal, "User:*")
            and entry.host in (host, "*")
            and entry.operation in (wanted, AclOperation.ALL)
        )

    implying = [operation]
    if operation == DESCRIBE:
        implying += [READ, WRITE, AclOperation.DELETE, AclOperation.ALTER]
    if operation == AclOperation.DESCRIBE_CONFIGS:
        implying.append(AclOperation.ALTER_CONFIGS)
    is_denied = any(matches(entry, DENY, operation) for entry in found)
    return not is_denied and any(matches(entry, ALLOW, wanted) for entry in found for wanted in implying)


def naive_on_any(
    bindings: Iterable[AclBinding],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    *,
    if_none_found: bool,
) -> bool:
    def of(permission: Permission, pattern: PatternType) -> set[str]:
        return {
            resource.name
            for resource, entry in bindings
            if resource.type == kind
            and resource.pattern == pattern
            and entry.permission == permission
            and entry.principal in (principal, "User:*")
            and entry.host in (host, "*")
            and entry.operation in (operation, AclOperation.ALL)
        }

    if "*" in of(DENY, LITERAL):
        return False
    if if_none_found:
        return True

    def is_dominated(name: str) -> bool:
        return any(name.startswith(prefix) for prefix in of(DENY, PREFIXED))

    if any(not is_dominated(name) for name in of(ALLOW, PREFIXED)):
        return True
    return any(name == "*" or (name not in of(DENY, LITERAL) and not is_dominated(name)) for name in of(ALLOW, LITERAL))


BINDINGS = st.builds(
    lambda kind, name, pattern, principal, host, operation, permission: AclBinding(
        ResourcePattern(kind, name, pattern), AclEntry(principal, host, operation, permission)
    ),
    st.sampled_from((TOPIC, GROUP)),
    st.sampled_from(NAMES),
    st.sampled_from((LITERAL, PREFIXED)),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((ALLOW, DENY)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(BINDINGS, max_size=12),
    st.sampled_from(("User:alice", "User:bob", "User:carol")),
    st.sampled_from(("10.0.0.1", "10.0.0.2", "10.0.0.3")),
    st.booleans(),
)
def test_decisions_equal_the_naive_ones(
    bindings: list[AclBinding], principal: str, host: str, if_none_found: bool
) -> None:
    rules = AclRules.of(bindings)
    for kind in (TOPIC, GROUP, CLUSTER):
        for operation in AclOperation:
            if operation < READ:
                continue
            assert rules.is_allowed_on_any(
                principal, host, operation, kind, if_none_found=if_none_found
            ) == naive_on_any(bindings, principal, host, operation, kind, if_none_found=if_none_found)
            for name in (*NAMES, "", "abcd", "x"):
                decision = rules.is_allowed(principal, host, operation, kind, name, if_none_found=if_none_found)
                expected = naive(bindings, principal, host, operation, kind, name, if_none_found=if_none_found)
                assert decision == expected, (kind, operation, name)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(BINDINGS, st.booleans()), max_size=30))
def test_changes_give_the_rules_of_the_remaining_entries(steps: list[tuple[AclBinding, bool]]) -> None:
    rules = AclRules()
    left: dict[ResourcePattern, set[AclEntry]] = {}
    for (resource, entry), is_added in steps:
        entries = left.setdefault(resource, set())
        if is_added:
            entries.add(entry)
        else:
            entries.clear()
        before = rules
        known = set(before.resources())
        rules = rules.changed({resource: frozenset(entries)})
        assert set(before.resources()) == known, "a value changed after it was made"
    bindings = [AclBinding(resource, entry) for resource, entries in left.items() for entry in entries]
    assert set(rules.resources()) == {resource for resource, entries in left.items() if entries}
    for operation in (READ, WRITE, DESCRIBE):
        for name in NAMES:
            args = "User:alice", "10.0.0.1", operation, TOPIC, name
            assert rules.is_allowed(*args) == naive(bindings, *args, if_none_found=False)
        some = "User:alice", "10.0.0.1", operation, TOPIC
        assert rules.is_allowed_on_any(*some) == naive_on_any(bindings, *some, if_none_found=False)


def decide(authorizer: AclAuthorizer, operation: AclOperation, name: str, principal: str = "User:alice") -> bool:
    return authorizer.is_allowed(principal, "10.0.0.1", operation, TOPIC, name)


def test_deny_wins_over_allow() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace_rules(AclRules.of([allow("t", AclOperation.ALL), deny("t", READ)]))
    assert decide(authorizer, WRITE, "t")
    assert not decide(authorizer, READ, "t")
    assert decide(authorizer, DESCRIBE, "t"), "a denied operation does not deny the one that it implies"


def test_a_super_user_may_do_everything() -> None:
    authorizer = AclAuthorizer({"User:admin"})
    authorizer.replace_rules(AclRules.of([deny("*", AclOperation.ALL, "User:*")]))
    assert decide(authorizer, WRITE, "t", "User:admin")
    assert authorizer.is_allowed_on_any("User:admin", "h", WRITE, TOPIC)
    assert not decide(authorizer, WRITE, "t", "User:alice")


def test_everyone_is_allowed_where_there_is_no_entry() -> None:
    authorizer = AclAuthorizer(allow_everyone_if_no_acl_found=True)
    authorizer.replace_rules(AclRules.of([allow("t", READ, "User:bob")]))
    assert decide(authorizer, READ, "u")
    assert not decide(authorizer, READ, "t")


def test_a_resource_is_open_until_any_entry_applies_to_it() -> None:
    authorizer = AclAuthorizer({"User:admin"}, allow_everyone_if_no_acl_found=True)
    assert authorizer.is_open("User:alice", TOPIC, "t")
    assert not authorizer.is_open("User:admin", TOPIC, "t"), "a super user does not depend on the setting"
    for entry in (deny("t", READ, "User:bob"), allow("*", READ), allow("t", READ, pattern=PREFIXED)):
        authorizer.replace_rules(AclRules.of([entry]))
        assert not authorizer.is_open("User:alice", TOPIC, "t")
        assert authorizer.is_open("User:alice", GROUP, "t")
    assert not AclAuthorizer().is_open("User:alice", TOPIC, "t")


def test_new_rules_replace_remembered_decisions() -> None:
    authorizer = AclAuthorizer()
    assert not decide(authorizer, READ, "t")
    authorizer.replace_rules(authorizer.rules.changed({ResourcePattern(TOPIC, "t"): frozenset({allow("t", READ)[1]})}))
    assert decide(authorizer, READ, "t")
    authorizer.replace_rules(authorizer.rules.changed({ResourcePattern(TOPIC, "t"): frozenset()}))
    assert not decide(authorizer, READ, "t")


def test_remembered_decisions_are_bounded() -> None:
    authorizer = AclAuthorizer()
    for number in range(2 * MOST_REMEMBERED + 1):
        decide(authorizer, READ, f"t{number}")
    decide(authorizer, READ, "long" * 1000)
    remembered = authorizer.remembered
    assert len(remembered) <= MOST_REMEMBERED
    assert all(len(name or "") < 300 for *_, name in remembered)


def test_addresses_are_compared_in_every_spelling() -> None:
    authorizer = AclAuthorizer()
    authorizer.replace_rules(AclRules.of([allow("t", READ, host="0:0:0:0:0:0:0:1"), allow("t", WRITE, host="not:one")]))
    assert authorizer.is_allowed("User:alice", "::1", READ, TOPIC, "t")
    assert not authorizer.is_allowed("User:alice", "::2", READ, TOPIC, "t")
    assert not authorizer.is_allowed("User:alice", "::1", WRITE, TOPIC, "t")


def test_operations_are_reported_as_bits() -> None:
    authorizer = AclAuthorizer({"User:admin"})
    authorizer.replace_rules(AclRules.of([allow("t", READ)]))
    assert authorizer.operations("User:alice", "h", TOPIC, "t") == 1 << READ | 1 << DESCRIBE
    everything = sum(1 << operation for operation in SUPPORTED[TOPIC])
    assert authorizer.operations("User:admin", "h", TOPIC, "t") == everything


def test_filters_select_resources_as_in_kafka() -> None:
    bindings = [
        allow("orders", READ),
        allow("*", READ),
        allow("ord", READ, pattern=PREFIXED),
        allow("x", READ, pattern=PREFIXED),
        allow("orders", READ, kind=GROUP),
    ]

    def selected(kind: ResourceType, name: str | None, pattern: PatternType) -> set[AclBinding]:
        chosen = ResourceFilter(kind, name, pattern)
        found = {binding for binding in bindings if chosen.matches(binding.resource)}
        named = chosen.named()
        assert not named or {binding.resource for binding in found} <= set(named)
        return found

    assert selected(TOPIC, "orders", PatternType.MATCH) == set(bindings[:3])
    assert selected(TOPIC, "orders", LITERAL) == {bindings[0]}
    assert selected(TOPIC, None, PREFIXED) == set(bindings[2:4])
    assert selected(TOPIC, "ord", PatternType.ANY) == {bindings[2]}
    assert selected(ResourceType.ANY, "orders", PatternType.ANY) == {bindings[0], bindings[4]}
    assert selected(ResourceType.ANY, None, PatternType.ANY) == set(bindings)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (allow("x", READ, kind=CLUSTER), "kafka-cluster"),
        (allow("", READ), "empty resource name"),
        (allow("a/b", READ), "slash"),
        (allow("t", READ, "alice"), "not a principal"),
        (allow("t", READ, host=""), "empty host"),
        (allow("t", AclOperation.ANY), "operation"),
        (allow("t", READ, pattern=PatternType.MATCH), "pattern"),
    ],
)
def test_bindings_that_cannot_be_added(bad: AclBinding, reason: str) -> None:
    assert reason in (problem_of(bad) or "")


def test_a_good_binding_has_no_problem() -> None:
    assert problem_of(allow("t", READ)) is None
    assert problem_of(binding("kafka-cluster", AclOperation.CREATE, DENY, "User:*", kind=CLUSTER)) is None


def test_names_are_read_in_every_spelling() -> None:
    assert of_name(ResourceType, "TransactionalId") == of_name(ResourceType, "transactional-id")
    assert of_name(ResourceType, "TRANSACTIONAL_ID") == ResourceType.TRANSACTIONAL_ID
    assert of_name(AclOperation, "DescribeConfigs") == AclOperation.DESCRIBE_CONFIGS
    assert ResourceType.TRANSACTIONAL_ID.title == "TransactionalId"
    assert of_name(AclOperation, "Sing") == AclOperation.UNKNOWN


def test_the_cost_of_a_decision_does_not_grow_with_the_rules() -> None:
    """Counted, not timed: the resources that a decision looks at."""
    rng = random.Random(5)
    few = [allow(f"topic-{n}", READ, f"User:u{n}", pattern=PREFIXED) for n in range(10)]
    many = [
        allow(f"topic-{n}", rng.choice((READ, WRITE)), f"User:u{n % 100}", pattern=rng.choice((LITERAL, PREFIXED)))
        for n in range(10_000)
    ]
    counts = []
    for bindings in (few, many):
        rules = AclRules.of(bindings)._by_type[TOPIC]
        counts.append((len(rules.applying_to("topic-5")), len(rules.lengths)))
    assert counts[0] == (1, 1)
    assert counts[1][0] <= 2
    assert counts[1][1] <= 4
