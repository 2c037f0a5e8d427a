"""EndTxn (26): commits or aborts the transaction of a producer; answered when the outcome is stored.

v0-5: throttling before the wait v1 (KIP-219); PRODUCER_FENCED (90) v2, before it INVALID_PRODUCER_EPOCH (47); flexible
v3; v4 (KIP-890) is the same; v5 (KIP-890 part 2) bumps the producer's epoch and returns the id and epoch to continue
with. If `transaction.version` has changed, the connection is closed with the answer, so that the client learns of it.
The markers are written after the answer. While they are, a further EndTxn is CONCURRENT_TRANSACTIONS (51). An
abort succeeds if nothing is open and the producer knows the outcome of its last transaction; Kafka answers
INVALID_TXN_STATE (48) (decision 0028).
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import Needs
from klamm.apis.transaction_errors import error_for_client, unless_given_up
from klamm.coordinator.transaction.transaction_results import EndTxnResult
from klamm.model import TransactionVersion
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import promptly

Answer = EndTxnResponse | None


def handle(broker: Broker, ctx: RequestContext, req: EndTxnRequest) -> Answer | asyncio.Future[Answer]:
    ended = broker.transactions.end_transaction(
        req.transactional_id,
        req.producer_id,
        req.producer_epoch,
        commit=req.committed,
        version=TransactionVersion.TV_2 if ctx.api_version >= 5 else TransactionVersion.TV_0,
        origin=ctx.channel.order,
    )
    if _is_outdated(broker, ctx):
        ctx.close_connection()  # with the answer: the client asks again which protocol the cluster has
    ctx.sends_at_once = True  # The producer waits for nothing else, and its next request comes after this one.
    return promptly(ended.on(broker.loop), lambda result: _response(result, ctx))


def _is_outdated(broker: Broker, ctx: RequestContext) -> bool:
    """Whether the client uses a protocol that the cluster no longer has, or could use a better one by now.

    v4 is the version of clients that know KIP-890. Java 3.9 also uses v4. It is disconnected once per change of
    `transaction.version`.
    """
    finalized = broker.features.finalized
    if ctx.api_version >= 5:
        return not finalized.version.bumps_epoch
    is_before_change = -1 < ctx.channel.features_epoch < finalized.epoch
    return ctx.api_version == 4 and finalized.version.bumps_epoch and is_before_change


def _response(result: EndTxnResult, ctx: RequestContext) -> Answer:
    response = EndTxnResponse(
        error_code=error_for_client(result.error, ctx, fenced_since=2),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )
    return unless_given_up(ctx, result.error, response)


_GUARD: Final = Needs(
    ResourceType.TRANSACTIONAL_ID,
    AclOperation.WRITE,
    lambda req: req.transactional_id,
    lambda ctx, req, error: EndTxnResponse(error_code=error),
)
API = Api(EndTxnRequest, EndTxnResponse, versions=(0, 5), plane=Plane.DATA, handle=handle, guard=_GUARD)
