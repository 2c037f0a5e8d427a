"""The state of one transactional id: the value that its record stores, and the transition that is being written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ConnectionOrder, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from klamm.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

MAX_PRODUCER_EPOCH: Final = 32_767
NO_TIMESTAMP: Final = -1
NO_PARTITIONS: Final[Mapping[TopicPartition, None]] = MappingProxyType({})


class TransactionState(IntEnum):
    """The numbers are those of the records in `__transaction_state`; `title` is the name that clients see."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        return _TITLES[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        """Whether nothing is open, so that an idle transactional id may be forgotten."""
        return self in _IDLE

    @classmethod
    def of_title(cls, title: str) -> TransactionState | None:
        return _BY_TITLE.get(title)


_TITLES: Final = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
_BY_TITLE: Final = {title: state for state, title in _TITLES.items()}
_IDLE: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

VALID_PREVIOUS_STATES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # An abort without partitions (KIP-890 part 2) begins in an idle state.
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _IDLE,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}


@lazy_dataclass(frozen=True, slots=True)
class TransactionValue:
    """One state of a transactional id. All of it is stored, except `last_producer_epoch`.

    `previous_producer_id` is the producer id before the last transition. `next_producer_id` is the id that the producer
    has already received, while markers of its transaction are still written with the id whose epochs are used up.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    state: TransactionState = TransactionState.EMPTY
    timeout_ms: int = 0
    partitions: Mapping[TopicPartition, None] = field(default_factory=lambda: NO_PARTITIONS)
    start_timestamp_ms: int = NO_TIMESTAMP
    last_update_timestamp_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: TransactionVersion = TransactionVersion.TV_0

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)


@dataclass(slots=True, eq=False)
class TransactionMetadata:
    """Owner: the TransactionStateManager. `pending` is the value that is being written; it blocks other transitions.

    `actor` and `youngest_connection` belong to the protection of old clients (`connection_guard`), `answered_on` is
    the connection that received the answer to the last end of a transaction. `waiting` has the requests that
    `transaction_waits` decides once the transaction is complete, oldest first.
    """

    transactional_id: str
    value: TransactionValue
    max_epoch: int = MAX_PRODUCER_EPOCH
    pending: TransactionValue | None = None
    actor: ProducerIdAndEpoch | None = None
    youngest_connection: ConnectionOrder = 0
    answered_on: ConnectionOrder | None = None
    waiting: tuple[Callable[[], None], ...] = ()

    @property
    def state(self) -> TransactionState:
        return self.value.state

    @property
    def is_ending(self) -> bool:
        """Whether the transactional id is being forgotten."""
        return self.pending is not None and self.pending.state is TransactionState.DEAD

    def is_exhausted(self, producer_epoch: int) -> bool:
        """Whether no client may get a later epoch: the last one is for fencing only."""
        return producer_epoch >= self.max_epoch - 1

    def prepare(self, value: TransactionValue) -> TransactionValue:
        """Begin a transition. It takes effect with `complete`, once it is written."""
        assert self.pending is None, f"{self.transactional_id} is in transition to {self.pending}"
        assert self.state in VALID_PREVIOUS_STATES[value.state], f"{self.state.name} to {value.state.name}"
        assert value.producer_id >= 0 and (value.producer_epoch >= 0 or value.state is TransactionState.DEAD)
        assert value.producer_epoch <= self.max_epoch
        self.pending = value
        return value

    def complete(self) -> None:
        assert self.pending is not None, f"{self.transactional_id} is not in transition"
        assert self.pending.state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
        self.value, self.pending = self.pending, None

    def cancel(self) -> None:
        """The transition could not be written, as far as is known."""
        self.pending = None
