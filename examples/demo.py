"""The main job end to end, with a real client: `make demo`.

A broker starts, a topic is made, records are produced and consumed by a group, the broker is killed with SIGKILL in the
middle of it and comes back; nothing that was acknowledged is lost. Every step prints a line, and the exit code is 0
only if all of them held.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from klamm.testing import LocalCluster

TOPIC, GROUP, PARTITIONS, RECORDS = "orders", "billing", 3, 3_000
DEADLINE_S = 60.0


class Demo:
    """Collects what was done, how long it took and what came out of it."""

    def __init__(self) -> None:
        self.console = Console()
        self.table = Table("step", "what happened", "ms", title="klamm demo")

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        begun, said = time.perf_counter(), list[str]()
        yield said
        self.table.add_row(name, "; ".join(said), f"{(time.perf_counter() - begun) * 1000:,.0f}")


def create_topic(servers: str) -> str:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_S)
    described = admin.list_topics(TOPIC, timeout=DEADLINE_S).topics[TOPIC]
    leaders = ", ".join(f"{p} on broker {d.leader}" for p, d in sorted(described.partitions.items()))
    return f"{PARTITIONS} partitions, leaders: {leaders}"


def produce(servers: str, numbers: range, codec: str) -> int:
    """Returns how many records were acknowledged; the producer is idempotent, so none is written twice."""
    acknowledged = 0

    def on_delivery(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": codec, "linger.ms": 5}
    )
    for number in numbers:
        producer.produce(TOPIC, key=str(number % 10), value=str(number), on_delivery=on_delivery)
    producer.flush(DEADLINE_S)
    return acknowledged


def consume(servers: str, count: int) -> list[int]:
    settings = {"bootstrap.servers": servers, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    numbers: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(numbers) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            numbers.append(int(message.value() or b"-1"))
    consumer.commit(asynchronous=False)
    consumer.close()
    return numbers


def lag(servers: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": GROUP})
    partitions = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
    committed = consumer.committed(partitions, timeout=DEADLINE_S)
    ends = [consumer.get_watermark_offsets(p, timeout=DEADLINE_S)[1] for p in partitions]
    consumer.close()
    return sum(end - max(c.offset, 0) for end, c in zip(ends, committed, strict=True))


def run(demo: Demo) -> list[str]:
    """Returns what did not hold; nothing is the good answer."""
    wrong: list[str] = []
    with demo.step("start") as said:
        cluster = LocalCluster(brokers=1)
        cluster.start_all()
        said.append(f"one broker and its ZooKeeper on {cluster.bootstrap_servers}, no JVM, no Docker")
    with cluster:
        servers, broker_id = cluster.bootstrap_servers, cluster.broker_ids[0]
        with demo.step("create topic") as said:
            said.append(f"{TOPIC}: {create_topic(servers)}")
        with demo.step("produce") as said:
            sent = produce(servers, range(RECORDS), "lz4")
            said.append(f"{sent} of {RECORDS} records acknowledged (idempotent, lz4)")
        with demo.step("consume") as said:
            first = consume(servers, RECORDS // 3)
            said.append(f"group {GROUP} read {len(first)} and committed")
        with demo.step("kill -9") as said:
            cluster.kill(broker_id)
            cluster.start(broker_id)
            said.append(f"broker {broker_id} died and recovered its log")
        with demo.step("produce again") as said:
            sent += produce(servers, range(RECORDS, RECORDS + 500), "zstd")
            said.append(f"{sent} acknowledged in all")
        with demo.step("consume the rest") as said:
            rest = consume(servers, RECORDS + 500 - len(first))
            said.append(f"{len(rest)} more, lag {lag(servers)}")
        if sorted(first + rest) != list(range(RECORDS + 500)):
            wrong.append(f"{RECORDS + 500} records were acknowledged, {len(set(first + rest))} were read")
    return wrong


def main() -> int:
    demo = Demo()
    wrong = run(demo)
    demo.console.print(demo.table)
    for sentence in wrong:
        demo.console.print(f"[red]{sentence}[/red]")
    if not wrong:
        demo.console.print("Every acknowledged record was read once, across a kill -9. Try `klamm up` next.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
