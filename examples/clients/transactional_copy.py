"""Copy a topic exactly once with confluent-kafka: `python transactional_copy.py localhost:9092`.

Orders become invoices. Each transaction holds the invoices of a batch of orders and the consumer's new positions: both
count, or neither does. The second transaction is aborted on purpose, and its orders are processed again.
"""

from __future__ import annotations

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS, INVOICES, GROUP = "orders-to-copy", "invoices-of-orders", "copying"
COUNT, BATCH = 30, 10
WAIT_S = 60


def main(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic(ORDERS, 3, 1), NewTopic(INVOICES, 3, 1)]).values():
        done.result(WAIT_S)
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for number in range(COUNT):
        producer.produce(ORDERS, key=str(number), value=f"order {number}")
    producer.flush(WAIT_S)
    copy(servers)
    committed = read(servers, "read_committed")
    assert sorted(committed) == sorted(f"invoice for order {number}" for number in range(COUNT))
    print(f"{len(committed)} invoices are committed, each once")
    print(f"{len(read(servers, 'read_uncommitted'))} records were written, those of the aborted transaction too")


def copy(servers: str) -> None:
    """A new process with the same transactional id fences the old one, whose next commit fails."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "copying-1"})
    producer.init_transactions(WAIT_S)
    consumer.subscribe([ORDERS])
    copied = attempts = 0
    while copied < COUNT:
        batch = [checked(message) for message in consumer.consume(BATCH, 1)]
        if not batch:
            continue
        attempts += 1
        producer.begin_transaction()
        for message in batch:
            value = (message.value() or b"").decode()
            producer.produce(INVOICES, key=message.key(), value=f"invoice for {value}")
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
        if attempts == 2:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
            rewind(consumer)
        else:
            producer.commit_transaction(WAIT_S)
            copied += len(batch)
    consumer.close()


def rewind(consumer: Consumer) -> None:
    """After an abort the consumer has read further than its group has committed."""
    for tp in consumer.committed(consumer.assignment(), WAIT_S):
        offset = tp.offset if tp.offset >= 0 else OFFSET_BEGINNING
        consumer.seek(TopicPartition(tp.topic, tp.partition, offset))


def read(servers: str, isolation_level: str) -> list[str]:
    """Return all values of the invoices that a consumer of this isolation level sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{isolation_level}",
            "isolation.level": isolation_level,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    partitions = [TopicPartition(INVOICES, number, OFFSET_BEGINNING) for number in range(3)]
    consumer.assign(partitions)
    values: list[str] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(WAIT_S)
        if message is None:
            raise SystemExit(f"No record within {WAIT_S} s.")
        if message.error() is None:
            values.append((message.value() or b"").decode())
        else:
            ended.add(message.partition() or 0)
    consumer.close()
    return values


def checked(message: Message) -> Message:
    if (error := message.error()) is not None:
        raise KafkaException(error)
    return message


if __name__ == "__main__":
    main(sys.argv[1])
