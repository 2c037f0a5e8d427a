"""AddPartitionsToTxn (24): makes partitions part of a transaction; the first of them open it.

v0-5:

- v1: throttling before the wait (KIP-219).
- v2: PRODUCER_FENCED (90). In earlier versions it is INVALID_PRODUCER_EPOCH (47).
- v3: flexible.
- v4: brokers send it, with several transactions in one request (KIP-890). It adds partitions or verifies that they
  belong to a transaction; a partition that does not is TRANSACTION_ABORTABLE (120).
- v5: the same.

If one partition of a transaction does not exist (UNKNOWN_TOPIC_OR_PARTITION, 3), none is added. The others are
OPERATION_NOT_ATTEMPTED (55). Topics that only brokers write are TOPIC_AUTHORIZATION_FAILED (29) for every client:
AddOffsetsToTxn adds those of offsets.

A client's request waits a short time for the end of the previous transaction (decision 0045). After that it is
CONCURRENT_TRANSACTIONS (51).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from klamm.apis.access import may
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import All, FromPeer, Needs
from klamm.apis.parts import MOST, Parts, in_parts
from klamm.apis.slices import each, each_partition
from klamm.apis.transaction_errors import error_for_client, unless_given_up
from klamm.errors import ErrorCode
from klamm.model import BROKER_TOPICS, TopicPartition, TransactionVersion
from klamm.protocol.chunked import CHUNK, pieces
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, all_results, begin, promptly, result_of

FIRST_BROKER_VERSION: Final = 4
_WRITE_WEIGHT: Final = 20
"""A transaction that grows is written to the log: it counts as this many partitions that are only looked up."""
Known = dict[TopicPartition, None]
Errors = dict[TopicPartition, ErrorCode]
ErrorOf = Callable[[TopicPartition], ErrorCode]


def handle(broker: Broker, ctx: RequestContext, req: AddPartitionsToTxnRequest) -> Answer[AddPartitionsToTxnResponse]:
    if ctx.api_version < FIRST_BROKER_VERSION:
        return begin(_add_for_client(broker, ctx, req))
    answer: Answer[AddPartitionsToTxnResponse] = _handle_batch(broker, ctx, req)
    return answer


def _add_for_client(broker: Broker, ctx: RequestContext, req: AddPartitionsToTxnRequest) -> Steps[Any]:
    known, missing = yield from _split(
        broker, ctx, req.v3_and_below_topics, lambda topic: _may_write(broker, ctx, topic)
    )
    if missing:
        return (yield from _client_response(req, _not_attempted(missing)))
    added = broker.transactions.add_partitions(
        req.v3_and_below_transactional_id,
        req.v3_and_below_producer_id,
        req.v3_and_below_producer_epoch,
        known,
        version=TransactionVersion.TV_0,
        origin=ctx.channel.order,
    )
    error = yield from result_of(added.on(broker.loop))
    shown = error_for_client(error, ctx, fenced_since=2)
    if unless_given_up(ctx, error, req) is None:
        return None
    return (yield from _client_response(req, lambda tp: shown))


def _client_response(req: AddPartitionsToTxnRequest, error_of: ErrorOf) -> Steps[AddPartitionsToTxnResponse]:
    topics = yield from _results(req.v3_and_below_topics, error_of)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def _handle_few(broker: Broker, ctx: RequestContext, req: AddPartitionsToTxnRequest) -> Any:
    return begin(_handle_transactions(broker, ctx, req.transactions))


def _weight(transaction: AddPartitionsToTxnTransaction) -> int:
    """Count the partitions of a transaction, but no further than a part needs to know."""
    weight = 1 if transaction.verify_only else _WRITE_WEIGHT
    for topic in transaction.topics:
        weight += 1 + len(topic.partitions)
        if weight >= MOST:
            break
    return weight


_handle_batch = in_parts(
    _handle_few, Parts(asked="transactions", answers="results_by_transaction", weigh=_weight, together=True)
)


def _handle_transactions(
    broker: Broker, ctx: RequestContext, transactions: Sequence[AddPartitionsToTxnTransaction]
) -> Steps[Any]:
    parts: list[ErrorOf | asyncio.Future[ErrorOf]] = []
    for transaction in transactions:
        parts.append((yield from _handle_one(broker, ctx, transaction)))
    return (yield from _batch_response(transactions, (yield from result_of(all_results(parts)))))


def _handle_one(
    broker: Broker, ctx: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> Steps[ErrorOf | asyncio.Future[ErrorOf]]:
    known, missing = yield from _split(broker, ctx, transaction.topics)
    if missing:
        return _not_attempted(missing)
    transactions = broker.transactions
    identity = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    if not transaction.verify_only:
        added = transactions.add_partitions(*identity, known, version=TransactionVersion.TV_2, origin=None)
        return promptly(added.on(broker.loop), _same_for_all)
    errors: Errors = {}
    for number, piece in enumerate(pieces(tuple(known))):
        if number:
            yield
        errors.update(transactions.verify_partitions(*identity, piece))
    if len(errors) > CHUNK:
        ctx.hold(errors)
    return errors.__getitem__


def _batch_response(
    transactions: Sequence[AddPartitionsToTxnTransaction], errors: Sequence[ErrorOf]
) -> Steps[AddPartitionsToTxnResponse]:
    results = []
    for transaction, error_of in zip(transactions, errors, strict=True):
        topics = yield from _results(transaction.topics, error_of)
        results.append(AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topics))
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _same_for_all(error: ErrorCode) -> ErrorOf:
    return lambda tp: error


def _not_attempted(missing: Errors) -> ErrorOf:
    return lambda tp: missing.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED)


def _may_write(broker: Broker, ctx: RequestContext, topic: str) -> bool:
    """Clients never write to internal topics in a transaction: AddOffsetsToTxn adds these."""
    if topic in BROKER_TOPICS:
        return False
    return broker.acls is None or may(broker, ctx, AclOperation.WRITE, ResourceType.TOPIC, topic)


def _split(
    broker: Broker,
    ctx: RequestContext,
    topics: Sequence[AddPartitionsToTxnTopic],
    is_allowed: Callable[[str], bool] | None = None,
) -> Steps[tuple[Known, Errors]]:
    """Return the partitions that exist, and the errors of those that do not, or that the client may not write."""
    refused: set[str] = set()

    if is_allowed is not None:
        may_write = is_allowed
        yield from each(topics, lambda topic: None if may_write(topic.name) else refused.add(topic.name))
    snapshot = broker.metadata.snapshot
    known: Known = {}
    missing: Errors = {}

    def sort(topic: AddPartitionsToTxnTopic, index: int) -> None:
        tp = TopicPartition(topic.name, index)
        if topic.name in refused:
            missing[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif snapshot.partition(*tp) is None:
            missing[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            known[tp] = None

    yield from each_partition(topics, lambda topic: topic.partitions, sort, lambda *_: None)
    for found in (known, missing):
        if len(found) > CHUNK:
            ctx.hold(found)
    return known, missing


def _results(
    topics: Sequence[AddPartitionsToTxnTopic], error_of: ErrorOf
) -> Steps[Sequence[AddPartitionsToTxnTopicResult]]:
    return (
        yield from each_partition(
            topics,
            lambda topic: topic.partitions,
            lambda topic, index: AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=error_of(TopicPartition(topic.name, index))
            ),
            lambda topic, results: AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results),
        )
    )


def _refused(ctx: RequestContext, req: AddPartitionsToTxnRequest, error: ErrorCode) -> Any:
    if ctx.api_version >= FIRST_BROKER_VERSION:
        return AddPartitionsToTxnResponse(error_code=error)
    return begin(_client_response(req, lambda _: error))


_GUARD: Final = All(
    (
        FromPeer(_refused, applies=lambda ctx: ctx.api_version >= FIRST_BROKER_VERSION),
        Needs(
            ResourceType.TRANSACTIONAL_ID,
            AclOperation.WRITE,
            lambda req: None if req.transactions else req.v3_and_below_transactional_id,
            _refused,
        ),
    )
)
API = Api(
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    versions=(0, 5),
    plane=Plane.DATA,
    handle=handle,
    guard=_GUARD,
)
