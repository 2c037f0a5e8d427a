"""The audit log of authorization, in Kafka's words: denied operations at INFO, allowed ones at DEBUG.

A user without rights can be denied as often as it likes. It must not be able to fill a disk with log lines, so those at
INFO are limited per principal; the number of those left out is logged. At DEBUG there is no limit.
"""

from __future__ import annotations

import logging
from heapq import nlargest
from operator import itemgetter
from typing import Final

from klamm.security.acl.bindings import AclOperation, ResourceType

LOGGER: Final = "kafka.authorizer.logger"
TRACE: Final = 5
"""The level of decisions that neither grant nor refuse anything: which operations are allowed, what may be listed."""
_log = logging.getLogger(LOGGER)
_SHOWN: Final = 200
"""Characters of a name that are logged: clients choose names, and a line must stay readable."""
LINES: Final = 100
"""Denied operations of one principal that are logged per window."""
ALL_LINES: Final = 5_000
"""Those of all principals together."""
WINDOW_S: Final = 60.0
_MAX_COUNTED: Final = 1_000
"""Principals whose denials are counted one by one."""
_MOST_NAMED: Final = 10
_OTHERS: Final = "others"


def allowed(principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str | None, api: str) -> None:
    """Called only if DEBUG is logged: the hot path does not pay for it."""
    _write(logging.DEBUG, "Allowed", principal, host, operation, kind, name, api)


class Denials:
    """The lines about denied operations, limited. Owner: the broker loop; one per broker, as `now` is its clock's."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._total = 0
        self._written: dict[str, int] = {}
        """Lines in this window, per principal. All are at most `ALL_LINES`, so that the principals are few."""
        self._skipped: dict[str, int] = {}

    def log(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        kind: ResourceType,
        name: str | None,
        api: str,
        now: float,
        *,
        is_probe: bool = False,
    ) -> None:
        """`is_probe`: the client did not ask for this resource; it is only left out of a list."""
        level = TRACE if is_probe else logging.INFO
        if _log.isEnabledFor(level) and (_log.isEnabledFor(logging.DEBUG) or self._has_room(principal, now)):
            _write(level, "Denied", principal, host, operation, kind, name, api)

    def _has_room(self, principal: str, now: float) -> bool:
        if now - self._began_at >= WINDOW_S:
            self._begin(now)
        written = self._written.get(principal, 0)
        if written < LINES and self._total < ALL_LINES:
            self._written[principal] = written + 1
            self._total += 1
            return True
        if principal not in self._skipped:
            if len(self._skipped) >= _MAX_COUNTED:
                principal = _OTHERS
            elif written >= LINES:
                _log.info("Principal = %s is Denied more operations than are logged in a minute: %d", principal, LINES)
        self._skipped[principal] = self._skipped.get(principal, 0) + 1
        return False

    def _begin(self, now: float) -> None:
        """Begin a window. Its first line reports how many lines the one before has left out."""
        skipped = self._skipped
        if skipped:
            most = nlargest(_MOST_NAMED, skipped.items(), key=itemgetter(1))
            rest = sum(skipped.values()) - sum(count for _, count in most)
            if rest:
                most.append((_OTHERS, rest))
            shown = ", ".join(f"{count} of {principal}" for principal, count in most)
            _log.info("Denied operations that were not logged: %s", shown)
        self._began_at, self._total, self._written, self._skipped = now, 0, {}, {}


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
