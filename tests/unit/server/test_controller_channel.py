"""The channel to the controller against brokers that are scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from klamm.errors import ErrorCode
from klamm.metadata import MetadataCache, MetadataUpdate
from klamm.model import BrokerEndPoints
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from klamm.server.controller_channel import ControllerChannel, is_refusal
from tests.support.waiting import until
from tests.unit.controller.fake_broker import FakeBroker

REQUEST = AllocateProducerIdsRequest(broker_id=7, broker_epoch=1)


def answers(*codes: ErrorCode | None) -> Callable[[Any], Any]:
    """A broker that answers with one code after the other (None: it hangs up), and then always with success."""
    left = list(codes)

    def answer(request: Any) -> Any:
        if isinstance(request, ApiVersionsRequest):
            keys = [ApiVersion(api_key=AllocateProducerIdsRequest.KEY, min_version=0, max_version=9)]
            return ApiVersionsResponse(error_code=0, api_keys=keys)
        code = left.pop(0) if left else ErrorCode.NONE
        if code is None:
            return None
        return AllocateProducerIdsResponse(error_code=code, producer_id_start=1000, producer_id_len=10)

    return answer


class Metadata:
    def __init__(self) -> None:
        self.cache = MetadataCache(7)

    def controller(self, controller_id: int, *brokers: BrokerEndPoints) -> None:
        self.cache.update(MetadataUpdate(controller_id, 1, brokers, ()))


def channel(metadata: Metadata, timeout_ms: int = 60_000) -> ControllerChannel:
    loop = asyncio.get_running_loop()
    return ControllerChannel(metadata.cache, "PLAINTEXT", name="test", loop=loop, timeout_ms=timeout_ms)


def asked(broker: FakeBroker) -> int:
    return sum(isinstance(request, AllocateProducerIdsRequest) for request in broker.requests)


def test_it_asks_the_controller_and_keeps_the_connection() -> None:
    async def run() -> None:
        metadata = Metadata()
        async with FakeBroker(1, answers()) as one, FakeBroker(2, answers()) as two:
            metadata.controller(2, one.endpoints, two.endpoints)
            asking = channel(metadata)
            both = await asyncio.gather(asking.send(REQUEST, 0), asking.send(REQUEST, 0))
            assert [response.producer_id_start for response in both] == [1000, 1000]
            assert (await asking.send(REQUEST, 0)).error_code == ErrorCode.NONE
            assert asked(two) == 3 and not one.requests and len(two._writers) == 1
            await asking.close()

    asyncio.run(run())


def test_it_looks_again_where_the_controller_moved() -> None:
    async def run() -> None:
        metadata = Metadata()
        refusing = answers(*[ErrorCode.NOT_CONTROLLER] * 3, None)
        async with FakeBroker(1, refusing) as one, FakeBroker(2, answers(None)) as two:
            metadata.controller(1, one.endpoints, two.endpoints)
            asking = channel(metadata)
            sending = asyncio.ensure_future(asking.send(REQUEST, 0))
            await until(lambda: asked(one) == 4)
            metadata.controller(2, one.endpoints, two.endpoints)
            response = await sending
            assert response.error_code == ErrorCode.NONE and asked(two) == 2
            await asking.close()

    asyncio.run(run())


def test_without_a_controller_it_waits_for_one_and_gives_up_in_time() -> None:
    async def run() -> None:
        metadata = Metadata()
        with pytest.raises(TimeoutError, match="names no controller"):
            await channel(metadata, timeout_ms=20).send(REQUEST, 0)
        async with FakeBroker(1, answers()) as one:
            asking = channel(metadata)
            sending = asyncio.ensure_future(asking.send(REQUEST, 0))
            await asyncio.sleep(0)
            metadata.controller(1, one.endpoints)
            assert (await sending).producer_id_len == 10
            await asking.close()

    asyncio.run(run())


def test_answers_that_count_as_a_refusal() -> None:
    def created(*codes: ErrorCode) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=code) for code in codes])

    assert is_refusal(created(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER))
    assert not is_refusal(created(ErrorCode.NOT_CONTROLLER, ErrorCode.NONE)) and not is_refusal(created())
