"""Whatever a client sends, a handler answers with a value that its version can carry: it never raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from random import Random
from types import GeneratorType
from typing import Any
from uuid import UUID

import pytest

from klamm.apis import ALL
from klamm.apis.api_declaration import Api, at_once
from klamm.protocol.wire import Struct, encode_bytes
from klamm.zk.model.ops import Create, SetData, Stat, WriteOp
from tests.support.one_broker import batch
from tests.unit.coordinator.test_group_apis import GroupBroker
from tests.wire.samples import random_message

ID = UUID(int=7)
NAMES = ("t", "u", "__consumer_offsets", "", "a b")
EPOCH = 2**31 - 1
"""The controller's: the highest there is, so that no request of a random one makes the broker deaf to it."""
ROUNDS = 50
MIXED_ROUNDS = 1_500


class MemoryZooKeeper:
    """The part of ZooKeeper that the config APIs need: znodes with versions."""

    def __init__(self) -> None:
        self._znodes: dict[str, tuple[bytes | None, int]] = {}

    async def read_many(self, paths: Sequence[str]) -> list[tuple[bytes | None, Stat] | None]:
        return [self._read(path) for path in paths]

    def _read(self, path: str) -> tuple[bytes | None, Stat] | None:
        if path not in self._znodes:
            return None
        data, version = self._znodes[path]
        return data, Stat(0, 0, 0, 0, version, 0, 0, 0, len(data or b""), 0, 0)

    async def get_children(self, path: str) -> tuple[str, ...]:
        prefix = path + "/"
        return tuple({known[len(prefix) :].split("/")[0]: None for known in self._znodes if known.startswith(prefix)})

    async def multi(self, operations: Sequence[WriteOp]) -> None:
        for op in operations:
            if isinstance(op, SetData):
                self._znodes[op.path] = (op.data, op.version + 1)
            elif isinstance(op, Create) and not op.sequential:
                self._znodes[op.path] = (op.data, 0)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[GroupBroker]:
    broker = GroupBroker(tmp_path)
    broker.controller_epoch = EPOCH
    broker.controller.script = broker.create_as_asked
    broker.give(zk=MemoryZooKeeper())
    broker.lead("t", 2, topic_id=ID)
    broker.lead_offsets_topic()
    yield broker
    broker.close()


class Client:
    """Asks at random, and remembers the member ids and sessions that it was given."""

    def __init__(self, one: GroupBroker, rng: Random) -> None:
        self._one = one
        self._rng = rng
        self._members: list[str] = []
        self._sessions: list[int] = [0]

    def ask(self, api: Api[Any, Any], version: int) -> None:
        request = self._likely(random_message(api.request, version, self._rng, spread=3))
        result = self._one.dispatch(api, request, version, client_id=self._rng.choice(("test", "__admin_client", None)))
        while isinstance(result, GeneratorType | asyncio.Future):
            result = at_once(result) if isinstance(result, GeneratorType) else self._settled(result)
        response = result
        if response is None:
            return
        encode_bytes(response, version)
        if isinstance(member_id := getattr(response, "member_id", None), str):
            self._members.append(member_id)
        if session_id := getattr(response, "session_id", 0):
            self._sessions.append(session_id)

    def _settled(self, future: asyncio.Future[Any]) -> Any:
        """A group may wait as long as its members said: all their time passes. Real waits are a millisecond."""
        for _ in range(4):
            self._one.spin()
            if not future.done():
                self._one.pass_ms(2**31)
        return self._one.run(future)

    def _likely(self, value: Any) -> Any:
        """The value, or one that means something here: random names and numbers alone would only meet refusals."""
        rng = self._rng
        if isinstance(value, list | tuple):
            return [self._likely(each) for each in value]
        if isinstance(value, Struct):
            for field in fields(value):  # type: ignore[arg-type]
                setattr(value, field.name, self._field(field.name, getattr(value, field.name)))
        elif isinstance(value, str) and rng.random() < 0.7:
            return rng.choice(NAMES)
        elif isinstance(value, UUID) and rng.random() < 0.7:
            return ID
        elif isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
            return rng.randint(-2, 2)
        return value

    def _field(self, name: str, value: Any) -> Any:
        rng = self._rng
        if name in ("timeout_ms", "max_wait_ms"):
            return rng.choice((-1, 0, 1, -(2**31)))
        if rng.random() < 0.2:
            return self._likely(value)
        match name:
            case "records":
                return rng.choice((None, b"", *RECORDS))
            case "member_id" if value is not None:
                return rng.choice(("", *self._members[-3:]))
            case "generation_id" | "generation_id_or_member_epoch":
                return rng.choice((-1, 1, 2))
            case "session_id" if isinstance(value, int):
                return rng.choice(self._sessions)
            case "controller_epoch":
                return EPOCH
            case "resource_type":
                return rng.choice((2, 4, 8))
            case "resource_name":
                return rng.choice(("t", "1", ""))
            case "config_operation":
                return rng.randint(0, 3)
            case "session_timeout_ms" | "rebalance_timeout_ms":
                return rng.choice((10_000, 6_000, 2**31 - 1))
            case "protocol_type" if value is not None:
                return rng.choice(("consumer", "consumer", "connect"))
        return self._likely(value)


RECORDS = (
    batch(b"a", b"b"),
    batch(b"x")[:-1],
    batch(b"y") + batch(b"z"),
    batch(b"n", key=None),
    batch(b"late", timestamp=2**62),
    batch(b"p", producer_id=1, producer_epoch=0, base_sequence=0),
    batch(b"p", producer_id=2**63 - 1, producer_epoch=2**15 - 1, base_sequence=2**31 - 1),
    batch(b"txn", producer_id=1, producer_epoch=0, base_sequence=1, is_transactional=True),
    batch(b"zipped" * 50, compression=4),
)


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_a_handler_answers_whatever_it_is_asked(one: GroupBroker, api: Api[Any, Any]) -> None:
    client = Client(one, Random(api.key))
    low, high = api.versions
    for version in range(low, high + 1):
        for _ in range(ROUNDS):
            client.ask(api, version)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_lives_through_any_order_of_requests(one: GroupBroker, seed: int) -> None:
    """Each request meets the state that the previous one left."""
    rng = Random(seed)
    client = Client(one, rng)
    for _ in range(MIXED_ROUNDS):
        api = rng.choice(ALL)
        client.ask(api, rng.randint(*api.versions))
