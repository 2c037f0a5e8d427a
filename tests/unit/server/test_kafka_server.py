"""Stopping a broker ends what it had begun on the side."""

from __future__ import annotations

import asyncio

from klamm.config import KafkaConfig
from klamm.server.kafka_server import KafkaServer


def test_background_tasks_end_with_the_broker() -> None:
    async def scenario() -> None:
        server, ended = KafkaServer(KafkaConfig({"broker.id": "1"})), asyncio.Event()

        async def wait_for_ever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        server._spawn(wait_for_ever())
        await asyncio.sleep(0)
        await server.stop()
        assert ended.is_set() and asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
