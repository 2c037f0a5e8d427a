"""Observations of clients of a simulated cluster: their transactions, their reads and the final logs, as frozen values.

Every value is written once, so a value names its transaction. The checkers in `anomalies` are functions of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from klamm.model import TopicPartition

NO_OFFSET: Final = -1


class Outcome(Enum):
    """The outcome of a transaction, as its client knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """It was never asked to commit, or every attempt was refused."""
    UNKNOWN = "unknown"
    """It was asked to commit, and the last answer does not show whether it did."""


class Source(NamedTuple):
    """The record that a copy was made from."""

    tp: TopicPartition
    offset: int


class Write(NamedTuple):
    tp: TopicPartition
    value: bytes
    offset: int = NO_OFFSET
    """The acknowledged offset, if any."""
    source: Source | None = None


class Seen(NamedTuple):
    """A record that a reader was given."""

    offset: int
    value: bytes


class Read(NamedTuple):
    """A record that a transaction read with `read_committed`."""

    tp: TopicPartition
    offset: int
    value: bytes


class Move(NamedTuple):
    """Offsets that a transaction commits for a group."""

    group: str
    tp: TopicPartition
    start: int
    end: int


class End(NamedTuple):
    """The end of a partition for `read_committed`, as ListOffsets returned it to an open transaction."""

    tp: TopicPartition
    offset: int
    first_write: int
    """The first acknowledged record of the transaction in this partition."""


@dataclass(frozen=True, slots=True)
class Txn:
    number: int
    """Unique; a process numbers its transactions in the order in which it began them."""
    transactional_id: str
    process: str
    outcome: Outcome
    writes: tuple[Write, ...] = ()
    reads: tuple[Read, ...] = ()
    moves: tuple[Move, ...] = ()
    ends: tuple[End, ...] = ()

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id} ({self.process}, {self.outcome.value})"


class Poll(NamedTuple):
    """One answer to a reader: the records from `start` on, and the position after them."""

    tp: TopicPartition
    start: int
    records: tuple[Seen, ...]
    end: int


@dataclass(frozen=True)
class Observations:
    """All transactions and polls, and the state of the quiet cluster: committed records and committed offsets."""

    txns: tuple[Txn, ...] = ()
    polls: Mapping[str, tuple[Poll, ...]] = field(default_factory=dict)
    """By reader. A reader follows one partition from its beginning."""
    logs: Mapping[TopicPartition, tuple[Seen, ...]] = field(default_factory=dict)
    """The records of each partition for `read_committed`."""
    offsets: Mapping[tuple[str, TopicPartition], int] = field(default_factory=dict)
    """Committed offsets of groups that copy."""

    @cached_property
    def writers(self) -> dict[bytes, Txn]:
        return {write.value: txn for txn in self.txns for write in txn.writes}

    @cached_property
    def places(self) -> dict[bytes, tuple[TopicPartition, int]]:
        """Where each committed value is."""
        return {seen.value: (tp, seen.offset) for tp, log in self.logs.items() for seen in log}

    @cached_property
    def committed(self) -> frozenset[tuple[TopicPartition, int, bytes]]:
        """Every committed record. A value that was committed twice is here with both offsets."""
        return frozenset((tp, seen.offset, seen.value) for tp, log in self.logs.items() for seen in log)

    def is_visible(self, txn: Txn) -> bool:
        """Whether a part of it is committed."""
        return any(write.value in self.places for write in txn.writes)


class Draft:
    """A transaction while its client works on it. A client that is killed leaves it as it is."""

    def __init__(self, number: int, transactional_id: str, process: str) -> None:
        self.number = number
        self.transactional_id = transactional_id
        self.process = process
        self.writes: list[Write] = []
        self.reads: list[Read] = []
        self.moves: list[Move] = []
        self.ends: list[End] = []
        self.outcome = Outcome.ABORTED

    def freeze(self) -> Txn:
        return Txn(
            self.number,
            self.transactional_id,
            self.process,
            self.outcome,
            tuple(self.writes),
            tuple(self.reads),
            tuple(self.moves),
            tuple(self.ends),
        )


class Recorder:
    """Collects what clients report during a run."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._polls: dict[str, list[Poll]] = {}

    def begin(self, transactional_id: str, process: str) -> Draft:
        draft = Draft(len(self.drafts) + 1, transactional_id, process)
        self.drafts.append(draft)
        return draft

    def on_polled(self, reader: str, poll: Poll) -> None:
        self._polls.setdefault(reader, []).append(poll)

    def count(self, outcome: Outcome) -> int:
        return sum(draft.outcome is outcome for draft in self.drafts)

    def observations(
        self,
        logs: Mapping[TopicPartition, tuple[Seen, ...]],
        offsets: Mapping[tuple[str, TopicPartition], int],
    ) -> Observations:
        polls = {reader: tuple(polls) for reader, polls in self._polls.items()}
        return Observations(tuple(draft.freeze() for draft in self.drafts), polls, logs, offsets)
