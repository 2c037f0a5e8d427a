"""Refusals: why servers refused a client since its last connection, logged as an error once per server and reason."""

from __future__ import annotations

import logging
from ssl import SSLError

from klamm.zk.client.login import LoginRefused

log = logging.getLogger(__name__)

Address = tuple[str, int]


class Refusals:
    """Owned by a connection, whose thread notes and forgets. Any thread may read the reason."""

    def __init__(self) -> None:
        self._reasons: dict[Address, str] = {}

    def note(self, address: Address, error: Exception) -> None:
        """Log why there is no session. A refusal is an ERROR once, because the connection tries again every second."""
        level = logging.DEBUG
        if isinstance(error, LoginRefused | SSLError):
            level = logging.DEBUG if self._reasons.get(address) == str(error) else logging.ERROR
            self._reasons[address] = str(error)
        log.log(level, "no session with ZooKeeper at %s: %s", address, error)

    def forget(self) -> None:
        self._reasons = {}

    @property
    def reason(self) -> str | None:
        """The address of a server that refused this client, and its reason; None if none has."""
        refused = [f"{host}:{port}: {reason}" for (host, port), reason in self._reasons.copy().items()]
        return refused[0] if refused else None
