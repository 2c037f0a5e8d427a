"""The common part of the APIs of access control entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from klamm.acl_changes import change_entries
from klamm.apis.zookeeper_waits import CHANGE_WAIT_MS, Outcome, change_in_time
from klamm.broker import Acls, Broker
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
from klamm.security.acl.rules import Entries
from klamm.waiting import after
from klamm.zk.model.ops import BadArguments, RequestTooLarge, ZkError

NO_AUTHORIZER: Final = "No Authorizer is configured."
MOST: Final = 1_000
"""Entries or filters in one request. Every resource is a write to ZooKeeper."""
TOO_MANY: Final = f"More than {MOST} entries or filters are in the request: split it."

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


def until_in_force(acls: Acls, resources: Iterable[ResourcePattern]) -> asyncio.Future[None]:
    """Wait until the new entries are in force on this broker. If ZooKeeper is lost meanwhile, the wait ends."""
    return after(
        acls.changes.refresh(resources),
        lambda _: None,
        on_failure=lambda _: None,
        timeout_ms=CHANGE_WAIT_MS,
        on_timeout=lambda: None,
    )


def change_of(
    broker: Broker, resource: ResourcePattern, change: Callable[[Entries], Entries]
) -> asyncio.Future[Outcome]:
    """Change the entries of a resource and return how that ended."""
    return change_in_time(broker, change_entries(broker.zk, resource, change), lambda _: None, _refuse)


def _refuse(failure: BaseException) -> Outcome:
    match failure:
        case BadArguments():
            return ErrorCode.INVALID_REQUEST, "ZooKeeper does not accept the name of the resource."
        case RequestTooLarge():
            return ErrorCode.INVALID_REQUEST, "The resource has more entries than one znode can hold."
        case ZkError() | ValueError():
            log.warning("changing access control entries failed: %s", failure)
            return ErrorCode.UNKNOWN_SERVER_ERROR, f"The entries in ZooKeeper could not be changed: {failure}"
    raise failure
