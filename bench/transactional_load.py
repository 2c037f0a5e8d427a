"""Transactional load with librdkafka in its own process: `python -m bench.transactional_load MODE ...` prints JSON.

`transactions`: several producers, each with transactions of one record per partition, as many as fit one after the
other. `commit`: one producer; the time of a commit after its records were acknowledged, and of the same produce without
a transaction. `stream`: records as fast as they go, with a commit every so many milliseconds; every tenth transaction
is aborted. `read`: all committed records of such a topic.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from bench.librdkafka import BATCH, Deliveries, run_module
from klamm.errors import KlammError

TIMEOUT_S: Final = 180.0
COMMIT_EVERY_S: Final = 0.1
ABORT_EVERY: Final = 10


def _producer(args: argparse.Namespace, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "transactional.id": f"{args.topic}-{name}",
            "transaction.timeout.ms": 60_000,
            "linger.ms": 0 if args.mode != "stream" else 5,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 256 << 10,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def transactions(args: argparse.Namespace) -> dict[str, float]:
    """Transactions per second over all producers. Their first transactions, which find coordinators, do not count."""
    value = os.urandom(args.size)
    producers = [_producer(args, f"producer-{number}") for number in range(args.producers)]
    each = max(1, args.count // args.producers)
    failures: list[BaseException] = []

    def transact(producer: Producer, count: int) -> None:
        try:
            for _ in range(count):
                producer.begin_transaction()
                for partition in range(args.partitions):
                    producer.produce(args.topic, value, partition=partition)
                producer.commit_transaction(TIMEOUT_S)
        except (KafkaException, BufferError) as error:
            failures.append(error)

    def on_all(count: int) -> float:
        threads = [threading.Thread(target=transact, args=(producer, count)) for producer in producers]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise KlammError(f"A transaction failed: {failures[0]}")
        return time.perf_counter() - begun

    on_all(2)
    return {"transactions_per_s": each * args.producers / on_all(each)}


def commit(args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds, medians and p99: the commit alone, and an acknowledged record without a transaction."""
    value = os.urandom(args.size)
    plain = Producer({"bootstrap.servers": args.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    transactional = _producer(args, "commit")
    commits: list[float] = []
    produces: list[float] = []
    for number in range(args.count + 5):
        begun = time.perf_counter()
        plain.produce(args.topic, value, partition=0)
        if plain.flush(TIMEOUT_S):
            raise KlammError("A record was not acknowledged in time.")
        produced = time.perf_counter()
        transactional.begin_transaction()
        transactional.produce(args.topic, value, partition=0)
        if transactional.flush(TIMEOUT_S):
            raise KlammError("A transactional record was not acknowledged in time.")
        flushed = time.perf_counter()
        transactional.commit_transaction(TIMEOUT_S)
        if number >= 5:
            produces.append((produced - begun) * 1000)
            commits.append((time.perf_counter() - flushed) * 1000)
    commits.sort()
    produces.sort()
    return {
        "commit_p50": commits[len(commits) // 2],
        "commit_p99": commits[int(len(commits) * 0.99)],
        "produce_p50": produces[len(produces) // 2],
    }


def stream(args: argparse.Namespace) -> dict[str, float]:
    """Records per second that were sent in transactions, and how many of them were committed."""
    producer = _producer(args, "stream")
    values = [os.urandom(args.size) for _ in range(BATCH)]
    deliveries = Deliveries()
    sent = committed = in_transaction = ended = 0
    begun = time.perf_counter()
    producer.begin_transaction()
    commit_at = begun + COMMIT_EVERY_S
    while sent < args.count:
        try:
            producer.produce(args.topic, values[sent % BATCH], partition=sent % args.partitions, on_delivery=deliveries)
        except BufferError:
            producer.poll(0.01)
            continue
        sent += 1
        in_transaction += 1
        if sent % 100 == 0:
            producer.poll(0)
            if time.perf_counter() >= commit_at:
                committed += _end(producer, ended, in_transaction)
                ended, in_transaction = ended + 1, 0
                producer.begin_transaction()
                commit_at = time.perf_counter() + COMMIT_EVERY_S
    producer.commit_transaction(TIMEOUT_S)
    seconds = time.perf_counter() - begun
    return {"records_per_s": sent / seconds, "committed": committed + in_transaction, "transactions": ended + 1}


def _end(producer: Producer, number: int, records: int) -> int:
    """Return how many records were committed. Their acknowledgements are waited for, so that an abort drops none."""
    if number % ABORT_EVERY == ABORT_EVERY - 1:
        producer.flush(TIMEOUT_S)
        producer.abort_transaction(TIMEOUT_S)
        return 0
    producer.commit_transaction(TIMEOUT_S)
    return records


def read(args: argparse.Namespace) -> dict[str, float]:
    """Records per second between the first records and the last ones.

    librdkafka waits half a second before its first Fetch, and as long at the end for answers without records. With the
    default of `queued.min.messages` it may also pause for a second in between. These waits say nothing of the broker.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": args.bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 256 << 10,
            "queued.min.messages": 1_000_000,
        }
    )
    begun = time.perf_counter()
    consumer.assign([TopicPartition(args.topic, partition, OFFSET_BEGINNING) for partition in range(args.partitions)])
    count, ends = 0, set[int | None]()
    first_count, first_at, last_at = 0, 0.0, 0.0
    while len(ends) < args.partitions:
        if time.perf_counter() - begun > TIMEOUT_S:
            raise KlammError(f"{count} of {args.count} records came in time.")
        before = count
        for message in consumer.consume(BATCH, 0.1):
            error = message.error()
            if error is None:
                count += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
            else:
                raise KlammError(f"The consumer failed: {error}")
        if count > before:
            last_at = time.perf_counter()
            if not before:
                first_count, first_at = count, last_at
    consumer.close()
    if count != args.count:
        raise KlammError(f"{count} records were read, {args.count} were committed.")
    return {"records_per_s": (count - first_count) / (last_at - first_at)}


MODES: Final = {"transactions": transactions, "commit": commit, "stream": stream, "read": read}


def run(mode: str, **options: object) -> Mapping[str, float]:
    """Run the load in a child process; return its figures."""
    return run_module("bench.transactional_load", mode, options, 3 * TIMEOUT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=[*MODES])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--count", type=int, required=True, help="transactions or records")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--producers", type=int, default=1)
    args = parser.parse_args()
    print(json.dumps(MODES[args.mode](args)))


if __name__ == "__main__":
    main()
