"""AddOffsetsToTxn (25): makes the partition of a group's offsets part of a transaction, before TxnOffsetCommit.

v0-4: throttling before the wait v1 (KIP-219); PRODUCER_FENCED (90) v2, before it INVALID_PRODUCER_EPOCH (47); flexible
v3; v4 (KIP-890) is the same. Producers of KIP-890 part 2 do not send it: TxnOffsetCommit v5 adds the partition itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import All, Needs
from klamm.apis.transaction_errors import error_for_client, unless_given_up
from klamm.errors import ErrorCode
from klamm.model import GROUP_METADATA_TOPIC, TopicPartition, TransactionVersion
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import after

Answer = AddOffsetsToTxnResponse | None


def handle(broker: Broker, ctx: RequestContext, req: AddOffsetsToTxnRequest) -> Answer | asyncio.Future[Answer]:
    partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_for(req.group_id))
    added = broker.transactions.add_partitions(
        req.transactional_id,
        req.producer_id,
        req.producer_epoch,
        [partition],
        version=TransactionVersion.TV_0,
        origin=ctx.channel.order,
    )
    return after(added.on(broker.loop), lambda error: _response(error, ctx))


def _response(error: ErrorCode, ctx: RequestContext) -> Answer:
    response = AddOffsetsToTxnResponse(error_code=error_for_client(error, ctx, fenced_since=2))
    return unless_given_up(ctx, error, response)


def _refused(ctx: RequestContext, req: AddOffsetsToTxnRequest, error: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=error)


_GUARD: Final = All(
    (
        Needs(ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, lambda req: req.transactional_id, _refused),
        Needs(ResourceType.GROUP, AclOperation.READ, lambda req: req.group_id, _refused),
    )
)
API = Api(
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, versions=(0, 4), plane=Plane.DATA, handle=handle, guard=_GUARD
)
