"""Consumers that are over their quota: their Fetch is answered with nothing but a throttle time (KIP-219)."""

from __future__ import annotations

from klamm.apis.api_declaration import Broker, RequestContext
from klamm.apis.fetch_context import FetchContext
from klamm.replica.fetch_path import FetchParams, Reads
from klamm.replica.fetch_session import OneFetch


def is_withheld(
    broker: Broker, ctx: RequestContext, params: FetchParams, context: FetchContext, size_bytes: int
) -> bool:
    """Charge the records of a response to the consumer's quota; return whether the response must be empty.

    Nothing that was read is noted in the session, so the next Fetch finds it again. An empty answer does not open a
    session: the client could not know which partitions it holds, and asks for all of them again.
    """
    if params.is_from_follower:
        return False
    if not broker.quotas.withholds(ctx, size_bytes):
        return False
    if context.is_full and context.session.id:
        broker.fetch_sessions.remove(context.session.id)
        context.session = OneFetch()
    return True


def size_of(reads: Reads) -> int:
    return sum(read.size_bytes for _, read in reads)
