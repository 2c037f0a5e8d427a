"""Copy a topic exactly once with confluent-kafka: `python transactional_copy.py localhost:9092`.

Orders become invoices. Each transaction holds the invoices of a batch of orders and the consumer's new positions: both
count, or neither does. The second transaction is aborted on purpose, and its orders are processed again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS, INVOICES, GROUP = "orders-to-copy", "invoices-of-orders", "copying"
COUNT, BATCH = 30, 10
WAIT_S = 60
PAUSE_S = 0.1
COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
)


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
    repeated(producer.init_transactions, WAIT_S)
    consumer.subscribe([ORDERS])
    copied = attempts = 0
    while copied < COUNT:
        batch = [checked(message) for message in consumer.consume(BATCH, 1)]
        if not batch:
            continue
        attempts += 1
        producer.begin_transaction()
        try:
            for message in batch:
                value = (message.value() or b"").decode()
                producer.produce(INVOICES, key=message.key(), value=f"invoice for {value}")
            positions = consumer.position(consumer.assignment())
            repeated(producer.send_offsets_to_transaction, positions, consumer.consumer_group_metadata(), WAIT_S)
            if attempts == 2:
                producer.flush(WAIT_S)
                abort(producer, consumer)
            else:
                repeated(producer.commit_transaction, WAIT_S)
                copied += len(batch)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise  # fatal, for example fenced: another process has this transactional id
            abort(producer, consumer)
    consumer.close()


def repeated(call: Callable[..., Any], *arguments: Any) -> Any:
    """Repeat a call of the producer: after a retriable error its outcome is unknown."""
    while True:
        try:
            return call(*arguments)
        except KafkaException as error:
            if error.args[0].txn_requires_abort() or not error.args[0].retriable():
                raise
            time.sleep(PAUSE_S)


def abort(producer: Producer, consumer: Consumer) -> None:
    repeated(producer.abort_transaction, WAIT_S)
    rewind(consumer)


def rewind(consumer: Consumer) -> None:
    """After an abort the consumer has read further than its group has committed."""
    for tp in committed_positions(consumer):
        offset = tp.offset if tp.offset >= 0 else OFFSET_BEGINNING
        consumer.seek(TopicPartition(tp.topic, tp.partition, offset))


def committed_positions(consumer: Consumer) -> list[TopicPartition]:
    """Ask for the group's positions until its coordinator answers."""
    while True:
        try:
            found = consumer.committed(consumer.assignment(), WAIT_S)
            if (problem := next((tp.error for tp in found if tp.error), None)) is None:
                return found
        except KafkaException as error:
            problem = error.args[0]
        if problem.code() not in COORDINATOR_MOVES:
            raise KafkaException(problem)
        time.sleep(PAUSE_S)


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
