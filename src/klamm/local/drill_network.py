"""DrillNetwork: the connections of a local cluster, through relays in the owner's process that can hold them.

With a fault drill, each broker's advertised address is a relay, and each broker reaches ZooKeeper through another one.
A cut holds all connections of a broker but those to itself: no byte passes, and neither side learns of it. After `heal`
the bytes arrive late, as after a failure of a network. Relays stop reading, so held bytes wait in the sockets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from klamm.local.ports import LOOPBACK

T = TypeVar("T")
_TABLE: Final = "/proc/net/tcp"
_ESTABLISHED: Final = "01"


class _End(asyncio.Protocol):
    """One side of a relayed connection."""

    def __init__(self, on_open: Callable[[_End], None] | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.is_held = False
        self._is_full = False
        self._on_open = on_open
        self.on_close: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self.on_close()

    def pause_writing(self) -> None:
        self._is_full = True
        if self.other is not None:
            self.other.adjust()

    def resume_writing(self) -> None:
        self._is_full = False
        if self.other is not None:
            self.other.adjust()

    def adjust(self) -> None:
        """Read unless the connection is held, the other side does not exist yet, or it cannot take more."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.is_held or self.other is None or self.other._is_full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class _Link:
    """A relayed connection: from a client or a broker to a broker or ZooKeeper. None stands for the latter, and for
    clients."""

    def __init__(self, near: _End, source: int | None, target: int | None) -> None:
        self.near = near
        self.far: _End | None = None
        self.source = source
        self.target = target

    def hold(self, cut: Iterable[int]) -> None:
        ends = {self.source, self.target}
        is_held = self.source != self.target and any(broker in ends for broker in cut)
        for end in (self.near, self.far):
            if end is not None:
                end.is_held = is_held
                end.adjust()


class DrillNetwork:
    """The relays of one cluster, on a loop in a separate thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._links: set[_Link] = set()
        self._connecting: dict[asyncio.Task[None], None] = {}
        self._cut: set[int] = set()
        self._pids: dict[int, int] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="klamm-drill-network", daemon=True)
        self._thread.start()

    # --- from other threads ---

    def relay_to_broker(self, broker_id: int, port: int, target_port: int) -> None:
        """Listen on `port` for connections to a broker."""
        self._run(self._listen(port, target_port, None, broker_id))

    def relay_to_zookeeper(self, broker_id: int, port: int, target_port: int) -> None:
        """Listen on `port` for the connections of one broker to ZooKeeper."""
        self._run(self._listen(port, target_port, broker_id, None))

    def set_process(self, broker_id: int, pid: int) -> None:
        """Set the process of a broker: connections from this process to others are the broker's, also earlier ones."""
        self._loop.call_soon_threadsafe(self._set_process, broker_id, pid)

    def cut(self, broker_id: int) -> None:
        self._run(self._set_cut(broker_id, is_cut=True))

    def heal(self, broker_id: int) -> None:
        self._run(self._set_cut(broker_id, is_cut=False))

    def is_cut(self, broker_id: int) -> bool:
        return broker_id in self._cut

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- on the loop ---

    async def _listen(self, port: int, target_port: int, source: int | None, target: int | None) -> None:
        def accepted(near: _End) -> None:
            assert near.transport is not None
            near.transport.pause_reading()
            peer = near.transport.get_extra_info("peername")
            who = source if source is not None else _owner(peer[1], self._pids)
            link = _Link(near, who, target)
            self._links.add(link)
            near.on_close = lambda: self._links.discard(link)
            task = self._loop.create_task(self._connect(link, target_port), name=f"drill-link-to-{target_port}")
            self._connecting[task] = None
            task.add_done_callback(self._connecting.pop)

        server = await self._loop.create_server(lambda: _End(accepted), LOOPBACK, port, reuse_address=True)
        self._servers.append(server)

    async def _connect(self, link: _Link, target_port: int) -> None:
        try:
            _, link.far = await self._loop.create_connection(_End, LOOPBACK, target_port)
        except OSError:
            if link.near.transport is not None:
                link.near.transport.abort()
            return
        link.near.other, link.far.other = link.far, link.near
        if link.near.transport is None or link.near.transport.is_closing():
            assert link.far.transport is not None
            link.far.transport.close()
        link.hold(self._cut)

    def _set_process(self, broker_id: int, pid: int) -> None:
        self._pids[broker_id] = pid
        for link in [link for link in self._links if link.source is None and link.near.transport is not None]:
            assert link.near.transport is not None
            peer = link.near.transport.get_extra_info("peername")
            if _owner(peer[1], {broker_id: pid}) == broker_id:
                link.source = broker_id
                link.hold(self._cut)

    async def _set_cut(self, broker_id: int, *, is_cut: bool) -> None:
        if is_cut:
            self._cut.add(broker_id)
        else:
            self._cut.discard(broker_id)
        for link in list(self._links):
            link.hold(self._cut)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            for end in (link.near, link.far):
                if end is not None and end.transport is not None:
                    end.transport.abort()
        for task in list(self._connecting):
            task.cancel()
        await asyncio.sleep(0)


def _owner(port: int, pids: dict[int, int]) -> int | None:
    """Return the broker whose process has the connection with this local port; None for other processes.

    Only Linux provides this. Elsewhere a cut holds the connections to a broker, but not those that it opens.
    """
    with suppress(OSError):
        inode = _inode(port)
        if inode is not None:
            for broker_id, pid in pids.items():
                if _has_socket(pid, inode):
                    return broker_id
    return None


def _inode(port: int) -> str | None:
    wanted = f":{port:04X}"
    for line in Path(_TABLE).read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(wanted) and words[3] == _ESTABLISHED:
            return words[9]
    return None


def _has_socket(pid: int, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    for name in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if str(name.readlink()) == wanted:
                return True
    return False
