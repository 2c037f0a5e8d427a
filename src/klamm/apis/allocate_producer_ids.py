"""AllocateProducerIds (67): a broker asks the controller for a block of producer ids.

v0. A broker that is not the controller answers NOT_CONTROLLER (41), one whose ZooKeeper does not answer within
`controller.socket.timeout.ms` REQUEST_TIMED_OUT (7).
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import FromPeer
from klamm.controller import events
from klamm.controller.replies import ProducerIdsBlock
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.waiting import after


def handle(
    broker: Broker, ctx: RequestContext, req: AllocateProducerIdsRequest
) -> asyncio.Future[AllocateProducerIdsResponse]:
    event = events.AllocateProducerIds(req.broker_id, req.broker_epoch)
    return after(broker.controller.submit(event, broker.config.controller_socket_timeout_ms), _response)


def _response(block: ProducerIdsBlock) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        throttle_time_ms=0, error_code=block.error, producer_id_start=block.start, producer_id_len=block.length
    )


_GUARD: Final = FromPeer(
    lambda ctx, req, error: AllocateProducerIdsResponse(
        throttle_time_ms=0, error_code=error, producer_id_start=0, producer_id_len=0
    ),
    sender=lambda req: req.broker_id,
)
API = Api(
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    versions=(0, 0),
    plane=Plane.CONTROL,
    handle=handle,
    guard=_GUARD,
)
