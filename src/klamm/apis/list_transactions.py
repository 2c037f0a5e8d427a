"""ListTransactions (66): the transactional ids that this broker coordinates; clients ask every broker.

v0-1: filters by state and producer id; a filter by the age of the transaction v1 (KIP-994). Names of states that do not
exist are returned. While a partition of `__transaction_state` is loading, the answer is COORDINATOR_LOAD_IN_PROGRESS
(14).
"""

from __future__ import annotations

from itertools import compress

from klamm.apis.access import may
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.slices import each
from klamm.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin


def handle(broker: Broker, ctx: RequestContext, req: ListTransactionsRequest) -> Answer[ListTransactionsResponse]:
    return begin(_list(broker, ctx, req))


def _list(broker: Broker, ctx: RequestContext, req: ListTransactionsRequest) -> Steps[ListTransactionsResponse]:
    listing = yield from broker.transactions.list_transactions(
        req.state_filters, req.producer_id_filters, req.duration_filter
    )
    ctx.hold(listing.transactions)
    transactions = listing.transactions
    if broker.acls is not None:
        kept = yield from each(
            transactions,
            lambda txn: may(
                broker,
                ctx,
                AclOperation.DESCRIBE,
                ResourceType.TRANSACTIONAL_ID,
                txn.transactional_id,
                is_probe=True,
            ),
        )
        transactions = tuple(compress(transactions, kept))
    states = yield from each(
        transactions,
        lambda txn: TransactionState(
            transactional_id=txn.transactional_id, producer_id=txn.producer_id, transaction_state=txn.state
        ),
    )
    return ListTransactionsResponse(
        error_code=listing.error, unknown_state_filters=listing.unknown_states, transaction_states=states
    )


API = Api(
    ListTransactionsRequest, ListTransactionsResponse, versions=(0, 1), plane=Plane.DATA, handle=handle, is_read=True
)
