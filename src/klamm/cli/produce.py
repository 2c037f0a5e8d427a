"""`klamm produce TOPIC`: a record for every line of standard input."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_S,
    BootstrapServer,
    admin_client,
    client_config,
    cluster_metadata,
    explain,
    parse_pairs,
    result,
)
from klamm.cli.output import Failure, fail, note

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import TopicMetadata

_RETRY_S: Final = 0.05


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help=r"Separates KEY and VALUE in each line; \t is a tab.")
    ] = None,
    header: Annotated[
        list[str], typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record.")
    ] = [],  # noqa: B006
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition of every record; default: by key.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="How batches of records are compressed.")
    ] = Compression.NONE,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Replicas that must have a record: none, the leader, or all in-sync ones.")
    ] = Acks.ALL,
    null_marker: Annotated[str | None, typer.Option("--null-marker", help="A value equal to this is null.")] = None,
    max_message_bytes: Annotated[
        int,
        typer.Option(
            min=1000, max=1_000_000_000, help="Maximum size of a record; the topic limits it with max.message.bytes."
        ),
    ] = 1_000_000,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Send every line of standard input as a record."""
    from confluent_kafka import Producer

    from klamm.replica.topic_names import is_valid_topic_name

    if not is_valid_topic_name(topic):
        fail(f"{topic!r} is not a topic name: expected 1 to 249 letters, digits, dots, underscores and hyphens.")
    if key_separator == "":
        fail("--key-separator cannot be empty.")
    headers = [(name, value.encode()) for name, value in parse_pairs(header, "--header").items()]
    producer = Producer(
        client_config(
            bootstrap_server,
            compression_type=compression.value,
            acks=acks.value,
            linger_ms=5,
            enable_idempotence=acks is Acks.ALL,
            message_max_bytes=max_message_bytes,
        )
    )
    _check_topic(producer, bootstrap_server, topic, partition)
    sender = _Sender(producer, topic, partition, headers, max_message_bytes)
    if sys.stdin.isatty():
        note(f"Every line becomes a record of {topic}; Ctrl-D ends.")
    separator = key_separator.replace("\\t", "\t") if key_separator is not None else None
    try:
        for number, (key, value) in enumerate(records(sys.stdin.buffer, separator, null_marker), 1):
            sender.send(number, key, value)
    except Failure as failure:
        raise Failure(f"{failure} {sender.account()}") from None
    sender.finish()


def _check_topic(producer: Producer, servers: str, topic: str, partition: int | None) -> None:
    """That the topic, which the broker may just be creating, is there and has the partition."""
    found = cluster_metadata(producer, servers, topic).topics[topic]
    deadline = time.monotonic() + TIMEOUT_S
    while not found.partitions and (partition is not None or _is_awaited(found)) and time.monotonic() < deadline:
        time.sleep(_RETRY_S)
        found = cluster_metadata(producer, servers, topic).topics[topic]
    if not found.partitions and _is_awaited(found):
        fail(f"Topic {topic} cannot be written to: {_why_not_there(servers, topic)}")
    if partition is not None and partition not in found.partitions:
        fail(f"Topic {topic} has no partition {partition}." if found.partitions else f"There is no topic {topic}.")


def _is_awaited(found: TopicMetadata) -> bool:
    """The errors of brokers for a topic that is being created, or deleted and created again."""
    from confluent_kafka import KafkaError

    return found.error is not None and found.error.code() == KafkaError.LEADER_NOT_AVAILABLE


def _why_not_there(servers: str, topic: str) -> str:
    """The controller's word, which tells of a deletion that waits for a broker."""
    from confluent_kafka.admin import NewTopic

    admin = admin_client(servers)
    try:
        result(admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic])
    except Failure as failure:
        return str(failure)
    return "it has no leader."


def records(
    lines: BinaryIO, key_separator: str | None, null_marker: str | None
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of each line; a line without the separator is a mistake."""
    separator = key_separator.encode() if key_separator is not None else None
    null = null_marker.encode() if null_marker is not None else None
    for number, line in enumerate(lines, 1):
        text = line.rstrip(b"\n").removesuffix(b"\r")
        key: bytes | None = None
        value: bytes | None = text
        if separator is not None:
            key, found, value = text.partition(separator)
            if not found:
                fail(f"Line {number} has no key: {key_separator!r} is not in it.")
        yield key, None if null is not None and value == null else value


class _Sender:
    """Hands records to librdkafka, waits when its queue is full, counts what was delivered."""

    def __init__(
        self, producer: Any, topic: str, partition: int | None, headers: list[tuple[str, bytes]], limit: int
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._options = {"partition": partition} if partition is not None else {}
        self._headers = headers
        self._limit = limit
        self._delivered = 0
        self._problem: str | None = None

    def send(self, number: int, key: bytes | None, value: bytes | None) -> None:
        while not self._queued(number, key, value):
            self._producer.poll(0.1)
        self._producer.poll(0)
        self._check()

    def _queued(self, number: int, key: bytes | None, value: bytes | None) -> bool:
        from confluent_kafka import KafkaError, KafkaException

        headers = list(self._headers)
        try:
            self._producer.produce(
                self._topic, value, key, headers=headers, on_delivery=self._on_delivery, **self._options
            )
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise Failure(f"Line {number} was not sent: {explain(error.args[0])}") from None
            size = len(key or b"") + len(value or b"")
            raise Failure(
                f"Line {number} has {size} bytes; the limit is {self._limit} with everything that goes with it. "
                "Raise it with --max-message-bytes, and the topic's max.message.bytes."
            ) from None
        return True

    def finish(self) -> None:
        self._producer.flush()
        if self._problem is not None:
            fail(f"{self._refused()} {self.account()}")
        note(self._counted("to"))

    def account(self) -> str:
        """How many records are in the topic, after everything handed over has been answered."""
        self._producer.flush()
        return self._counted("went to")

    def _counted(self, verb: str) -> str:
        return f"{self._delivered} record{'' if self._delivered == 1 else 's'} {verb} {self._topic}."

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            self._delivered += 1
        elif self._problem is None:
            self._problem = explain(error)

    def _check(self) -> None:
        if self._problem is not None:
            fail(self._refused())

    def _refused(self) -> str:
        return f"A record was not accepted: {self._problem}"
