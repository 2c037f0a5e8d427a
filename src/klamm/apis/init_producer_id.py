"""InitProducerId (22): an id for an idempotent producer.

v0-5. Each call gives a new id with epoch 0; an epoch bump that names its id (v3+) gets a new id as well, which
clients take. Transactions are left out: a transactional id is answered with TRANSACTIONAL_ID_AUTHORIZATION_FAILED
(53), which every client reports at once instead of trying again; an empty one, and an id without an epoch or an epoch
without an id, are INVALID_REQUEST (42). A controller
that takes longer than a second is COORDINATOR_LOAD_IN_PROGRESS (14): the client comes again.
"""

from __future__ import annotations

import asyncio

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.errors import ErrorCode
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from klamm.waiting import after


def handle(
    broker: Broker, ctx: RequestContext, req: InitProducerIdRequest
) -> InitProducerIdResponse | asyncio.Future[InitProducerIdResponse]:
    if (req.producer_id == NO_PRODUCER_ID) != (req.producer_epoch == NO_PRODUCER_EPOCH):
        return _response(ErrorCode.INVALID_REQUEST)
    if req.transactional_id is not None:
        is_empty = not req.transactional_id
        return _response(ErrorCode.INVALID_REQUEST if is_empty else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    generated = broker.producer_ids.generate()
    return after(generated, _response)


def _response(generated: int | ErrorCode) -> InitProducerIdResponse:
    if isinstance(generated, ErrorCode):
        return InitProducerIdResponse(throttle_time_ms=0, error_code=generated, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=generated, producer_epoch=0)


API = Api(InitProducerIdRequest, InitProducerIdResponse, versions=(0, 5), plane=Plane.DATA, handle=handle)
