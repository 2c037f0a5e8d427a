"""KafkaServer: one broker, from its configuration to an answering process and back.

`start` goes through the steps of `Starting` and returns the `Running` broker. Every step registers how it is undone, so
`stop` ends a running broker and a half-started one alike: it undoes the registered steps, the last one first.
"""

from __future__ import annotations

import logging

from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.server.environment import Environment, OnFailure
from klamm.server.running import Running
from klamm.server.starting import Starting
from klamm.zk.model.ops import ZkError

log = logging.getLogger(__name__)


class KafkaServer:
    """Owner of everything that runs in a broker process; lives on the broker loop."""

    def __init__(
        self, config: KafkaConfig, environment: Environment | None = None, on_failure: OnFailure | None = None
    ) -> None:
        """`on_failure` is called with the reason if the broker cannot continue; its starter then stops it."""
        self._starting = Starting(config, environment or Environment(), on_failure)

    async def start(self) -> Running:
        """Return when the broker answers clients. Raises KlammError if it cannot start."""
        try:
            return await self._starting.run()
        except ZkError as error:
            raise KlammError(f"ZooKeeper was lost while the broker started ({error}): start it again.") from error

    async def stop(self) -> None:
        """Move leaderships away, answer waiting requests, flush the logs and mark them clean: a controlled shutdown."""
        await self._starting.ending.run()
        log.info("broker %d stopped", self._starting.broker_id)
