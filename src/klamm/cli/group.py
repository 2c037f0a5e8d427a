"""`klamm group list|describe|reset|delete`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    admin_client,
    cluster_metadata,
    explain,
    no_such_topic,
    result,
    results,
)
from klamm.cli.completion import topic_names
from klamm.cli.output import fail, note, say, table
from klamm.cli.right_advice import on_group, on_topic, with_remedy
from klamm.cli.rights import Listing, note_limits
from klamm.client.reset_rules import Bounds, ResetTarget, new_offsets

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)

COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)
Offsets = dict[tuple[str, int], int]


@app.command("list")
def list_(as_json: AsJson = False, bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP) -> None:
    """Print all consumer groups and their states."""
    admin = admin_client(bootstrap_server)
    listing = result(admin.list_consumer_groups())
    table(
        ("GROUP", "STATE"),
        [(group.group_id, _state(group)) for group in sorted(listing.valid, key=lambda g: g.group_id)],
        as_json=as_json,
    )
    note_limits(bootstrap_server, Listing.GROUPS)
    if listing.errors:
        fail(f"Not every broker answered: {listing.errors[0]}.")


@app.command()
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help="Groups to describe; by default all.")
    ] = None,
    state: Annotated[bool, typer.Option("--state", help="Coordinator, assignor, state and number of members.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show committed offsets, lag and members of consumer groups."""
    admin = admin_client(bootstrap_server)
    wanted = list(names or [g.group_id for g in result(admin.list_consumer_groups()).valid])
    if not wanted:
        note("There is no consumer group.")
        if as_json:
            say("[]")
    groups = _described(admin, wanted) if wanted else {}
    if not names:
        note_limits(bootstrap_server, Listing.GROUPS)
    if not groups:
        return
    if state:
        head = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
        table(head, [_state_row(name, group) for name, group in groups.items()], as_json=as_json)
        return
    shown: list[tuple[object, ...]] = []
    for name, group in groups.items():
        rows = _rows(admin, bootstrap_server, name, group, is_named=bool(names))
        shown += rows
        if not as_json:
            table(COLUMNS, rows)
            say()
    if as_json:
        table(COLUMNS, shown, as_json=True)


def _described(admin: AdminClient, names: list[str]) -> dict[str, Any]:
    return results(admin.describe_consumer_groups(names), "Group {}".format, needed=on_group("DESCRIBE"))


def _state_row(name: str, group: Any) -> tuple[object, ...]:
    at = group.coordinator
    where = f"{at.host}:{at.port} ({at.id})" if at else None
    return name, where, group.partition_assignor, _state(group), len(group.members)


def _state(group: Any) -> str:
    """`Stable`, `PreparingRebalance`, as Kafka writes it."""
    return "".join(word.capitalize() for word in str(group.state.name).split("_"))


def _rows(admin: AdminClient, servers: str, name: str, group: Any, is_named: bool) -> list[tuple[object, ...]]:
    committed = _committed(admin, name)
    owners = {(tp.topic, tp.partition): member for member in group.members for tp in member.assignment.topic_partitions}
    if _state(group) == "Dead" and not committed and not owners and is_named:
        fail(f"There is no consumer group {name}.")
    if not group.members:
        note(f"Consumer group {name} has no active members.")
    elif _state(group) != "Stable":
        note(f"Consumer group {name} is rebalancing.")
    partitions = _all_partitions(admin, servers, committed.keys() | owners.keys())
    ends = _known(_list_offsets(admin, partitions))
    return [_row(name, tp, committed.get(tp), ends.get(tp), owners.get(tp)) for tp in partitions]


def _all_partitions(admin: AdminClient, servers: str, used: set[tuple[str, int]]) -> list[tuple[str, int]]:
    """Include partitions of the group's topics for which it has no offset yet."""
    known = cluster_metadata(admin, servers).topics
    topics = {topic for topic, _ in used} & known.keys()
    return sorted(used | {(topic, number) for topic in topics for number in known[topic].partitions})


def _row(name: str, tp: tuple[str, int], current: int | None, end: int | None, member: Any) -> tuple[object, ...]:
    lag = max(end - current, 0) if current is not None and end is not None else None
    who = (member.member_id, f"/{member.host.lstrip('/')}", member.client_id) if member else (None, None, None)
    return name, tp[0], tp[1], current, end, lag, *who


def _committed(admin: AdminClient, group: str) -> Offsets:
    from confluent_kafka import ConsumerGroupTopicPartitions

    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    needed = on_group("DESCRIBE")(group)
    found = result(future, f"The offsets of group {group}", needed).topic_partitions or []
    return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}


def _list_offsets(admin: AdminClient, partitions: list[tuple[str, int]], spec: OffsetSpec | None = None) -> Offsets:
    """Return offsets by specification, by default the log end; without partitions that no longer exist."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    if not partitions:
        return {}
    wanted_spec = spec or OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, partition): wanted_spec for topic, partition in partitions}
    found: Offsets = {}
    for tp, future in admin.list_offsets(wanted).items():
        try:
            found[tp.topic, tp.partition] = future.result().offset
        except KafkaException:
            continue
    return found


def _known(offsets: Offsets) -> Offsets:
    """Leave out partitions without a leader: librdkafka returns -1001 instead of an error."""
    return {tp: offset for tp, offset in offsets.items() if offset >= 0}


@app.command()
def reset(
    name: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION,...]",
            help="Topic or partitions to reset.",
            autocompletion=topic_names,
        ),
    ] = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics with committed offsets of the group.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="To this offset, or the nearest valid one.")
    ] = None,
    to_datetime: Annotated[
        datetime | None, typer.Option("--to-datetime", help="To the first record at or after this time.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="By this many records; negative moves back.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Apply the change; otherwise it is only shown.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Set the committed offsets of a group without members."""
    targets = [to_earliest, to_latest, to_offset is not None, to_datetime is not None, shift_by is not None]
    if sum(targets) != 1:
        fail("Pass exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by.")
    if bool(topic) == all_topics:
        fail("Pass --topic TOPIC[:PARTITION,...] or --all-topics.")
    admin = admin_client(bootstrap_server)
    committed = _committed(admin, name)
    _check_resettable(admin, name, committed, execute)
    partitions = sorted(committed) if all_topics else _partitions(admin, bootstrap_server, topic)
    goals = _goals(admin, partitions, committed, (to_earliest, to_latest, to_offset, to_datetime, shift_by))
    for topic_name, partition in (tp for tp in partitions if tp not in goals):
        note(f"{topic_name}-{partition}: its leader does not return offsets; not changed.")
    if execute:
        _commit(admin, name, goals)
    else:
        note("Nothing was changed. To apply it, pass --execute.")
    rows = [(name, *tp, offset) for tp, offset in goals.items()]
    table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows, as_json=as_json)


def _partitions(admin: AdminClient, servers: str, topics: list[str]) -> list[tuple[str, int]]:
    known = cluster_metadata(admin, servers).topics
    chosen: list[tuple[str, int]] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if topic not in known:
            fail(no_such_topic(topic))
        wanted = [_number(text) for text in numbers.split(",")] if colon else sorted(known[topic].partitions)
        if missing := [number for number in wanted if number not in known[topic].partitions]:
            fail(f"Topic {topic} has no partition {missing[0]}.")
        chosen += [(topic, number) for number in wanted]
    return sorted(chosen)


def _number(text: str) -> int:
    if not (text.isascii() and text.strip().isdecimal()):
        fail(f"{text!r} is not a partition number.")
    return int(text)


def _check_resettable(admin: AdminClient, name: str, committed: Offsets, execute: bool) -> None:
    group = _described(admin, [name])[name]
    if _state(group) == "Dead" and not committed:
        fail(f"There is no consumer group {name}.")
    if execute and group.members:
        fail(f"Group {name} has members; stop them first.")


def _goals(
    admin: AdminClient,
    partitions: list[tuple[str, int]],
    committed: Offsets,
    target: tuple[bool, bool, int | None, datetime | None, int | None],
) -> Offsets:
    """Return new offsets, limited to the range of the log."""
    from confluent_kafka.admin import OffsetSpec

    _, _, to_offset, to_datetime, shift_by = target
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    first, last = _known(_list_offsets(admin, partitions, earliest)), _known(_list_offsets(admin, partitions))
    at_time: Offsets = {}
    if to_datetime is not None:
        at_time = _list_offsets(admin, partitions, OffsetSpec.for_timestamp(int(to_datetime.timestamp() * 1000)))
    bounds = {tp: Bounds(first[tp], last[tp]) for tp in first.keys() & last.keys()}
    value = next((each for each in (to_offset, shift_by) if each is not None), 0)
    found = new_offsets(_target(target), value, partitions, committed, bounds, at_time)
    for tp, new in found.items():
        if new.is_cut:
            has = f"{bounds[tp].first} to {bounds[tp].end}"
            note(f"{tp[0]}-{tp[1]}: there is no offset {new.wanted}, it has {has}; using {new.offset}.")
    return {tp: new.offset for tp, new in found.items()}


def _target(target: tuple[bool, bool, int | None, datetime | None, int | None]) -> ResetTarget:
    to_earliest, to_latest, to_offset, to_datetime, _ = target
    if to_earliest:
        return ResetTarget.EARLIEST
    if to_latest:
        return ResetTarget.LATEST
    if to_datetime is not None:
        return ResetTarget.TIME
    return ResetTarget.SHIFT if to_offset is None else ResetTarget.OFFSET


def _commit(admin: AdminClient, group: str, offsets: Offsets) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    goals: list[TopicPartition] = [TopicPartition(*tp, offset) for tp, offset in offsets.items()]
    if not goals:
        fail(f"Group {group} has nothing to reset.")
    future = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, goals)])[group]
    what = f"The offsets of group {group} were not changed"
    done = result(future, what, on_group("READ")(group)).topic_partitions
    if problem := next((tp for tp in done if tp.error is not None), None):
        why = with_remedy(explain(problem.error), on_topic("READ")(problem.topic))
        fail(f"{what}: {problem.topic}-{problem.partition}: {why}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete consumer groups that have no members, with their offsets."""
    admin = admin_client(bootstrap_server)
    done = admin.delete_consumer_groups(names)
    results(done, "Group {} was not deleted".format, "Deleted group {}.", on_group("DELETE"))
