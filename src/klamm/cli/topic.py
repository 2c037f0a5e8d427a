"""`klamm topic create|list|describe|alter|delete`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    admin_client,
    cluster_metadata,
    no_such_topic,
    parse_pairs,
    results,
)
from klamm.cli.completion import TopicName, topic_names
from klamm.cli.output import Failure, fail, say, table
from klamm.cli.right_advice import on_topic
from klamm.cli.rights import Listing, note_limits
from klamm.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

MAX_PARTITIONS: Final = 100_000
Adding = Mapping[TopicPartition, Sequence[int]]
Config = Annotated[list[str], typer.Option("--config", "-c", metavar="KEY=VALUE", help="Topic setting.")]


@app.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_PARTITIONS, help="Number of partitions; by default the broker's num.partitions."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            min=1, max=32767, help="Replicas per partition; by default the broker's default.replication.factor."
        ),
    ] = None,
    config: Config = [],  # noqa: B006
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Create topics."""
    from confluent_kafka.admin import NewTopic

    from klamm.cli.config import warn_of_ignored

    admin = admin_client(bootstrap_server)
    if if_not_exists:
        existing = cluster_metadata(admin, bootstrap_server).topics
        names = [name for name in names if name not in existing]
    settings = parse_pairs(config, "--config")
    new = [NewTopic(name, partitions or -1, replication_factor or -1, config=settings) for name in names]
    if new:
        what = "Topic {} was not created".format
        results(admin.create_topics(new), what, "Created topic {}.", on_topic("CREATE"))
        warn_of_ignored("topic", settings)


@app.command("list")
def list_(
    internal: Annotated[
        bool, typer.Option("--internal/--exclude-internal", help="Include internal topics such as __consumer_offsets.")
    ] = True,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the names of all topics that the user may describe."""
    admin = admin_client(bootstrap_server)
    known = sorted(cluster_metadata(admin, bootstrap_server).topics)
    names = [name for name in known if internal or not name.startswith("__")]
    if as_json:
        say(json.dumps(names, indent=2))
    else:
        for name in names:
            say(name)
    note_limits(bootstrap_server, Listing.TOPICS)


@app.command()
def describe(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Topics to describe; by default all.", autocompletion=topic_names),
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with replicas out of sync.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show topics, their partitions, leaders, replicas and in-sync replicas."""
    admin = admin_client(bootstrap_server)
    known = cluster_metadata(admin, bootstrap_server).topics
    wanted = sorted(known) if not names else list(names)
    if missing := [name or "''" for name in wanted if name not in known]:
        fail(no_such_topic(*missing))
    configs = _overrides(admin, wanted) if wanted else {}
    adding = _adding(bootstrap_server) if under_replicated else None
    described = _descriptions(admin, wanted) if wanted else {}
    if as_json:
        found = [_as_json(name, topic, configs[name], adding) for name, topic in described.items()]
        say(json.dumps([topic for topic in found if topic["partitions"] or adding is None], indent=2))
        return
    for name, topic in described.items():
        _show(name, topic, configs[name], adding)
    if not names:
        note_limits(bootstrap_server, Listing.TOPICS)


def _as_json(name: str, topic: Any, overrides: dict[str, str], adding: Adding | None) -> dict[str, Any]:
    partitions = sorted(topic.partitions, key=lambda partition: partition.id)
    if adding is not None:
        partitions = under_replicated_partitions(name, partitions, adding)
    shown = [
        {
            "partition": part.id,
            "leader": part.leader.id if part.leader else None,
            "replicas": [node.id for node in part.replicas],
            "isr": [node.id for node in part.isr],
        }
        for part in partitions
    ]
    return {"topic": name, "topic_id": _topic_id(topic.topic_id), "configs": overrides, "partitions": shown}


def _descriptions(admin: AdminClient, names: list[str]) -> dict[str, Any]:
    from confluent_kafka import TopicCollection

    described = admin.describe_topics(TopicCollection(names))
    return results(described, "Topic {}".format, needed=on_topic("DESCRIBE"))


def _overrides(admin: AdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    """Return each topic's own settings, without the broker's defaults."""
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    futures = {resource.name: future for resource, future in admin.describe_configs(resources).items()}
    needed = on_topic("DESCRIBE_CONFIGS")
    described = results(futures, "The configuration of topic {}".format, needed=needed)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        name: {entry.name: entry.value for entry in entries.values() if entry.source == own}
        for name, entries in described.items()
    }


def _adding(servers: str) -> Adding:
    """Return the replicas that moves add; none if no controller answers."""
    from klamm.cli.controller import ControllerClient
    from klamm.cli.moves import under_way

    try:
        return {tp: move.adding for tp, move in under_way(ControllerClient(servers, 0)).items()}
    except Failure:
        return {}


def under_replicated_partitions(name: str, partitions: list[Any], adding: Adding) -> list[Any]:
    """As in Kafka, replicas that a move adds do not count: they have never been in sync."""
    return [
        partition
        for partition in partitions
        if len(partition.isr) < len(partition.replicas) - len(adding.get(TopicPartition(name, partition.id), ()))
    ]


def _show(name: str, topic: Any, overrides: dict[str, str], adding: Adding | None) -> None:
    """With `adding`, show only partitions that are under-replicated without these replicas."""
    partitions = sorted(topic.partitions, key=lambda partition: partition.id)
    if adding is not None:
        partitions = under_replicated_partitions(name, partitions, adding)
        if not partitions:
            return
    factor = max((len(partition.replicas) for partition in topic.partitions), default=0)
    configs = ",".join(f"{key}={value}" for key, value in sorted(overrides.items()))
    head = ("Topic", "TopicId", "PartitionCount", "ReplicationFactor", "Configs")
    table(head, [(name, _topic_id(topic.topic_id), len(topic.partitions), factor, configs)])
    table(
        ("Topic", "Partition", "Leader", "Replicas", "Isr"),
        [
            (name, part.id, part.leader.id if part.leader else "none", _ids(part.replicas), _ids(part.isr))
            for part in partitions
        ],
    )
    say()


def _topic_id(topic_id: Any) -> str:
    """Return the id as Kafka writes it: URL-safe Base64, where librdkafka uses the standard alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")


def _ids(nodes: Any) -> str:
    return ",".join(str(node.id) for node in nodes)


@app.command()
def alter(
    name: TopicName,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=MAX_PARTITIONS, help="New number of partitions; it can only grow.")
    ] = None,
    config: Config = [],  # noqa: B006
    delete_config: Annotated[list[str], typer.Option(metavar="KEY", help="Reset a key to the broker's default.")] = [],  # noqa: B006
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Add partitions to a topic, or change its configuration."""
    from confluent_kafka.admin import NewPartitions

    from klamm.cli.config import alter_resource, warn_of_ignored

    if not partitions and not config and not delete_config:
        fail("Nothing to alter: pass --partitions, --config or --delete-config.")
    admin = admin_client(bootstrap_server)
    if partitions:
        done = admin.create_partitions([NewPartitions(name, partitions)])
        results(done, "Topic {} was not altered".format, needed=on_topic("ALTER"))
        say(f"Topic {name} has {partitions} partitions.")
    if config or delete_config:
        settings = parse_pairs(config, "--config")
        alter_resource(admin, "topic", name, settings, delete_config)
        say(f"Changed the configuration of topic {name}.")
        warn_of_ignored("topic", settings)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=topic_names)],
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if the topic does not exist.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics with all their records."""
    if "" in names:
        fail("A topic's name cannot be empty.")
    admin = admin_client(bootstrap_server)
    if if_exists:
        existing = cluster_metadata(admin, bootstrap_server).topics
        names = [name for name in names if name in existing]
    if names:
        what = "Topic {} was not deleted".format
        results(admin.delete_topics(names), what, "Deleted topic {}.", on_topic("DELETE"))
