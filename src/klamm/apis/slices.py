"""Requests that name very many things, answered a slice at a time so that other clients are served in between.

A handler builds its answer in a generator that pauses after `SLICE` elements, and passes it to `begin`: an answer that
fits into one slice is returned at once, as by a plain function.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

SLICE: Final = 200
"""Cheap elements that are answered without giving the loop back: about a millisecond."""
LOGS: Final = 10
"""The same for partitions whose logs are looked into: to open one takes some tenths of a millisecond."""

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
P = TypeVar("P")
Steps = Generator[None, None, A]


def begin(steps: Steps[A]) -> A | Steps[A]:
    """The result if the first step is the only one, else the steps that are left."""
    try:
        next(steps)
    except StopIteration as done:
        result: A = done.value
        return result
    return steps


def each(items: Iterable[A], answer: Callable[[A], B], size: int = SLICE) -> Steps[list[B]]:
    """Return `answer(item)` for each item, `size` items per slice."""
    answers: list[B] = []
    for item in items:
        if answers and len(answers) % size == 0:
            yield
        answers.append(answer(item))
    return answers


def each_partition(
    topics: Iterable[T],
    partitions: Callable[[T], Iterable[P]],
    answer: Callable[[T, P], A],
    gather: Callable[[T, list[A]], B],
    size: int = SLICE,
) -> Steps[list[B]]:
    """Return `gather(topic, answers of its partitions)` for each topic; topics without partitions count too.

    A slice has `size` of them.
    """
    gathered: list[B] = []
    room = size
    for topic in topics:
        answers: list[A] = []
        for partition in partitions(topic):
            if room <= 0:
                yield
                room = size
            room -= 1
            answers.append(answer(topic, partition))
        room -= 1
        gathered.append(gather(topic, answers))
        if room <= 0:
            yield
            room = size
    return gathered
