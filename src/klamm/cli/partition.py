"""`klamm partition reassign|elect|confirm-loss`; the first two are like Kafka's tools for that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer
from klamm.cli.completion import topic_names
from klamm.cli.output import fail, note, table
from klamm.cli.reassignment_file import parse_replicas, read_log_dirs, read_targets
from klamm.model import TopicPartition

if TYPE_CHECKING:
    from klamm.cli.controller import ControllerClient
    from klamm.cli.moves import Move, Moves

app = typer.Typer(help="Move partitions to other brokers, elect leaders, and confirm losses.", no_args_is_help=True)

Topic = Annotated[str | None, typer.Option("--topic", "-t", help="The topic.", autocompletion=topic_names)]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="The partition of --topic.")]


@app.command()
def reassign(
    topic: Topic = None,
    partition: Partition = None,
    replicas: Annotated[
        str | None, typer.Option(metavar="ID,...", help="Target brokers, the preferred leader first.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="File with many moves: the JSON of kafka-reassign-partitions.sh."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel moves: those of --file, of a partition, or of --topic.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the moves in progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the moves have finished.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Maximum seconds for --wait and for finding a controller.")
    ] = 3600.0,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Move partitions to other replicas, or cancel or list such moves.

    Old replicas are deleted when all new ones are in sync. Exit code 1: a move was rejected or did not finish in time.
    """
    if as_json and not list_:
        fail("--json requires --list.")
    _refuse_contradictions(topic, partition, replicas, file, cancel=cancel, list_=list_, wait=wait)
    from klamm.cli.controller import ControllerClient
    from klamm.cli.moves import start, under_way
    from klamm.cli.moves import wait as wait_for_moves

    targets = None if file is None else read_targets(file)
    controller = ControllerClient(bootstrap_server, timeout)
    if list_:
        _list(controller, topic, partition, as_json)
        return
    moving = under_way(controller) if cancel else {}
    moves = _moves(moving, topic, partition, replicas, targets, cancel)
    if not moves:
        _nothing_moves(bootstrap_server, topic, partition)
        return
    has_refused_dirs = file is not None and not cancel and _has_refused_dirs(bootstrap_server, file)
    started = start(controller, moves, moving)
    if wait and started:
        wait_for_moves(bootstrap_server, started, timeout)
    if len(started) < len(moves) or has_refused_dirs:
        raise typer.Exit(1)


def _has_refused_dirs(bootstrap_server: str, file: Path) -> bool:
    """Set the directories first, so that new replicas are created there. Return whether some were refused."""
    log_dirs = read_log_dirs(file)
    if not log_dirs:
        return False
    from klamm.cli.log_dir_targets import place

    return bool(place(bootstrap_server, log_dirs))


def _refuse_contradictions(
    topic: str | None,
    partition: int | None,
    replicas: str | None,
    file: Path | None,
    *,
    cancel: bool,
    list_: bool,
    wait: bool,
) -> None:
    """Reject options that would be ignored, and report missing ones."""
    if list_ and (replicas is not None or file is not None or cancel or wait):
        fail("--list cannot be combined with --replicas, --file, --cancel or --wait.")
    if file is not None and (topic is not None or partition is not None or replicas is not None):
        fail("--file cannot be combined with --topic, --partition or --replicas.")
    if cancel and replicas is not None:
        fail("--cancel cannot be combined with --replicas.")
    if partition is not None and topic is None:
        fail("--partition requires --topic.")
    if list_ or file is not None or (cancel and topic is not None):
        return
    if topic is None or (not cancel and (partition is None or replicas is None)):
        fail("Pass --topic, --partition and --replicas, or --file, or --list, or --cancel with --topic.")


def _moves(
    moving: dict[TopicPartition, Move],
    topic: str | None,
    partition: int | None,
    replicas: str | None,
    targets: dict[TopicPartition, list[int]] | None,
    cancel: bool,
) -> Moves:
    if targets is not None:
        return dict.fromkeys(targets) if cancel else dict(targets)
    assert topic is not None
    if partition is not None:
        target = None if replicas is None else parse_replicas(replicas)
        return {TopicPartition(topic, partition): target}
    return dict.fromkeys(tp for tp in moving if tp.topic == topic)


def _list(controller: ControllerClient, topic: str | None, partition: int | None, as_json: bool) -> None:
    from klamm.cli.moves import ids, under_way

    moving = sorted(under_way(controller).items())
    wanted = [(tp, move) for tp, move in moving if topic in (None, tp.topic) and partition in (None, tp.partition)]
    if not wanted:
        _nothing_moves(controller.servers, topic, partition)
        if not as_json:
            return
    show = list if as_json else ids
    rows = [(tp.topic, tp.partition, *map(show, move)) for tp, move in wanted]
    table(("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"), rows, as_json=as_json)


def _nothing_moves(servers: str, topic: str | None, partition: int | None) -> None:
    """Fail if the topic or partition does not exist: its name may be wrong."""
    from klamm.cli.controller import partitions_of

    if topic is not None and partition not in (None, *partitions_of(servers, topic)):
        fail(f"Topic {topic} has no partition {partition}.")
    note("Nothing is being moved.")


@app.command()
def elect(
    preferred: Annotated[bool, typer.Option("--preferred", help="Elect the first replica if it is in sync.")] = False,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Elect any replica if none is in sync; records may be lost.")
    ] = False,
    topic: Topic = None,
    partition: Partition = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics; --unclean requires this or --topic.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Maximum seconds for the election and for finding a controller.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Elect leaders of a partition, of a topic, or of all topics.

    Partitions that need no election are left as they are. Exit code 1: an election failed.
    """
    if preferred == unclean:
        fail("Pass --preferred or --unclean.")
    if partition is not None and topic is None:
        fail("--partition requires --topic.")
    if topic is not None and all_topics:
        fail("Pass either --topic or --all-topics, not both.")
    if unclean and topic is None and not all_topics:
        fail("An unclean election may lose records: pass --topic, or --all-topics for every topic.")
    from klamm.cli.elections import elect_leaders

    elect_leaders(bootstrap_server, topic, partition, unclean=unclean, timeout_s=timeout, as_json=as_json)


@app.command()
def confirm_loss(
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.", autocompletion=topic_names)],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="The partition; by default all partitions.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a broker and for ZooKeeper.")] = 10.0,
    broker_config: Annotated[
        Path | None,
        typer.Option(
            "--broker-config",
            metavar="FILE",
            help="Configuration of a broker with its credentials for ZooKeeper: required with zookeeper.set.acl=true.",
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Confirm that acknowledged records of a topic are lost: `klamm cluster status` no longer reports them.

    A leader reports offsets that were acknowledged and that no replica has, for example after a power failure.
    """
    from klamm.cli.cluster_problems import zookeeper_of
    from klamm.cli.loss_confirmation import confirm, find_zookeeper
    from klamm.zk.client.zk_security import UNSECURED

    if broker_config is not None:
        hosts, security = zookeeper_of(broker_config)
    else:
        hosts, security = find_zookeeper(bootstrap_server, timeout), UNSECURED
    confirm(hosts, topic, partition, timeout, security)
