"""Load with librdkafka (confluent-kafka) in a process of its own: `python -m bench.librdkafka MODE ...` prints JSON.

`produce`: so many records as fast as it goes, until all are acknowledged; `fill` the same, with as many records in each
partition as in every other. `consume`: so many records from the start.
`latency`: a producer at a steady rate without linger, and a consumer in another process: milliseconds from the moment
before `produce` to the moment `poll` gives the record.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from klamm.errors import KlammError

PARTITIONS: Final = 6
BATCH: Final = 1_000
TIMEOUT_S: Final = 120.0
PARTITION_UA: Final = -1
"""The client chooses."""


class Deliveries:
    """Counts what was acknowledged, and stops at the first that was not."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KlammError(f"A record was not acknowledged: {error}")
        self.count += 1


def fill(args: argparse.Namespace) -> dict[str, float]:
    return produce(args, lambda number: number % PARTITIONS)


def produce(
    args: argparse.Namespace, partition_of: Callable[[int], int] = lambda number: PARTITION_UA
) -> dict[str, float]:
    deliveries = Deliveries()
    producer = Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "acks": args.acks,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 256 << 10,
        }
    )
    producer.list_topics(args.topic, timeout=TIMEOUT_S)
    values = [os.urandom(args.size) for _ in range(BATCH)]
    begun = time.perf_counter()
    for number in range(args.records):
        while True:
            try:
                producer.produce(
                    args.topic, values[number % BATCH], partition=partition_of(number), on_delivery=deliveries
                )
                break
            except BufferError:
                producer.poll(0.01)
        if number % BATCH == 0:
            producer.poll(0)
    producer.flush(TIMEOUT_S)
    seconds = time.perf_counter() - begun
    if deliveries.count != args.records:
        raise KlammError(f"{args.records - deliveries.count} records were not acknowledged in time.")
    return {"records_per_s": args.records / seconds}


def _assigned(bootstrap: str, topic: str, offset: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 256 << 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, offset) for partition in range(PARTITIONS)])
    return consumer


def consume(args: argparse.Namespace) -> dict[str, float]:
    begun = time.perf_counter()
    consumer = _assigned(args.bootstrap, args.topic, OFFSET_BEGINNING)
    count = size = 0
    while count < args.records:
        if time.perf_counter() - begun > TIMEOUT_S:
            raise KlammError(f"{args.records - count} records did not come in time.")
        for message in consumer.consume(BATCH, 0.1):
            if message.error() is None:
                count += 1
                size += len(message.value() or b"")
    seconds = time.perf_counter() - begun
    consumer.close()
    if size != count * args.size:
        raise KlammError(f"{size} bytes came in {count} records of {args.size}.")
    return {"records_per_s": count / seconds}


def _receive(bootstrap: str, topic: str, records: int, out: Connection) -> None:
    """Sends a word when it is at the end of all partitions, and then the latencies."""
    consumer = _assigned(bootstrap, topic, OFFSET_BEGINNING)
    ends: set[int | None] = set()
    latencies: list[float] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(latencies) < records and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            sent_ns = int.from_bytes((message.value() or b"")[:8], "big")
            latencies.append((time.monotonic_ns() - sent_ns) / 1e6)
        elif error.code() == KafkaError._PARTITION_EOF and len(ends) < PARTITIONS:
            ends.add(message.partition())
            if len(ends) == PARTITIONS:
                out.send("ready")
    out.send(latencies)
    consumer.close()


def latency(args: argparse.Namespace) -> dict[str, float]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    receiver = multiprocessing.get_context("spawn").Process(
        target=_receive, args=(args.bootstrap, args.topic, args.records, theirs)
    )
    receiver.start()
    producer = Producer({"bootstrap.servers": args.bootstrap, "acks": args.acks, "linger.ms": 0})
    producer.list_topics(args.topic, timeout=TIMEOUT_S)
    if not ours.poll(TIMEOUT_S) or ours.recv() != "ready":
        raise KlammError("The consumer did not come to the end of its partitions.")
    padding = os.urandom(args.size - 8)
    begun = time.monotonic()
    for number in range(args.records):
        wait_s = begun + number / args.rate - time.monotonic()
        if wait_s > 0:
            producer.poll(wait_s)
            time.sleep(max(0.0, begun + number / args.rate - time.monotonic()))
        producer.produce(args.topic, time.monotonic_ns().to_bytes(8, "big") + padding, partition=number % PARTITIONS)
    producer.flush(TIMEOUT_S)
    if not ours.poll(TIMEOUT_S):
        raise KlammError("The consumer did not get all records.")
    latencies = sorted(ours.recv())
    receiver.join()
    if len(latencies) != args.records:
        raise KlammError(f"{args.records - len(latencies)} records did not come in time.")
    return {
        name: latencies[int(len(latencies) * part)] for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }


MODES: Final = {"produce": produce, "fill": fill, "consume": consume, "latency": latency}


def run(mode: str, **options: object) -> Mapping[str, float]:
    """Run the load in a child process; return its figures."""
    return run_module("bench.librdkafka", mode, options, 3 * TIMEOUT_S)


def run_module(module: str, mode: str, options: Mapping[str, object], timeout_s: float) -> Mapping[str, float]:
    """Run `python -m MODULE MODE --OPTION VALUE ...`; return the JSON that it prints."""
    command = [sys.executable, "-m", module, mode]
    for key, value in options.items():
        command += [f"--{key}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise KlammError(f"{' '.join(command[2:])} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=[*MODES])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--rate", type=int, default=500)
    args = parser.parse_args()
    print(json.dumps(MODES[args.mode](args)))


if __name__ == "__main__":
    main()
