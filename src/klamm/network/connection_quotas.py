"""ConnectionQuotas: how many connections the broker, a listener and an address may have. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from klamm.lazy_dataclass import lazy_dataclass

NO_LIMIT: Final = 2**31 - 1
REPLACED_AT_ONCE: Final = 16
"""Connections that may be closing in favour of new ones. The new ones have file descriptors already."""
BROKER_RESERVE: Final = 64
"""Connections above a limit that are reserved for the addresses of brokers."""


class Admission(Enum):
    """The decision on a new connection."""

    ADMIT = "admit"
    WAIT = "wait"
    """Until another connection closes: the broker or the listener is full."""
    ADMIT_AND_EVICT = "admit and evict"
    """Close the least recently used connection of another listener: the broker is full, but this listener is protected.
    """
    REFUSE = "refuse"
    """The address has reached its limit."""


@lazy_dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_connections: int = NO_LIMIT
    max_connections_per_ip: int = NO_LIMIT
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    listener_max_connections: Mapping[str, int] = field(default_factory=dict)


@lazy_dataclass(frozen=True, slots=True)
class DescriptorRoom:
    """How many connections may be open at once, whether they are admitted or wait: each has a file descriptor."""

    max_open: int = NO_LIMIT
    for_brokers: int = BROKER_RESERVE
    """Connections above `max_open` that are reserved for brokers."""


class ConnectionQuotas:
    """Counts connections.

    Clients do not keep brokers from each other: the listeners that only they use are exempt from the limits per address
    and from the broker-wide one, and on a shared listener the addresses of brokers have a reserve above all limits.
    Beyond the reserve, which programs on a broker's host share, connections of brokers wait or are refused, too.

    The limits count admitted connections. `DescriptorRoom` counts open ones, so that clients never use up the file
    descriptors that the broker needs for its logs, for ZooKeeper and for other brokers.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        protected_listeners: Collection[str] = (),
        is_broker_address: Callable[[str], bool] = lambda _: False,
        room: DescriptorRoom | None = None,
    ) -> None:
        self.limits = limits
        self.room = room if room is not None else DescriptorRoom()
        self._open = 0
        self._replaced = 0
        self._protected_listeners = protected_listeners
        self.is_broker_address = is_broker_address
        self._total = 0
        self._by_listener: dict[str, int] = {}
        self._by_ip: dict[str, int] = {}

    @property
    def total(self) -> int:
        return self._total

    @property
    def open_connections(self) -> int:
        """Connections that have a file descriptor, whether they are admitted or not."""
        return self._open

    def opened(self) -> None:
        """Count a connection that has just been accepted."""
        self._open += 1

    def replaced(self) -> None:
        """Count an open connection that closes in favour of a new one."""
        self._replaced += 1

    def closed(self, *, was_replaced: bool = False) -> None:
        """Count the end of a connection that `opened`, and maybe `replaced`, has counted."""
        assert self._open > 0
        self._open -= 1
        if was_replaced:
            assert self._replaced > 0
            self._replaced -= 1

    @property
    def is_replacing(self) -> bool:
        """Whether replaced connections have not ended yet."""
        return self._replaced > 0

    @property
    def may_replace(self) -> bool:
        """Whether another connection may close in favour of a new one at once."""
        return self._replaced < REPLACED_AT_ONCE

    def may_open(self, listener: str, ip: str) -> bool:
        """Whether there is a file descriptor for another connection."""
        room = self.room
        if self._open < room.max_open:
            return True
        return self._open < room.max_open + room.for_brokers and self.is_reserved(listener, ip)

    def is_reserved(self, listener: str, ip: str) -> bool:
        """Whether a connection may use the reserve: its listener is for brokers only, or its address is a broker's."""
        return listener in self._protected_listeners or self.is_broker_address(ip)

    def acquire(self, listener: str, ip: str) -> Admission:
        """Decide on a new connection. It is counted when it is admitted."""
        limits = self.limits
        is_protected = listener in self._protected_listeners
        per_ip = limits.max_connections_per_ip_overrides.get(ip, limits.max_connections_per_ip)
        if not is_protected and not self._has_room(self._by_ip.get(ip, 0), per_ip, ip):
            return Admission.REFUSE
        per_listener = limits.listener_max_connections.get(listener, NO_LIMIT)
        if not self._has_room(self._by_listener.get(listener, 0), per_listener, ip):
            return Admission.WAIT
        admission = Admission.ADMIT
        if is_protected:
            if self._total >= limits.max_connections:
                admission = Admission.ADMIT_AND_EVICT
        elif not self._has_room(self._total, limits.max_connections, ip):
            return Admission.WAIT
        self._total += 1
        self._by_listener[listener] = self._by_listener.get(listener, 0) + 1
        self._by_ip[ip] = self._by_ip.get(ip, 0) + 1
        return admission

    def _has_room(self, count: int, limit: int, ip: str) -> bool:
        return count < limit or (count < limit + BROKER_RESERVE and self.is_broker_address(ip))

    def release(self, listener: str, ip: str) -> None:
        assert self._by_ip.get(ip, 0) > 0 and self._by_listener.get(listener, 0) > 0
        self._total -= 1
        self._by_listener[listener] -= 1
        if self._by_ip[ip] == 1:
            del self._by_ip[ip]
        else:
            self._by_ip[ip] -= 1
