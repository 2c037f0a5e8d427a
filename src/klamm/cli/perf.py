"""`klamm perf produce|consume|latency`: measure a cluster with confluent-kafka, within bounds.

The exit code is 0 if every record arrived, 1 if one did not, and 130 after Ctrl-C. The report is printed in each case.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    client_config,
    cluster_metadata,
    explain,
    no_such_topic,
)
from klamm.cli.completion import TopicName
from klamm.cli.output import fail
from klamm.cli.perf_report import Latencies, Report
from klamm.cli.produce import Acks, Compression
from klamm.cli.progress_line import ProgressLine

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

app = typer.Typer(help="Measure throughput and latency.", no_args_is_help=True)

DEFAULT_SECONDS: Final = 10.0
"""The bound if neither --records nor --seconds is given."""
ACKNOWLEDGE_S: Final = 30.0
"""How long a record may wait for its acknowledgement."""
ARRIVE_S: Final = 10.0
"""How long `latency` waits for its last records."""
_POLL_S: Final = 0.1
_SLICE_S: Final = 0.0002
"""How long to wait for a record before looking for acknowledgements: the accuracy of their times."""
_PAYLOAD_BYTES: Final = 1 << 20
_STAMP: Final = struct.Struct(">16sQ")
"""The run and the number of a record: records of other writers are recognised and ignored."""

Records = Annotated[int | None, typer.Option("--records", "-n", min=1, help="Stop after this many records.")]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", "-s", min=0.1, help=f"Stop after this time; {DEFAULT_SECONDS:.0f} without --records."),
]
Size = Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Bytes of each record's value.")]


class _Bounds:
    """Ends a run after a number of records or a time, whichever comes first."""

    def __init__(self, records: int | None, seconds: float | None) -> None:
        self.records = records
        self.seconds = DEFAULT_SECONDS if records is None and seconds is None else seconds
        self.began_s = time.perf_counter()

    def restart(self) -> None:
        """Begin now: connecting is not a part of the run."""
        self.began_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.began_s

    def are_reached(self, done: int) -> bool:
        if self.records is not None and done >= self.records:
            return True
        return self.seconds is not None and self.elapsed_s >= self.seconds

    def fraction(self, done: int) -> float:
        shares = [0.0]
        if self.records is not None:
            shares.append(done / self.records)
        if self.seconds is not None:
            shares.append(self.elapsed_s / self.seconds)
        return max(shares)


class _Sending:
    """A producer whose records are timed until they are acknowledged."""

    def __init__(self, producer: Producer, topic: str, report: Report, latencies: Latencies) -> None:
        self._producer = producer
        self._topic = topic
        self._report = report
        self._latencies = latencies
        self.sent = 0
        self.unacknowledged = 0
        self.last_s = time.perf_counter()

    def send(self, value: bytes, since_s: float) -> None:
        """Send a record. Its latency counts from `since_s`; if the client's queue is full, wait for room."""

        def on_delivery(error: Any, message: Message) -> None:
            self._on_delivery(error, len(value), since_s)

        while True:
            try:
                self._producer.produce(self._topic, value, on_delivery=on_delivery)
                break
            except BufferError:
                self._producer.poll(_POLL_S)
        self.sent += 1
        self.unacknowledged += 1
        self.poll()

    def poll(self) -> None:
        """Take note of the acknowledgements that have arrived."""
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait until every record is acknowledged or has failed."""
        self._producer.flush(ACKNOWLEDGE_S + _POLL_S)

    def abandon(self) -> None:
        self._producer.purge()
        self._producer.flush(_POLL_S)

    def _on_delivery(self, error: Any, size_bytes: int, since_s: float) -> None:
        report = self._report
        self.unacknowledged -= 1
        if error is not None:
            report.problem = report.problem or explain(error)
            return
        self.last_s = time.perf_counter()
        self._latencies.add(self.last_s - since_s)
        report.records += 1
        report.size_bytes += size_bytes


@app.command()
def produce(
    topic: TopicName,
    records: Records = None,
    seconds: Seconds = None,
    size: Size = 100,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.1, help="Records per second; as fast as possible without it."),
    ] = None,
    acks: Annotated[Acks, typer.Option("--acks", help="Which brokers acknowledge a record.")] = Acks.ALL,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compression of record batches.")
    ] = Compression.NONE,
    linger_ms: Annotated[int, typer.Option("--linger-ms", min=0, help="How long a batch waits for records.")] = 5,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Send records of random bytes and measure throughput and the time until each is acknowledged.

    With --rate, a latency counts from the time at which the record was due, so a stall of the cluster delays all
    records that were due meanwhile. Without it, the time in the client's queue is a part of the latency.
    """
    latencies = Latencies()
    report = Report("produce", topic, latencies={"latency": latencies})
    producer = _producer(bootstrap_server, acks, compression_type=compression.value, linger_ms=linger_ms)
    _require_topic(producer, bootstrap_server, topic, "WRITE")
    payload = os.urandom(_PAYLOAD_BYTES + size)
    sending = _Sending(producer, topic, report, latencies)
    bounds = _Bounds(records, seconds)
    with ProgressLine(enabled=not as_json) as line, _reported(report, as_json):
        try:
            while not bounds.are_reached(sending.sent):
                due_s = bounds.began_s + sending.sent / rate if rate is not None else time.perf_counter()
                while (wait_s := due_s - time.perf_counter()) > 0:
                    producer.poll(min(wait_s, _POLL_S))
                at = sending.sent * 257 % _PAYLOAD_BYTES
                sending.send(payload[at : at + size], due_s)
                if line.is_due:
                    line.show(bounds.fraction(sending.sent), _rate_text(report.records, bounds))
            sending.finish()
        except KeyboardInterrupt:
            sending.abandon()
            report.is_interrupted = True
        report.seconds = max(0.0, sending.last_s - bounds.began_s)
        report.failed = sending.sent - report.records


@app.command()
def consume(
    topic: TopicName,
    records: Records = None,
    seconds: Seconds = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Read a topic from its beginning and measure throughput. Ends at the end of the topic, unless --follow is given.

    No group is used, and no offset is committed. The rate counts from the first record.
    """
    report = Report("consume", topic)
    consumer = _consumer(bootstrap_server)
    ends: set[int] = set()
    with ProgressLine(enabled=not as_json) as line, _reported(report, as_json):
        first_s = None
        bounds = _Bounds(records, seconds)
        try:
            partitions = _assign(consumer, bootstrap_server, topic, at_end=False)
            bounds.restart()
            last_s = bounds.began_s
            while not bounds.are_reached(report.records) and (follow or len(ends) < partitions):
                left = 1000 if records is None else min(1000, records - report.records)
                for message in consumer.consume(left, _POLL_S):
                    if _is_end(message):
                        ends.add(message.partition() or 0)
                        continue
                    last_s = time.perf_counter()
                    first_s = last_s if first_s is None else first_s
                    report.records += 1
                    report.size_bytes += len(message.value() or b"") + len(message.key() or b"")
                    ends.discard(message.partition() or 0)
                if line.is_due:
                    line.show(bounds.fraction(report.records), _rate_text(report.records, bounds))
            if records is not None and report.records < records:
                report.failed = records - report.records
                report.problem = f"the topic or the time ended {report.failed} records before --records"
        except KeyboardInterrupt:
            report.is_interrupted = True
        finally:
            consumer.close()
        report.seconds = 0.0 if first_s is None else last_s - first_s
        first_ms = None if first_s is None else round((first_s - bounds.began_s) * 1000, 1)
        report.details["first_record_ms"] = first_ms


@app.command()
def latency(
    topic: TopicName,
    records: Records = None,
    seconds: Seconds = None,
    size: Size = 100,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=10_000, help="Records per second.")] = 100.0,
    acks: Annotated[Acks, typer.Option("--acks", help="Which brokers acknowledge a record.")] = Acks.ALL,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Send records at a steady rate and measure the time until a consumer in this process receives each.

    Both latencies count from the time at which the record was due. Other records of the topic are ignored.
    """
    end_to_end, acknowledged = Latencies(), Latencies()
    sent = Report("produce", topic)
    report = Report("latency", topic, latencies={"end_to_end": end_to_end, "acknowledgement": acknowledged})
    producer, consumer = _producer(bootstrap_server, acks, linger_ms=0), _consumer(bootstrap_server)
    sending = _Sending(producer, topic, sent, acknowledged)
    run, padding = os.urandom(16), bytes(max(0, size - _STAMP.size))
    due: dict[int, float] = {}
    with ProgressLine(enabled=not as_json) as line, _reported(report, as_json):
        last_s = time.perf_counter()

        def receive(wait_s: float) -> None:
            nonlocal last_s
            message = consumer.poll(max(0.0, min(wait_s, _POLL_S)))
            if message is None or _is_end(message) or (message.value() or b"")[:16] != run:
                return
            since_s = due.pop(_STAMP.unpack_from(message.value() or b"")[1], None)
            if since_s is not None:
                last_s = time.perf_counter()
                end_to_end.add(last_s - since_s)
                report.records += 1
                report.size_bytes += len(message.value() or b"")

        bounds = _Bounds(records, seconds)
        try:
            _assign(consumer, bootstrap_server, topic, at_end=True)
            bounds.restart()
            while not bounds.are_reached(sending.sent):
                due_s = bounds.began_s + sending.sent / rate
                while (wait_s := due_s - time.perf_counter()) > 0:
                    receive(min(wait_s, _SLICE_S) if sending.unacknowledged else wait_s)
                    sending.poll()
                due[sending.sent] = due_s
                sending.send(_STAMP.pack(run, sending.sent) + padding, due_s)
                if line.is_due:
                    line.show(bounds.fraction(sending.sent), _rate_text(report.records, bounds))
            until_s = time.perf_counter() + ARRIVE_S
            while due and time.perf_counter() < until_s:
                receive(_SLICE_S if sending.unacknowledged else _POLL_S)
                sending.poll()
            sending.finish()
        except KeyboardInterrupt:
            sending.abandon()
            report.is_interrupted = True
        finally:
            consumer.close()
        report.failed, report.problem = sending.sent - report.records, sent.problem
        if report.failed and report.problem is None and not report.is_interrupted:
            report.problem = f"{report.failed} records did not arrive within {ARRIVE_S:.0f} s"
        report.seconds = max(0.0, last_s - bounds.began_s)


# --- parts -----------------------------------------------------------------------------------------------------------


@contextmanager
def _reported(report: Report, as_json: bool) -> Iterator[None]:
    """Print the report at the end, and exit with its code."""
    yield
    report.show(as_json=as_json)
    if report.is_interrupted:
        raise typer.Exit(130)
    if report.failed:
        raise typer.Exit(1)


def _rate_text(records: int, bounds: _Bounds) -> str:
    return f"{records:,} records, {records / max(bounds.elapsed_s, 0.001):,.0f} records/s"


def _producer(servers: str, acks: Acks, **settings: object) -> Producer:
    from confluent_kafka import Producer

    return Producer(
        client_config(
            servers,
            acks=acks.value,
            enable_idempotence=acks is Acks.ALL,
            message_timeout_ms=int(ACKNOWLEDGE_S * 1000),
            queue_buffering_max_kbytes=64 * 1024,
            **settings,
        )
    )


def _consumer(servers: str) -> Consumer:
    from confluent_kafka import Consumer

    return Consumer(
        client_config(
            servers,
            group_id="klamm-perf",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="earliest",
            queued_max_messages_kbytes=64 * 1024,
        )
    )


def _require_topic(client: Any, servers: str, topic: str, operation: str) -> int:
    """Return the number of partitions. A misspelled name must not create a topic."""
    found = cluster_metadata(client, servers).topics.get(topic)
    if found is None:
        fail(f"{no_such_topic(topic, operation=operation)} Create it with `klamm topic create {topic}`.")
    return len(found.partitions)


def _assign(consumer: Consumer, servers: str, topic: str, *, at_end: bool) -> int:
    """Assign all partitions; at their end, the position is known before this returns."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    count = _require_topic(consumer, servers, topic, "READ")
    partitions = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)]
    if at_end:
        for partition in partitions:
            partition.offset = consumer.get_watermark_offsets(partition, timeout=ARRIVE_S)[1]
    consumer.assign(partitions)
    return count


def _is_end(message: Message) -> bool:
    """Whether this is the mark of a partition's end. An error ends the command."""
    from confluent_kafka import KafkaError

    error = message.error()
    if error is None:
        return False
    if error.code() != KafkaError._PARTITION_EOF:
        fail(explain(error))
    return True
