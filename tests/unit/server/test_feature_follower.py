"""The level of `transaction.version` follows the live brokers, which are scripts here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.metadata import MetadataUpdate
from klamm.model import BrokerEndPoints, EndPoint, TransactionVersion
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from klamm.server.background_tasks import BackgroundTasks
from klamm.server.feature_follower import NEEDED, FeatureFollower
from tests.support.one_broker import OneBroker
from tests.support.waiting import until
from tests.unit.controller.fake_broker import FakeBroker

SELF = BrokerEndPoints(1, (EndPoint("PLAINTEXT", "127.0.0.1", 1),), epoch=1)
TV_0, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_2


def capable(request: Any) -> Any:
    keys = [ApiVersion(api_key=request.KEY, min_version=0, max_version=highest) for request, highest in NEEDED]
    return ApiVersionsResponse(error_code=0, api_keys=keys)


def incapable(request: Any) -> Any:
    keys = [ApiVersion(api_key=request.KEY, min_version=0, max_version=highest - 1) for request, highest in NEEDED]
    return ApiVersionsResponse(error_code=0, api_keys=keys)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    one = OneBroker(tmp_path)
    one.broker.features.max_version = TV_2
    yield one
    one.close()


def live(one: OneBroker, *others: FakeBroker) -> None:
    brokers = (SELF, *(broker.endpoints for broker in others))
    one.broker.metadata.update(MetadataUpdate(1, 1, brokers, ()))


def test_the_level_follows_the_brokers(one: OneBroker) -> None:
    features = one.broker.features

    async def run() -> None:
        tasks = BackgroundTasks()
        follower = FeatureFollower(one.broker, tasks.spawn)
        follower.start()
        async with FakeBroker(2, capable) as two, FakeBroker(3, incapable) as three:
            live(one)
            assert features.version is TV_2, "alone"
            live(one, two)
            assert features.version is TV_0, "before it is asked"
            await until(lambda: features.version is TV_2)
            live(one, two, three)
            await until(lambda: three.requests)
            assert features.version is TV_0
            live(one, two)
            assert features.version is TV_2
            follower.close()
            await tasks.stop()

    one.loop.run_until_complete(run())


def test_a_broker_that_returns_is_asked_again_although_its_connection_is_open(one: OneBroker) -> None:
    """It lost its session with ZooKeeper, and nothing else."""
    features = one.broker.features

    async def run() -> None:
        tasks = BackgroundTasks()
        follower = FeatureFollower(one.broker, tasks.spawn)
        follower.start()
        async with FakeBroker(2, capable) as two:
            live(one, two)
            await until(lambda: features.version is TV_2)
            live(one)
            live(one, two)
            assert features.version is TV_0
            await until(lambda: features.version is TV_2)
            assert len(two.requests) == 2
            follower.close()
            await tasks.stop()

    one.loop.run_until_complete(run())
