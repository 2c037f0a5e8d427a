"""A small service: it accepts orders, publishes them to a topic, and totals them per customer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer


class OrderService:
    """Publishes orders with acks=all, so that an accepted order survives the loss of a broker."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})

    def accept(self, orders: Iterable[Mapping[str, Any]]) -> None:
        """Publish the orders. Raises `TimeoutError` if not all of them are acknowledged within a minute."""
        for order in orders:
            self._producer.produce(self._topic, key=order["customer"], value=json.dumps(order))
        if missing := self._producer.flush(60):
            raise TimeoutError(f"{missing} orders were not acknowledged")


def totals(servers: str, topic: str, count: int) -> dict[str, float]:
    """Read `count` orders from the beginning of the topic and sum their amounts per customer."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"{topic}-totals", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    result: dict[str, float] = defaultdict(float)
    try:
        for _ in range(count):
            message = consumer.poll(60)
            if message is None:
                raise TimeoutError("no further order within a minute")
            if (error := message.error()) is not None:
                raise KafkaException(error)
            order = json.loads(message.value() or b"")
            result[order["customer"]] += order["amount"]
    finally:
        consumer.close()
    return dict(result)
