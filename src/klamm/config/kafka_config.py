"""The configuration of one broker: Kafka's keys, typed, frozen.

    config = KafkaConfig.from_file(Path("broker.toml"), overrides=["broker.id=1"])
    config.num_io_threads          # int, known to the type checker
    config["num.io.threads"]       # the same by Kafka's name
    config.with_dynamic({...})     # a new value with dynamic settings above the static ones

Precedence, strongest first: dynamic settings of this broker, dynamic defaults of the cluster, command line, file,
default. An unknown key, a value its key does not accept and a key of a feature that klamm lacks raise ConfigError. Keys
that are accepted without effect are named in `warnings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from socket import gethostname
from types import MappingProxyType
from typing import Final, NoReturn

from klamm.config.authorizer_keys import AuthorizerKeys
from klamm.config.cluster_keys import (
    ControllerKeys,
    GroupKeys,
    OffsetKeys,
    ProducerKeys,
    ReplicaKeys,
    TopicDefaultKeys,
)
from klamm.config.definition import AnyKey, Support, collect_keys, did_you_mean, parse_all
from klamm.config.listener_settings import LISTENER_KEYS, ListenerSettings, parse_name
from klamm.config.listeners import parse_listeners, parse_protocol_map
from klamm.config.load import COMMAND_LINE, load_file, parse_overrides
from klamm.config.log_keys import CleanerKeys, FlushKeys, LogDirKeys, RecordKeys, RetentionKeys, SegmentKeys
from klamm.config.network_keys import (
    IdentityKeys,
    KlammKeys,
    ListenerKeys,
    MetricsAndQuotaKeys,
    RequestKeys,
    SocketKeys,
)
from klamm.config.security_keys import KlammSecurityKeys, SaslKeys, TlsKeys
from klamm.config.trace_keys import TraceKeys
from klamm.config.transaction_keys import TransactionKeys
from klamm.config.unsupported import unsupported
from klamm.config.values import Value, to_text
from klamm.config.zookeeper_keys import ZooKeeperKeys, ZooKeeperTlsKeys
from klamm.errors import ConfigError
from klamm.model import EndPoint, SecurityProtocol, is_loopback

_PER_LISTENER: Final = re.compile(r"listener\.name\.([a-z0-9_.-]+)\.(max\.connections)")
_HOUR_MS: Final = 3_600_000
_COMMA_SEPARATED: Final = frozenset(
    {
        "advertised.listeners",
        "listener.security.protocol.map",
        "listeners",
        "log.dirs",
        "max.connections.per.ip.overrides",
        "zookeeper.connect",
    }
)
"""Keys with text values that are lists to their users: in TOML they may be written as a list."""


class _Frozen:
    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")


class KafkaConfig(
    _Frozen,
    IdentityKeys,
    ZooKeeperKeys,
    ZooKeeperTlsKeys,
    ListenerKeys,
    SocketKeys,
    RequestKeys,
    MetricsAndQuotaKeys,
    KlammKeys,
    TraceKeys,
    LogDirKeys,
    SegmentKeys,
    RetentionKeys,
    FlushKeys,
    CleanerKeys,
    RecordKeys,
    TopicDefaultKeys,
    ReplicaKeys,
    ControllerKeys,
    GroupKeys,
    OffsetKeys,
    ProducerKeys,
    TransactionKeys,
    TlsKeys,
    SaslKeys,
    KlammSecurityKeys,
    AuthorizerKeys,
):
    static: Mapping[str, str]
    """The values from the file and the command line, as text."""
    dynamic: Mapping[str, str]
    """The values from ZooKeeper, which override the static ones, as text."""
    warnings: tuple[str, ...]

    def __init__(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        dynamic: Mapping[str, str] | None = None,
    ) -> None:
        given = {name: _joined(name, value) for name, value in (properties or {}).items()}
        sources = sources or {}
        for name, value in given.items():
            _refuse_unknown(name, value, sources.get(name))
        values = _parse(given, sources) | _parse(dynamic or {}, dict.fromkeys(dynamic or {}, "dynamic configuration"))
        state = self.__dict__
        state.update({BROKER_KEYS[name].attribute: value for name, value in values.items() if name in BROKER_KEYS})
        state["static"] = MappingProxyType({name: to_text(value) for name, value in given.items()})
        state["dynamic"] = MappingProxyType(dict(dynamic or {}))
        state["_sources"] = MappingProxyType(dict(sources))
        state["listener_max_connections"] = _listener_limits(given, sources)
        state["_listener_values"] = _listener_values({**given, **(dynamic or {})}, sources)
        state["warnings"] = _warnings(values)
        self._check_relations()

    @classmethod
    def from_file(cls, path: Path | None, overrides: Iterable[str] = ()) -> KafkaConfig:
        """Read the file; `key=value` settings of the command line override it."""
        values, sources = load_file(path) if path is not None else ({}, {})
        given = parse_overrides(overrides)
        return cls(values | given, sources=sources | dict.fromkeys(given, COMMAND_LINE))

    def with_dynamic(self, dynamic: Mapping[str, str]) -> KafkaConfig:
        """Return the configuration with other dynamic settings. Keys of a newer Kafka in ZooKeeper are left out."""
        known = {name: value for name, value in dynamic.items() if broker_key(name) is not None}
        return KafkaConfig(self.static, sources=self.__dict__["_sources"], dynamic=known)

    def with_static(self, settled: Mapping[str, str]) -> KafkaConfig:
        """Return the configuration with a value that the file left open, such as the real port for port 0."""
        return KafkaConfig({**self.static, **settled}, sources=self.__dict__["_sources"], dynamic=self.dynamic)

    def __getitem__(self, name: str) -> Value:
        value: Value = getattr(self, BROKER_KEYS[name].attribute)
        return value

    @cached_property
    def security_protocol_map(self) -> Mapping[str, SecurityProtocol]:
        return parse_protocol_map(self.listener_security_protocol_map)

    @cached_property
    def endpoints(self) -> tuple[EndPoint, ...]:
        """The endpoints that this broker binds, in the order of `listeners`."""
        return parse_listeners(self.listeners, self.security_protocol_map)

    @cached_property
    def advertised_endpoints(self) -> tuple[EndPoint, ...]:
        """The endpoints in the registration. An empty host becomes this machine's name; port 0 is filled in later."""
        given = parse_listeners(self.advertised_listeners or self.listeners, self.security_protocol_map)
        return tuple(replace(endpoint, host=endpoint.host or gethostname()) for endpoint in given)

    @cached_property
    def inter_broker_listener(self) -> str:
        """The listener for requests between brokers: the configured one, else the first with that protocol."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        protocol = SecurityProtocol[self.security_inter_broker_protocol]
        control = (self.control_plane_listener_name or "").upper()
        named = (e for e in self.endpoints if e.security_protocol is protocol and e.listener != control)
        return next(named, self.endpoints[0]).listener

    @cached_property
    def control_plane_listener(self) -> str | None:
        return self.control_plane_listener_name.upper() if self.control_plane_listener_name else None

    def listener_settings(self, listener: str) -> ListenerSettings:
        """Return the settings of one listener: those with its prefix, else those of the broker."""
        own = self.__dict__["_listener_values"].get(listener, {})
        return ListenerSettings(listener, own, {name: self[name] for name in LISTENER_KEYS})

    @cached_property
    def listener_max_connections(self) -> Mapping[str, int]:
        """`listener.name.<name>.max.connections`, by upper-case listener name."""
        return {}

    @cached_property
    def max_connections_per_ip_by_address(self) -> Mapping[str, int]:
        pairs = (item.strip().rpartition(":") for item in self.max_connections_per_ip_overrides.split(",") if item)
        return {address: int(limit) for address, _, limit in pairs}

    @cached_property
    def log_directories(self) -> tuple[Path, ...]:
        return tuple(Path(part.strip()) for part in (self.log_dirs or self.log_dir).split(",") if part.strip())

    @property
    def log_retention_time_ms(self) -> int:
        """The retention time; -1 means unlimited. The key with the finest unit wins."""
        if self.log_retention_ms is not None:
            return max(self.log_retention_ms, -1)
        if self.log_retention_minutes is not None:
            return -1 if self.log_retention_minutes < 0 else self.log_retention_minutes * 60_000
        return -1 if self.log_retention_hours < 0 else self.log_retention_hours * _HOUR_MS

    @property
    def log_roll_time_ms(self) -> int:
        return self.log_roll_ms if self.log_roll_ms is not None else self.log_roll_hours * _HOUR_MS

    @property
    def log_roll_jitter_time_ms(self) -> int:
        return self.log_roll_jitter_ms if self.log_roll_jitter_ms is not None else self.log_roll_jitter_hours * _HOUR_MS

    def _check_relations(self) -> None:
        """Check the rules that involve several keys."""
        self._check("listener.security.protocol.map", lambda: self.security_protocol_map)
        self._check("listeners", lambda: self.endpoints)
        self._check("advertised.listeners", lambda: self.advertised_endpoints)
        self._check("max.connections.per.ip.overrides", lambda: self.max_connections_per_ip_by_address)
        if self.max_connections_per_ip == 0 and not self.max_connections_per_ip_by_address:
            self._fail("max.connections.per.ip", "at least 1, because max.connections.per.ip.overrides is empty")
        self._check_listeners()
        self._check_zookeeper()
        if not self.log_directories:
            self._fail("log.dirs", "at least one directory")
        if self.log_roll_time_ms < 1:
            self._fail("log.roll.ms", "at least 1")
        if self.log_roll_jitter_time_ms < 0:
            self._fail("log.roll.jitter.ms", "at least 0")
        if self.log_retention_time_ms == 0:
            keys = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
            self._fail(next(key for key in keys if self[key] is not None), "at least 1, or -1 for no limit")
        if self.broker_id < -1:
            self._fail("broker.id", "a number of at least 0, or -1 for a generated one")
        if self.broker_id < 0 and not self.broker_id_generation_enable:
            self._fail("broker.id", "a number of at least 0, because broker.id.generation.enable is false")
        if self.broker_id_generation_enable and self.broker_id > self.reserved_broker_max_id:
            self._fail("broker.id", f"at most reserved.broker.max.id ({self.reserved_broker_max_id})")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            self._fail("group.min.session.timeout.ms", "at most group.max.session.timeout.ms")
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            self._fail("replica.fetch.wait.max.ms", "at most replica.lag.time.max.ms")

    def _check_listeners(self) -> None:
        bound = {endpoint.listener for endpoint in self.endpoints}
        for endpoint in self.advertised_endpoints:
            if endpoint.listener not in bound:
                self._fail("advertised.listeners", f"only names that are in listeners, but {endpoint.listener} is not")
            if endpoint.host in ("0.0.0.0", "::"):
                wanted = f"an address that clients can connect to, which {endpoint.host} is not"
                if self.advertised_listeners:
                    self._fail("advertised.listeners", wanted)
                self._fail("listeners", f"{wanted}; to bind it, set advertised.listeners to a reachable one")
        control = self.control_plane_listener
        if self.inter_broker_listener not in bound:
            self._fail("inter.broker.listener.name", "the name of one of the listeners")
        if control is not None and (control not in bound or control == self.inter_broker_listener):
            self._fail("control.plane.listener.name", "the name of a listener that is not the inter-broker listener")
        for needed in filter(None, (self.inter_broker_listener, control)):
            if needed not in {endpoint.listener for endpoint in self.advertised_endpoints}:
                wanted = f"an address for the listener {needed}, which brokers use to reach each other"
                self._fail("advertised.listeners", wanted)

    def _check_zookeeper(self) -> None:
        has_login = self.klamm_zookeeper_digest or self.klamm_zookeeper_sasl_jaas_config
        has_certificate = self.zookeeper_ssl_client_enable and self.zookeeper_ssl_keystore_location
        if self.zookeeper_set_acl and not (has_login or has_certificate):
            wanted = "klamm.zookeeper.sasl.jaas.config, klamm.zookeeper.digest or zookeeper.ssl.keystore.location"
            self._fail("zookeeper.set.acl", f"false, or {wanted} to be set, because access rules need an identity")
        is_remote = not self.zookeeper_connect and not is_loopback(self.klamm_zookeeper_embedded_host)
        if is_remote and not (self.klamm_zookeeper_digest and self.zookeeper_set_acl):
            wanted = "a loopback address, or klamm.zookeeper.digest to be set and zookeeper.set.acl to be true"
            self._fail("klamm.zookeeper.embedded.host", wanted)
        if self.zookeeper_ssl_client_enable and not self.zookeeper_connect and not self.zookeeper_ssl_keystore_location:
            wanted = "false, or zookeeper.ssl.keystore.location to be set for the embedded server's TLS"
            self._fail("zookeeper.ssl.client.enable", wanted)

    def _check(self, name: str, derive: object) -> None:
        assert callable(derive)
        try:
            derive()
        except ValueError as error:
            self._fail(name, str(error))

    def _fail(self, name: str, wanted: str) -> NoReturn:
        source = self.__dict__["_sources"].get(name)
        where = f"{source}: " if source else ""
        raise ConfigError(f"{where}{name} cannot be {to_text(self[name])!r}: expected {wanted}.")


_FORM_OF_KEYS: Final = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)+")
BROKER_KEYS: Final[Mapping[str, AnyKey]] = MappingProxyType(collect_keys(*KafkaConfig.__bases__))


def broker_key(name: str) -> AnyKey | None:
    """Return the key of a broker setting, which may have the prefix of a listener."""
    if (key := BROKER_KEYS.get(name)) is not None:
        return key
    setting = parse_name(name)
    return None if setting is None else setting.key


def _joined(name: str, value: object) -> object:
    if name in _COMMA_SEPARATED and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value


def _refuse_unknown(name: str, value: object, source: str | None) -> None:
    if _PER_LISTENER.fullmatch(name) or broker_key(name) is not None:
        return
    where = f"{source}: " if source else ""
    if (what := unsupported(name)) is not None:
        raise ConfigError(f"{where}{name} is not available: klamm does not support {what} yet. Remove the key.")
    hint = did_you_mean(name, BROKER_KEYS)
    if source not in (None, COMMAND_LINE) and not hint and (value == "" or not _FORM_OF_KEYS.fullmatch(name)):
        # It may be a line of a private key, or a password.
        raise ConfigError(f"{where}the line does not begin with a configuration key of Kafka's brokers.")
    raise ConfigError(f"{where}{name} is not a configuration key: expected one of Kafka's broker keys.{hint}")


def _parse(given: Mapping[str, object], sources: Mapping[str, str]) -> dict[str, Value]:
    return parse_all(BROKER_KEYS, {name: value for name, value in given.items() if name in BROKER_KEYS}, sources)


def _listener_limits(given: Mapping[str, object], sources: Mapping[str, str]) -> Mapping[str, int]:
    limits: dict[str, int] = {}
    for name, value in given.items():
        if found := _PER_LISTENER.fullmatch(name):
            limit = BROKER_KEYS["max.connections"].parse(value, sources.get(name))
            assert isinstance(limit, int)
            limits[found[1].upper()] = limit
    return MappingProxyType(limits)


def _listener_values(
    given: Mapping[str, object], sources: Mapping[str, str]
) -> Mapping[str, Mapping[tuple[str | None, str], Value]]:
    """Return the settings with a listener's prefix: by listener, then by mechanism and key."""
    found: dict[str, dict[tuple[str | None, str], Value]] = {}
    for name, value in given.items():
        if (setting := parse_name(name)) is not None:
            own = found.setdefault(setting.listener, {})
            own[setting.mechanism, setting.key.name] = replace(setting.key, name=name).parse(value, sources.get(name))
    return MappingProxyType(found)


def _warnings(values: Mapping[str, Value]) -> tuple[str, ...]:
    return tuple(
        f"{name} is accepted but has no effect in klamm"
        for name, value in values.items()
        if name in BROKER_KEYS and BROKER_KEYS[name].support is Support.NO_EFFECT and value != BROKER_KEYS[name].default
    )
