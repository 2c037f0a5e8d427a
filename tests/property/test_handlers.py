"""Whatever a client sends, a handler answers with a value that its version can carry: it never raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from klamm.apis import (
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    fetch,
    init_producer_id,
    leader_and_isr,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    update_metadata,
)
from klamm.apis.registry import Api
from klamm.protocol.wire import Struct, encode_bytes
from tests.support.one_broker import OneBroker, batch
from tests.wire.samples import random_message

APIS: tuple[Api[Any, Any], ...] = (
    produce.API,
    fetch.API,
    list_offsets.API,
    metadata.API,
    offset_for_leader_epoch.API,
    init_producer_id.API,
    create_topics.API,
    delete_topics.API,
    create_partitions.API,
    delete_records.API,
    describe_cluster.API,
    describe_log_dirs.API,
    describe_producers.API,
    elect_leaders.API,
    api_versions.API,
    leader_and_isr.API,
    stop_replica.API,
    update_metadata.API,
)
ID = UUID(int=7)
NAMES = ("t", "u", "__consumer_offsets", "", "a b")
ROUNDS = 12


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.controller.script = broker.create_as_asked
    broker.lead("t", 2, topic_id=ID)
    broker.lead("__consumer_offsets")
    yield broker
    broker.close()


def likely(value: Any, rng: Random) -> Any:
    """The value, or one that means something here: random names and numbers alone would only meet refusals."""
    if isinstance(value, list | tuple):
        return [likely(each, rng) for each in value]
    if isinstance(value, Struct):
        for field in fields(value):  # type: ignore[arg-type]
            setattr(value, field.name, _field(field.name, getattr(value, field.name), rng))
    elif isinstance(value, str) and rng.random() < 0.7:
        return rng.choice(NAMES)
    elif isinstance(value, UUID) and rng.random() < 0.7:
        return ID
    elif isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.7:
        return rng.randint(-2, 2)
    return value


def _field(name: str, value: Any, rng: Random) -> Any:
    if name in ("timeout_ms", "max_wait_ms"):
        return rng.choice((-1, 0, 1))
    if name == "records" and rng.random() < 0.8:
        return rng.choice((None, b"", batch(b"a", b"b"), batch(b"x")[:-1], batch(b"y") + batch(b"z")))
    return likely(value, rng)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_handler_answers_whatever_it_is_asked(one: OneBroker, api: Api[Any, Any]) -> None:
    rng = Random(api.key)
    low, high = api.versions
    for version in range(low, high + 1):
        for _ in range(ROUNDS):
            request = likely(random_message(api.request, version, rng, spread=3), rng)
            result = one.dispatch(api, request, version)
            response = one.run(result) if isinstance(result, asyncio.Future) else result
            if response is not None:
                encode_bytes(response, version)
