"""The controller's side of a ZooKeeper session: reads in bulk, transactions, watches that become events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from klamm.controller.effects import MultiResults, ReadResults
from klamm.controller.events import ControllerEvent
from klamm.controller.watches import event_of
from klamm.zk.model.ops import (
    EventType,
    GetChildren,
    GetData,
    GetDataResult,
    NoNode,
    ReadOp,
    ReadResult,
    Stat,
    WatchEvent,
    WriteOp,
    WriteResult,
)
from klamm.zk.model.paths import CONTROLLER

_PIPELINED: Final = 1_000
"""Maximum number of single reads (with a watch) in flight."""
_MANY_WATCHED: Final = 100
"""From this many on, data with a watch is read in bulk too."""


class Session(Protocol):
    """The part of `klamm.zk.client.zk_session.ZkSession` that is used here."""

    async def read(self, op: ReadOp) -> ReadResult: ...

    async def read_many(self, paths: list[str], *, watch: bool = ...) -> list[tuple[bytes | None, Stat] | None]: ...

    async def multi(self, operations: tuple[WriteOp, ...]) -> tuple[WriteResult, ...]: ...

    def on_change(self, path: str, handler: Callable[[WatchEvent], object]) -> None: ...

    def on_children(self, path: str, handler: Callable[[WatchEvent], object]) -> None: ...

    def forget_change(self, path: str) -> None: ...

    @property
    def session_id(self) -> int: ...


class ZkCoordination:
    def __init__(self, session: Session, put: Callable[[ControllerEvent], object]) -> None:
        self._session = session
        self._put = put
        self._reading: Counter[str] = Counter()

    @property
    def session_id(self) -> int:
        return self._session.session_id

    async def read(self, ops: tuple[ReadOp, ...]) -> ReadResults:
        """Data is read by multiRead; other reads, and a few data reads with a watch, are pipelined one by one."""
        bulk = [i for i, op in enumerate(ops) if isinstance(op, GetData) and not op.watch]
        watched = [i for i, op in enumerate(ops) if isinstance(op, GetData) and op.watch]
        single = [i for i, op in enumerate(ops) if not isinstance(op, GetData)]
        if len(watched) < _MANY_WATCHED:
            single, watched = sorted([*single, *watched]), []
        results: list[ReadResult | None] = [None] * len(ops)
        for start in range(0, len(single), _PIPELINED):
            part = single[start : start + _PIPELINED]
            for i, result in zip(part, await asyncio.gather(*(self._read(ops[i]) for i in part)), strict=True):
                results[i] = result
        if bulk:
            found = await self._session.read_many([ops[i].path for i in bulk])
            for i, node in zip(bulk, found, strict=True):
                results[i] = None if node is None else GetDataResult(*node)
        if watched:
            for i, node in zip(watched, await self._read_watched([ops[i].path for i in watched]), strict=True):
                results[i] = None if node is None else GetDataResult(*node)
        return tuple(results)

    async def _read_watched(self, paths: list[str]) -> list[tuple[bytes | None, Stat] | None]:
        found: list[tuple[bytes | None, Stat] | None] = []
        for path in paths:
            self._session.on_change(path, self._on_watch)
            self._reading[path] += 1
        try:
            found = await self._session.read_many(paths, watch=True)
            return found
        finally:
            for i, path in enumerate(paths):
                self._end_read(GetData(path, True), is_missing=bool(found) and found[i] is None)

    async def _read(self, op: ReadOp) -> ReadResult | None:
        if op.watch:
            register = self._session.on_children if isinstance(op, GetChildren) else self._session.on_change
            register(op.path, self._on_watch)
            self._reading[op.path] += 1
        is_missing = False
        try:
            return await self._session.read(op)
        except NoNode:
            is_missing = True
            return None
        finally:
            if op.watch:
                self._end_read(op, is_missing)

    def _end_read(self, op: ReadOp, is_missing: bool) -> None:
        """Reading the data of a missing znode arms no watch: its handler would never be called."""
        self._reading[op.path] -= 1
        if not self._reading[op.path]:
            del self._reading[op.path]
            if is_missing and isinstance(op, GetData):
                self._session.forget_change(op.path)

    async def multi(self, ops: tuple[WriteOp, ...]) -> MultiResults:
        return await self._session.multi(ops)

    def _on_watch(self, watch: WatchEvent) -> None:
        """Drop the handler of a deleted znode, but not while it is read again: it may have come back."""
        if watch.type is EventType.DELETED and watch.path != CONTROLLER and watch.path not in self._reading:
            self._session.forget_change(watch.path)
        event = event_of(watch)
        if event is not None:
            self._put(event)
