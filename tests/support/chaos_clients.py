"""Clients that work during faults: producers at a steady rate, a group of consumers, and the account of what they saw.

A record's value says who wrote it, and its number among that producer's records of its partition.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from klamm.protocol.record_batch import RecordBatch, records

TICK_S: Final = 0.01
BETWEEN_ACKS_S: Final = 0.2
"""The last acknowledgement before a fault is about so old: a gap that begins so shortly before it is of its making."""
MESSAGE_TIMEOUT_MS: Final = 240_000
COMMIT_S: Final = 120.0
MAY_FAIL: Final = (KafkaError._MSG_TIMED_OUT,)
"""A record that timed out may have been written or not. Every other failure is an error of the cluster."""

CLIENT: Final[Mapping[str, Any]] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 5_000,
    "log_level": 0,
}


class Written(NamedTuple):
    """A record: the `number`-th of `writer` in its partition."""

    writer: int
    number: int

    def encode(self) -> bytes:
        return b"%d:%d" % self

    @staticmethod
    def decode(value: bytes | None) -> Written:
        writer, number = (value or b"").split(b":")
        return Written(int(writer), int(number))


@dataclass
class Account:
    """The answers that the clients received. One thread writes each entry; they are read after all threads ended."""

    partitions: int
    pipelined: frozenset[int] = frozenset()
    """Writers with more than one request in flight. When one of several fails, librdkafka continues with a new producer
    epoch and sends again what it has no answer for: then the log may hold a record once an epoch."""
    acked: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """Numbers by writer and partition, in the order of acknowledgement."""
    timed_out: set[tuple[int, int, int]] = field(default_factory=set)
    produced: Counter[tuple[int, int]] = field(default_factory=Counter)
    ack_times: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    consumed: dict[tuple[int, int], dict[int, Written]] = field(default_factory=lambda: defaultdict(dict))
    """By consumer and partition, what was read at an offset."""
    problems: list[str] = field(default_factory=list)

    @property
    def acked_count(self) -> int:
        return sum(map(len, self.acked.values()))

    def gaps(self, partition: int, start: float, end: float) -> Iterator[float]:
        """The times without any acknowledgement of one partition that began between start and end."""
        times = sorted(moment for key, times in self.ack_times.items() if key[1] == partition for moment in times)
        return (after - before for before, after in pairwise(times) if start <= before + BETWEEN_ACKS_S < end)

    def longest_gap(self, start: float, end: float) -> float:
        return max((gap for p in range(self.partitions) for gap in self.gaps(p, start, end)), default=0.0)


class Worker:
    """A thread that works until it must stop; what it raises is a problem of the account."""

    def __init__(self, name: str, account: Account) -> None:
        self.account = account
        self.name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def run(self, is_stopped: Callable[[], bool]) -> None:
        raise NotImplementedError

    def _guarded(self) -> None:
        try:
            self.run(self._stop.is_set)
        except Exception as error:
            self.account.problems.append(f"{self.name}: {type(error).__name__}: {error}")


class Writer(Worker):
    """An idempotent producer with acks=all that goes round all partitions. It ends when nothing is under way."""

    def __init__(self, servers: str, topic: str, writer: int, per_second: float, account: Account) -> None:
        super().__init__(f"writer-{writer}", account)
        in_flight = 5 if writer in account.pipelined else 1
        self._topic, self._writer, self._per_second = topic, writer, per_second
        self._statistics = "{}"
        settings = {"enable.idempotence": True, "acks": "all", "linger.ms": 5, "request.timeout.ms": 5_000}
        settings["max.in.flight.requests.per.connection"] = in_flight
        limits = {"message.timeout.ms": MESSAGE_TIMEOUT_MS, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                **CLIENT,
                **settings,
                **limits,
                "error_cb": self._on_error,
                "statistics.interval.ms": 5_000,
                "stats_cb": self._on_statistics,
            }
        )

    def run(self, is_stopped: Callable[[], bool]) -> None:
        begin, count = time.monotonic(), 0
        while not is_stopped():
            while count < (time.monotonic() - begin) * self._per_second:
                self._write(count % self.account.partitions)
                count += 1
            self._producer.poll(TICK_S)
        if (left := self._producer.flush(2 * MESSAGE_TIMEOUT_MS / 1000)) != 0:
            stuck = f"{self.name}: {left} records are neither acknowledged nor timed out"
            self.account.problems.append(f"{stuck}; the client reports: {_condensed(self._statistics)}")

    def _write(self, partition: int) -> None:
        key = self._writer, partition
        number = self.account.produced[key]
        self.account.produced[key] += 1
        value = Written(self._writer, number).encode()
        self._producer.produce(self._topic, value, partition=partition, on_delivery=partial(self._done, key, number))

    def _done(self, key: tuple[int, int], number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.account.acked[key].append(number)
            self.account.ack_times[key].append(time.monotonic())
        elif error.code() in MAY_FAIL:
            self.account.timed_out.add((*key, number))
        else:
            self.account.problems.append(f"{self.name}: record {number} of partition {key[1]} failed: {error}")

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.account.problems.append(f"{self.name}: {error}")

    def _on_statistics(self, statistics: str) -> None:
        self._statistics = statistics


def _condensed(statistics: str) -> str:
    """The data that explains why a librdkafka producer is stuck: its state, its requests under way and its queues."""
    reported = json.loads(statistics)
    brokers = {
        name: {key: broker.get(key) for key in ("state", "stateage", "outbuf_cnt", "waitresp_cnt", "req_timeouts")}
        for name, broker in reported.get("brokers", {}).items()
    }
    partitions = {
        f"{topic}-{number}": {key: each.get(key) for key in ("broker", "msgq_cnt", "xmit_msgq_cnt", "msgs_inflight")}
        for topic, found in reported.get("topics", {}).items()
        for number, each in found["partitions"].items()
    }
    return json.dumps(
        {"at": reported.get("time"), "eos": reported.get("eos"), "brokers": brokers, "partitions": partitions}
    )


class Reader(Worker):
    """A member of a group that commits what it has read. It never begins anywhere else than at a committed offset."""

    def __init__(self, servers: str, topic: str, group: str, reader: int, account: Account) -> None:
        super().__init__(f"reader-{reader}", account)
        self._reader = reader
        self._consumer = Consumer(
            {
                **group_settings(servers, group),
                "auto.commit.interval.ms": 300,
                "auto.offset.reset": "error",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "check.crcs": True,
            }
        )
        self._consumer.subscribe([topic])

    def run(self, is_stopped: Callable[[], bool]) -> None:
        while not is_stopped():
            for message in self._consumer.consume(500, 0.1):
                self._take(message)
        self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
                self.account.problems.append(f"{self.name}: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        read = Written.decode(message.value())
        before = self.account.consumed[self._reader, partition].setdefault(offset, read)
        if before != read:
            self.account.problems.append(f"{self.name}: offset {offset} of {partition} was {before}, now {read}")


def group_settings(servers: str, group: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "group.id": group, **CLIENT}


def commit_zero(servers: str, topic: str, group: str, partitions: int) -> None:
    """Gives the group an offset in every partition, so that a missing offset is a lost one."""
    consumer = Consumer({**group_settings(servers, group), "enable.auto.commit": False})
    commit(consumer, [TopicPartition(topic, partition, 0) for partition in range(partitions)])
    consumer.close()


def commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """Commits offsets, again if the group's coordinator is not there yet or moves."""
    deadline = time.monotonic() + COMMIT_S
    while True:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def committed(servers: str, topic: str, group: str, partitions: int) -> dict[int, int] | None:
    """The group's offsets by partition; None when nobody could say now."""
    consumer = Consumer({**group_settings(servers, group), "enable.auto.commit": False})
    try:
        found = consumer.committed([TopicPartition(topic, partition) for partition in range(partitions)], timeout=10)
        return {each.partition: each.offset for each in found}
    except KafkaException:
        return None
    finally:
        consumer.close()


def read_log(servers: str, topic: str, partitions: int, timeout_s: float) -> dict[int, list[Written]]:
    """Every partition from its beginning to its end; the place in the list is the offset."""
    consumer = Consumer({**group_settings(servers, "audit"), "enable.auto.commit": False, "check.crcs": True})
    deadline = time.monotonic() + timeout_s
    ends = {
        partition: _watermarks(consumer, TopicPartition(topic, partition), deadline) for partition in range(partitions)
    }
    out: dict[int, list[Written]] = {partition: [] for partition in ends}
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    while any(len(out[partition]) < high for partition, (_, high) in ends.items()):
        assert time.monotonic() < deadline, f"read { ({p: len(read) for p, read in out.items()}) } of {ends}"
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                read = out[message.partition() or 0]
                assert message.offset() == len(read), f"offset {message.offset()} came where {len(read)} was expected"
                read.append(Written.decode(message.value()))
    consumer.close()
    return out


def read_through(servers: str, topic: str, timeout_s: float) -> None:
    """Read partition 0 from its beginning to its end, whatever its records are: nothing in it stops a consumer."""
    settings = {**group_settings(servers, "audit"), "enable.auto.commit": False, "check.crcs": True}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    deadline = time.monotonic() + timeout_s
    _, high = _watermarks(consumer, TopicPartition(topic, 0), deadline)
    consumer.assign([TopicPartition(topic, 0, 0)])
    is_at_end = False
    while not is_at_end:
        assert time.monotonic() < deadline, f"{topic} was not read up to offset {high}"
        for message in consumer.consume(10_000, 0.5):
            error = message.error()
            is_at_end = is_at_end or (error is not None and error.code() == KafkaError._PARTITION_EOF)
    consumer.close()


def _watermarks(consumer: Consumer, partition: TopicPartition, deadline: float) -> tuple[int, int]:
    """Asks again while leaders move: the brokers still rebalance them by themselves."""
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=10)
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def check(account: Account, log: Mapping[int, list[Written]]) -> list[str]:
    """Return the contradictions between a log and the answers that the clients received."""
    problems = list(account.problems)
    for partition, found in log.items():
        by_writer: dict[int, list[int]] = defaultdict(list)
        for record in found:
            by_writer[record.writer].append(record.number)
        for (writer, _), numbers in ((key, n) for key, n in account.produced.items() if key[1] == partition):
            problems += _check_writer(account, writer, partition, by_writer.pop(writer, []), numbers)
        problems += [f"partition {partition}: nobody is writer {writer}" for writer in by_writer]
    for (reader, partition), seen in account.consumed.items():
        wrong = [o for o, read in seen.items() if o >= len(log[partition]) or log[partition][o] != read]
        if wrong:
            problems.append(f"reader-{reader} read at {_few(wrong)} of {partition} what is no longer there")
    return problems


def _check_writer(account: Account, writer: int, partition: int, found: list[int], produced: int) -> Iterator[str]:
    who = f"writer-{writer}, partition {partition}"
    acked, known = account.acked[writer, partition], set(found)
    if lost := sorted(set(acked) - known):
        yield f"{who}: {len(lost)} acknowledged records are lost: {_few(lost)}"
    is_pipelined = writer in account.pipelined
    if len(known) != len(found) and not is_pipelined:
        yield f"{who}: {_few([n for n, count in Counter(found).items() if count > 1])} are there more than once"
    if found != sorted(found) and not is_pipelined:
        yield f"{who}: out of order after {_few([a for a, b in pairwise(found) if a > b])}"
    if acked != sorted(set(acked)):
        yield f"{who}: acknowledged out of order or twice"
    unknown = {n for n in known - set(acked) if n >= produced or (writer, partition, n) not in account.timed_out}
    if unknown:
        yield f"{who}: never acknowledged, not timed out, but there: {_few(sorted(unknown))}"


def check_sequences(batches_of: Mapping[int, Iterable[RecordBatch]]) -> list[str]:
    """The promises of a broker to an idempotent producer: within an epoch no sequence number is missing or comes twice.

    Takes the batches of every partition, from its beginning.
    """
    problems: list[str] = []
    for partition, log in batches_of.items():
        expected: dict[tuple[int, int], int] = {}
        newest: dict[tuple[int, int], Written] = {}
        for batch in log:
            key = batch.producer_id, batch.producer_epoch
            where = f"partition {partition}, offset {batch.base_offset}, producer {key[0]}, epoch {key[1]}"
            if batch.base_sequence != (wanted := expected.get(key, 0)):
                problems.append(f"{where}: sequence {batch.base_sequence} where {wanted} was expected")
            expected[key] = batch.base_sequence + batch.record_count
            for record in records(batch):
                written = Written.decode(bytes(record.value or b""))
                if key in newest and newest[key] >= written:
                    problems.append(f"{where}: {written} comes after {newest[key]}")
                newest[key] = written
    return problems


def repeated(account: Account, log: Mapping[int, list[Written]]) -> int:
    """How many records of pipelined writers are in the log once more, under another epoch."""
    theirs = [[record for record in found if record.writer in account.pipelined] for found in log.values()]
    return sum(len(found) - len(set(found)) for found in theirs)


def unread(account: Account, log: Mapping[int, list[Written]]) -> dict[int, int]:
    """By partition, how many offsets no member of the group has read."""
    seen: dict[int, set[int]] = defaultdict(set)
    for (_, partition), offsets in account.consumed.items():
        seen[partition] |= offsets.keys()
    return {p: missing for p, found in log.items() if (missing := len(found) - len(seen[p])) > 0}


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (" ..." if len(numbers) > 5 else "")
