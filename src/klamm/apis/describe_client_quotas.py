"""DescribeClientQuotas (48): the quotas of the users and client ids that a filter selects (KIP-546).

v0-1: only the encoding changes. A filter names per type of entity an exact name (0), the default (1) or any name (2).
With `strict` an entity has exactly the named types, otherwise at least these. A type that is named twice, an empty type
and an unknown way to match are INVALID_REQUEST (42); other types than `user` and `client-id` are UNSUPPORTED_VERSION
(35). The answer comes from ZooKeeper; while it does not answer, the quotas are those that this broker knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.client_quota_entities import CLIENT_ID, USER, parts_of
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.zookeeper_waits import CHANGE_WAIT_MS, ApiError, read_in_time
from klamm.config.client_quotas import DEFAULT, QuotaEntity, usable_quotas
from klamm.errors import ErrorCode
from klamm.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from klamm.quota import quota_store
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin, result_of

_SLICE: Final = 200
Quotas = Mapping[QuotaEntity, Mapping[str, float]]


class MatchType(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class _Filter(NamedTuple):
    """`user` and `client_id` are a name, None for any name, or absent if the filter does not mention the type."""

    names: Mapping[str, str | None]
    is_strict: bool

    def accepts(self, entity: QuotaEntity) -> bool:
        return self._accepts(USER, entity.user) and self._accepts(CLIENT_ID, entity.client_id)

    def _accepts(self, kind: str, name: str | None) -> bool:
        if kind not in self.names:
            return name is None or not self.is_strict
        wanted = self.names[kind]
        return name is not None and (wanted is None or name == wanted)

    @property
    def entity(self) -> QuotaEntity | None:
        """The one entity that the filter can select, if it names one."""
        if not self.is_strict or not self.names or None in self.names.values():
            return None
        return QuotaEntity(self.names.get(USER), self.names.get(CLIENT_ID))


def handle(
    broker: Broker, ctx: RequestContext, req: DescribeClientQuotasRequest
) -> Answer[DescribeClientQuotasResponse]:
    try:
        wanted = _filter(req)
    except ApiError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return begin(_describe(broker, wanted))


def _filter(req: DescribeClientQuotasRequest) -> _Filter:
    names: dict[str, str | None] = {}
    for component in req.components:
        kind = component.entity_type
        if not kind:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type.")
        if kind not in (USER, CLIENT_ID):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Entity type {kind!r} is not supported.")
        if kind in names:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate {kind} filter component entity type.")
        names[kind] = _wanted(component)
    return _Filter(names, req.strict)


def _wanted(component: ComponentData) -> str | None:
    match component.match_type:
        case MatchType.EXACT if component.match:
            return component.match
        case MatchType.DEFAULT:
            return DEFAULT
        case MatchType.SPECIFIED:
            return None
        case MatchType.EXACT:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"An exact match of {component.entity_type} needs a name.")
        case other:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{other} is not a way to match: expected 0, 1 or 2.")


def _describe(broker: Broker, wanted: _Filter) -> Steps[DescribeClientQuotasResponse]:
    entries: list[EntryData] = []
    stored = yield from _stored(broker, wanted)
    for count, (entity, values) in enumerate(sorted(stored.items(), key=_order), 1):
        if values and wanted.accepts(entity):
            entries.append(_entry(entity, values))
        if not count % _SLICE:
            yield
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message=None, entries=entries)


def _stored(broker: Broker, wanted: _Filter) -> Steps[Quotas]:
    entity = wanted.entity
    zk = broker.zk
    reading = quota_store.read_all(zk) if entity is None else quota_store.read_entities(zk, [entity])
    found = yield from result_of(read_in_time(broker, reading, CHANGE_WAIT_MS, lambda _: None))
    if found is None:
        return broker.configs.client_quotas.entities
    return {entity: usable_quotas(str(entity), properties) for entity, properties in found.items()}


def _order(item: tuple[QuotaEntity, object]) -> tuple[str, str]:
    entity = item[0]
    return entity.user or "", entity.client_id or ""


def _entry(entity: QuotaEntity, values: Mapping[str, float]) -> EntryData:
    names = parts_of(entity).items()
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names],
        values=[ValueData(key=key, value=value) for key, value in sorted(values.items())],
    )


_GUARD: Final = needs_cluster(
    AclOperation.DESCRIBE_CONFIGS,
    lambda ctx, req, error: DescribeClientQuotasResponse(error_code=error, error_message=NOT_AUTHORIZED, entries=None),
)
API = Api(
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    versions=(0, 1),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
    guard=_GUARD,
)
