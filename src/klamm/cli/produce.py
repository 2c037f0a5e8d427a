"""`klamm produce TOPIC`: one record per line of standard input."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
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
    no_such_topic,
    parse_pairs,
    refusals,
    result,
)
from klamm.cli.completion import TopicName
from klamm.cli.output import Failure, fail, note
from klamm.cli.progress_line import ProgressLine
from klamm.cli.right_advice import on_cluster, on_topic, with_remedy
from klamm.cli.rights import ask_any_broker
from klamm.client.patience import NEW_TOPIC

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import TopicMetadata

    from klamm.client.blocking_connection import BlockingConnection
    from klamm.client.missing_rights import MissingRight

_FLUSH_S: Final = 1.0
_SILENT_S: Final = 5.0
"""Without any confirmation for this long, the command says what it is waiting for."""


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
    topic: TopicName,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help=r"Separates key and value in a line; \t is a tab.")
    ] = None,
    header: Annotated[
        list[str], typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record.")
    ] = [],  # noqa: B006
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition to write to; by default chosen by key.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compression of record batches.")
    ] = Compression.NONE,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Wait for no broker, for the leader, or for all in-sync replicas.")
    ] = Acks.ALL,
    null_marker: Annotated[str | None, typer.Option("--null-marker", help="Text that stands for a null value.")] = None,
    max_message_bytes: Annotated[
        int,
        typer.Option(
            min=1000, max=1_000_000_000, help="Largest record to send; see also the topic's max.message.bytes."
        ),
    ] = 1_000_000,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Send each line of standard input as one record."""
    from confluent_kafka import KafkaException, Producer

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
    target = _Target(bootstrap_server, topic, partition, needs_controller=acks is Acks.ALL)
    try:
        _check_topic(producer, bootstrap_server, topic, partition)
    except (Failure, KafkaException) as error:  # librdkafka may report a refused producer here already
        problem = str(error) if isinstance(error, Failure) else explain(error.args[0])
        raise Failure(target.explained(problem)) from None
    size_bytes = _file_size(sys.stdin.buffer)
    line = ProgressLine(enabled=size_bytes > 0)
    sender = _Sender(producer, target, headers, max_message_bytes, line)
    if sys.stdin.isatty():
        note(f"Each line becomes a record of {topic}; Ctrl-D ends.")
    separator = key_separator.replace("\\t", "\t") if key_separator is not None else None
    with line:
        try:
            for number, (key, value) in enumerate(records(sys.stdin.buffer, separator, null_marker), 1):
                sender.send(number, key, value)
                if line.is_due:
                    line.show(sys.stdin.buffer.tell() / size_bytes, f"{number} records")
        except Failure as failure:
            raise Failure(f"{failure} {sender.account()}".rstrip()) from None
        sender.finish()


def _file_size(stream: BinaryIO) -> int:
    """Return the size of a regular file; 0 for a pipe or a terminal."""
    try:
        found = os.fstat(stream.fileno())
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _check_topic(producer: Producer, servers: str, topic: str, partition: int | None) -> None:
    """Fail unless the topic, which the broker may be creating, exists and has the partition."""
    found = cluster_metadata(producer, servers, topic).topics[topic]
    deadline = time.monotonic() + NEW_TOPIC.deadline_s
    while not found.partitions and (partition is not None or _is_awaited(found)) and time.monotonic() < deadline:
        time.sleep(NEW_TOPIC.pause_s())
        found = cluster_metadata(producer, servers, topic).topics[topic]
    if found.error is not None and found.error.name() == "TOPIC_AUTHORIZATION_FAILED":
        fail(with_remedy(f"Topic {topic} cannot be written to: {explain(found.error)}", on_topic("WRITE")(topic)))
    if not found.partitions and _is_awaited(found):
        fail(f"Topic {topic} cannot be written to: {_why_not_there(servers, topic)}")
    if partition is not None and partition not in found.partitions:
        missing = no_such_topic(topic, operation="WRITE")
        fail(f"Topic {topic} has no partition {partition}." if found.partitions else missing)


def _is_awaited(found: TopicMetadata) -> bool:
    """Whether the topic is being created, or is being deleted and was requested again."""
    from confluent_kafka import KafkaError

    return found.error is not None and found.error.code() == KafkaError.LEADER_NOT_AVAILABLE


def _why_not_there(servers: str, topic: str) -> str:
    """Return the controller's reason, such as a deletion that waits for a broker."""
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
    """Yield key and value of each line. A line without the separator is an error."""
    separator = key_separator.encode() if key_separator is not None else None
    null = null_marker.encode() if null_marker is not None else None
    for number, line in enumerate(lines, 1):
        text = line.rstrip(b"\n").removesuffix(b"\r")
        key: bytes | None = None
        value: bytes | None = text
        if separator is not None:
            key, found, value = text.partition(separator)
            if not found:
                fail(f"Line {number} has no key: it does not contain {key_separator!r}.")
        yield key, None if null is not None and value == null else value


class _Sender:
    """Passes records to librdkafka, waits while its queue is full, and counts the delivered records."""

    def __init__(
        self, producer: Any, target: _Target, headers: list[tuple[str, bytes]], limit: int, line: ProgressLine
    ) -> None:
        self._producer = producer
        self._target = target
        self._options = {"partition": target.partition} if target.partition is not None else {}
        self._headers = headers
        self._limit = limit
        self._line = line
        self._delivered = 0
        self._problem: str | None = None
        self._has_failed = False
        self._progress_s = time.monotonic()

    def send(self, number: int, key: bytes | None, value: bytes | None) -> None:
        while not self._queued(number, key, value):
            self._call(self._producer.poll, 0.1)
            self._report_silence()
        self._call(self._producer.poll, 0)
        self._check()

    def _queued(self, number: int, key: bytes | None, value: bytes | None) -> bool:
        from confluent_kafka import KafkaError, KafkaException

        headers = list(self._headers)
        try:
            self._call(
                partial(self._producer.produce, self._target.topic, headers=headers, on_delivery=self._on_delivery),
                value,
                key,
                **self._options,
            )
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                why = self._target.explained(explain(error.args[0]))
                raise Failure(f"Line {number} was not sent: {why}") from None
            size = len(key or b"") + len(value or b"")
            raise Failure(
                f"Line {number} has {size} bytes; the limit is {self._limit}, which includes the overhead of a record. "
                "Raise --max-message-bytes and the topic's max.message.bytes."
            ) from None
        return True

    def finish(self) -> None:
        self._flush()
        if self._problem is not None:
            fail(f"{self._rejected()} {self.account()}")
        self._line.erase()
        note(self._counted("to"))

    def account(self) -> str:
        """Return how many records were delivered, after librdkafka has finished with all of them.

        A fatal error has reported that already.
        """
        if self._has_failed:
            return ""
        self._flush()
        return self._counted("went to")

    def _flush(self) -> None:
        while self._call(self._producer.flush, _FLUSH_S) > 0:
            if refusals.fatal is not None:
                raise self._failed(explain(refusals.fatal))
            self._report_silence()

    def _call(self, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call librdkafka. After a fatal error of the producer, confluent-kafka raises that or SystemError."""
        from confluent_kafka import KafkaException

        try:
            return action(*arguments, **options)
        except (SystemError, KafkaException) as error:
            if isinstance(error, KafkaException) and not error.args[0].fatal():
                raise
            raise self._failed(_fatal_reason(error)) from None

    def _failed(self, reason: str) -> Failure:
        """Return a fatal error of the producer. librdkafka keeps the records that wait for five minutes otherwise."""
        self._has_failed = True
        self._producer.purge(in_queue=True, in_flight=False)
        return Failure(
            f"The producer failed and cannot continue: {self._target.explained(reason)} {self._counted('went to')} "
            "Records without confirmation may be missing."
        )

    def _report_silence(self) -> None:
        if time.monotonic() - self._progress_s >= _SILENT_S:
            self._progress_s = time.monotonic()
            count = len(self._producer)
            records = f"{count} record{'' if count == 1 else 's'}"
            self._line.erase()
            note(f"Waiting for the confirmation of {records}: {self._target.why_waiting()}")

    def _counted(self, verb: str) -> str:
        return f"{self._delivered} record{'' if self._delivered == 1 else 's'} {verb} {self._target.topic}."

    def _on_delivery(self, error: Any, message: Any) -> None:
        self._progress_s = time.monotonic()
        if error is None:
            self._delivered += 1
        elif self._problem is None:
            self._problem = self._target.explained(explain(error))

    def _check(self) -> None:
        if self._problem is not None:
            fail(self._rejected())

    def _rejected(self) -> str:
        return f"A record was not accepted: {self._problem}"


class _Target:
    """The topic that is written to, and why writing to it may take long."""

    def __init__(self, servers: str, topic: str, partition: int | None, *, needs_controller: bool) -> None:
        self.topic = topic
        self.partition = partition
        self._servers = servers
        self._needs_controller = needs_controller

    def explained(self, problem: str) -> str:
        """Return a problem of the producer. If the brokers refused it, also the right that the user lacks.

        An idempotent producer may write if it has Write on any topic, or IdempotentWrite on the cluster (KIP-679). If
        it has neither, brokers name the cluster, although it is the topic to which the user needs access.
        """
        if "_AUTHORIZATION_FAILED" not in problem or "klamm acl add" in problem:
            return problem
        from klamm.client.missing_rights import missing_on_topic
        from klamm.security.acl.bindings import AclOperation

        def question(connection: BlockingConnection) -> list[MissingRight]:
            missing = missing_on_topic(connection, self.topic, AclOperation.WRITE)
            return [] if missing is None else [missing]

        is_of_cluster = "CLUSTER_AUTHORIZATION_FAILED" in problem
        missing = ask_any_broker(self._servers, question)
        if not missing and not is_of_cluster:
            return problem
        return with_remedy(problem, *(missing or [on_cluster("IDEMPOTENT_WRITE")]))

    def why_waiting(self) -> str:
        """Return the reason that the cluster shows: no broker, no controller or no leader."""
        from klamm.cli.cluster_control import find_controller
        from klamm.cli.controller import metadata

        try:
            _, view = metadata(self._servers, [self.topic])
        except Failure as failure:
            return str(failure)
        partitions = [each for topic in view.topics for each in topic.partitions]
        leaderless = sorted(each.partition_index for each in partitions if each.leader_id < 0)
        if leaderless:
            return f"partition {leaderless[0]} of {self.topic} has no leader."
        control = find_controller(view, {view.controller_id: view}, TIMEOUT_S)
        if self._needs_controller and control.problem is not None:
            return (
                "the cluster has no controller that answers, and a producer with --acks all needs one for its "
                "producer id."
            )
        return "the brokers have not answered yet."


def _fatal_reason(error: Exception) -> str:
    from confluent_kafka import KafkaException

    cause = error if isinstance(error, KafkaException) else error.__cause__
    return explain(cause.args[0]) if isinstance(cause, KafkaException) else f"{error}."
