"""Handlers of watches: they stay while a watch is armed under them, and go with the znodes they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from klamm.controller.coordination import ZkCoordination
from klamm.controller.events import ControllerEvent, PartitionModifications
from klamm.zk.model.ops import EventType, GetData, GetDataResult, NoNode, ReadOp, ReadResult, Stat, WatchEvent, WriteOp
from klamm.zk.model.ops import WriteResult as Result

STAT = Stat(*([0] * 11))
PATH = "/brokers/topics/t"


class Session:
    """Answers on demand; an event of a znode goes to the handler that is registered then."""

    session_id = 1

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[WatchEvent], object]] = {}
        self.answers: asyncio.Queue[ReadResult | NoNode] = asyncio.Queue()
        self.nodes: dict[str, bytes] = {}
        self.watched: list[str] = []

    async def read(self, op: ReadOp) -> ReadResult:
        answer = await self.answers.get()
        if isinstance(answer, NoNode):
            raise answer
        return answer

    async def read_many(self, paths: list[str], *, watch: bool = False) -> list[tuple[bytes | None, Stat] | None]:
        assert not watch or all(path in self.handlers for path in paths), "an event may come before the answer"
        self.watched += paths if watch else ()
        return [(self.nodes[path], STAT) if path in self.nodes else None for path in paths]

    async def multi(self, operations: tuple[WriteOp, ...]) -> tuple[Result, ...]:
        raise NotImplementedError

    def on_change(self, path: str, handler: Callable[[WatchEvent], object]) -> None:
        self.handlers[path] = handler

    def on_children(self, path: str, handler: Callable[[WatchEvent], object]) -> None:
        raise NotImplementedError

    def forget_change(self, path: str) -> None:
        self.handlers.pop(path, None)

    def notify(self, kind: EventType) -> None:
        if PATH in self.handlers:
            self.handlers[PATH](WatchEvent(kind, PATH))


def test_a_znode_that_was_deleted_and_recreated_while_it_was_read_is_still_reported() -> None:
    async def scenario() -> None:
        events: list[ControllerEvent] = []
        session = Session()
        coordination = ZkCoordination(session, events.append)
        session.answers.put_nowait(GetDataResult(b"", STAT))
        await coordination.read((GetData(PATH, watch=True),))
        again = asyncio.ensure_future(coordination.read((GetData(PATH, watch=True),)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        session.notify(EventType.DELETED)
        session.answers.put_nowait(GetDataResult(b"", STAT))
        await again
        session.notify(EventType.DATA_CHANGED)
        assert events == [PartitionModifications("t")]

    asyncio.run(scenario())


def test_handlers_go_with_their_znodes() -> None:
    async def scenario() -> None:
        session = Session()
        coordination = ZkCoordination(session, lambda _: None)
        session.answers.put_nowait(GetDataResult(b"", STAT))
        await coordination.read((GetData(PATH, watch=True),))
        assert PATH in session.handlers
        session.notify(EventType.DELETED)
        assert session.handlers == {}
        session.answers.put_nowait(NoNode(PATH))
        assert await coordination.read((GetData(PATH, watch=True),)) == (None,)
        assert session.handlers == {}

    asyncio.run(scenario())


def test_many_znodes_with_a_watch_are_read_in_bulk() -> None:
    async def scenario() -> None:
        events: list[ControllerEvent] = []
        session = Session()
        coordination = ZkCoordination(session, events.append)
        paths = [f"/brokers/topics/{name}" for name in ("gone", *map(str, range(150)), "t")]
        session.nodes = {path: path.encode() for path in paths[1:]}
        plain = "/brokers/topics/7/partitions/0/state"
        session.nodes[plain] = b"state"
        results = await coordination.read((GetData(plain), *(GetData(path, watch=True) for path in paths)))
        assert results[:2] == (GetDataResult(b"state", STAT), None)
        assert results[2:] == tuple(GetDataResult(path.encode(), STAT) for path in paths[1:])
        assert session.watched == paths
        assert list(session.handlers) == paths[1:], "what is not there has no watch, and no handler"
        session.notify(EventType.DATA_CHANGED)
        assert events == [PartitionModifications("t")]

    asyncio.run(scenario())
