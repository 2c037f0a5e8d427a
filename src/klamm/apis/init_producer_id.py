"""InitProducerId (22): an id for an idempotent producer, an id and epoch for a transactional one.

v0-5: flexible v2; id and epoch of a producer that recovers from an error v3 (KIP-360); PRODUCER_FENCED (90) v4, before
it INVALID_PRODUCER_EPOCH (47); v5 (KIP-890) is the same. Without a transactional id each call gives a new id with epoch
0. With one, the coordinator bumps the epoch, which fences all other producers with this transactional id. An open
transaction is aborted first: the request waits for its end, for a short time (decision 0045), and then the client gets
CONCURRENT_TRANSACTIONS (51) and retries. The transaction timeout must be from 1 to `transaction.max.timeout.ms`, else
INVALID_TRANSACTION_TIMEOUT (50). An empty transactional id, and an id without an epoch or an epoch without an id, are
INVALID_REQUEST (42). A controller that takes longer than a second to provide ids is COORDINATOR_LOAD_IN_PROGRESS (14):
the client retries.
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.access import may_on_any, may_on_cluster
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import All, Handle, Needs
from klamm.apis.transaction_errors import error_for_client, unless_given_up
from klamm.coordinator.transaction.transaction_results import InitProducerIdResult
from klamm.errors import ErrorCode
from klamm.model import ProducerIdAndEpoch
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import after

Answer = InitProducerIdResponse | None


def handle(broker: Broker, ctx: RequestContext, req: InitProducerIdRequest) -> Answer | asyncio.Future[Answer]:
    if (req.producer_id == NO_PRODUCER_ID) != (req.producer_epoch == NO_PRODUCER_EPOCH):
        return _response(InitProducerIdResult(ErrorCode.INVALID_REQUEST), ctx)
    if req.transactional_id is None:
        return after(broker.producer_ids.generate(), lambda generated: _response(_idempotent(generated), ctx))
    is_expected = req.producer_id != NO_PRODUCER_ID
    expected = ProducerIdAndEpoch(req.producer_id, req.producer_epoch) if is_expected else None
    initialised = broker.transactions.init_producer_id(
        req.transactional_id, req.transaction_timeout_ms, expected, ctx.channel.order
    )
    return after(initialised.on(broker.loop), lambda result: _response(result, ctx))


def _idempotent(generated: int | ErrorCode) -> InitProducerIdResult:
    if isinstance(generated, ErrorCode):
        return InitProducerIdResult(generated)
    return InitProducerIdResult(ErrorCode.NONE, generated, 0)


def _response(result: InitProducerIdResult, ctx: RequestContext) -> Answer:
    response = InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=error_for_client(result.error, ctx, fenced_since=4),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )
    return unless_given_up(ctx, result.error, response)


def _refused(ctx: RequestContext, req: InitProducerIdRequest, error: ErrorCode) -> Answer:
    return _response(InitProducerIdResult(error), ctx)


class _MayBeIdempotent:
    """A producer without a transactional id needs IDEMPOTENT_WRITE, or WRITE on any topic (KIP-679)."""

    def is_needed(self, broker: Broker) -> bool:
        return broker.acls is not None

    def __call__(
        self, broker: Broker, handle: Handle, ctx: RequestContext, req: InitProducerIdRequest
    ) -> Answer | asyncio.Future[Answer]:
        is_allowed = (
            req.transactional_id is not None
            or may_on_cluster(broker, ctx, AclOperation.IDEMPOTENT_WRITE, is_probe=True)
            or may_on_any(broker, ctx, AclOperation.WRITE, ResourceType.TOPIC)
        )
        answer: Answer | asyncio.Future[Answer]
        answer = handle(ctx, req) if is_allowed else _refused(ctx, req, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return answer


_GUARD: Final = All(
    (
        Needs(ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, lambda req: req.transactional_id, _refused),
        _MayBeIdempotent(),
    )
)
API = Api(InitProducerIdRequest, InitProducerIdResponse, versions=(0, 5), plane=Plane.DATA, handle=handle, guard=_GUARD)
