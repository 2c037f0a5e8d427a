"""Entries in ZooKeeper: Kafka's JSON, changes with notices, brokers that follow them, concurrent writers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.acl_changes import PERSISTENT_PATHS, AclChangeListener, change_entries, path_of
from klamm.security.acl import stored
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.security.acl.bindings import (
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, SetData
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.waiting import until

READ = AclEntry("User:alice", "*", AclOperation.READ, Permission.ALLOW)
WRITE = AclEntry("User:alice", "10.0.0.1", AclOperation.WRITE, Permission.DENY)
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
ORD = ResourcePattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED)
ID = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "x")


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeperThread]:
    embedded = EmbeddedZooKeeperThread(tmp_path / "zk")
    embedded.start()
    try:
        yield embedded
    finally:
        embedded.stop()


def test_paths_are_kafkas() -> None:
    assert path_of(ORDERS) == "/kafka-acl/Topic/orders"
    assert path_of(ORD) == "/kafka-acl-extended/prefixed/Topic/ord"
    assert path_of(ID) == "/kafka-acl/TransactionalId/x"
    assert "/kafka-acl-extended/prefixed/DelegationToken" in PERSISTENT_PATHS


def test_entries_are_kafkas_json() -> None:
    content = json.loads(stored.encode_acl([WRITE]))
    denial = {"principal": "User:alice", "permissionType": "Deny", "operation": "Write", "host": "10.0.0.1"}
    assert content == {"version": 1, "acls": [denial]}
    assert stored.decode_acl(stored.encode_acl([READ, WRITE])) == {READ, WRITE}
    assert stored.decode_acl(None) == stored.decode_acl(b"") == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":[5]}',
        b'{"version":1,"acls":[{"principal":"alice","host":"*","operation":"Read","permissionType":"Allow"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","host":"*","operation":"Sing","permissionType":"Allow"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","host":"*","operation":"Read","permissionType":"Perhaps"}]}',
        b'{"version":1,"acls":[{"principal":"User:\\ud800","host":"*","operation":"Read","permissionType":"Allow"}]}',
        b'{"version":1,"acls":' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        stored.decode_acl(data)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"name":"\\ud800","resourceType":"TOPIC","patternType":"PREFIXED"}']
)
def test_other_notices_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        stored.decode_acl_change(data, is_extended=True)


def test_operations_of_a_newer_kafka_are_not_applied_and_not_lost() -> None:
    newer = {"principal": "User:a", "permissionType": "Allow", "operation": "TwoPhaseCommit", "host": "*"}
    content = json.loads(stored.encode_acl([READ]))
    content["acls"].append(newer)
    data = json.dumps(content).encode()
    assert stored.decode_acl(data, skip_unknown=True) == {READ}
    with pytest.raises(ValueError, match="does not know"):
        stored.decode_acl(data)


def test_notices_are_kafkas() -> None:
    assert stored.encode_acl_change(ORDERS) == b"TOPIC:orders"
    assert json.loads(stored.encode_acl_change(ORD)) == {
        "version": 1,
        "resourceType": "TOPIC",
        "name": "ord",
        "patternType": "PREFIXED",
    }
    assert stored.decode_acl_change(b"Topic:a:b", is_extended=False) == ResourcePattern(ResourceType.TOPIC, "a:b")
    for resource in (ORDERS, ORD, ID):
        is_extended = resource.pattern == PatternType.PREFIXED
        assert stored.decode_acl_change(stored.encode_acl_change(resource), is_extended=is_extended) == resource
    for data, is_extended in ((b"orders", False), (b"Choir:x", False), (b"{}", True), (None, True)):
        with pytest.raises(ValueError):
            stored.decode_acl_change(data, is_extended=is_extended)


def test_a_broker_follows_the_changes_of_another(zookeeper: EmbeddedZooKeeperThread) -> None:
    async def scenario() -> None:
        async with TwoBrokers(zookeeper) as (writer, reader, authorizer):
            await change_entries(writer, ORDERS, lambda before: before | {READ})
            await change_entries(writer, ORD, lambda before: before | {WRITE})
            await until(lambda: authorizer.rules.entries(ORDERS) == {READ})
            await until(lambda: authorizer.rules.entries(ORD) == {WRITE})
            await change_entries(writer, ORDERS, lambda before: before - {READ})
            await until(lambda: not authorizer.rules.entries(ORDERS))
            assert (await reader.read_many([path_of(ORDERS)]))[0] is None, "a resource without entries has no znode"
            assert len(await reader.get_children(paths.ACL_CHANGES)) == 2
            assert len(await reader.get_children(paths.ACL_EXTENDED_CHANGES)) == 1

    asyncio.run(scenario())


def test_entries_that_met_a_bug_are_read_with_the_next_change(
    zookeeper: EmbeddedZooKeeperThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bugs = [KeyError("a bug")]
    replace_rules = AclAuthorizer.replace_rules

    def replace(authorizer: AclAuthorizer, rules: Any) -> None:
        if bugs and len(list(rules.resources())):
            raise bugs.pop()
        replace_rules(authorizer, rules)

    monkeypatch.setattr(AclAuthorizer, "replace_rules", replace)

    async def scenario() -> None:
        async with TwoBrokers(zookeeper) as (writer, _, authorizer):
            await change_entries(writer, ORDERS, lambda before: before | {READ})
            await until(lambda: "KeyError: 'a bug'" in caplog.text)
            await change_entries(writer, ORD, lambda before: before | {WRITE})
            await until(lambda: authorizer.rules.entries(ORD) == {WRITE})
            assert authorizer.rules.entries(ORDERS) == {READ}

    asyncio.run(scenario())


def test_no_change_writes_nothing(zookeeper: EmbeddedZooKeeperThread) -> None:
    async def scenario() -> None:
        async with TwoBrokers(zookeeper) as (writer, _, _):
            await change_entries(writer, ORDERS, lambda before: before | {READ})
            await change_entries(writer, ORDERS, lambda before: before | {READ})
            assert len(await writer.get_children(paths.ACL_CHANGES)) == 1

    asyncio.run(scenario())


def test_concurrent_writers_lose_nothing(zookeeper: EmbeddedZooKeeperThread) -> None:
    entries = [READ._replace(principal=f"User:u{n}") for n in range(20)]

    async def scenario() -> None:
        async with TwoBrokers(zookeeper) as (writer, reader, authorizer):
            changes = [
                change_entries(zk, ORDERS, frozenset({entry}).union)
                for entry, zk in zip(entries, [writer, reader] * 10, strict=True)
            ]
            await asyncio.gather(*changes)
            await until(lambda: authorizer.rules.entries(ORDERS) == set(entries))

    asyncio.run(scenario())


def test_entries_that_cannot_be_read_deny_everything(zookeeper: EmbeddedZooKeeperThread) -> None:
    async def scenario() -> None:
        async with TwoBrokers(zookeeper) as (writer, _, authorizer):
            reading = "User:alice", "h", AclOperation.READ, ResourceType.TOPIC, "orders"
            await change_entries(writer, ORDERS, lambda before: before | {READ})
            await until(lambda: authorizer.is_allowed(*reading))
            await writer.set(SetData(path_of(ORDERS), b"broken"))
            notice = f"{paths.ACL_CHANGES}/{paths.ACL_CHANGE_PREFIX}"
            await writer.create(Create(notice, stored.encode_acl_change(ORDERS), sequential=True))
            await until(lambda: not authorizer.is_allowed(*reading))
            with pytest.raises(ValueError):
                await change_entries(writer, ORDERS, lambda before: before | {READ})

    asyncio.run(scenario())


def test_a_start_reads_existing_entries(zookeeper: EmbeddedZooKeeperThread) -> None:
    many = [ResourcePattern(ResourceType.TOPIC, f"t{n}") for n in range(450)]

    async def scenario() -> None:
        zk = await ZkSession(str(zookeeper.address)).start()
        try:
            await zk.ensure_paths(PERSISTENT_PATHS)
            await asyncio.gather(*(change_entries(zk, resource, frozenset({READ}).union) for resource in many))
            await zk.ensure_paths(["/kafka-acl/Choir"])
            authorizer = AclAuthorizer()
            listener = AclChangeListener(zk, authorizer)
            await listener.start()
            assert set(authorizer.rules.resources()) == set(many)
            await listener.purge(now_ms=0)
            assert len(await zk.get_children(paths.ACL_CHANGES)) == len(many)
            await listener.purge(now_ms=2**60)
            assert await zk.get_children(paths.ACL_CHANGES) == ()
            await listener.stop()
        finally:
            await zk.close()

    asyncio.run(scenario())


class TwoBrokers:
    """Two sessions: one only writes, the other follows."""

    def __init__(self, zookeeper: EmbeddedZooKeeperThread) -> None:
        self._address = str(zookeeper.address)

    async def __aenter__(self) -> tuple[ZkSession, ZkSession, AclAuthorizer]:
        self._writer = await ZkSession(self._address).start()
        self._reader = await ZkSession(self._address).start()
        authorizer = AclAuthorizer()
        self._listener = AclChangeListener(self._reader, authorizer)
        await self._listener.start()
        return self._writer, self._reader, authorizer

    async def __aexit__(self, *_: Any) -> None:
        await self._listener.stop()
        await self._writer.close()
        await self._reader.close()
