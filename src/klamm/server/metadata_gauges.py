"""Gauges of a broker's view of the cluster, which show a broker that lags behind the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from klamm.broker import Broker
from klamm.metadata import MetadataSnapshot, MetadataUpdate

_METADATA_CACHE: Final = ("klamm.server", "MetadataCache")


def register(broker: Broker) -> None:
    """`LastUpdateAgeMs` grows while the controller has nothing to send; before the first update it is -1."""
    cache, clock = broker.metadata, broker.clock
    applied_s: list[float] = []

    def on_update(before: MetadataSnapshot, update: MetadataUpdate) -> None:
        applied_s[:] = [clock.monotonic()]

    gauges: dict[str, Callable[[], object]] = {
        "ControllerId": lambda: cache.snapshot.controller_id,
        "ControllerEpoch": lambda: cache.snapshot.controller_epoch,
        "UpdateCount": lambda: cache.snapshot.update_count,
        "PartitionCount": lambda: cache.snapshot.partition_count,
        "LastUpdateAgeMs": lambda: (clock.monotonic() - applied_s[0]) * 1000 if applied_s else -1,
    }
    for name, value in gauges.items():
        broker.metrics.gauge(*_METADATA_CACHE, name, value)
    cache.update_listeners.append(on_update)
