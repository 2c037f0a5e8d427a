"""Produce and consume ten records with confluent-kafka: `python with_confluent_kafka.py localhost:9092`."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "greetings-confluent-kafka"
COUNT = 10


def main(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, num_partitions=3, replication_factor=1)])[TOPIC].result(60)

    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(TOPIC, key=str(number), value=f"hello {number}")
    if producer.flush(60):
        raise SystemExit("Not all records were acknowledged within 60 s.")

    consumer = Consumer({"bootstrap.servers": servers, "group.id": TOPIC, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    received: list[str] = []
    while len(received) < COUNT:
        message = consumer.poll(60)
        if message is None:
            raise SystemExit("No record within 60 s.")
        if (error := message.error()) is not None:
            raise KafkaException(error)
        received.append((message.value() or b"").decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    print("\n".join(sorted(received)))


if __name__ == "__main__":
    main(sys.argv[1])
