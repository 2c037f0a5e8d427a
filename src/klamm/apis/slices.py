"""Steps of handlers that answer requests with very many elements in slices: other clients are served in between.

A handler builds its answer in a generator that pauses after `SLICE` elements, and passes it to `waiting.begin`: an
answer that fits into one slice is returned at once, as by a plain function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, Final, TypeVar

from klamm.protocol.chunked import of_chunks
from klamm.waiting import Steps

SLICE: Final = 100
"""Cheap elements that are answered in one slice: about half a millisecond."""
LOGS: Final = 10
"""The same for partitions whose logs are read: opening a log takes some tenths of a millisecond."""

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
P = TypeVar("P")


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


def each_taken(items: list[A], answer: Callable[[A], object], size: int = SLICE) -> Steps[None]:
    """Take the items out of the list from its end and call `answer` with each, `size` items per slice.

    A list that is freed at once with very many items would hold the loop: each one's count of references changes.
    """
    while items:
        some = items[-size:]
        del items[-size:]
        for item in reversed(some):
            answer(item)
        if items:
            yield


def each_partition(
    topics: Iterable[T],
    partitions: Callable[[T], Iterable[P]],
    answer: Callable[[T, P], A],
    gather: Callable[[T, Sequence[A]], B],
    size: int = SLICE,
) -> Steps[Sequence[B]]:
    """Return `gather(topic, answers of its partitions)` for each topic. A slice has `size` topics and partitions
    together.
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
