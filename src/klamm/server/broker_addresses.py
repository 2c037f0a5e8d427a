"""BrokerAddresses: the addresses of the cluster's brokers, whose connections have a reserve above the limits.

Brokers register names or addresses; connections come from addresses. Until the controller has sent the brokers, their
registrations in ZooKeeper count: the controller must be able to connect. A name is resolved when it appears and again
every minute, beside the loop. A name that cannot be resolved keeps the addresses that it had before.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from klamm.metadata import MetadataCache, MetadataSnapshot, MetadataUpdate
from klamm.model import BrokerEndPoints, EndPoint
from klamm.server.background_tasks import Spawn
from klamm.zk.model.ops import ZkError

INTERVAL_S: Final = 60.0
REGISTRATIONS_INTERVAL_S: Final = 1.0
LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})

Resolve: TypeAlias = Callable[[str], Awaitable[frozenset[str]]]
ReadRegistrations: TypeAlias = Callable[[], Awaitable[Iterable[BrokerEndPoints]]]

_log = logging.getLogger(__name__)


async def resolve_name(host: str) -> frozenset[str]:
    """Return the addresses of a host; raise OSError if it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None)
    return frozenset(str(address[0]) for *_, address in found)


class BrokerAddresses:
    """Lives on the broker loop. `includes` is one look-up: it is called for every new connection.

    Without `resolve`, hosts are addresses.
    """

    def __init__(self, own: Iterable[EndPoint], metadata: MetadataCache, spawn: Spawn, resolve: Resolve | None) -> None:
        self._own = tuple(endpoint.host for endpoint in own)
        self._metadata = metadata
        self._spawn = spawn
        self._resolve = resolve
        self.on_change: Callable[[], None] = lambda: None
        """Called after `includes` has changed."""
        self._registered: tuple[BrokerEndPoints, ...] = ()
        self._resolving: set[str] = set()
        self._known: dict[str, frozenset[str]] = {}
        """By host, of the hosts that brokers advertise now."""
        self._addresses: frozenset[str] = frozenset()
        self._refresh()
        metadata.update_listeners.append(self._on_update)

    def includes(self, address: str) -> bool:
        return address in self._addresses

    async def read_registrations(self, read: ReadRegistrations) -> None:
        """Read the registered brokers, unless the controller has sent the brokers."""
        if not self._metadata.snapshot.brokers:
            self._registered = tuple(await read())
            self._refresh()

    async def follow_registrations(self, read: ReadRegistrations) -> None:
        """Read them again until the controller has sent the brokers: it may be a broker that registered later."""
        has_failed = False
        while not self._metadata.snapshot.brokers:
            await asyncio.sleep(REGISTRATIONS_INTERVAL_S)
            try:
                await self.read_registrations(read)
                has_failed = False
            except ZkError as error:  # the session has expired, for example; the broker begins another one
                if not has_failed:
                    _log.warning("the registered brokers cannot be read from ZooKeeper, trying again: %s", error)
                has_failed = True

    async def resolve_periodically(self) -> None:
        """Resolve all names again and again, because an address may change behind its name."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.resolve_names()

    def resolve_names(self) -> None:
        for host in self._known:
            if self._fixed(host) is None:
                self._start_look_up(host)

    def _on_update(self, before: MetadataSnapshot, _: MetadataUpdate) -> None:
        if self._metadata.snapshot.brokers is not before.brokers:
            self._refresh()

    def _refresh(self) -> None:
        brokers = tuple(self._metadata.snapshot.brokers.values()) or self._registered
        hosts = dict.fromkeys((*self._own, *(endpoint.host for node in brokers for endpoint in node.endpoints)))
        known, self._known = self._known, {}
        for host in hosts:
            fixed = self._fixed(host)
            self._known[host] = known.get(host, frozenset()) if fixed is None else fixed
            if fixed is None and host not in known:
                self._start_look_up(host)
        self._combine()

    def _fixed(self, host: str) -> frozenset[str] | None:
        """Return the addresses of a host that needs no resolution, or None."""
        return _addresses_of(host) if self._resolve is not None else frozenset({host})

    def _start_look_up(self, host: str) -> None:
        """Look a name up, one at a time: a slow answer must not replace a newer one."""
        if host not in self._resolving:
            self._resolving.add(host)
            self._spawn(self._look_up(host))

    async def _look_up(self, host: str) -> None:
        assert self._resolve is not None
        try:
            addresses = await self._resolve(host)
        except OSError as error:
            _log.warning("the advertised host %s of a broker cannot be resolved: %s", host, error)
            return
        finally:
            self._resolving.discard(host)
        if host in self._known:  # no broker may advertise it any longer
            self._known[host] = addresses
            self._combine()

    def _combine(self) -> None:
        addresses: frozenset[str] = frozenset().union(*self._known.values())
        if addresses != self._addresses:
            self._addresses = addresses
            self.on_change()


def _addresses_of(host: str) -> frozenset[str] | None:
    """Return the addresses of a host if it is an address or the local host, or None for a name."""
    if host in ("localhost", ""):
        return LOOPBACK
    try:
        return frozenset({str(ipaddress.ip_address(host))})
    except ValueError:
        return None
