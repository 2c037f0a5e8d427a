"""What the control APIs have in common: a request for an earlier life of this broker is refused."""

from __future__ import annotations

from klamm.apis.registry import Broker
from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH


def check_broker_epoch(broker: Broker, broker_epoch: int) -> ErrorCode:
    """STALE_BROKER_EPOCH when the request was meant for this broker before it restarted.

    A newer epoch than ours is fine: the controller may know of a registration before the broker does.
    """
    if broker_epoch == UNKNOWN_BROKER_EPOCH or broker_epoch >= broker.broker_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_BROKER_EPOCH
