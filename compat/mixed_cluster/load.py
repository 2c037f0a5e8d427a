"""An idempotent producer that writes without a pause, and the account of what became of its records."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

PER_SECOND: Final = 200
TIMEOUT_S: Final = 60.0
CLIENT: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "log_level": 0,
}


class Load:
    """Runs in a `with` block; `check` after it says what is wrong."""

    def __init__(self, settings: Mapping[str, Any], topic: str, partitions: int) -> None:
        self._settings = {**CLIENT, **settings}
        self._topic = topic
        self._partitions = partitions
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._next = 0
        self.acked: list[int] = []
        self.failed: list[str] = []

    def __enter__(self) -> Load:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 5})
        while not self._stopped.wait(1 / PER_SECOND):
            self._write(producer)
            producer.poll(0)
        if left := producer.flush(TIMEOUT_S):
            self.failed.append(f"{left} records were not answered")

    def _write(self, producer: Producer) -> None:
        number, self._next = self._next, self._next + 1

        def done(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acked.append(number)
            else:
                self.failed.append(str(error))

        producer.produce(self._topic, b"%d" % number, partition=number % self._partitions, on_delivery=done)

    def check(self) -> list[str]:
        """Nothing acknowledged is lost, doubled or out of order."""
        found = [f"failed: {why}, {count} times" for why, count in Counter(self.failed).items()]
        for partition, numbers in self.read().items():
            acked = [number for number in self.acked if number % self._partitions == partition]
            if lost := set(acked) - set(numbers):
                found.append(f"partition {partition} lost {len(lost)} of {len(acked)}, first {min(lost)}")
            if len(set(numbers)) < len(numbers):
                found.append(f"partition {partition} has {len(numbers) - len(set(numbers))} records twice")
            if numbers != sorted(numbers):
                found.append(f"partition {partition} is out of order")
        return found

    def read(self) -> dict[int, list[int]]:
        """The numbers in each partition's log, from its start to its end."""
        consumer = Consumer({**self._settings, "group.id": "load-check"})
        read: dict[int, list[int]] = {partition: [] for partition in range(self._partitions)}
        try:
            ends = {
                partition: consumer.get_watermark_offsets(TopicPartition(self._topic, partition), TIMEOUT_S)[1]
                for partition in read
            }
            consumer.assign([TopicPartition(self._topic, partition, 0) for partition in read])
            positions = dict.fromkeys(read, 0)
            while any(positions[partition] < end for partition, end in ends.items()):
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise TimeoutError(f"nothing was read for {TIMEOUT_S:g} s at {positions} of {ends}")
                if message.error() is None:
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    assert partition is not None and offset is not None and value is not None
                    positions[partition] = offset + 1
                    read[partition].append(int(value))
        finally:
            consumer.close()
        return read
