"""One-shot watches: the watchers of each path, and their pending events. A watcher is a connection's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.zk.model.acl import SUPER, is_allowed
from klamm.zk.model.limits import WatchBudget, path_bytes
from klamm.zk.model.nodes import Znode
from klamm.zk.model.ops import EventType, Id, Perms, WatchEvent


class WatchTable:
    """Watchers by path, in the order of registration. A trigger removes the watchers that it returns."""

    __slots__ = ("_budget", "_by_path", "_by_watcher")

    def __init__(self, budget: WatchBudget) -> None:
        self._budget = budget
        self._by_path: dict[str, dict[int, None]] = {}
        self._by_watcher: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_path.values()))

    def add(self, path: str, watcher: int) -> None:
        """Add a watch. Raises ThrottledOp if there are too many."""
        if watcher in self._by_path.get(path, ()):
            return
        self._budget.take(watcher, path)
        self._by_path.setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, {})[path] = None

    def trigger(self, path: str) -> list[int]:
        """Remove and return the watchers of `path`."""
        watchers = self._by_path.pop(path, None)
        if watchers is None:
            return []
        size = path_bytes(path)
        for watcher in watchers:
            self._budget.release(watcher, 1, size)
            paths = self._by_watcher[watcher]
            del paths[path]
            if not paths:
                del self._by_watcher[watcher]
        return list(watchers)

    def remove_watcher(self, watcher: int) -> None:
        for path in self._by_watcher.pop(watcher, ()):
            watchers = self._by_path[path]
            del watchers[watcher]
            if not watchers:
                del self._by_path[path]


class Watches:
    """Watches of data (and of missing znodes) and of children, and the events that were not taken yet."""

    def __init__(self) -> None:
        self._budget = WatchBudget()
        self.data = WatchTable(self._budget)
        self.child = WatchTable(self._budget)
        self._events: list[tuple[int, WatchEvent]] = []
        self._identities: dict[int, Sequence[Id]] = {}

    def __len__(self) -> int:
        return self._budget.count

    def identify(self, watcher: int, auth: Sequence[Id]) -> None:
        self._identities[watcher] = auth

    def remove(self, watcher: int) -> None:
        self.data.remove_watcher(watcher)
        self.child.remove_watcher(watcher)
        self._budget.drop(watcher)
        self._identities.pop(watcher, None)

    def take_events(self) -> list[tuple[int, WatchEvent]]:
        events, self._events = self._events, []
        return events

    def fire(self, event: EventType, path: str, node: Znode, nodes: Mapping[str, Znode]) -> None:
        """Trigger the watches of a changed znode, then those of its parent's children."""
        watchers = self.data.trigger(path)
        if event is EventType.DELETED:
            watchers = list(dict.fromkeys(watchers + self.child.trigger(path)))
        self._notify_readers(watchers, event, path, node)
        if event is not EventType.DATA_CHANGED:
            parent = path[: path.rfind("/")] or "/"
            watchers = self.child.trigger(parent)
            if watchers:
                self._notify_readers(watchers, EventType.CHILDREN_CHANGED, parent, nodes.get(parent, node))

    def _notify_readers(self, watchers: list[int], event: EventType, path: str, node: Znode) -> None:
        for watcher in watchers:
            if is_allowed(node.acl, Perms.READ, self._identities.get(watcher, SUPER)):
                self._notify(watcher, event, path)

    def _notify(self, watcher: int, event: EventType, path: str) -> None:
        self._events.append((watcher, WatchEvent(event, path)))

    def restore(
        self,
        watcher: int,
        relative_zxid: int,
        wanted: tuple[Sequence[str], Sequence[str], Sequence[str]],
        nodes: Mapping[str, Znode],
    ) -> None:
        """Restore the data, exist and child watches of a client; changes since `relative_zxid` are reported.

        Sets all of them, or none if there are too many.
        """
        data, exist, child = wanted
        self._budget.check(watcher, [*data, *exist, *child])
        for path in data:
            node = nodes.get(path)
            if node is None:
                self._notify(watcher, EventType.DELETED, path)
            elif node.mzxid > relative_zxid:
                self._notify(watcher, EventType.DATA_CHANGED, path)
            else:
                self.data.add(path, watcher)
        for path in exist:
            if path in nodes:
                self._notify(watcher, EventType.CREATED, path)
            else:
                self.data.add(path, watcher)
        for path in child:
            node = nodes.get(path)
            if node is None:
                self._notify(watcher, EventType.DELETED, path)
            elif node.pzxid > relative_zxid:
                self._notify(watcher, EventType.CHILDREN_CHANGED, path)
            else:
                self.child.add(path, watcher)
