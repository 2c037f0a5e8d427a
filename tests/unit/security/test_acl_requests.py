"""CreateAcls, DescribeAcls and DeleteAcls: their errors and their filters, over a real embedded ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.acl_changes import AclChangeListener, path_of
from klamm.apis import create_acls, delete_acls, describe_acls
from klamm.broker import Acls
from klamm.errors import ErrorCode
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from klamm.protocol.messages.describe_acls import DescribeAclsRequest
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.security.acl.bindings import PatternType, ResourcePattern, ResourceType
from klamm.zk.model.ops import SetData
from tests.support.broker_with_zookeeper import broker_with_zookeeper, embedded_zookeeper
from tests.support.one_broker import OneBroker

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER = 2, 3, 4
READ, WRITE = 3, 4
DENY, ALLOW = 2, 3
NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
Found = set[tuple[str, str]]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_zookeeper(tmp_path_factory.mktemp("zk")) as address:
        yield address


@pytest.fixture
def one(tmp_path: Path, zookeeper: str) -> Iterator[OneBroker]:
    """A broker with an authorizer and a ZooKeeper tree of its own."""
    with broker_with_zookeeper(tmp_path, zookeeper) as (broker, session):
        authorizer = AclAuthorizer()
        listener = AclChangeListener(session, authorizer)
        broker.loop.run_until_complete(listener.start())
        broker.give(acls=Acls(authorizer, listener))
        yield broker
        broker.loop.run_until_complete(listener.stop())


def entry(name: str, principal: str = "User:alice", **fields: Any) -> AclCreation:
    usual: dict[str, Any] = {
        "resource_type": TOPIC,
        "resource_pattern_type": LITERAL,
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return AclCreation(resource_name=name, principal=principal, **usual | fields)


def chosen(name: str | None = None, **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "resource_type_filter": TOPIC,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return {"resource_name_filter": name, **usual, **fields}


def create(one: OneBroker, *entries: AclCreation, version: int = 3) -> list[int]:
    results = one.ask(create_acls.API, CreateAclsRequest(creations=list(entries)), version).results
    assert all(result.error_message for result in results if result.error_code)
    return [result.error_code for result in results]


def describe(one: OneBroker, version: int = 3, **fields: Any) -> Found | int:
    """Names of resources with principals, or the error."""
    response = one.ask(describe_acls.API, DescribeAclsRequest(**chosen(**fields)), version)
    found = {(resource.resource_name, acl.principal) for resource in response.resources for acl in resource.acls}
    return response.error_code or found


def delete(one: OneBroker, *filters: dict[str, Any]) -> list[Found | int]:
    """The entries that each filter deleted, or its error."""
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**each) for each in filters])
    return [
        result.error_code or {(acl.resource_name, acl.principal) for acl in result.matching_acls}
        for result in one.ask(delete_acls.API, request, 3).filter_results
    ]


@pytest.mark.parametrize("version", range(4))
def test_without_an_authorizer_security_is_disabled(one: OneBroker, version: int) -> None:
    one.give(acls=None)
    assert create(one, entry("t"), entry("u"), version=version) == [ErrorCode.SECURITY_DISABLED] * 2
    assert describe(one, version=version, pattern_type_filter=LITERAL) == ErrorCode.SECURITY_DISABLED
    assert delete(one, chosen("t"), chosen("u")) == [ErrorCode.SECURITY_DISABLED] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": 0},
        {"resource_type": ANY},
        {"resource_type": 99},
        {"resource_type": CLUSTER},
        {"resource_pattern_type": 0},
        {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
        {"resource_pattern_type": 99},
        {"operation": 0},
        {"operation": ANY},
        {"operation": 99},
        {"permission_type": 0},
        {"permission_type": ANY},
        {"permission_type": 99},
        {"resource_name": ""},
        {"resource_name": "a/b"},
        {"principal": "alice"},
        {"principal": ""},
        {"host": ""},
    ],
    ids=str,
)
def test_an_invalid_entry_does_not_affect_the_others(one: OneBroker, wrong: dict[str, Any]) -> None:
    fields = {"resource_name": "t", "principal": "User:wrong"} | wrong
    invalid = entry(fields.pop("resource_name"), fields.pop("principal"), **fields)
    assert create(one, entry("t"), invalid, entry("u")) == [NONE, INVALID, NONE]
    assert describe(one, resource_type_filter=ANY) == {("t", "User:alice"), ("u", "User:alice")}


def test_entries_are_in_force_when_the_answer_comes(one: OneBroker) -> None:
    """One entry twice is one entry."""
    assert create(one, entry("t"), entry("t"), entry("ord", resource_pattern_type=PREFIXED)) == [NONE] * 3
    assert one.broker.acls is not None
    rules = one.broker.acls.authorizer.rules
    assert len(rules.entries(ResourcePattern(ResourceType.TOPIC, "t"))) == 1
    assert len(rules.entries(ResourcePattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED))) == 1
    assert delete(one, chosen("t")) == [{("t", "User:alice")}]
    assert not one.broker.acls.authorizer.rules.entries(ResourcePattern(ResourceType.TOPIC, "t"))


@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
@pytest.mark.parametrize("code", [0, 99, -1])
def test_a_filter_with_an_unknown_code_is_refused(one: OneBroker, field: str, code: int) -> None:
    create(one, entry("t"))
    assert describe(one, **{field: code}) == INVALID
    assert delete(one, chosen("none"), chosen("t", **{field: code})) == [set(), INVALID]
    assert describe(one) == {("t", "User:alice")}


def test_a_filter_deletes_what_it_selects_and_nothing_else(one: OneBroker) -> None:
    create(
        one,
        entry("orders"),
        entry("orders", "User:bob", operation=WRITE),
        entry("orders", "User:carol", permission_type=DENY),
        entry("orders", "User:dave", host="10.0.0.1"),
        entry("ord", resource_pattern_type=PREFIXED),
        entry("*"),
        entry("orders", resource_type=GROUP),
        entry("other"),
    )
    everything = describe(one, resource_type_filter=ANY)
    assert isinstance(everything, set) and len(everything) == 7, "a topic and a group have the same name"
    assert delete(one, chosen("orders", operation=WRITE)) == [{("orders", "User:bob")}]
    assert delete(one, chosen(permission_type=DENY)) == [{("orders", "User:carol")}]
    assert delete(one, chosen(host_filter="10.0.0.1")) == [{("orders", "User:dave")}]
    assert delete(one, chosen(principal_filter="User:nobody")) == [set()]
    matching = chosen("orders", pattern_type_filter=MATCH)
    assert delete(one, matching) == [{("orders", "User:alice"), ("ord", "User:alice"), ("*", "User:alice")}]
    assert describe(one) == {("other", "User:alice")}
    assert describe(one, resource_type_filter=GROUP) == {("orders", "User:alice")}


def test_a_filter_that_is_there_twice_deletes_once(one: OneBroker) -> None:
    """Kafka's second result is empty, too."""
    create(one, entry("t"), entry("u"))
    assert delete(one, chosen("t"), chosen("t")) == [{("t", "User:alice")}, set()]
    assert describe(one) == {("u", "User:alice")}


def test_an_entry_is_named_by_the_first_filter_that_selects_it(one: OneBroker) -> None:
    """As in Kafka, whether a filter names one resource or many."""
    alice = {"principal_filter": "User:alice"}
    for filters, expected in (
        ((chosen("t"), chosen(**alice)), [{("t", "User:alice")}, {("u", "User:alice")}]),
        ((chosen(**alice), chosen("t")), [{("t", "User:alice"), ("u", "User:alice")}, set()]),
        (
            (chosen("t", operation=READ), chosen("t"), chosen("u")),
            [{("t", "User:alice")}, set(), {("u", "User:alice")}],
        ),
    ):
        assert create(one, entry("t"), entry("u")) == [NONE, NONE]
        assert delete(one, *filters) == expected
        assert describe(one) == set()


def test_too_many_entries_are_refused_unread(one: OneBroker) -> None:
    names = [f"t{number}" for number in range(1_001)]
    assert create(one, *map(entry, names)) == [INVALID] * 1_001
    assert delete(one, *map(chosen, names)) == [INVALID] * 1_001
    assert describe(one) == set()


def test_entries_that_cannot_be_decoded_are_not_overwritten(one: OneBroker) -> None:
    create(one, entry("t"), entry("u"))
    path = path_of(ResourcePattern(ResourceType.TOPIC, "t"))
    one.loop.run_until_complete(one.broker.zk.set(SetData(path, b"broken")))
    assert create(one, entry("t", "User:bob"), entry("u", "User:bob")) == [ErrorCode.UNKNOWN_SERVER_ERROR, NONE]
    (found,) = one.loop.run_until_complete(one.broker.zk.read_many([path]))
    assert found is not None and found[0] == b"broken"
