"""ControlledShutdown (7): a broker that wants to stop asks the controller to move its leaderships away.

v0-3: broker epoch v2; an epoch other than that of the broker's registration is STALE_BROKER_EPOCH (77). Epoch -1 and
versions without the field are rejected too. Supported brokers do not send them, and any client could use them to take
all leaderships from a broker until its next start. The response lists the partitions that could not be moved; the
broker may stop when it is empty. A broker that is not the controller answers STALE_CONTROLLER_EPOCH (11), as Kafka
does; one whose ZooKeeper does not answer within `controller.socket.timeout.ms` REQUEST_TIMED_OUT (7).
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import FromPeer
from klamm.controller import events
from klamm.controller.replies import ControlledShutdownResult
from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH
from klamm.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from klamm.waiting import after


def handle(
    broker: Broker, ctx: RequestContext, req: ControlledShutdownRequest
) -> ControlledShutdownResponse | asyncio.Future[ControlledShutdownResponse]:
    if req.broker_epoch == UNKNOWN_BROKER_EPOCH:
        return _refusal(broker)
    event = events.ControlledShutdown(req.broker_id, req.broker_epoch)
    return after(broker.controller.submit(event, broker.config.controller_socket_timeout_ms), _response)


def _refusal(broker: Broker) -> ControlledShutdownResponse:
    error = ErrorCode.STALE_BROKER_EPOCH if broker.controller.is_active else ErrorCode.STALE_CONTROLLER_EPOCH
    return ControlledShutdownResponse(error_code=error, remaining_partitions=())


def _response(result: ControlledShutdownResult) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(
        error_code=result.error,
        remaining_partitions=[
            RemainingPartition(topic_name=tp.topic, partition_index=tp.partition) for tp in result.remaining
        ],
    )


_GUARD: Final = FromPeer(
    lambda ctx, req, error: ControlledShutdownResponse(error_code=error, remaining_partitions=()),
    sender=lambda req: req.broker_id,
)
API = Api(
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    versions=(0, 3),
    plane=Plane.CONTROL,
    handle=handle,
    guard=_GUARD,
)
