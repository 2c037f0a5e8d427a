"""Handlers of watches: they stay while a watch is armed under them, and go with the znodes they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from klamm.controller.coordination import ZkCoordination
from klamm.controller.events import ControllerEvent, PartitionModifications
from klamm.zk.ops import EventType, GetData, GetDataResult, NoNode, ReadOp, ReadResult, Stat, WatchEvent, WriteOp
from klamm.zk.ops import WriteResult as Result

STAT = Stat(*([0] * 11))
PATH = "/brokers/topics/t"


class Session:
    """Answers when it is told to; what it tells of a znode goes to the handler that is registered then."""

    session_id = 1

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[WatchEvent], object]] = {}
        self.answers: asyncio.Queue[ReadResult | NoNode] = asyncio.Queue()

    async def read(self, op: ReadOp) -> ReadResult:
        answer = await self.answers.get()
        if isinstance(answer, NoNode):
            raise answer
        return answer

    async def read_many(self, paths: list[str]) -> list[tuple[bytes | None, Stat] | None]:
        raise NotImplementedError

    async def multi(self, operations: tuple[WriteOp, ...]) -> tuple[Result, ...]:
        raise NotImplementedError

    def on_change(self, path: str, handler: Callable[[WatchEvent], object]) -> None:
        self.handlers[path] = handler

    def on_children(self, path: str, handler: Callable[[WatchEvent], object]) -> None:
        raise NotImplementedError

    def forget_change(self, path: str) -> None:
        self.handlers.pop(path, None)

    def tell(self, kind: EventType) -> None:
        if PATH in self.handlers:
            self.handlers[PATH](WatchEvent(kind, PATH))


def test_a_znode_that_went_and_came_back_while_it_was_read_is_still_heard_of() -> None:
    async def scenario() -> None:
        events: list[ControllerEvent] = []
        session = Session()
        coordination = ZkCoordination(session, events.append)
        session.answers.put_nowait(GetDataResult(b"", STAT))
        await coordination.read((GetData(PATH, watch=True),))
        again = asyncio.ensure_future(coordination.read((GetData(PATH, watch=True),)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        session.tell(EventType.DELETED)
        session.answers.put_nowait(GetDataResult(b"", STAT))
        await again
        session.tell(EventType.DATA_CHANGED)
        assert events == [PartitionModifications("t")]

    asyncio.run(scenario())


def test_handlers_go_with_their_znodes() -> None:
    async def scenario() -> None:
        session = Session()
        coordination = ZkCoordination(session, lambda _: None)
        session.answers.put_nowait(GetDataResult(b"", STAT))
        await coordination.read((GetData(PATH, watch=True),))
        assert PATH in session.handlers
        session.tell(EventType.DELETED)
        assert session.handlers == {}
        session.answers.put_nowait(NoNode(PATH))
        assert await coordination.read((GetData(PATH, watch=True),)) == (None,)
        assert session.handlers == {}

    asyncio.run(scenario())
