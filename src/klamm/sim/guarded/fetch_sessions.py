"""Fetch sessions that another client continues, or the same client after a change of the rules.

A session answers only partitions that changed. Nobody writes to the partition of these sessions, so its reader soon
gets empty answers. A client without the right must be refused nevertheless, not given another empty answer.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.sim.checkers import Violation, require
from klamm.sim.clients import Client

QUIET: Final = TopicPartition("quiet", 0)
"""Nobody writes to this partition."""
_VERSION: Final = 12
_REFUSED: Final = {int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}


class KnownSession:
    """A session whose id and epoch everyone knows. `open` creates it."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._id = 0
        self._epoch = 0

    async def open(self, client: Client) -> None:
        response = await self._ask(client)
        require(response.session_id != 0, f"broker {self._broker_id} has no room for a session")
        self._id = response.session_id
        await self.read_all(client)

    async def read_all(self, client: Client) -> None:
        """Continue the session until an answer is empty. The reader must be served."""
        while (response := await self._ask(client)).responses:
            errors = _errors(response)
            require(not errors & _REFUSED, f"broker {self._broker_id} refuses {client.name} its own session")
            await client.rest()

    async def check_refused(self, client: Client, why: str) -> None:
        """The client must not continue the session. A broker may also have ended it."""
        response = await self._ask(client)
        if response.error_code == ErrorCode.NONE and _errors(response) != _REFUSED:
            raise Violation(f"broker {self._broker_id} continues a session for {client.name}, {why}")

    async def _ask(self, client: Client) -> Any:
        asked = FetchPartition(
            partition=QUIET.partition, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1_000
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1_000,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[] if self._id else [FetchTopic(topic=QUIET.topic, partitions=[asked])],
        )
        self._epoch += 1
        return await client.ask(self._broker_id, request, _VERSION)


def _errors(response: Any) -> set[int]:
    return {partition.error_code for topic in response.responses for partition in topic.partitions}
