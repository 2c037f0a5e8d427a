"""The transactional producers that write to this broker: the order of their batches, and their connections.

Before the first batch of a transaction the leader asks the transaction's coordinator, and the batch waits. Later
batches of the same producer for the same partition wait behind it. Other producers and other partitions do not wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol, TypeAlias

from klamm.errors import ErrorCode
from klamm.log.producer_state import AppendOrigin
from klamm.model import ConnectionOrder, TopicPartition

MAX_WAITING_BYTES: Final = 128 * 1024 * 1024
"""Maximum bytes that wait for coordinators. Further requests get a retriable error."""
MAX_CONNECTIONS: Final = 20_000
"""Producers whose youngest connection is remembered; the one that has been silent longest is forgotten first."""
Turn: TypeAlias = "asyncio.Future[None]"


class AddPartitionsToTxn(Protocol):
    """Asks the coordinator of a transactional id (AddPartitionsToTxn v4: verify only; v5: add)."""

    def __call__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> asyncio.Future[dict[TopicPartition, ErrorCode]]: ...


class VerificationConfig(NamedTuple):
    """`concurrent_retry_ms` is the pause before the coordinator is asked again while the last transaction completes.

    Only producers of `transaction.version` 2 need it: they begin the next transaction meanwhile.
    """

    is_enabled: bool = True
    concurrent_retry_ms: int = 20
    concurrent_retry_max_ms: int = 100


class ProducerConnections:
    """The youngest connection of each transactional producer and epoch, per kind of request.

    A client that gives up a connection opens another one and continues there. A request that still arrives on the old
    connection is late: it may belong to a transaction that has ended, while the epoch of old clients stays the same.
    """

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._youngest: OrderedDict[tuple[AppendOrigin, int], tuple[int, ConnectionOrder]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._youngest)

    def admit(self, origin: AppendOrigin, producer_id: int, producer_epoch: int, connection: ConnectionOrder) -> bool:
        """Note a request; return whether no younger connection of the same producer and epoch has been used."""
        key = (origin, producer_id)
        epoch, youngest = self._youngest.get(key, (-1, 0))
        if producer_epoch < epoch:
            return True  # The log refuses the epoch, or no newer one was ever valid.
        if producer_epoch == epoch and connection < youngest:
            return False
        self._youngest[key] = (producer_epoch, connection)
        self._youngest.move_to_end(key)
        if len(self._youngest) > self._most:
            self._youngest.popitem(last=False)
        return True


class MarkerConnections:
    """The youngest connection on which a coordinator sent a marker, per producer.

    A coordinator that gets no answer gives up its connection and repeats the marker on another one. A marker that still
    arrives on the old connection is late: the transaction has ended, and the next one of an old client has the same
    epoch. Markers of another coordinator have another epoch, which the log compares.
    """

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._youngest: OrderedDict[int, tuple[tuple[int, int], ConnectionOrder]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._youngest)

    def admit(self, producer_id: int, producer_epoch: int, coordinator_epoch: int, connection: ConnectionOrder) -> bool:
        """Note a marker; return whether its coordinator has not used a younger connection for this epoch."""
        term = producer_epoch, coordinator_epoch
        known, youngest = self._youngest.get(producer_id, ((-1, -1), 0))
        if term == known and connection < youngest:
            return False
        if term >= known:
            self._youngest[producer_id] = (term, connection)
            self._youngest.move_to_end(producer_id)
            if len(self._youngest) > self._most:
                self._youngest.popitem(last=False)
        return True


class TransactionalProducers:
    """Owner: the broker loop. The server sets `add_partitions` and `config` when they are known."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connections = ProducerConnections()
        self.marker_connections = MarkerConnections()
        self.config: Callable[[], VerificationConfig] = VerificationConfig
        self.add_partitions: AddPartitionsToTxn = self._no_coordinator
        self._turns: dict[tuple[int, TopicPartition], Turn] = {}
        """The last request of a producer that waits, or that has not been appended yet, for each partition."""
        self._waiting_bytes = 0
        self.is_closed = False

    def close(self) -> None:
        """Append nothing more: the broker stops."""
        self.is_closed = True

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def predecessors(self, producer_id: int, partitions: Collection[TopicPartition]) -> list[Turn]:
        """Return the requests that have to be appended before a new one of the producer."""
        if not self._turns:
            return []
        found = (self._turns.get((producer_id, tp)) for tp in partitions)
        return list(dict.fromkeys(turn for turn in found if turn is not None))

    def begin(self, producer_id: int, partitions: Collection[TopicPartition], size_bytes: int) -> Turn | None:
        """Let later requests of the producer wait for the returned turn; None if too much waits already."""
        if self._waiting_bytes + size_bytes > max(MAX_WAITING_BYTES, size_bytes):
            return None
        self._waiting_bytes += size_bytes
        turn: Turn = self.loop.create_future()
        for tp in partitions:
            self._turns[producer_id, tp] = turn
        return turn

    def end(self, turn: Turn, producer_id: int, partitions: Collection[TopicPartition], size_bytes: int) -> None:
        """The request was appended or refused: the next one continues."""
        self._waiting_bytes -= size_bytes
        for tp in partitions:
            if self._turns.get((producer_id, tp)) is turn:
                del self._turns[producer_id, tp]
        if not turn.done():
            turn.set_result(None)

    def _no_coordinator(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> asyncio.Future[dict[TopicPartition, ErrorCode]]:
        answer: asyncio.Future[dict[TopicPartition, ErrorCode]] = self.loop.create_future()
        answer.set_result(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return answer
