"""One-shot watches: who asked to be told about a path. A watcher is a connection, named by a number."""

from __future__ import annotations


class WatchTable:
    """Watchers by path, in the order in which they asked; a trigger forgets those it names."""

    __slots__ = ("_by_path", "_by_watcher")

    def __init__(self) -> None:
        self._by_path: dict[str, dict[int, None]] = {}
        self._by_watcher: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_path.values()))

    def add(self, path: str, watcher: int) -> None:
        self._by_path.setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, {})[path] = None

    def trigger(self, path: str) -> list[int]:
        """Those who watch `path`; they watch it no more."""
        watchers = self._by_path.pop(path, None)
        if watchers is None:
            return []
        for watcher in watchers:
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
