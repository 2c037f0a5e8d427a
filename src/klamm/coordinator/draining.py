"""Iteration over many objects that may be deleted meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def drained(items: Iterable[T]) -> Iterator[T]:
    """Yield the present items, and keep none of them afterwards.

    A list would keep all to its end. If they were deleted meanwhile, it would free thousands of them in one step.
    """
    left = deque(items)
    return (left.popleft() for _ in range(len(left)))
