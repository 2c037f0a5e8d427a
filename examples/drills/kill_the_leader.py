"""A fault drill: kill the leader while a producer writes, restart it, and account for every acknowledged record."""

from __future__ import annotations

import sys
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer

from klamm.testing import LocalCluster

TOPIC = "drill"
BEFORE, DURING, AFTER = 500, 500, 500


class Load:
    """A producer that remembers which records the brokers have acknowledged."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
        self._next = 0
        self.acknowledged: set[int] = set()

    def send(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            self._producer.produce(TOPIC, value=str(number), on_delivery=self._on_delivery)
            self._producer.poll(0)
        self._next += count

    def flush(self) -> None:
        self._producer.flush(120)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add(int(message.value() or b""))


def read_all(servers: str, expected: int) -> list[int]:
    """All records up to the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "drill-check",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([TOPIC])
    found: list[int] = []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(int(message.value() or b""))
        elif error.code() == KafkaError._PARTITION_EOF and len(found) >= expected:
            break
    consumer.close()
    return found


def main() -> int:
    with LocalCluster(brokers=3, broker_configs={"min.insync.replicas": 2}) as cluster:
        cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        load = Load(cluster.bootstrap_servers)
        load.send(BEFORE)
        load.flush()
        cluster.wait_for(lambda: len(cluster.isr(TOPIC, 0)) == 3, what="all replicas in sync")
        victim = cluster.leader(TOPIC, 0)
        load.send(DURING)
        begun = time.monotonic()
        cluster.kill(victim)
        successor = cluster.leader(TOPIC, 0)
        print(f"broker {victim} was killed; broker {successor} leads after {time.monotonic() - begun:.1f} s")
        load.send(AFTER)
        load.flush()
        cluster.start(victim)
        cluster.wait_for(lambda: len(cluster.isr(TOPIC, 0)) == 3, what="all replicas in sync")
        found = read_all(cluster.bootstrap_servers, len(load.acknowledged))
    lost = load.acknowledged - set(found)
    duplicates = len(found) - len(set(found))
    print(f"acknowledged {len(load.acknowledged)}, found {len(set(found))}, lost {len(lost)}, duplicates {duplicates}")
    return 1 if lost or duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
