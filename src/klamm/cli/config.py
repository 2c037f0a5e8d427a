"""`klamm config describe|alter` for topics and brokers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli import broker_default_configs
from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    admin_client,
    cluster_metadata,
    parse_pairs,
    result,
)
from klamm.cli.completion import topic_names
from klamm.cli.output import fail, note, say, table, yellow
from klamm.cli.right_advice import on_cluster, on_topic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConfigResource

    from klamm.client.missing_rights import MissingRight

app = typer.Typer(help="Show and change the configuration of topics and brokers.", no_args_is_help=True)

Topic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="NAME",
        help="The topic.",
        autocompletion=topic_names,
    ),
]
Broker = Annotated[str | None, typer.Option("--broker", metavar="ID", help="The broker.")]
BrokerDefaults = Annotated[bool, typer.Option("--broker-defaults", help="The dynamic defaults of all brokers.")]


@app.command()
def describe(
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    everything: Annotated[bool, typer.Option("--all", help="Include values that are at their default.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the configuration of one topic or broker, and where each value comes from."""
    from confluent_kafka.admin import ConfigSource

    kind, name = _resource(topic, broker, broker_defaults)
    if broker_defaults:
        broker_default_configs.describe(bootstrap_server, as_json=as_json)
        return
    admin = admin_client(bootstrap_server)
    _check_broker(admin, bootstrap_server, broker)
    entries = _entries(admin, kind, name)
    quiet = {ConfigSource.DEFAULT_CONFIG.value, ConfigSource.STATIC_BROKER_CONFIG.value if kind == "topic" else -1}
    table(
        ("Key", "Value", "Source", "ReadOnly"),
        [
            (
                entry.name,
                _value(entry),
                _source(entry.source),
                str(bool(entry.is_read_only)).lower(),
            )
            for entry in sorted(entries.values(), key=lambda entry: str(entry.name))
            if everything or entry.source not in quiet
        ],
        as_json=as_json,
    )


@app.command()
def alter(
    topic: Topic = None,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    set_: Annotated[list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key.")] = [],  # noqa: B006
    delete: Annotated[
        list[str], typer.Option("--delete", "-d", metavar="KEY", help="Reset a key to its default.")
    ] = [],  # noqa: B006
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Change the configuration of one topic or broker while it runs."""
    kind, name = _resource(topic, broker, broker_defaults)
    if not set_ and not delete:
        fail("Nothing to alter: pass --set KEY=VALUE or --delete KEY.")
    settings = parse_pairs(set_, "--set")
    admin = admin_client(bootstrap_server)
    _check_broker(admin, bootstrap_server, broker)
    if broker_defaults:
        _check_keys(admin, "broker", _broker_ids(admin, bootstrap_server)[0], delete)
        broker_default_configs.alter(bootstrap_server, settings, delete)
    else:
        alter_resource(admin, kind, name, settings, delete)
    say(f"Changed the configuration of {kind} {name or '<default>'}.")
    warn_of_ignored(kind, settings)


def warn_of_ignored(kind: str, keys: Iterable[str]) -> None:
    """Warn of keys that klamm accepts and ignores."""
    from klamm.config import BROKER_KEYS, TOPIC_KEYS
    from klamm.config.definition import Support

    known = TOPIC_KEYS if kind == "topic" else BROKER_KEYS
    for key in keys:
        if key in known and known[key].support is Support.NO_EFFECT:
            note(f"{yellow('Warning:', sys.stderr)} {key} has no effect in klamm: docs/reference/configuration.md")


def alter_resource(
    admin: AdminClient, kind: str, name: str, settings: Mapping[str, str], delete: Iterable[str]
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    _check_keys(admin, kind, name, delete)
    resource = _config_resource(kind, name)
    for key, value in settings.items():
        resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET))
    for key in delete:
        resource.add_incremental_config(ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE))
    future = admin.incremental_alter_configs([resource])[resource]
    result(future, f"The configuration of {kind} {name} was not changed", _needed(kind, name, "ALTER_CONFIGS"))


def _entries(admin: AdminClient, kind: str, name: str) -> dict[str, Any]:
    resource = _config_resource(kind, name)
    entries: dict[str, Any] = result(
        admin.describe_configs([resource])[resource],
        f"The configuration of {kind} {name}",
        _needed(kind, name, "DESCRIBE_CONFIGS"),
    )
    return entries


def _value(entry: Any) -> str | None:
    """Brokers return no value of a secret. One at its default is not set."""
    from confluent_kafka.admin import ConfigSource

    if entry.is_sensitive:
        return None if entry.source == ConfigSource.DEFAULT_CONFIG.value else "[hidden]"
    value: str | None = entry.value
    return value


def _needed(kind: str, name: str, operation: str) -> MissingRight:
    return on_topic(operation)(name) if kind == "topic" else on_cluster(operation)


def _check_keys(admin: AdminClient, kind: str, name: str, keys: Iterable[str]) -> None:
    """Reject unknown keys: brokers accept their deletion silently, which would hide a misspelling."""
    wanted = list(keys)
    known = _entries(admin, kind, name) if wanted else {}
    if unknown := [key for key in wanted if key not in known]:
        fail(f"{unknown[0]} is not a {kind} configuration.")


def _check_broker(admin: AdminClient, servers: str, broker: str | None) -> None:
    """Fail early: librdkafka waits for a long time for a broker that does not exist."""
    ids = _broker_ids(admin, servers) if broker is not None else []
    if broker is not None and broker not in ids:
        fail(f"There is no broker {broker}; brokers are {', '.join(ids)}.")


def _broker_ids(admin: AdminClient, servers: str) -> list[str]:
    return [str(number) for number in sorted(cluster_metadata(admin, servers).brokers)]


def _resource(topic: str | None, broker: str | None, broker_defaults: bool) -> tuple[str, str]:
    given = [("topic", topic)] * (topic is not None) + [("broker", broker)] * (broker is not None)
    given += [("broker", "")] * broker_defaults
    if len(given) != 1:
        fail("Pass exactly one of --topic NAME, --broker ID, --broker-defaults.")
    kind, name = given[0]
    return kind, name or ""


def _config_resource(kind: str, name: str) -> ConfigResource:
    from confluent_kafka.admin import ConfigResource, ResourceType

    return ConfigResource(ResourceType.TOPIC if kind == "topic" else ResourceType.BROKER, name)


def _source(code: int) -> str:
    """Return the name of a source, such as `DYNAMIC_TOPIC_CONFIG`; librdkafka returns the number."""
    from confluent_kafka.admin import ConfigSource

    return next((source.name for source in ConfigSource if source.value == code), str(code))
