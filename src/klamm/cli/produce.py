"""`klamm produce TOPIC`: a record for every line of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, BinaryIO

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    client_config,
    cluster_metadata,
    explain,
    parse_pairs,
)
from klamm.cli.output import fail, note


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
        str | None, typer.Option("--key-separator", "-K", help="A line is KEY, this, and VALUE.")
    ] = None,
    header: Annotated[
        list[str], typer.Option("--header", "-H", metavar="NAME=VALUE", help="Goes with every record.")
    ] = [],  # noqa: B006
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Without it: by key.")] = None,
    compression: Annotated[Compression, typer.Option("--compression", "-z")] = Compression.NONE,
    acks: Annotated[Acks, typer.Option("--acks")] = Acks.ALL,
    null_marker: Annotated[str | None, typer.Option("--null-marker", help="A value equal to this is null.")] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Send every line of standard input as a record."""
    from confluent_kafka import Producer

    headers = [(name, value.encode()) for name, value in parse_pairs(header, "--header").items()]
    producer = Producer(
        client_config(
            bootstrap_server,
            compression_type=compression.value,
            acks=acks.value,
            linger_ms=5,
            enable_idempotence=acks is Acks.ALL,
        )
    )
    cluster_metadata(producer, bootstrap_server, topic)
    sender = _Sender(producer, topic, partition, headers)
    if sys.stdin.isatty():
        note(f"Every line becomes a record of {topic}; Ctrl-D ends.")
    for key, value in records(sys.stdin.buffer, key_separator, null_marker):
        sender.send(key, value)
    sender.finish()


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

    def __init__(self, producer: Any, topic: str, partition: int | None, headers: list[tuple[str, bytes]]) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._headers = headers
        self._delivered = 0
        self._problem: str | None = None

    def send(self, key: bytes | None, value: bytes | None) -> None:
        options = {"partition": self._partition} if self._partition is not None else {}
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, headers=list(self._headers), on_delivery=self._on_delivery, **options
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
        self._check()

    def finish(self) -> None:
        self._producer.flush()
        self._check()
        note(f"{self._delivered} record{'' if self._delivered == 1 else 's'} to {self._topic}.")

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            self._delivered += 1
        elif self._problem is None:
            self._problem = explain(error)

    def _check(self) -> None:
        if self._problem is not None:
            fail(f"A record was not accepted: {self._problem}")
