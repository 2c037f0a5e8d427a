"""One broker process: the owners of its state, started and stopped in order. `python -m klamm.server` runs it."""

from klamm.server.kafka_server import KafkaServer

__all__ = ["KafkaServer"]
