"""A broker that answers clients, as its starter sees it."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.broker import Broker
from klamm.model import EndPoint


@dataclass(frozen=True, slots=True)
class Running:
    """`endpoints` have the ports that were bound. `metrics_port` is -1 if there is no metrics endpoint."""

    broker: Broker
    endpoints: tuple[EndPoint, ...]
    metrics_port: int
