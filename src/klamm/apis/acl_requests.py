"""The common part of the APIs of access control entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol

from klamm.broker import Acls
from klamm.errors import ErrorCode
from klamm.security.acl.bindings import (
    AclOperation,
    BindingFilter,
    EntryFilter,
    PatternType,
    Permission,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    of_code,
)
from klamm.zk.model.ops import BadArguments, RequestTooLarge, ZkError

NO_AUTHORIZER: Final = "No Authorizer is configured."
MOST: Final = 1_000
"""Entries or filters in one request. Every resource is a write to ZooKeeper."""
TOO_MANY: Final = f"More than {MOST} entries or filters are in the request: split it."
CHANGE_WAIT_S: Final = 5.0
"""Maximum wait for ZooKeeper. These requests carry no timeout, and clients give up after 30 s."""
Outcome = tuple[ErrorCode, str | None]

log = logging.getLogger(__name__)


class FilterFields(Protocol):
    """The fields by which requests select entries."""

    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def filter_of(fields: FilterFields) -> BindingFilter:
    return BindingFilter(
        ResourceFilter(
            of_code(ResourceType, fields.resource_type_filter),
            fields.resource_name_filter,
            of_code(PatternType, fields.pattern_type_filter),
        ),
        EntryFilter(
            fields.principal_filter,
            fields.host_filter,
            of_code(AclOperation, fields.operation),
            of_code(Permission, fields.permission_type),
        ),
    )


def too_many(elements: Sequence[object]) -> bool:
    return len(elements) > MOST


async def until_in_force(acls: Acls, resources: Iterable[ResourcePattern]) -> None:
    """Wait until this broker decides by the new entries; not for ever if ZooKeeper is lost meanwhile."""
    await asyncio.wait({acls.changes.refresh(resources)}, timeout=CHANGE_WAIT_S)


async def in_time(change: Coroutine[Any, Any, None]) -> Outcome:
    """Return how a change of entries ended. One that takes too long continues by itself."""
    task = asyncio.ensure_future(change)
    done, _ = await asyncio.wait({task}, timeout=CHANGE_WAIT_S)
    if not done:
        return ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper does not answer; the change may still take effect."
    failure = task.exception()
    match failure:
        case None:
            return ErrorCode.NONE, None
        case BadArguments():
            return ErrorCode.INVALID_REQUEST, "ZooKeeper does not accept the name of the resource."
        case RequestTooLarge():
            return ErrorCode.INVALID_REQUEST, "The resource has more entries than one znode can hold."
        case ZkError() | ValueError():
            log.warning("changing access control entries failed: %s", failure)
            return ErrorCode.UNKNOWN_SERVER_ERROR, f"The entries in ZooKeeper could not be changed: {failure}"
    raise failure
