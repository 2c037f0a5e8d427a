"""A client that leaves in the middle of a large request: no step frees everything that was made for it."""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from klamm.apis import fetch
from klamm.log.memory_files import MemoryFiles
from klamm.network.request import Request, Steps
from klamm.network.sliced_work import SlicedWork
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.hostile.test_steps import MOST_BLOCKS
from tests.support.one_broker import OneBroker
from tests.unit.apis.test_fetch import ID, request
from tests.unit.network.harness import ScriptedApi, Server, until

COUNT = 10_000
IDLE = 2_000
OTHER_ID = UUID(int=77)
MOMENTS = 7
VERSION = 11


class MeasuredWork:
    """Counts the steps of requests in slices, and the blocks of memory that each takes or gives back.

    The client of the request leaves after the step with the number `last`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int = 0) -> None:
        self.count = self.most = self.whole = 0
        self.is_done = False
        self._last = last
        self._original = SlicedWork._step
        monkeypatch.setattr(SlicedWork, "_step", lambda work, request, steps: self._step(work, request, steps))

    def begin(self, last: int = 0) -> None:
        """Forget earlier steps."""
        self._last = last
        self.count = self.most = 0
        self.is_done = False

    def _step(self, work: SlicedWork, request: Request, steps: Steps) -> Steps | None:
        before = sys.getallocatedblocks()
        rest = self._original(work, request, steps)
        del steps
        self.most = max(self.most, abs(sys.getallocatedblocks() - before))
        self.count += 1
        self.is_done = rest is None
        if self.count == self._last:
            request.connection.abort()  # type: ignore[attr-defined]
        return rest


@pytest.fixture
def one() -> Iterator[OneBroker]:
    broker = OneBroker(Path("/broker"), files=MemoryFiles())
    broker.lead("t", 3, topic_id=ID)
    gc.collect()
    gc.disable()  # A pass of the collector would count as somebody's step.
    yield broker
    gc.enable()
    broker.close()


def carried_out(one: OneBroker, work: MeasuredWork) -> None:
    """Send a large Fetch, and wait until all steps for it have been taken."""

    async def scenario() -> None:
        handle = partial(fetch.API.handle, one.broker)
        async with Server(ScriptedApi(FetchRequest, FetchResponse, handle, is_read=True)) as server:
            client = await server.client()
            client.send(request(dict.fromkeys(range(COUNT), 0), session_epoch=-1), VERSION)
            await until(lambda: work.is_done)

    asyncio.run(scenario())


def test_no_step_of_an_abandoned_fetch_frees_much_memory(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        whole = MeasuredWork(patch)
        carried_out(one, whole)
    assert whole.most <= MOST_BLOCKS
    found = {}
    for moment in range(1, MOMENTS):
        with monkeypatch.context() as patch:
            work = MeasuredWork(patch, last=whole.count * moment // MOMENTS)
            carried_out(one, work)
        found[moment] = work.most
    assert max(found.values()) <= MOST_BLOCKS, found


def test_a_fetch_whose_client_has_left_does_not_wait(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could wait for ten minutes, and hold its partitions for so long."""
    one.lead("idle", IDLE, topic_id=OTHER_ID)
    work = MeasuredWork(monkeypatch, last=30)
    asked = request(
        dict.fromkeys(range(IDLE), 0), topic="idle", topic_id=OTHER_ID, session_epoch=-1, max_wait_ms=600_000
    )

    async def scenario() -> None:
        handle = partial(fetch.API.handle, one.broker)
        async with Server(ScriptedApi(FetchRequest, FetchResponse, handle, is_read=True)) as server:
            client = await server.client()
            client.send(asked, VERSION)
            await until(lambda: work.is_done)
            assert not one.broker.replicas.fetch_purgatory.size

    asyncio.run(scenario())


def test_no_step_of_an_abandoned_session_frees_much_memory(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame of its Fetch is small, its response is not."""
    work = MeasuredWork(monkeypatch)

    async def scenario() -> int:
        handle = partial(fetch.API.handle, one.broker)
        async with Server(ScriptedApi(FetchRequest, FetchResponse, handle, is_read=True)) as server:
            client = await server.client()
            client.send(request(dict.fromkeys(range(4 * COUNT), 0), session_epoch=0), VERSION)
            (session_id,) = struct.unpack_from(">i", await client.receive(), 10)
            most = 0
            for epoch, moment in enumerate((0.0, 0.5, 0.6), 1):
                await until(lambda: work.is_done)
                work.begin(last=int(work.whole * moment) if moment else 0)
                client = await server.client()
                client.send(request({}, session_id=session_id, session_epoch=epoch), VERSION)
                await until(lambda: work.is_done)
                work.whole = work.whole if moment else work.count
                most = max(most, work.most)
            return most

    assert asyncio.run(scenario()) <= MOST_BLOCKS
