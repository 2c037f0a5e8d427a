"""`klamm consume TOPIC`: prints records as they arrive."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_S,
    BootstrapServer,
    client_config,
    cluster_metadata,
    explain,
    no_such_topic,
)
from klamm.cli.completion import TopicName
from klamm.cli.output import Failure, fail, note
from klamm.cli.right_advice import on_group, on_topic, with_remedy

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

Formatter = Callable[["Message"], bytes]
_POLL_S = 0.2
_SILENT_S = 5.0


class Isolation(StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def consume(
    topic: TopicName,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the first record.")] = False,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Join this group and commit offsets.")] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this many records.")
    ] = None,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", min=0, help="Stop after this long without records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the current end of the topic.")
    ] = False,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="value, key-value, json, or a text with %t %p %o %k %v %T %h "
            "(topic, partition, offset, key, value, time, headers). No newline follows such a text: "
            "end it with \\n. \\t is a tab.",
        ),
    ] = "value",
    isolation: Annotated[
        Isolation, typer.Option("--isolation-level", help="Whether to show records of open or aborted transactions.")
    ] = Isolation.READ_COMMITTED,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic. On SIGTERM or Ctrl-C it commits its offsets and leaves the group."""
    from confluent_kafka import KafkaException

    if group == "":
        fail("--group cannot be empty.")
    consumer = _consumer(bootstrap_server, group, from_beginning, isolation)
    shown = 0
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _attach(consumer, bootstrap_server, topic, partition, group, from_beginning)
        write = formatter(format_)
        for message in _messages(consumer, timeout_ms, exit_at_end, topic, group):
            sys.stdout.buffer.write(write(message))
            sys.stdout.buffer.flush()
            if group is not None:
                consumer.store_offsets(message)
            shown += 1
            if max_messages is not None and shown >= max_messages:
                break
    except KeyboardInterrupt:
        pass
    except KafkaException as error:
        raise Failure(_explained(explain(error.args[0]), topic, group)) from None
    finally:
        consumer.close()
        signal.signal(signal.SIGTERM, before)
    note(f"{shown} record{'' if shown == 1 else 's'} from {topic}.")


def _consumer(servers: str, group: str | None, from_beginning: bool, isolation: Isolation) -> Consumer:
    from confluent_kafka import Consumer

    return Consumer(
        client_config(
            servers,
            group_id=group or "klamm-consume",
            enable_auto_commit=group is not None,
            enable_auto_offset_store=False,
            auto_offset_reset="earliest" if from_beginning else "latest",
            enable_partition_eof=True,
            isolation_level=isolation.value,
        )
    )


def _attach(
    consumer: Consumer, servers: str, topic: str, partition: int | None, group: str | None, from_beginning: bool
) -> None:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    def start(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        _start_group(consumer, partitions, from_beginning)

    found = cluster_metadata(consumer, servers).topics.get(topic)
    if found is None:
        fail(no_such_topic(topic, operation="READ"))
    if partition is not None and partition not in found.partitions:
        fail(f"Topic {topic} has no partition {partition}.")
    if group is not None and partition is None:
        consumer.subscribe([topic], on_assign=start)
    elif group is not None and partition is not None:
        start(consumer, [TopicPartition(topic, partition)])
    else:
        where = OFFSET_BEGINNING if from_beginning else OFFSET_END
        numbers = sorted(found.partitions) if partition is None else [partition]
        consumer.assign([TopicPartition(topic, number, where) for number in numbers])


def _start_group(consumer: Consumer, partitions: list[TopicPartition], from_beginning: bool) -> None:
    """Each partition continues at the group's offset. If the group has none, the start position becomes its offset.

    Otherwise a partition of which nothing was read would start elsewhere the next time.
    """
    known = consumer.committed(partitions, timeout=TIMEOUT_S)
    new = [tp for tp in known if tp.offset < 0]
    for tp in new:
        first, last = consumer.get_watermark_offsets(tp, timeout=TIMEOUT_S)
        tp.offset = first if from_beginning else last
    consumer.assign(known)
    if new:
        consumer.store_offsets(offsets=new)


def _messages(
    consumer: Consumer, timeout_ms: int | None, exit_at_end: bool, topic: str = "", group: str | None = None
) -> Iterator[Message]:
    """Yield records until `timeout_ms` without one or, if requested, until the end of every assigned partition."""
    from confluent_kafka import KafkaError

    ended: set[tuple[str, int]] = set()
    last = time.monotonic()
    reported_s, reported = last, ""
    while True:
        message = consumer.poll(_POLL_S if timeout_ms is None else min(_POLL_S, timeout_ms / 1000))
        if message is None:
            if exit_at_end and time.monotonic() - max(last, reported_s) >= _SILENT_S:
                if (why := _why_waiting(consumer, ended)) != reported:
                    note(why)
                reported_s, reported = time.monotonic(), why
            if timeout_ms is not None and (time.monotonic() - last) * 1000 >= timeout_ms:
                return
            continue
        error = message.error()
        if error is None:
            last = time.monotonic()
            ended.discard((str(message.topic()), message.partition() or 0))
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add((str(message.topic()), message.partition() or 0))
            if exit_at_end and {(tp.topic, tp.partition) for tp in consumer.assignment()} <= ended:
                return
        elif group is None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # librdkafka looks for a coordinator; without a group, none is needed
        elif not error.retriable():
            fail(_explained(explain(error), topic, group))


def _explained(problem: str, topic: str, group: str | None) -> str:
    """Return a problem of the consumer. If the brokers refused it, also the right that the user lacks."""
    is_of_group = "GROUP_AUTHORIZATION_FAILED" in problem
    needed = on_topic("READ")(topic) if group is None or not is_of_group else on_group("READ")(group)
    return with_remedy(problem, needed)


def _why_waiting(consumer: Consumer, ended: set[tuple[str, int]]) -> str:
    """Return why the end of the topic is not reached."""
    from confluent_kafka import KafkaException

    awaited = [(tp.topic, tp.partition) for tp in consumer.assignment() if (tp.topic, tp.partition) not in ended]
    if not awaited:
        return "Waiting for the group to assign partitions."
    topic = awaited[0][0]
    try:
        found = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    except KafkaException:
        return "Waiting for the end of the topic: no broker answers."
    leaderless = [number for name, number in awaited if name == topic and number in found and found[number].leader < 0]
    if leaderless:
        return f"Waiting for the end of the topic: partition {leaderless[0]} of {topic} has no leader."
    return f"Waiting for the end of the topic: the leader of partition {awaited[0][1]} of {topic} has not answered yet."


def formatter(name: str) -> Formatter:
    if name == "json":
        return _json
    template = {"value": "%v\n", "key-value": "%k\t%v\n"}.get(name, name)
    if "%" not in template:
        fail(f"{name!r} is not a format: expected value, key-value, json, or a text with %k, %v and the like.")
    template = template.replace("\\n", "\n").replace("\\t", "\t")
    pieces = [piece.encode() for piece in re.split(r"(%[tpokvTh%])", template)]
    return lambda message: b"".join(_piece(piece, message) for piece in pieces)


def _piece(piece: bytes, message: Any) -> bytes:
    if piece == b"%v":
        return message.value() if message.value() is not None else b"null"
    if piece == b"%k":
        return message.key() if message.key() is not None else b"null"
    simple = {
        b"%t": message.topic,
        b"%p": message.partition,
        b"%o": message.offset,
        b"%T": lambda: message.timestamp()[1],
        b"%h": lambda: ",".join(f"{name}={_text(value)}" for name, value in message.headers() or []),
        b"%%": lambda: "%",
    }
    found = simple.get(piece)
    return str(found()).encode() if found is not None else piece


def _json(message: Any) -> bytes:
    record = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": [[name, _text(value)] for name, value in message.headers() or []],
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | str | None) -> str | None:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
