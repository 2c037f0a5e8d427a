"""Watch handlers of a session by path, and which watches a server holds for it. Runs on the connection's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from klamm.zk.client.chroot import Chroot
from klamm.zk.client.client_connection import ZkConnection
from klamm.zk.client.client_requests import Watcher
from klamm.zk.client.posting import Inbox
from klamm.zk.model.ops import EventType, GetChildren, ReadOp, WatchEvent

Handlers: TypeAlias = dict[str, tuple[Inbox, Callable[[WatchEvent], object]]]


class WatchHandlers:
    """Handlers are set by loops, under the caller's paths; armed watches are stored under the server's paths."""

    def __init__(self, chroot: Chroot) -> None:
        self.change_handlers: Handlers = {}
        self.child_handlers: Handlers = {}
        self._chroot = chroot
        self._armed_data: dict[str, bool] = {}  # whether the znode existed
        self._armed_child: dict[str, None] = {}

    def watcher(self, op: ReadOp) -> Watcher:
        return self._on_child_event if isinstance(op, GetChildren) else self._on_data_event

    def arm(self, op: ReadOp, answer: Any) -> None:
        """Note that the server watches a path from this answer on."""
        if isinstance(op, GetChildren):
            self._armed_child[op.path] = None
        else:
            self._armed_data[op.path] = answer is not None

    def arm_all(self, connection: ZkConnection, full_paths: list[str]) -> None:
        """Note that the server watches the data of these znodes."""
        self._armed_data.update(dict.fromkeys(full_paths, True))
        connection.watch_data(full_paths, self._on_data_event)

    def disarm(self) -> None:
        """Forget all watches: they ended with the session."""
        self._armed_data.clear()
        self._armed_child.clear()

    def restore(self, connection: ZkConnection) -> None:
        """Set all armed watches again on a new connection of the same session."""
        there = [path for path, was_there in self._armed_data.items() if was_there]
        missing = [path for path, was_there in self._armed_data.items() if not was_there]
        connection.restore_watches(there, missing, list(self._armed_child), self._on_data_event, self._on_child_event)

    def _on_data_event(self, event: WatchEvent) -> None:
        self._armed_data.pop(event.path, None)
        self._post(self.change_handlers, event)

    def _on_child_event(self, event: WatchEvent) -> None:
        self._armed_child.pop(event.path, None)
        if event.type is EventType.CHILDREN_CHANGED:
            self._post(self.child_handlers, event)

    def _post(self, handlers: Handlers, event: WatchEvent) -> None:
        path = self._chroot.leave(event.path)
        handler = handlers.get(path)
        if handler is not None:
            inbox, call = handler
            inbox.post(call, WatchEvent(event.type, path))
