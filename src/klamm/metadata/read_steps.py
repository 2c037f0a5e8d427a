"""Rules that read ZooKeeper without doing I/O: generators of reads, driven by the server and by the simulator."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from klamm.lazy_dataclass import lazy_dataclass
from klamm.zk.model.ops import ReadOp, ReadResult


@lazy_dataclass(frozen=True, slots=True)
class Reads:
    """Answered with one result per operation, None where the znode does not exist.

    An operation is carried out after the answer to the one before it, except that data of many znodes is read in bulk.
    """

    ops: tuple[ReadOp, ...]


@lazy_dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step: a ZooKeeper server that lags reports nothing when it has caught up."""

    seconds: float


Answers: TypeAlias = tuple[ReadResult | None, ...]
T = TypeVar("T")
ReadSteps: TypeAlias = Generator[Reads | Pause, Answers, T]
"""A rule that yields reads and pauses, and ends with a T. A pause is answered with an empty tuple."""
