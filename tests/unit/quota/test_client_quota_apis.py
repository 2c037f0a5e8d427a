"""AlterClientQuotas and DescribeClientQuotas over a real embedded ZooKeeper, with the bytes that Kafka would write."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from klamm.apis import alter_client_quotas, describe_client_quotas, zookeeper_waits
from klamm.config import ConfigRepository, KafkaConfig
from klamm.config.client_quotas import DEFAULT, QuotaEntity
from klamm.config_changes import ConfigChangeListener
from klamm.errors import ErrorCode
from klamm.protocol.messages import alter_client_quotas as altered
from klamm.protocol.messages import describe_client_quotas as described
from klamm.quota import quota_store
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, SetData
from tests.support.broker_with_zookeeper import broker_with_zookeeper, embedded_zookeeper
from tests.support.one_broker import OneBroker

EXACT, IS_DEFAULT, ANY = 0, 1, 2
USER, CLIENT = "user", "client-id"
Parts = Mapping[str, str | None]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_zookeeper(tmp_path_factory.mktemp("zk")) as address:
        yield address


@pytest.fixture
def one(tmp_path: Path, zookeeper: str) -> Iterator[OneBroker]:
    with broker_with_zookeeper(tmp_path, zookeeper) as (broker, _):
        yield broker


def alter(
    one: OneBroker, parts: Parts, set_: Mapping[str, float] = {}, *remove: str, dry: bool = False, version: int = 1
) -> tuple[int, str | None]:
    entity = [altered.EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()]
    ops = [altered.OpData(key=key, value=value, remove=False) for key, value in set_.items()]
    ops += [altered.OpData(key=key, value=0.0, remove=True) for key in remove]
    request = altered.AlterClientQuotasRequest(entries=[altered.EntryData(entity=entity, ops=ops)], validate_only=dry)
    (answer,) = one.ask(alter_client_quotas.API, request, version).entries
    assert [(part.entity_type, part.entity_name) for part in answer.entity] == list(parts.items())
    return answer.error_code, answer.error_message


def describe(
    one: OneBroker, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    answer = ask_description(one, *components, strict=strict, version=version)
    assert answer.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {v.key: v.value for v in entry.values}
        for entry in answer.entries or ()
    }


def ask_description(
    one: OneBroker, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> described.DescribeClientQuotasResponse:
    asked = [described.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    request = described.DescribeClientQuotasRequest(components=asked, strict=strict)
    return one.ask(describe_client_quotas.API, request, version)


def znode(one: OneBroker, path: str) -> bytes | str | None:
    found = one.loop.run_until_complete(one.broker.zk.read_many([path]))[0]
    return "absent" if found is None else found[0]


def changes(one: OneBroker) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        names = await one.broker.zk.get_children(paths.CONFIG_CHANGES)
        found = await one.broker.zk.read_many([paths.config_change_path(name) for name in sorted(names)])
        return [each[0] for each in found if each is not None]

    return one.loop.run_until_complete(read())


class TestStorage:
    """Apache Kafka 3.9.2 writes the same znodes after the same requests; only the order of two keys may differ."""

    @pytest.mark.parametrize(
        ("parts", "path"),
        [
            ({USER: "alice"}, "users/alice"),
            ({USER: None}, "users/<default>"),
            ({CLIENT: "app"}, "clients/app"),
            ({CLIENT: None}, "clients/<default>"),
            ({USER: "CN=a, O=b*/c", CLIENT: "x y+z"}, "users/CN%3Da%2C%20O%3Db%2A%2Fc/clients/x%20y%2Bz"),
            ({USER: None, CLIENT: None}, "users/<default>/clients/<default>"),
            ({USER: "größe", CLIENT: "<default>"}, "users/gr%C3%B6%C3%9Fe/clients/%3Cdefault%3E"),
        ],
    )
    def test_paths_data_and_notification(self, one: OneBroker, parts: Parts, path: str) -> None:
        assert alter(one, parts, {"request_percentage": 50, "producer_byte_rate": 1024}) == (0, None)
        data = b'{"version":1,"config":{"producer_byte_rate":"1024","request_percentage":"50.0"}}'
        assert znode(one, f"/config/{path}") == data
        assert changes(one) == [b'{"version":2,"entity_path":"%s"}' % path.encode()]
        entity = quota_store.entity_of(path)
        assert entity is not None and quota_store.entity_path(entity) == path
        assert describe(one) == {tuple(parts.items()): {"producer_byte_rate": 1024, "request_percentage": 50}}

    def test_a_znode_without_quotas_is_deleted_with_its_parents(self, one: OneBroker) -> None:
        both: Parts = {USER: "u", CLIENT: "c"}
        alter(one, both, {"producer_byte_rate": 1})
        assert znode(one, "/config/users/u") is None, "the parents have no data"
        alter(one, {USER: "u", CLIENT: "d"}, {"producer_byte_rate": 1})
        alter(one, both, {}, "producer_byte_rate")
        assert znode(one, "/config/users/u/clients/c") == "absent"
        assert znode(one, "/config/users/u/clients") is None
        alter(one, {USER: "u", CLIENT: "d"}, {}, "producer_byte_rate")
        assert znode(one, "/config/users/u") == "absent"
        assert len(changes(one)) == 4

    def test_a_user_with_client_ids_keeps_its_znode(self, one: OneBroker) -> None:
        alter(one, {USER: "u", CLIENT: "c"}, {"producer_byte_rate": 1})
        alter(one, {USER: "u"}, {"producer_byte_rate": 2})
        alter(one, {USER: "u"}, {}, "producer_byte_rate")
        assert znode(one, "/config/users/u") == b'{"version":1,"config":{}}'
        alter(one, {USER: "u", CLIENT: "c"}, {}, "producer_byte_rate")
        assert znode(one, "/config/users/u") == "absent"

    def test_credentials_of_a_user_are_kept(self, one: OneBroker) -> None:
        path, config = "/config/users/u", b'{"version":1,"config":{"SCRAM-SHA-256":"secret"}}'
        one.loop.run_until_complete(one.broker.zk.create(Create(path, config)))
        alter(one, {USER: "u", CLIENT: "c"}, {"producer_byte_rate": 1})
        alter(one, {USER: "u"}, {"consumer_byte_rate": 5})
        assert alter(one, {USER: "u"}, {}, "consumer_byte_rate", "SCRAM-SHA-256") == (0, None)
        alter(one, {USER: "u", CLIENT: "c"}, {}, "producer_byte_rate")
        assert znode(one, path) == config

    def test_a_change_that_changes_nothing_writes_nothing(self, one: OneBroker) -> None:
        assert alter(one, {USER: "u"}, {}, "producer_byte_rate") == (0, None)
        alter(one, {USER: "u"}, {"producer_byte_rate": 5})
        alter(one, {USER: "u"}, {"producer_byte_rate": 5})
        assert len(changes(one)) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("parts", "set_", "code"),
        [
            ({}, {"producer_byte_rate": 1}, 42),
            ({"group": "g"}, {"producer_byte_rate": 1}, 42),
            ({USER: ""}, {"producer_byte_rate": 1}, 42),
            ({CLIENT: "c"}, {"unknown": 1}, 42),
            ({CLIENT: "c"}, {"connection_creation_rate": 1}, 42),
            ({CLIENT: "c"}, {"producer_byte_rate": 1.5}, 42),
            ({CLIENT: "c"}, {"producer_byte_rate": 0}, 42),
            ({CLIENT: "c"}, {"request_percentage": -1}, 42),
            ({CLIENT: "c"}, {"request_percentage": math.nan}, 42),
            ({USER: "u"}, {"SCRAM-SHA-256": 1}, 42),
            ({"ip": "127.0.0.1"}, {"connection_creation_rate": 1}, 35),
        ],
    )
    def test_refused_changes(self, one: OneBroker, parts: Parts, set_: Mapping[str, float], code: int) -> None:
        error, message = alter(one, parts, set_)
        assert error == code and message
        assert not changes(one)

    def test_each_entity_is_answered_for_itself(self, one: OneBroker) -> None:
        entries = [
            altered.EntryData(
                entity=[altered.EntityData(entity_type=CLIENT, entity_name=name)],
                ops=[altered.OpData(key="producer_byte_rate", value=value, remove=False)],
            )
            for name, value in (("a", 1.0), ("b", -1.0), ("c", 2.0))
        ]
        request = altered.AlterClientQuotasRequest(entries=entries, validate_only=False)
        answer = one.ask(alter_client_quotas.API, request, 0)
        assert [entry.error_code for entry in answer.entries] == [0, 42, 0]
        assert len(describe(one)) == 2

    def test_a_dry_run_checks_only(self, one: OneBroker) -> None:
        assert alter(one, {USER: "u"}, {"producer_byte_rate": 5}, dry=True) == (0, None)
        assert alter(one, {USER: "u"}, {"x": 5}, dry=True)[0] == ErrorCode.INVALID_REQUEST
        assert not describe(one) and not changes(one)

    @pytest.mark.parametrize(
        ("components", "code"),
        [
            ([(USER, EXACT, "a"), (USER, ANY, None)], 42),
            ([("", ANY, None)], 42),
            ([(USER, 3, None)], 42),
            ([(USER, EXACT, None)], 42),
            ([("ip", ANY, None)], 35),
            ([("group", ANY, None)], 35),
        ],
    )
    def test_refused_filters(
        self, one: OneBroker, components: Sequence[tuple[str, int, str | None]], code: int
    ) -> None:
        answer = ask_description(one, *components)
        assert answer.error_code == code and answer.error_message and answer.entries is None

    def test_a_silent_zookeeper(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        alter(one, {USER: "u"}, {"producer_byte_rate": 5})
        monkeypatch.setattr(zookeeper_waits, "CHANGE_WAIT_MS", 1)
        monkeypatch.setattr(describe_client_quotas, "CHANGE_WAIT_MS", 1)
        session, silent = one.broker.zk, SilentZooKeeper()
        one.give(zk=silent)
        assert alter(one, {USER: "u"}, {"producer_byte_rate": 6})[0] == ErrorCode.REQUEST_TIMED_OUT
        assert describe(one) == {((USER, "u"),): {"producer_byte_rate": 5}}, "as this broker knows them"
        for task in asyncio.all_tasks(one.loop):
            task.cancel()
        one.spin()
        one.give(zk=session)


class SilentZooKeeper:
    async def read_many(self, wanted: Sequence[str]) -> None:
        await asyncio.get_running_loop().create_future()

    async def get_children(self, path: str) -> None:
        await asyncio.get_running_loop().create_future()


ENTITIES: Sequence[Parts] = (
    {USER: "u"},
    {USER: None},
    {CLIENT: "c"},
    {CLIENT: None},
    {USER: "u", CLIENT: "c"},
    {USER: "u", CLIENT: None},
    {USER: None, CLIENT: "c"},
)


class TestFilters:
    @pytest.mark.parametrize("version", [0, 1])
    @pytest.mark.parametrize(
        ("components", "strict", "found"),
        [
            ([], False, range(7)),
            ([], True, []),
            ([(USER, EXACT, "u")], False, [0, 4, 5]),
            ([(USER, EXACT, "u")], True, [0]),
            ([(USER, IS_DEFAULT, None)], False, [1, 6]),
            ([(USER, IS_DEFAULT, None)], True, [1]),
            ([(USER, ANY, None)], False, [0, 1, 4, 5, 6]),
            ([(USER, ANY, None)], True, [0, 1]),
            ([(CLIENT, EXACT, "c")], True, [2]),
            ([(CLIENT, ANY, None)], False, [2, 3, 4, 5, 6]),
            ([(USER, EXACT, "u"), (CLIENT, EXACT, "c")], True, [4]),
            ([(USER, ANY, None), (CLIENT, ANY, None)], True, [4, 5, 6]),
            ([(USER, ANY, None), (CLIENT, EXACT, "c")], False, [4, 6]),
            ([(USER, EXACT, "nobody")], True, []),
        ],
    )
    def test_a_filter_selects_matching_entities(
        self,
        one: OneBroker,
        components: Sequence[tuple[str, int, str | None]],
        strict: bool,
        found: Sequence[int],
        version: int,
    ) -> None:
        for number, parts in enumerate(ENTITIES, 1):
            alter(one, parts, {"producer_byte_rate": number})
        expected = {tuple(ENTITIES[index].items()): {"producer_byte_rate": index + 1} for index in found}
        assert describe(one, *components, strict=strict, version=version) == expected


class TestListener:
    def follow(self, one: OneBroker) -> tuple[ConfigChangeListener, ConfigRepository]:
        """Another broker that follows the same tree."""
        configs = ConfigRepository(KafkaConfig({"broker.id": 2}))
        listener = ConfigChangeListener(one.broker.zk, configs, 2)
        one.loop.run_until_complete(listener.load_all())
        one.loop.call_soon(listener.start)
        one.spin()
        return listener, configs

    def until(self, one: OneBroker, condition: Callable[[], bool]) -> None:
        deadline = one.loop.time() + 60
        while not condition():
            assert one.loop.time() < deadline
            one.loop.run_until_complete(asyncio.sleep(0.01))

    def test_another_broker_learns_of_quotas(self, one: OneBroker) -> None:
        alter(one, {USER: "u", CLIENT: "c"}, {"producer_byte_rate": 1})
        listener, configs = self.follow(one)
        quotas = configs.client_quotas
        assert dict(quotas.entities) == {QuotaEntity("u", "c"): {"producer_byte_rate": 1}}
        assert quotas.entities == one.broker.configs.client_quotas.entities, "the broker that wrote it knows it too"
        alter(one, {CLIENT: None}, {"consumer_byte_rate": 2})
        alter(one, {USER: "u", CLIENT: "c"}, {}, "producer_byte_rate")
        self.until(one, lambda: dict(quotas.entities) == {QuotaEntity(None, DEFAULT): {"consumer_byte_rate": 2}})
        one.loop.run_until_complete(listener.stop())

    def test_quotas_that_vanished_without_a_notification_are_forgotten_with_the_next_load(self, one: OneBroker) -> None:
        alter(one, {CLIENT: "c"}, {"producer_byte_rate": 1})
        listener, configs = self.follow(one)
        path = "/config/clients/c"
        one.loop.run_until_complete(one.broker.zk.set(SetData(path, b'{"version":1,"config":{}}')))
        one.loop.run_until_complete(listener.load_all())
        assert not configs.client_quotas.entities
        one.loop.run_until_complete(listener.stop())

    def test_znodes_of_a_kafka_broker_and_broken_ones(self, one: OneBroker) -> None:
        """The notifications of Apache Kafka 3.9.2, old ones of version 1, and invalid ones."""
        kafka = {
            "/config/clients/app": b'{"version":1,"config":{"producer_byte_rate":"1024","request_percentage":"12.5"}}',
            "/config/users/CN%3Dalice": b'{"version":1,"config":{"controller_mutation_rate":"1.0E7"}}',
            "/config/users/bad%FF": b'{"version":1,"config":{"producer_byte_rate":"1"}}',
            "/config/clients/broken": b"not json",
            "/config/clients/text": b'{"version":1,"config":{"producer_byte_rate":"many"}}',
            "/config/clients/huge": b'{"version":1,"config":{"producer_byte_rate":"%s"}}' % (b"9" * 400),
        }

        async def write() -> None:
            for path, data in kafka.items():
                await one.broker.zk.create(Create(path, data))

        one.loop.run_until_complete(write())
        listener, configs = self.follow(one)
        expected = {
            QuotaEntity(None, "app"): {"producer_byte_rate": 1024, "request_percentage": 12.5},
            QuotaEntity("CN=alice"): {"controller_mutation_rate": 1e7},
        }
        assert dict(configs.client_quotas.entities) == expected

        async def change() -> None:
            data = b'{"version":1,"config":{"consumer_byte_rate":"7"}}'
            await one.broker.zk.set(SetData("/config/clients/app", data))
            old = b'{"version":1,"entity_type":"clients","entity_name":"app"}'
            await one.broker.zk.create(Create(paths.config_change_path(), old, sequential=True))

        one.loop.run_until_complete(change())
        app = QuotaEntity(None, "app")
        self.until(one, lambda: configs.client_quotas.entities[app] == {"consumer_byte_rate": 7})
        one.loop.run_until_complete(listener.stop())
