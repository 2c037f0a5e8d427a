"""OutgoingSecurity: how a broker connects to the other brokers, by the name of their listener."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from klamm.security.client_security import PLAINTEXT, ClientSecurity


class OutgoingSecurity:
    """Owner: the broker loop. Others, on any loop, ask at each connection attempt: certificates may have changed."""

    __slots__ = ("_by_listener",)

    def __init__(self, by_listener: Mapping[str, ClientSecurity] | None = None) -> None:
        self._by_listener: Mapping[str, ClientSecurity] = MappingProxyType(dict(by_listener or {}))

    def replace(self, by_listener: Mapping[str, ClientSecurity]) -> None:
        self._by_listener = MappingProxyType(dict(by_listener))

    def of(self, listener: str) -> ClientSecurity:
        return self._by_listener.get(listener, PLAINTEXT)
