"""IncrementalAlterConfigs (44): sets, deletes, appends to and subtracts from single settings.

v0-1: only the encoding changes. SET (0), DELETE (1), and for lists APPEND (2) and SUBTRACT (3); if nothing is set, an
operation on a list starts from the default. A bad topic setting, a list operation on a key that is not a list, and a
list that would become too long are INVALID_CONFIG (40); a broker key that cannot change while it runs, a bad broker
value, a missing value, a key or resource named twice are INVALID_REQUEST (42). Loggers (BROKER_LOGGER) take SET and
DELETE. If ZooKeeper does not answer within seconds, the answer is REQUEST_TIMED_OUT (7); the change may still take
effect.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntEnum

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.config_resources import (
    ResourceType,
    alter,
    alter_each,
    alter_loggers,
    check_access,
    check_count,
    key_of,
)
from klamm.apis.zookeeper_waits import ApiError, Outcome
from klamm.config import BROKER_KEYS, TOPIC_KEYS, ConfigType
from klamm.config.definition import AnyKey
from klamm.config_changes import Properties
from klamm.errors import ErrorCode
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.runtime import STRING_MAX_BYTES
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def handle(
    broker: Broker, ctx: RequestContext, req: IncrementalAlterConfigsRequest
) -> Answer[IncrementalAlterConfigsResponse]:
    return begin(_alter_all(broker, ctx, req))


def _alter_all(
    broker: Broker, ctx: RequestContext, req: IncrementalAlterConfigsRequest
) -> Steps[IncrementalAlterConfigsResponse]:
    responses = yield from alter_each(
        ctx,
        req.resources,
        lambda resource: _alter(broker, ctx, resource, req.validate_only),
        AlterConfigsResourceResponse,
    )
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=responses)


def _alter(
    broker: Broker, ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> Outcome | asyncio.Future[Outcome]:
    key = key_of(resource)
    try:
        _check(resource)
        check_access(broker, ctx, key, AclOperation.ALTER_CONFIGS)
        if key.type == ResourceType.BROKER_LOGGER:
            return alter_loggers(broker, key, _levels(resource), validate_only=validate_only)
    except ApiError as error:
        return error.code, error.message
    keys: Mapping[str, AnyKey] = TOPIC_KEYS if key.type == ResourceType.TOPIC else BROKER_KEYS
    return alter(broker, key, lambda before: _changed(before, resource.configs, keys), validate_only=validate_only)


def _check(resource: AlterConfigsResource) -> None:
    check_count(resource.configs)
    names = Counter(config.name for config in resource.configs)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{twice[0]} may be named only once for a resource.")
    for config in resource.configs:
        if config.config_operation not in Operation.__members__.values():
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{config.config_operation} is not an operation: expected 0, 1, 2 or 3."
            )
        if config.value is None and config.config_operation != Operation.DELETE:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{config.name} has no value.")


def _levels(resource: AlterConfigsResource) -> dict[str, str | None]:
    for config in resource.configs:
        if config.config_operation not in (Operation.SET, Operation.DELETE):
            raise ApiError(ErrorCode.INVALID_REQUEST, "A logger's level can only be set or deleted.")
    return {c.name: c.value if c.config_operation == Operation.SET else None for c in resource.configs}


def _changed(before: Properties, changes: Iterable[AlterableConfig], keys: Mapping[str, AnyKey]) -> Properties:
    """Return the settings after all changes."""
    after = dict(before)
    for change in changes:
        match change.config_operation:
            case Operation.SET:
                after[change.name] = change.value or ""
            case Operation.DELETE:
                after.pop(change.name, None)
            case _:
                after[change.name] = _changed_list(after.get(change.name), change, keys)
    return after


def _changed_list(current: str | None, change: AlterableConfig, keys: Mapping[str, AnyKey]) -> str:
    key = keys.get(change.name)
    if key is None or key.kind is not ConfigType.LIST:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{change.name} is not a list: nothing can be appended or subtracted.")
    items = _items((key.default_text or "") if current is None else current)
    given = _items(change.value or "")
    if change.config_operation == Operation.APPEND:
        present = frozenset(items)
        value = ",".join([*items, *(item for item in given if item not in present)])
    else:
        removed = frozenset(given)
        value = ",".join(item for item in items if item not in removed)
    if len(value.encode()) > STRING_MAX_BYTES:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"{change.name} would be longer than the {STRING_MAX_BYTES} bytes of an answer."
        )
    return value


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


API = Api(
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    versions=(0, 1),
    plane=Plane.DATA,
    handle=handle,
)
