"""The audit log of authorization, in Kafka's words: denied operations at INFO, allowed ones at DEBUG."""

from __future__ import annotations

import logging
from typing import Final

from klamm.security.acl.bindings import AclOperation, ResourceType

LOGGER: Final = "kafka.authorizer.logger"
TRACE: Final = 5
"""The level of decisions that neither grant nor refuse anything: which operations are allowed, what may be listed."""
_log = logging.getLogger(LOGGER)
_SHOWN: Final = 200
"""Characters of a name that are logged: clients choose names, and a line must stay readable."""


def allowed(principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str | None, api: str) -> None:
    """Called only if DEBUG is logged: the hot path does not pay for it."""
    _write(logging.DEBUG, "Allowed", principal, host, operation, kind, name, api)


def denied(
    principal: str,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str | None,
    api: str,
    *,
    is_probe: bool = False,
) -> None:
    """`is_probe`: the client did not ask for this resource; it is only left out of a list."""
    level = TRACE if is_probe else logging.INFO
    if _log.isEnabledFor(level):
        _write(level, "Denied", principal, host, operation, kind, name, api)


def _write(
    level: int,
    result: str,
    principal: str,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str | None,
    api: str,
) -> None:
    pattern = "LITERAL" if name is not None else "UNKNOWN"
    shown = "NONE" if name is None else name if name.isprintable() and len(name) <= _SHOWN else repr(name[:_SHOWN])
    _log.log(
        level,
        "Principal = %s is %s Operation = %s from host = %s on resource = %s:%s:%s for request = %s with "
        "resourceRefCount = 1",
        principal,
        result,
        operation.title,
        host,
        kind.title,
        pattern,
        shown,
        api,
    )
