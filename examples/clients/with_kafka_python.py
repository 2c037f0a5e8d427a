"""Produce and consume ten records with kafka-python: `python with_kafka_python.py localhost:9092`."""

from __future__ import annotations

import sys

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic

TOPIC = "greetings-kafka-python"
COUNT = 10


def main(servers: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(TOPIC, num_partitions=3, replication_factor=1)])
    admin.close()

    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    sent = [producer.send(TOPIC, key=str(n).encode(), value=f"hello {n}".encode()) for n in range(COUNT)]
    for future in sent:
        future.get(60)
    producer.close()

    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=servers,
        group_id=TOPIC,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=60_000,
    )
    received: list[str] = []
    for record in consumer:
        received.append(record.value.decode())
        if len(received) == COUNT:
            break
    consumer.commit()
    consumer.close()
    print("\n".join(sorted(received)))


if __name__ == "__main__":
    main(sys.argv[1])
