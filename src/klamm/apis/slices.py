"""Answers requests with very many elements in slices, so that other clients are served in between.

A handler builds its answer in a generator that pauses after `SLICE` elements, and passes it to `begin`: an answer that
fits into one slice is returned at once, as by a plain function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from types import GeneratorType
from typing import Any, Final, TypeVar

from klamm.protocol.chunked import of_chunks
from klamm.waiting import after

SLICE: Final = 100
"""Cheap elements that are answered in one slice: about half a millisecond."""
LOGS: Final = 10
"""The same for partitions whose logs are read: opening a log takes some tenths of a millisecond."""

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
P = TypeVar("P")
Steps = Generator[None, None, A]


def begin(steps: Steps[A]) -> A | Steps[A]:
    """Return the result if the first step is the only one, else the remaining steps."""
    try:
        next(steps)
    except StopIteration as done:
        result: A = done.value
        return result
    return steps


def after_in_slices(first: A | asyncio.Future[A], answer: Callable[[A], Steps[B]]) -> Steps[Any]:
    """Continue with a result that may come later, as `after` does, with an answer that is built in slices."""
    if isinstance(first, asyncio.Future):
        return after(first, lambda result: begin(answer(result)))
    return (yield from answer(first))


def finished(answer: Any) -> Steps[Any]:
    """Run the steps of an answer that is built in slices: the steps of a handler must not return further steps."""
    return (yield from answer) if isinstance(answer, GeneratorType) else answer


def are_few(topics: Sequence[Any], most: int) -> bool:
    """Return whether topics with `partitions` fit into one slice of `most`, so that they need no generator."""
    room = most - len(topics)
    if room < 0:
        return False
    for topic in topics:
        room -= len(topic.partitions)
    return room >= 0


def pause(items: Sized) -> Steps[None]:
    """End the slice if there are many items: the next step looks at all of them, or copies them."""
    if len(items) > SLICE:
        yield


def each(items: Iterable[A], answer: Callable[[A], B], size: int = SLICE) -> Steps[Sequence[B]]:
    """Return `answer(item)` for each item, `size` items per slice."""
    answers: list[B] = []
    chunks = [answers]
    room = size
    for item in items:
        if room <= 0:
            yield
            room = size
            answers = _next_chunk(chunks)
        room -= 1
        answers.append(answer(item))
    return of_chunks(chunks)


def each_partition(
    topics: Iterable[T],
    partitions: Callable[[T], Iterable[P]],
    answer: Callable[[T, P], A],
    gather: Callable[[T, Sequence[A]], B],
    size: int = SLICE,
) -> Steps[Sequence[B]]:
    """Return `gather(topic, answers of its partitions)` for each topic; topics without partitions count too.

    A slice has `size` of them.
    """
    gathered: list[B] = []
    all_gathered = [gathered]
    room = size
    for topic in topics:
        answers: list[A] = []
        chunks = [answers]
        for partition in partitions(topic):
            if room <= 0:
                yield
                room = size
                answers = _next_chunk(chunks)
            room -= 1
            answers.append(answer(topic, partition))
        room -= 1
        gathered.append(gather(topic, of_chunks(chunks)))
        if room <= 0:
            yield
            room = size
            gathered = _next_chunk(all_gathered)
    return of_chunks(all_gathered)


def _next_chunk(chunks: list[list[A]]) -> list[A]:
    """Return the list for the next elements: a new one if the last is long enough."""
    if len(chunks[-1]) >= SLICE:
        chunks.append([])
    return chunks[-1]
