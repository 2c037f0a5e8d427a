"""One broker process: the owners of its state, started and stopped in order. `python -m klamm.server` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.server.kafka_server import KafkaServer

__all__ = ["KafkaServer"]


def __getattr__(name: str) -> object:
    """Import at first use, so that `__main__` runs before most of klamm is imported."""
    if name == "KafkaServer":
        from klamm.server.kafka_server import KafkaServer

        return KafkaServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
