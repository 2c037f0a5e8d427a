"""Every API x resource x allowed, denied, absent, asked of a whole broker with its authorizer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any, Final

import pytest

from klamm import apis
from klamm.apis.api_declaration import at_once, bind
from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.protocol.wire import Message, decode, encode_bytes
from klamm.security.acl.audit import LOGGER
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.server.kafka_server import KafkaServer
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.acl_rounds import AclRounds
from tests.support.acl_table import ALICE, API_BY_NAME, Grant, Row, group, rows

TIMEOUT_S: Final = 60.0
ADMIN: Final = "User:ANONYMOUS"
ONGOING: Final = Grant(ResourceType.TRANSACTIONAL_ID, "ongoing", AclOperation.DESCRIBE)


class AskedBroker:
    """One broker on a loop in a thread; requests reach its handlers as if from a connection of `principal`."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self._zookeeper = EmbeddedZooKeeperThread(folder / "zk")
        self._zookeeper.start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        config = KafkaConfig(
            {
                "broker.id": "1",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(folder / "logs"),
                "zookeeper.connect": str(self._zookeeper.address),
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                "super.users": ADMIN,
                "offsets.topic.replication.factor": "1",
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.num.partitions": "1",
                "group.initial.rebalance.delay.ms": "0",
                "klamm.control.log.enable": "false",
                **(settings or {}),
            }
        )
        self._server = KafkaServer(config)
        self.broker: Broker = self._run(self._server.start()).broker
        self._apis = {api.name: api for api in bind(apis.ALL, self.broker)}

    def close(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._zookeeper.stop()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def ask(self, name: str, request: Message, version: int, principal: str = ADMIN) -> Any:
        """Return the response as a client would decode it."""
        api = self._apis[name]
        again, _ = decode(api.request, version, encode_bytes(request, version), 0)

        async def handle() -> Any:
            channel = ChannelContext(client_host="127.0.0.1", principal=principal, order=1)
            ctx = RequestContext(
                api.key, version, client_id="table", channel=channel, now_ms=self.broker.clock.now_ms()
            )
            found: Any = api.dispatch(ctx, again)
            while True:
                if isinstance(found, GeneratorType):
                    found = at_once(found)
                elif isinstance(found, asyncio.Future):
                    found = await found
                else:
                    return found

        response = self._run(handle())
        return decode(api.response, version, encode_bytes(response, version), 0)[0]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AskedBroker, AclRounds]]:
    broker = AskedBroker(tmp_path_factory.mktemp("acl-table"))
    rounds = AclRounds(broker.ask)
    try:
        rounds.prepare()
        yield broker, rounds
    finally:
        broker.close()


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row.api} {row.what}")
def test_authorization(asked: tuple[AskedBroker, AclRounds], row: Row) -> None:
    broker, rounds = asked
    assert rounds.differences(row, partial(broker.ask, principal=ALICE)) == []


@pytest.mark.parametrize(
    ("api", "what", "grants"),
    [
        ("Metadata", "all topics", ()),
        ("ListGroups", "groups", ()),
        ("ListTransactions", "all", ()),
        ("OffsetFetch", "all topics", (group("DESCRIBE"),)),
        ("DescribeTransactions", "topics of an open transaction", (ONGOING,)),
    ],
)
def test_hidden_names_that_were_not_asked_for_are_not_logged(
    asked: tuple[AskedBroker, AclRounds],
    caplog: pytest.LogCaptureFixture,
    api: str,
    what: str,
    grants: tuple[Grant, ...],
) -> None:
    broker, rounds = asked
    (row,) = (row for row in rows() if (row.api, row.what) == (api, what))
    steps = tuple(step for step in row.steps if step[0] == grants)
    assert len(steps) == 1
    caplog.set_level(logging.INFO, LOGGER)
    assert rounds.differences(row._replace(steps=steps), partial(broker.ask, principal=ALICE)) == []
    assert [line for line in caplog.messages if "Denied" in line] == []


def test_every_api_is_in_the_table() -> None:
    assert {row.api for row in rows()} == set(API_BY_NAME)
