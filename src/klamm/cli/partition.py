"""`klamm partition reassign|elect`: what kafka-reassign-partitions.sh and kafka-leader-election.sh do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer
from klamm.cli.output import fail, note, say, table
from klamm.cli.reassignment_file import parse_replicas, read_targets
from klamm.model import TopicPartition

app = typer.Typer(help="Move partitions to other brokers, and elect leaders.", no_args_is_help=True)

POLL_S: Final = 0.5
SETTLE_S: Final = 10.0
"""A move ends at the controller; the broker that is asked for the replicas hears of it a little later."""
SHOWN: Final = 10
Moves = dict[TopicPartition, "list[int] | None"]
"""Where each partition goes; None: back to where it was."""

Topic = Annotated[str | None, typer.Option("--topic", "-t", help="The topic.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="The partition of --topic.")]


@app.command()
def reassign(
    topic: Topic = None,
    partition: Partition = None,
    replicas: Annotated[
        str | None, typer.Option(metavar="ID,...", help="The brokers it goes to, the preferred leader first.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Many at once: the JSON of kafka-reassign-partitions.sh.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take moves back: of --file, of a partition, or all of --topic.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print the moves that are under way.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until the moves have ended.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that --wait waits at most.")] = 3600.0,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Move partitions to other replicas, take such moves back, or list them.

    Old replicas are deleted when all new ones are in sync. Exit code 1: a move was refused, or has not ended in time.
    """
    _refuse_contradictions(topic, partition, replicas, file, cancel=cancel, list_=list_, wait=wait)
    if list_:
        _list(bootstrap_server, topic, partition)
        return
    moves = _moves(bootstrap_server, topic, partition, replicas, file, cancel)
    if not moves:
        note("Nothing is being moved.")
        return
    started = _start(bootstrap_server, moves)
    if wait and started:
        _wait(bootstrap_server, started, timeout)
    if len(started) < len(moves):
        raise typer.Exit(1)


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
    """Options that would be ignored beside the others, and those that are missing."""
    if list_ and (replicas is not None or file is not None or cancel or wait):
        fail("--list only looks: leave out --replicas, --file, --cancel and --wait.")
    if file is not None and (topic is not None or partition is not None or replicas is not None):
        fail("--file names the partitions: leave out --topic, --partition and --replicas.")
    if cancel and replicas is not None:
        fail("--cancel brings a partition back to where it was: leave out --replicas.")
    if partition is not None and topic is None:
        fail("--partition is of a topic: name it with --topic.")
    if list_ or file is not None or (cancel and topic is not None):
        return
    if topic is None or (not cancel and (partition is None or replicas is None)):
        fail("Say what to move: --topic, --partition and --replicas, or --file; or --list, or --cancel with --topic.")


def _moves(
    servers: str, topic: str | None, partition: int | None, replicas: str | None, file: Path | None, cancel: bool
) -> Moves:
    if file is not None:
        targets = read_targets(file)
        return dict.fromkeys(targets) if cancel else dict(targets)
    assert topic is not None
    if partition is not None:
        target = None if replicas is None else parse_replicas(replicas)
        return {TopicPartition(topic, partition): target}
    return dict.fromkeys(tp for tp in _under_way(servers) if tp.topic == topic)


def _start(servers: str, moves: Moves) -> Moves:
    """Tells what was refused; the others."""
    from klamm.cli.controller import ask_controller, reason
    from klamm.protocol.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        ReassignablePartition,
        ReassignableTopic,
    )

    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, partition), replicas in moves.items():
        topics.setdefault(topic, []).append(ReassignablePartition(partition_index=partition, replicas=replicas))
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()]
    )
    told = ask_controller(servers, request, 0, AlterPartitionReassignmentsResponse)
    if told.error_code:
        fail(reason(told.error_code, told.error_message))
    started: Moves = {}
    for answer in told.responses:
        for each in answer.partitions:
            tp = TopicPartition(answer.name, each.partition_index)
            if each.error_code:
                note(f"Partition {tp} is left where it is: {reason(each.error_code, each.error_message)}")
                continue
            target = started[tp] = moves[tp]
            where = "back to where it was" if target is None else f"to {_ids(target)}"
            say(f"Partition {tp} goes {where}.")
    return started


def _under_way(servers: str) -> dict[TopicPartition, tuple[list[int], list[int], list[int]]]:
    """All moves: the replicas of now, those that are added, those that will go."""
    from klamm.cli.controller import ask_controller, reason
    from klamm.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
    )

    told = ask_controller(
        servers, ListPartitionReassignmentsRequest(topics=None), 0, ListPartitionReassignmentsResponse
    )
    if told.error_code:
        fail(reason(told.error_code, told.error_message))
    return {
        TopicPartition(topic.name, each.partition_index): (
            list(each.replicas),
            list(each.adding_replicas),
            list(each.removing_replicas),
        )
        for topic in told.topics
        for each in topic.partitions
    }


def _list(servers: str, topic: str | None, partition: int | None) -> None:
    moving = sorted(_under_way(servers).items())
    wanted = [(tp, state) for tp, state in moving if topic in (None, tp.topic) and partition in (None, tp.partition)]
    if not wanted:
        note("Nothing is being moved.")
        return
    rows = [(tp.topic, tp.partition, *map(_ids, state)) for tp, state in wanted]
    table(("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"), rows)


def _wait(servers: str, moves: Moves, timeout_s: float) -> None:
    """A move that somebody else took back or replaced has not ended well."""
    deadline = time.monotonic() + timeout_s
    while moving := [str(tp) for tp in _under_way(servers) if tp in moves]:
        if time.monotonic() > deadline:
            more = f" and {len(moving) - SHOWN} more" if len(moving) > SHOWN else ""
            fail(f"After {timeout_s:g} s still under way: {', '.join(sorted(moving)[:SHOWN])}{more}. They go on.")
        time.sleep(POLL_S)
    settled_by = time.monotonic() + SETTLE_S
    while (others := _elsewhere(servers, moves)) and time.monotonic() < settled_by:
        time.sleep(POLL_S)
    if others:
        fail("Somebody else took back or replaced moves: " + "; ".join(others[:SHOWN]) + ".")
    say("Nothing of it is under way any more.")


def _elsewhere(servers: str, moves: Moves) -> list[str]:
    """Partitions that are not where they were to go, as the broker that is asked knows it now."""
    from klamm.cli.controller import partitions_of

    now = {topic: partitions_of(servers, topic) for topic in {tp.topic for tp in moves}}
    return [
        f"{tp} is on {_ids(now[tp.topic].get(tp.partition, []))} and not on {_ids(target)}"
        for tp, target in moves.items()
        if target is not None and now[tp.topic].get(tp.partition) != target
    ]


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


@app.command()
def elect(
    preferred: Annotated[bool, typer.Option("--preferred", help="The first replica, when it is in sync.")] = False,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Any replica where none in sync is left: records may be lost.")
    ] = False,
    topic: Topic = None,
    partition: Partition = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Of all topics; --unclean asks for it.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Elect leaders of a partition, of a topic, or of all topics.

    Partitions that need no election are left as they are. Exit code 1: an election had no result.
    """
    if preferred == unclean:
        fail("Say which election: --preferred or --unclean.")
    if partition is not None and topic is None:
        fail("--partition is of a topic: name it with --topic.")
    if topic is not None and all_topics:
        fail("Say --topic or --all-topics, not both.")
    if unclean and topic is None and not all_topics:
        fail("An unclean election may lose records: name the --topic, or say --all-topics.")
    from klamm.cli.elections import elect_leaders

    elect_leaders(bootstrap_server, topic, partition, unclean=unclean)
