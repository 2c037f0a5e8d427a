"""AlterClientQuotas (49): sets and removes quotas of users, client ids, pairs of both, and their defaults (KIP-546).

v0-1: only the encoding changes. Keys are `producer_byte_rate` and `consumer_byte_rate` (whole numbers),
`request_percentage` and `controller_mutation_rate`; a null name is the default. Each entity has its own answer: a
key that is not a quota, a value that is not greater than 0, an empty name and an unknown type of entity are
INVALID_REQUEST (42). Removing a key that is not set is not an error. Left out: quotas on new connections of an address
(`ip`), which are UNSUPPORTED_VERSION (35). If ZooKeeper does not answer within seconds, the answer is REQUEST_TIMED_OUT
(7); the change may still take effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.client_quota_entities import MAX_PARTS, check_length, entity_of
from klamm.apis.config_resources import check_count
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.slices import each
from klamm.apis.zookeeper_waits import NO_ERROR, NOT_TRIED, ApiError, Outcome, change_in_time, refusal
from klamm.config.client_quotas import QUOTA_KEYS, QuotaEntity, format_quota, quota_problem
from klamm.errors import ErrorCode
from klamm.protocol.chunked import ChunkedList
from klamm.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
    ResponseEntryData,
)
from klamm.quota.quota_store import Properties, change_quota
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin, result_of


def handle(broker: Broker, ctx: RequestContext, req: AlterClientQuotasRequest) -> Answer[AlterClientQuotasResponse]:
    return begin(_alter_all(broker, req))


def _alter_all(broker: Broker, req: AlterClientQuotasRequest) -> Steps[AlterClientQuotasResponse]:
    """One after the other, in the order of the request. After a timeout of ZooKeeper the rest is not tried."""
    answers: ChunkedList[ResponseEntryData] = ChunkedList()
    is_late = False
    for entry in req.entries:
        if answers:
            yield
        outcome = NOT_TRIED if is_late else (yield from result_of(_alter(broker, entry, req.validate_only)))
        code, message = outcome
        is_late = code == ErrorCode.REQUEST_TIMED_OUT
        answers.append(ResponseEntryData(error_code=code, error_message=message, entity=_named(entry)))
    return AlterClientQuotasResponse(entries=answers)


def _named(entry: EntryData) -> Sequence[EntityData]:
    """Return the entity as the request names it, cut to its first parts if it is too long."""
    parts = entry.entity[:MAX_PARTS]
    return [EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in parts]


def _alter(broker: Broker, entry: EntryData, validate_only: bool) -> Outcome | asyncio.Future[Outcome]:
    try:
        check_length(entry.entity)
        entity = entity_of({part.entity_type: part.entity_name for part in entry.entity})
        check_count(entry.ops)
        _check(entry.ops)
    except ApiError as error:
        return error.code, error.message
    return NO_ERROR if validate_only else _change(broker, entity, entry.ops)


def _check(ops: Sequence[OpData]) -> None:
    for op in ops:
        if not op.remove and (problem := quota_problem(op.key, op.value)) is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, problem)


def _change(broker: Broker, entity: QuotaEntity, ops: Sequence[OpData]) -> asyncio.Future[Outcome]:
    def changed(before: Properties) -> Properties:
        """Only quotas change: a user's znode may also hold credentials."""
        after = dict(before)
        for op in ops:
            if not op.remove:
                after[op.key] = format_quota(op.key, op.value)
            elif op.key in QUOTA_KEYS:
                after.pop(op.key, None)
        return after

    return change_in_time(
        broker,
        change_quota(broker.zk, entity, changed),
        lambda after: broker.configs.client_quotas.set_entity(entity, after),
        refusal(f"the quotas of {entity}"),
    )


def _refused(ctx: RequestContext, req: AlterClientQuotasRequest, error: ErrorCode) -> Any:
    return begin(_refusal(req, error))


def _refusal(req: AlterClientQuotasRequest, error: ErrorCode) -> Steps[AlterClientQuotasResponse]:
    answers = yield from each(
        req.entries,
        lambda entry: ResponseEntryData(error_code=error, error_message=NOT_AUTHORIZED, entity=_named(entry)),
    )
    return AlterClientQuotasResponse(entries=answers)


_GUARD: Final = needs_cluster(AclOperation.ALTER_CONFIGS, _refused)
API = Api(
    AlterClientQuotasRequest, AlterClientQuotasResponse, versions=(0, 1), plane=Plane.DATA, handle=handle, guard=_GUARD
)
