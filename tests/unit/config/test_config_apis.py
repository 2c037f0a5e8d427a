"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and the change listener, over a real embedded ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.apis import alter_configs, config_resources, describe_configs, incremental_alter_configs, zookeeper_waits
from klamm.config import BROKER_KEYS, TOPIC_KEYS, ConfigRepository, KafkaConfig
from klamm.config.entries import ConfigSource
from klamm.config.topic_config import KEEP_RECORDS
from klamm.config_changes import ConfigChangeListener, change_config, read_configs
from klamm.errors import ErrorCode
from klamm.protocol.messages import alter_configs as full
from klamm.protocol.messages import describe_configs as described
from klamm.protocol.messages import incremental_alter_configs as incremental
from klamm.security.secret import Secret
from klamm.server.broker_security import BrokerSecurity
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, GetData, SetData
from klamm.zk.model.znodes import encode_config
from tests.support.broker_with_zookeeper import broker_with_zookeeper, embedded_zookeeper
from tests.support.certificates import write_tls_files
from tests.support.one_broker import OneBroker

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
Op = tuple[str, int, str | None]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_zookeeper(tmp_path_factory.mktemp("zk")) as address:
        yield address


@pytest.fixture
def one(tmp_path: Path, zookeeper: str) -> Iterator[OneBroker]:
    with one_broker(tmp_path, zookeeper, {"num.io.threads": "4", "log.retention.hours": "2"}) as broker:
        yield broker


@contextmanager
def one_broker(tmp_path: Path, zookeeper: str, settings: Mapping[str, str]) -> Iterator[OneBroker]:
    """Broker 1 with the topic `orders`, in a ZooKeeper tree of its own."""
    with broker_with_zookeeper(tmp_path, zookeeper, settings) as (broker, _):
        broker.lead("orders")
        yield broker


def describe(
    one: OneBroker, kind: int, name: str, keys: Sequence[str] | None = None, version: int = 4, docs: bool = False
) -> described.DescribeConfigsResult:
    resource = described.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = described.DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=docs)
    return one.ask(describe_configs.API, request, version).results[0]


def change(one: OneBroker, kind: int, name: str, *ops: Op, validate_only: bool = False) -> tuple[int, str | None]:
    configs = [incremental.AlterableConfig(name=k, config_operation=op, value=v) for k, op, v in ops]
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    answer = one.ask(incremental_alter_configs.API, request, 1).responses[0]
    return answer.error_code, answer.error_message


def replace(one: OneBroker, kind: int, name: str, values: dict[str, str | None]) -> tuple[int, str | None]:
    configs = [full.AlterableConfig(name=k, value=v) for k, v in values.items()]
    resource = full.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = one.ask(alter_configs.API, full.AlterConfigsRequest(resources=[resource], validate_only=False), 2)
    return answer.responses[0].error_code, answer.responses[0].error_message


def stored(one: OneBroker, kind: str, name: str) -> dict[str, str]:
    return one.loop.run_until_complete(read_configs(one.broker.zk, kind, [name]))[name]


def changes(one: OneBroker) -> int:
    return len(one.loop.run_until_complete(one.broker.zk.get_children(paths.CONFIG_CHANGES)))


class SilentZooKeeper:
    """Takes requests and never answers, as after a lost connection."""

    async def read_many(self, wanted: Sequence[str]) -> None:
        await asyncio.get_running_loop().create_future()


class TestWithoutZooKeeper:
    def test_the_configuration_applied_last_is_described(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        change(one, TOPIC, "orders", ("retention.bytes", SET, "10"))
        monkeypatch.setattr(config_resources, "READ_WAIT_MS", 1)
        one.give(zk=SilentZooKeeper())
        (config,) = describe(one, TOPIC, "orders", ["retention.bytes"]).configs
        assert config.value == "10"

    def test_a_change_runs_out_of_time_and_the_rest_is_not_tried(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(zookeeper_waits, "CHANGE_WAIT_MS", 1)
        one.give(zk=SilentZooKeeper())
        assert replace(one, TOPIC, "orders", {})[0] == ErrorCode.REQUEST_TIMED_OUT
        configs = [incremental.AlterableConfig(name="retention.bytes", config_operation=SET, value="1")]
        resources = [
            incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            for kind, name in ((TOPIC, "orders"), (BROKER, "1"), (TOPIC, "missing"))
        ]
        request = incremental.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        answers = one.ask(incremental_alter_configs.API, request, 1).responses
        assert [answer.error_code for answer in answers] == [ErrorCode.REQUEST_TIMED_OUT] * 3
        left = asyncio.all_tasks(one.loop)
        for task in left:
            task.cancel()
        one.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


class TestDescribe:
    def test_a_topic_shows_all_keys_and_where_they_come_from(self, one: OneBroker) -> None:
        change(one, TOPIC, "orders", ("retention.bytes", SET, "10"))
        result = describe(one, TOPIC, "orders")
        configs = {config.name: config for config in result.configs}
        assert result.error_code == 0 and configs.keys() == TOPIC_KEYS.keys()
        assert (configs["retention.bytes"].value, configs["retention.bytes"].config_source) == ("10", 1)
        assert configs["retention.ms"].value == "7200000"
        assert [(s.name, s.value, s.source) for s in configs["retention.ms"].synonyms] == [
            ("log.retention.hours", "2", ConfigSource.STATIC_BROKER_CONFIG),
            ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
        ]
        assert configs["retention.ms"].config_source == ConfigSource.STATIC_BROKER_CONFIG
        assert configs["cleanup.policy"].config_type == 7 and configs["cleanup.policy"].documentation is None
        assert not configs["retention.ms"].read_only

    @pytest.mark.parametrize("version", range(5))
    def test_every_version(self, one: OneBroker, version: int) -> None:
        result = describe(one, TOPIC, "orders", ["segment.bytes"], version)
        (config,) = result.configs
        assert config.value == "1073741824"
        assert not config.is_default, "Kafka never sets the flag of v0"
        assert config.config_source == (ConfigSource.DEFAULT_CONFIG if version >= 1 else -1)
        assert config.config_type == (3 if version >= 3 else 0)

    @pytest.mark.parametrize("name", ["", ".", "..", "no such/topic", "ü", "x" * 250])
    def test_invalid_topic_names(self, one: OneBroker, name: str) -> None:
        result = describe(one, TOPIC, name)
        assert (result.error_code, list(result.configs)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, [])
        assert "Topic name is invalid" in (result.error_message or "")

    def test_documentation_only_when_asked_for(self, one: OneBroker) -> None:
        (config,) = describe(one, TOPIC, "orders", ["segment.bytes"], docs=True).configs
        assert config.documentation == TOPIC_KEYS["segment.bytes"].doc

    def test_a_broker_shows_all_keys(self, one: OneBroker) -> None:
        configs = {config.name: config for config in describe(one, BROKER, "1").configs}
        assert configs.keys() == BROKER_KEYS.keys()
        assert (configs["num.io.threads"].value, configs["num.io.threads"].config_source) == ("4", 4)
        assert configs["broker.id"].read_only and not configs["num.io.threads"].read_only
        for key in ("listeners", "advertised.listeners", "listener.security.protocol.map"):
            assert not configs[key].read_only, "as in Kafka"
        assert configs["log.retention.ms"].value is None

    def test_broker_defaults_are_the_settings_of_all_brokers(self, one: OneBroker) -> None:
        assert change(one, BROKER, "", ("log.segment.bytes", SET, "2048")) == (0, None)
        (config,) = describe(one, BROKER, "").configs
        assert (config.name, config.value, config.config_source) == ("log.segment.bytes", "2048", 3)

    def test_loggers(self, one: OneBroker) -> None:
        configs = {config.name: config for config in describe(one, LOGGER, "1").configs}
        assert configs["root"].config_source == ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
        assert "klamm.config" in configs

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [(TOPIC, "none", 3), (TOPIC, "", 17), (BROKER, "2", 42), (LOGGER, "", 42), (16, "x", 42)],
    )
    def test_refused(self, one: OneBroker, kind: int, name: str, code: int) -> None:
        result = describe(one, kind, name)
        assert result.error_code == code and result.error_message and not result.configs


class TestIncremental:
    def test_set_and_delete_are_written_noted_and_applied(self, one: OneBroker) -> None:
        reported: list[tuple[str, str]] = []
        one.broker.configs.on_topic_change(lambda topic, config: reported.append((topic, config["retention.ms"])))
        assert change(one, TOPIC, "orders", ("retention.ms", SET, "5")) == (0, None)
        assert stored(one, "topics", "orders") == {"retention.ms": "5"}
        assert change(one, TOPIC, "orders", ("retention.ms", DELETE, None)) == (0, None)
        assert stored(one, "topics", "orders") == {}
        assert reported == [("orders", "5"), ("orders", "7200000")]
        assert changes(one) == 2

    def test_lists_grow_and_shrink(self, one: OneBroker) -> None:
        change(one, TOPIC, "orders", ("cleanup.policy", APPEND, "compact"))
        assert stored(one, "topics", "orders") == {"cleanup.policy": "delete,compact"}
        change(one, TOPIC, "orders", ("cleanup.policy", APPEND, "compact"))
        change(one, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete"))
        assert stored(one, "topics", "orders") == {"cleanup.policy": "compact"}

    def test_validate_only_writes_nothing(self, one: OneBroker) -> None:
        assert change(one, TOPIC, "orders", ("retention.ms", SET, "5"), validate_only=True) == (0, None)
        assert change(one, TOPIC, "orders", ("retention.ms", SET, "x"), validate_only=True)[0] == 40
        assert (stored(one, "topics", "orders"), changes(one)) == ({}, 0)

    @pytest.mark.parametrize(
        ("kind", "name", "op", "code"),
        [
            (TOPIC, "none", ("retention.ms", SET, "5"), 3),
            (TOPIC, "orders", ("retention.m", SET, "5"), 40),
            (TOPIC, "orders", ("retention.ms", SET, "x"), 40),
            (TOPIC, "orders", ("retention.ms", SET, None), 42),
            (TOPIC, "orders", ("retention.ms", APPEND, "5"), 40),
            (TOPIC, "orders", ("retention.ms", 9, "5"), 42),
            (BROKER, "1", ("broker.id", SET, "2"), 42),
            (BROKER, "1", ("num.io.threads", SET, "9"), 42),
            (BROKER, "1", ("num.io.threads", SET, "x"), 42),
            (BROKER, "2", ("num.io.threads", SET, "5"), 42),
            (LOGGER, "1", ("klamm.none", SET, "INFO"), 40),
            (LOGGER, "1", ("root", SET, "LOUD"), 40),
            (LOGGER, "1", ("root", APPEND, "INFO"), 42),
        ],
    )
    def test_refused(self, one: OneBroker, kind: int, name: str, op: Op, code: int) -> None:
        error, message = change(one, kind, name, op)
        assert error == code and message
        assert changes(one) == 0

    def test_a_key_or_resource_named_twice(self, one: OneBroker) -> None:
        assert change(one, TOPIC, "orders", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))[0] == 42
        config = incremental.AlterableConfig(name="retention.ms", config_operation=SET, value="5")
        resource = incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=[config])
        request = incremental.IncrementalAlterConfigsRequest(resources=[resource, resource], validate_only=False)
        answers = one.ask(incremental_alter_configs.API, request, 0).responses
        assert [answer.error_code for answer in answers] == [42, 42]

    def test_a_brokers_thread_count_changes_while_it_runs(self, one: OneBroker) -> None:
        sizes: list[int] = []
        one.broker.configs.on_change(["num.io.threads"], lambda old, new: sizes.append(new.num_io_threads))
        assert change(one, BROKER, "1", ("num.io.threads", SET, "8")) == (0, None)
        assert change(one, BROKER, "1", ("num.io.threads", SET, "16")) == (0, None)
        assert sizes == [8, 16] and one.broker.config.num_io_threads == 16

    def test_the_level_of_a_logger(self, one: OneBroker) -> None:
        logger = logging.getLogger("klamm.config")
        assert change(one, LOGGER, "1", ("klamm.config", SET, "DEBUG")) == (0, None)
        assert logger.level == logging.DEBUG
        assert change(one, LOGGER, "1", ("klamm.config", DELETE, None)) == (0, None)
        assert logger.level == logging.NOTSET


class TestAlter:
    def test_a_key_that_is_not_named_returns_to_its_default(self, one: OneBroker) -> None:
        replace(one, TOPIC, "orders", {"retention.ms": "5", "segment.bytes": "2048"})
        assert replace(one, TOPIC, "orders", {"segment.bytes": "4096"}) == (0, None)
        assert stored(one, "topics", "orders") == {"segment.bytes": "4096"}

    @pytest.mark.parametrize(
        ("kind", "values", "code"),
        [
            (TOPIC, {"retention.ms": "x"}, 40),
            (TOPIC, {"retention.ms": None}, 42),
            (BROKER, {"listeners": "PLAINTEXT://:1"}, 42),
            (BROKER, {"advertised.listeners": "PLAINTEXT://other:9092"}, 42),
            (BROKER, {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}, 42),
            (LOGGER, {"root": "INFO"}, 42),
        ],
    )
    def test_refused(self, one: OneBroker, kind: int, values: dict[str, str | None], code: int) -> None:
        error, message = replace(one, kind, "orders" if kind == TOPIC else "1", values)
        assert error == code and message


class TestClientCertificates:
    """A listener beyond loopback requires certificates of its clients, by its own key or by that of the broker."""

    OWN = "listener.name.ssl.ssl.client.auth"

    @pytest.fixture
    def secured(self, tmp_path: Path, zookeeper: str) -> Iterator[OneBroker]:
        settings = {
            "listeners": "SSL://:0",
            "advertised.listeners": "SSL://localhost:0",
            "security.inter.broker.protocol": "SSL",
            "ssl.client.auth": "required",
            **{name: str(value) for name, value in write_tls_files(tmp_path, "PEM").settings().items()},
        }
        with one_broker(tmp_path, zookeeper, settings) as broker:
            BrokerSecurity(broker.broker.configs, 1, "cluster", Secret("the secret."))
            assert change(broker, BROKER, "1", (self.OWN, SET, "required")) == (0, None)
            assert change(broker, BROKER, "1", ("ssl.client.auth", SET, "none")) == (0, None)
            yield broker

    @pytest.mark.parametrize("validate_only", [False, True])
    def test_the_key_of_the_listener_is_not_deleted(self, secured: OneBroker, validate_only: bool) -> None:
        code, message = change(secured, BROKER, "1", (self.OWN, DELETE, None), validate_only=validate_only)
        assert code == 42 and "without authentication on every address" in (message or "")
        assert stored(secured, "brokers", "1") == {self.OWN: "required", "ssl.client.auth": "none"}

    def test_the_key_of_the_listener_is_not_left_out(self, secured: OneBroker) -> None:
        code, message = replace(secured, BROKER, "1", {"ssl.client.auth": "none"})
        assert code == 42 and "without authentication on every address" in (message or "")
        assert stored(secured, "brokers", "1") == {self.OWN: "required", "ssl.client.auth": "none"}

    def test_both_keys_are_removed_at_once(self, secured: OneBroker) -> None:
        assert replace(secured, BROKER, "1", {}) == (0, None)
        assert secured.broker.config.ssl_client_auth == "required"


class TestListener:
    def follow(self, one: OneBroker) -> tuple[ConfigChangeListener, ConfigRepository]:
        """Another broker, with id 2, that follows the same tree."""
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

    def test_a_change_reaches_another_broker(self, one: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
        change(one, TOPIC, "orders", ("retention.ms", SET, "1"))
        caplog.set_level("INFO", "klamm.config")
        listener, configs = self.follow(one)
        assert configs.topic_overrides("orders") == {"retention.ms": "1"}
        assert not caplog.records, "earlier settings are not news"
        change(one, TOPIC, "orders", ("retention.ms", SET, "2"))
        self.until(one, lambda: configs.topic_overrides("orders") == {"retention.ms": "2"})
        reported = ["Configuration of topic orders: retention.ms is now 2"] * 2
        assert [record.getMessage() for record in caplog.records] == reported, "both brokers log it once"
        change(one, BROKER, "", ("log.segment.bytes", SET, "2048"))
        self.until(one, lambda: configs.config.log_segment_bytes == 2048)
        one.loop.run_until_complete(listener.stop())

    def test_a_change_that_met_a_bug_is_applied_with_the_next_one(
        self, one: OneBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        listener, configs = self.follow(one)
        bugs = [KeyError("a bug")]

        def listen(topic: str, config: object) -> None:
            if bugs:
                raise bugs.pop()

        configs.on_topic_change(listen)
        change(one, TOPIC, "orders", ("retention.ms", SET, "1"))
        self.until(one, lambda: "KeyError: 'a bug'" in caplog.text)
        change(one, BROKER, "", ("log.segment.bytes", SET, "2048"))
        self.until(one, lambda: configs.config.log_segment_bytes == 2048)
        assert configs.topic_overrides("orders") == {"retention.ms": "1"}
        one.loop.run_until_complete(listener.stop())

    def test_a_damaged_configuration_deletes_no_records(self, one: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
        change(one, TOPIC, "orders", ("cleanup.policy", SET, "compact"))
        listener, configs = self.follow(one)
        zk = one.broker.zk

        async def write() -> None:
            await zk.set(SetData(paths.config_entity_path("topics", "orders"), b"garbage"))
            news = b'{"version":2,"entity_path":"topics/orders"}'
            await zk.create(Create(paths.config_change_path(), news, sequential=True))

        one.loop.run_until_complete(write())
        change(one, BROKER, "", ("log.segment.bytes", SET, "2048"))
        self.until(one, lambda: configs.config.log_segment_bytes == 2048)
        assert "znode /config/topics/orders: b'garbage' is not JSON" in caplog.text
        assert configs.topic_overrides("orders") == {"cleanup.policy": "compact"}, "the former settings stay"
        one.loop.run_until_complete(listener.stop())

        listener, configs = self.follow(one)
        effective = configs.topic_config("orders")
        assert (effective["retention.ms"], effective["retention.bytes"]) == ("-1", "-1"), "after a restart"
        one.loop.run_until_complete(listener.stop())

    def test_a_change_of_a_damaged_configuration_deletes_no_records(self, one: OneBroker) -> None:
        """Reassignments set throttles of a topic. Its other settings are unknown, and perhaps kept its records."""
        path = paths.config_entity_path("topics", "orders")
        one.loop.run_until_complete(one.broker.zk.create(Create(path, b"garbage")))
        change(one, TOPIC, "orders", ("leader.replication.throttled.replicas", SET, "0:1"))
        listener, configs = self.follow(one)
        assert configs.topic_overrides("orders") == {**KEEP_RECORDS, "leader.replication.throttled.replicas": "0:1"}
        change(one, TOPIC, "orders", ("retention.ms", SET, "9"))
        self.until(one, lambda: configs.topic_overrides("orders").get("retention.ms") == "9")
        one.loop.run_until_complete(listener.stop())

    def test_a_change_repairs_a_damaged_configuration_even_if_it_sets_what_applies_meanwhile(
        self, one: OneBroker
    ) -> None:
        """The brokers may use former settings, which delete records."""
        change(one, TOPIC, "orders", ("retention.ms", SET, "9"))
        listener, configs = self.follow(one)
        one.loop.run_until_complete(
            one.broker.zk.set(SetData(paths.config_entity_path("topics", "orders"), b"garbage"))
        )
        change(one, TOPIC, "orders", ("retention.ms", SET, "-1"))
        assert stored(one, "topics", "orders") == {"retention.ms": "-1"}
        self.until(one, lambda: configs.topic_overrides("orders") == {"retention.ms": "-1"})
        one.loop.run_until_complete(listener.stop())

    def test_the_last_setting_of_a_damaged_broker_configuration_can_be_removed(self, one: OneBroker) -> None:
        path = paths.config_entity_path("brokers", "<default>")
        one.loop.run_until_complete(one.broker.zk.create(Create(path, b"garbage")))
        assert change(one, BROKER, "", ("log.segment.bytes", DELETE, None)) == (0, None)
        assert one.loop.run_until_complete(one.broker.zk.read(GetData(path))).data == encode_config({})

    @pytest.mark.parametrize("is_known", [True, False])
    def test_a_topic_with_a_damaged_configuration_shows_the_settings_in_force(
        self, one: OneBroker, is_known: bool
    ) -> None:
        path = paths.config_entity_path("topics", "orders")
        if is_known:
            change(one, TOPIC, "orders", ("retention.ms", SET, "5000"))
            one.loop.run_until_complete(one.broker.zk.set(SetData(path, b"garbage")))
        else:
            one.loop.run_until_complete(one.broker.zk.create(Create(path, b"garbage")))
        values = {config.name: config.value for config in describe(one, TOPIC, "orders").configs}
        assert values["retention.ms"] == ("5000" if is_known else "-1")
        assert change(one, TOPIC, "orders", ("segment.bytes", SET, "2048"), validate_only=True) == (0, None)
        assert change(one, TOPIC, "orders", ("segment.bytes", SET, "2048")) == (0, None)
        assert stored(one, "topics", "orders") == (
            {"retention.ms": "5000", "segment.bytes": "2048"} if is_known else {**KEEP_RECORDS, "segment.bytes": "2048"}
        )

    @pytest.mark.parametrize("name", ["1", ""])
    def test_a_change_of_damaged_broker_settings_keeps_those_in_force(self, one: OneBroker, name: str) -> None:
        change(one, BROKER, name, ("log.segment.bytes", SET, "2048"))
        entity = name or "<default>"
        damaged = SetData(paths.config_entity_path("brokers", entity), b"garbage")
        one.loop.run_until_complete(one.broker.zk.set(damaged))
        assert change(one, BROKER, name, ("log.segment.bytes", SET, "2048")) == (0, None)
        assert stored(one, "brokers", entity) == {"log.segment.bytes": "2048"}, "the znode is mended"
        one.loop.run_until_complete(one.broker.zk.set(damaged))
        assert change(one, BROKER, name, ("log.retention.bytes", SET, "7")) == (0, None)
        assert stored(one, "brokers", entity) == {"log.segment.bytes": "2048", "log.retention.bytes": "7"}

    def test_damaged_settings_of_a_broker_change_nothing(self, one: OneBroker) -> None:
        change(one, BROKER, "", ("log.segment.bytes", SET, "2048"))
        listener, configs = self.follow(one)
        zk = one.broker.zk

        async def write() -> None:
            await zk.set(SetData(paths.config_entity_path("brokers", "<default>"), b"garbage"))
            news = b'{"version":2,"entity_path":"brokers/<default>"}'
            await zk.create(Create(paths.config_change_path(), news, sequential=True))

        one.loop.run_until_complete(write())
        change(one, TOPIC, "orders", ("retention.ms", SET, "1"))
        self.until(one, lambda: configs.topic_overrides("orders") == {"retention.ms": "1"})
        assert configs.config.log_segment_bytes == 2048
        one.loop.run_until_complete(listener.stop())

    def test_an_invalid_setting_of_another_tool_is_named(
        self, one: OneBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = paths.config_entity_path("topics", "orders")
        data = b'{"version":1,"config":{"retention.ms":"soon","from.the.future":"1"}}'
        one.loop.run_until_complete(one.broker.zk.create(Create(path, data)))
        listener, _ = self.follow(one)
        assert [record.getMessage() for record in caplog.records] == [
            "ignoring a setting of topic orders in ZooKeeper: retention.ms cannot be 'soon': expected a whole "
            "number of 64 bits.",
            "topic orders uses retention.ms=-1 until retention.ms is valid: the default could delete records",
        ]
        one.loop.run_until_complete(listener.stop())

    def test_kafkas_old_notifications_and_broken_ones(self, one: OneBroker, caplog: pytest.LogCaptureFixture) -> None:
        listener, configs = self.follow(one)
        zk = one.broker.zk

        async def write() -> None:
            await zk.create(
                Create(paths.config_entity_path("topics", "old"), b'{"version":1,"config":{"flush.ms":"7"}}')
            )
            await zk.create(Create(paths.config_change_path(), b"not json", sequential=True))
            old = b'{"version":1,"entity_type":"topics","entity_name":"old"}'
            await zk.create(Create(paths.config_change_path(), old, sequential=True))

        one.loop.run_until_complete(write())
        self.until(one, lambda: configs.topic_overrides("old") == {"flush.ms": "7"})
        assert "/config/changes/config_change_0000000000: b'not json' is not JSON" in caplog.text
        one.loop.run_until_complete(listener.stop())

    def test_refresh_reads_changes_without_a_notification(self, one: OneBroker) -> None:
        listener, configs = self.follow(one)
        path = paths.config_entity_path("topics", "silent")

        async def write_and_refresh() -> None:
            await one.broker.zk.create(Create(path, b'{"version":1,"config":{"flush.ms":"7"}}'))
            assert configs.refresh_topics is not None
            await configs.refresh_topics(["silent", "unknown"])

        one.loop.run_until_complete(write_and_refresh())
        assert configs.topic_overrides("silent") == {"flush.ms": "7"}
        one.loop.run_until_complete(listener.stop())

    def test_old_notifications_are_purged(self, one: OneBroker) -> None:
        listener, _ = self.follow(one)
        change(one, TOPIC, "orders", ("retention.ms", SET, "1"))
        (found,) = one.loop.run_until_complete(
            one.broker.zk.read_many([paths.config_change_path("config_change_0000000000")])
        )
        assert found is not None
        stat = found[1]
        one.loop.run_until_complete(listener.purge(stat.ctime + 15 * 60 * 1000))
        assert changes(one) == 1
        one.loop.run_until_complete(listener.purge(stat.ctime + 15 * 60 * 1000 + 1))
        assert changes(one) == 0
        one.loop.run_until_complete(listener.stop())

    def test_two_writers_at_once_lose_nothing(self, one: OneBroker) -> None:
        async def add(key: str) -> None:
            await change_config(
                one.broker.zk, "topics", "orders", lambda before: before | {key: "1"}, one.broker.configs
            )

        async def both() -> None:
            await asyncio.gather(*(add(f"key-{number}") for number in range(10)))

        one.loop.run_until_complete(both())
        assert len(stored(one, "topics", "orders")) == 10
