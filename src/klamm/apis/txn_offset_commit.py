"""TxnOffsetCommit (28): a group's positions as part of a producer's transaction.

They are written to `__consumer_offsets` at once and count when the transaction is committed; until it ends, OffsetFetch
with require_stable answers UNSTABLE_OFFSET_COMMIT for them.

v0-5:

- v2: leader epoch (KIP-320).
- v3: flexible, with member, generation and group instance id (KIP-447). A producer that acts for a member is fenced
  with it: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION or FENCED_INSTANCE_ID.
- v4: TRANSACTION_ABORTABLE (KIP-890). In earlier versions it is INVALID_TXN_STATE.
- v5: the request adds the offsets partition to the transaction. In earlier versions AddOffsetsToTxn must have done so.

A producer without a member is accepted in any state of the group. The broker verifies the transaction with its
coordinator before it writes. v0 and v1 do not know COORDINATOR_LOAD_IN_PROGRESS and get COORDINATOR_NOT_AVAILABLE.

Late requests of v0 to v4 are not executed, and their connection is closed. A request is late if its producer has given
up the connection, or if the connection is older than the abort of the producer's last transaction.

Errors of single partitions: unknown topics and partitions are UNKNOWN_TOPIC_OR_PARTITION. Metadata above
`offset.metadata.max.bytes` is OFFSET_METADATA_TOO_LARGE.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import All, Needs, each_topic
from klamm.apis.slices import each_partition
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.membership import MemberIdentity
from klamm.coordinator.offset_records import OffsetAndMetadata
from klamm.coordinator.offsets_log import GIVEN_UP, TransactionalProducer
from klamm.errors import ErrorCode
from klamm.metadata import MetadataSnapshot
from klamm.model import TopicPartition, TransactionVersion
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin, result_of

_FIRST_WITH_LOADING: Final = 2
_FIRST_WITH_ABORTABLE: Final = 4
_FIRST_THAT_ADDS: Final = 5


def handle(broker: Broker, ctx: RequestContext, req: TxnOffsetCommitRequest) -> Answer[TxnOffsetCommitResponse]:
    return begin(_commit(broker, ctx, req))


def _commit(broker: Broker, ctx: RequestContext, req: TxnOffsetCommitRequest) -> Steps[Any]:
    offsets = yield from _known_offsets(broker.metadata.snapshot, req, broker.clock.now_ms())
    ctx.hold(tuple(offsets), tuple(offsets.values()))
    if not offsets:
        return (yield from _response(req, {}, ctx.api_version))
    producer = TransactionalProducer(
        req.transactional_id,
        req.producer_id,
        req.producer_epoch,
        _transaction_version(ctx.api_version),
        ctx.channel.order,
    )
    groups: GroupCoordinator = broker.groups
    committed = yield from groups.commit_offsets_in_transaction(
        req.group_id, MemberIdentity(req.member_id, req.group_instance_id), req.generation_id, producer, offsets
    )
    return (yield from _answer(ctx, req, (yield from result_of(committed.on(broker.loop)))))


def _answer(
    ctx: RequestContext, req: TxnOffsetCommitRequest, errors: dict[TopicPartition, ErrorCode]
) -> Steps[TxnOffsetCommitResponse | None]:
    """Return None if the client has given up this connection: it is closed without an answer."""
    if GIVEN_UP in errors.values():
        ctx.close_connection()
        return None
    ctx.hold(errors)
    return (yield from _response(req, errors, ctx.api_version))


def _transaction_version(version: int) -> TransactionVersion:
    """The transaction protocol that a client of this version speaks."""
    return TransactionVersion.TV_2 if version >= _FIRST_THAT_ADDS else TransactionVersion.TV_0


def _known_offsets(
    snapshot: MetadataSnapshot, req: TxnOffsetCommitRequest, timestamp_ms: int
) -> Steps[dict[TopicPartition, OffsetAndMetadata]]:
    known: dict[TopicPartition, OffsetAndMetadata] = {}

    def add(topic: TxnOffsetCommitRequestTopic, partition: TxnOffsetCommitRequestPartition) -> None:
        if snapshot.partition(topic.name, partition.partition_index) is not None:
            known[TopicPartition(topic.name, partition.partition_index)] = OffsetAndMetadata(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                timestamp_ms,
            )

    yield from each_partition(req.topics, lambda topic: topic.partitions, add, lambda *_: None)
    return known


def _response(
    req: TxnOffsetCommitRequest,
    errors: dict[TopicPartition, ErrorCode],
    version: int,
    otherwise: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> Steps[TxnOffsetCommitResponse]:
    def error_of(topic: str, partition: int) -> ErrorCode:
        error = errors.get(TopicPartition(topic, partition), otherwise)
        return error_for_version(error, version)

    topics = yield from each_partition(
        req.topics,
        lambda topic: topic.partitions,
        lambda topic, partition: TxnOffsetCommitResponsePartition(
            partition_index=partition.partition_index, error_code=error_of(topic.name, partition.partition_index)
        ),
        lambda topic, partitions: TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions),
    )
    return TxnOffsetCommitResponse(topics=topics)


def error_for_version(error: ErrorCode, version: int) -> ErrorCode:
    """The error that a client of this version understands."""
    match error:
        case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if version < _FIRST_WITH_LOADING:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.TRANSACTION_ABORTABLE if version < _FIRST_WITH_ABORTABLE:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < _FIRST_THAT_ADDS:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # retriable; these versions do not know CONCURRENT_TRANSACTIONS
        case _:
            return error


def _refused(ctx: RequestContext, req: TxnOffsetCommitRequest, error: ErrorCode) -> Any:
    return begin(_response(req, {}, ctx.api_version, error))


_GUARD: Final = All(
    (
        Needs(ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, lambda req: req.transactional_id, _refused),
        Needs(ResourceType.GROUP, AclOperation.READ, lambda req: req.group_id, _refused),
        each_topic(
            AclOperation.READ,
            lambda row, error: TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error),
            TxnOffsetCommitResponseTopic,
        ),
    )
)
API = Api(
    TxnOffsetCommitRequest, TxnOffsetCommitResponse, versions=(0, 5), plane=Plane.DATA, handle=handle, guard=_GUARD
)
