"""No step of a large request builds or frees very many objects: it would hold the loop (docs/adr/0016).

Blocks of memory are counted, not milliseconds. A request is decoded, handled, encoded and freed as by the network
layer; between two steps the loop turns.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Collection, Generator, Iterator
from types import GeneratorType
from typing import Any

import pytest

from klamm.network.request_context import RequestContext
from klamm.protocol.chunked import Held, release, rows_of
from klamm.protocol.wire import decode_in_slices, encode_bytes, encode_in_slices
from tests.hostile.test_large_requests import APIS, CASES, one, shared
from tests.support.long_form import every
from tests.unit.coordinator.test_group_apis import GroupBroker

__all__ = ["one", "shared"]
COUNT = 20_000
MOST_BLOCKS = 15_000
"""Blocks of memory that a step may take or give back. To free as many takes half a millisecond."""

SLOW = {
    "AlterClientQuotas",
    "AlterUserScramCredentials",
    "DescribeConfigs, the same",
    "OffsetFetch v8",
    "WriteTxnMarkers, many markers",
}
"""The handlers of these take seconds for so many elements."""
EVENTS = {"CreateTopics", "ElectLeaders"}
"""Their elements are one event for the controller, and the test's controller makes the results in one step."""


class Steps:
    """Runs steps and remembers the one that changed the number of blocks most."""

    def __init__(self) -> None:
        self.most = 0
        self.count = 0
        self._last = sys.getallocatedblocks()

    def note(self) -> None:
        now = sys.getallocatedblocks()
        self.most = max(self.most, abs(now - self._last))
        self.count += 1
        self._last = now

    def run(self, steps: Generator[None, None, Any]) -> Any:
        self._last = sys.getallocatedblocks()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.note()
                return done.value
            self.note()

    def wait(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> Any:
        while not future.done():
            loop.call_soon(loop.stop)
            loop.run_forever()
            self.note()
        return future.result()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """A pass of the collector would count as somebody's step."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Context(RequestContext):
    """A context that holds what handlers want to be freed in steps, as `klamm.network.request` does."""

    def __init__(self, key: int, version: int, held: Held) -> None:
        super().__init__(key, version)
        self._held = held

    def hold(self, *collections: Collection[Any]) -> None:
        for collection in collections:
            self._held[:0] = rows_of(collection)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", every(4, CASES, slow=SLOW))
def test_no_step_takes_or_frees_much_memory(one: GroupBroker, name: str) -> None:
    case = CASES[name]
    one.controller.script = lambda event: None
    most = MOST_BLOCKS + (COUNT if name in EVENTS else 0)
    request = case.request(range(COUNT))
    cls, version, frame = type(request), case.version, encode_bytes(request, case.version)
    del request
    steps, held = Steps(), Held()
    message, _ = steps.run(decode_in_slices(cls, version, frame, 0, held))
    assert steps.most <= most, "decoding"
    result: Any = APIS[cls.KEY].handle(one.broker, Context(cls.KEY, version, held), message)
    del message
    steps.note()
    while isinstance(result, GeneratorType | asyncio.Future):
        result = steps.run(result) if isinstance(result, GeneratorType) else steps.wait(one.loop, result)
    assert steps.most <= most, "handling"
    steps.run(encode_in_slices(result, version, held))
    assert steps.most <= most, "encoding"
    del result
    steps.note()
    steps.run(release(held))
    assert steps.most <= most, "freeing"
