"""Long arrays in pieces, so that the memory of a large message is freed piece by piece (docs/adr/0016).

Freeing a list of 100,000 structs takes ten milliseconds, and the garbage collector visits all references of a young
list in one pass. A `Chunked` array is a sequence of short lists. Code that keeps references to these lists until the
message is no longer used, and then drops one list after the other, frees the message in steps. Other users of the array
or of its elements are not affected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, MutableMapping, Sequence
from itertools import accumulate, chain
from mmap import mmap
from types import GeneratorType
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
CHUNK: Final = 1000
"""Elements of one list. Freeing it takes some tenths of a millisecond."""
DICTS: Final = 64
"""Parts of a `SpreadDict`: at a million keys, one of them grows in half a millisecond."""
Held = list[Any]
"""Rows of objects to free, one row per step.

Lists of a message that is decoded or encoded in slices have one row per slice, in the order in which they were begun:
an array comes before the arrays inside its elements, so dropping the rows in this order frees little memory per step. A
row may also be a dictionary or a set, which is emptied, the pages of a very large frame, or a generator of steps.
"""
FREED_BYTES: Final = 8 << 20
"""Pages that are freed in one step: about half a millisecond."""


class Chunked(Sequence[T]):
    """An array that does not change, made of lists (or tuples) that are not empty."""

    __slots__ = ("_ends", "chunks")

    def __init__(self, chunks: Sequence[Sequence[T]]) -> None:
        self.chunks = chunks
        self._ends = list(accumulate(map(len, chunks)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.chunks)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._between(start, stop)
            return [self[number] for number in range(start, stop, step)]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"element {index} of {len(self)}")
        chunk = bisect_right(self._ends, number)
        return self.chunks[chunk][number - self._ends[chunk]]

    def _between(self, start: int, stop: int) -> list[T]:
        found: list[T] = []
        chunk = bisect_right(self._ends, start)
        while start < stop:
            first = self._ends[chunk] - len(self.chunks[chunk])
            found += self.chunks[chunk][start - first : stop - first]
            start = self._ends[chunk]
            chunk += 1
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class ChunkedList(Chunked[T]):
    """A long array that grows at its end."""

    __slots__ = ("_last",)

    def __init__(self, elements: Iterable[T] = ()) -> None:
        self._last: list[T] = []
        super().__init__([])
        self.extend(elements)

    def append(self, element: T) -> None:
        self.extend((element,))

    def extend(self, elements: Iterable[T]) -> None:
        ends, chunks = self._ends, self.chunks
        assert isinstance(chunks, list)
        for element in elements:
            if len(self._last) >= CHUNK or not chunks:
                self._last = []
                chunks.append(self._last)
                ends.append(ends[-1] if ends else 0)
            self._last.append(element)
            ends[-1] += 1


class SpreadDict(MutableMapping[H, T]):
    """A dictionary for very many keys, in no order. A large one that grows moves all its keys in one step of 3 ms."""

    __slots__ = ("_size", "dicts")

    def __init__(self, items: Iterable[tuple[H, T]] = ()) -> None:
        whole = dict(items)
        self.dicts: list[dict[H, T]] = [whole]
        self._size = len(whole)
        if len(whole) > CHUNK:
            self._spread()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[H]:
        return chain.from_iterable(self.dicts)

    def __contains__(self, key: object) -> bool:
        return key in self._own(key)

    def __getitem__(self, key: H) -> T:
        return self._own(key)[key]

    def __setitem__(self, key: H, value: T) -> None:
        own = self._own(key)
        before = len(own)
        own[key] = value
        self._count(own, before)

    def __delitem__(self, key: H) -> None:
        del self._own(key)[key]
        self._size -= 1

    def setdefault(self, key: H, default: T) -> T:
        own = self._own(key)
        before = len(own)
        found = own.setdefault(key, default)
        self._count(own, before)
        return found

    def popitem(self) -> tuple[H, T]:
        item = next((own for own in self.dicts if own), self.dicts[0]).popitem()
        self._size -= 1
        return item

    def items(self) -> Iterator[tuple[H, T]]:  # type: ignore[override]
        return chain.from_iterable(own.items() for own in self.dicts)

    def parts(self) -> Iterator[list[H]]:
        """Return the keys in lists of some thousands at most. Between two lists, the dictionary may change."""
        for own in self.dicts:
            yield list(own)

    def _own(self, key: object) -> dict[H, T]:
        return self.dicts[hash(key) % len(self.dicts)]

    def _count(self, own: dict[H, T], before: int) -> None:
        self._size += len(own) - before
        if len(own) > CHUNK and len(self.dicts) == 1:
            self._spread()

    def _spread(self) -> None:
        whole = self.dicts[0]
        dicts: list[dict[H, T]] = [{} for _ in range(DICTS)]
        for key, value in whole.items():
            dicts[hash(key) % DICTS][key] = value
        self.dicts = dicts


def of_chunks(chunks: Sequence[Sequence[T]]) -> Sequence[T]:
    """The elements of some lists as one array. A single list is returned as it is."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunked([chunk for chunk in chunks if chunk])


def concatenated(*arrays: Sequence[T]) -> Sequence[T]:
    """The elements of some arrays as one array."""
    return of_chunks([chunk for array in arrays for chunk in pieces(array)])


def chunk_sizes(count: int) -> list[int]:
    """The sizes of the lists of a decoded array; one for an empty array."""
    whole, rest = divmod(count, CHUNK)
    return [CHUNK] * whole + ([rest] if rest or not whole else [])


def pieces(array: Sequence[T]) -> Iterable[Sequence[T]]:
    """The elements of an array as short lists: its own lists, or copies of parts of a long list."""
    if isinstance(array, Chunked):
        return array.chunks
    if len(array) <= CHUNK:
        return (array,)
    return (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def rows_of(collection: Collection[Any]) -> list[Any]:
    """A collection as rows to hold. A dictionary or a set must not be used by others: it is emptied."""
    if isinstance(collection, Sequence):
        return list(pieces(collection))
    return [collection]


def release(held: Held) -> Generator[None, None, None]:
    """Drop the held rows one at a time, the first row first."""
    held.reverse()
    while held:
        row = held.pop()
        if isinstance(row, dict | set):
            yield from _emptied(row)
        elif isinstance(row, mmap):
            yield from unmapped(row)
        elif isinstance(row, GeneratorType):
            yield from row
        del row
        yield


def _emptied(row: dict[Any, Any] | set[Any]) -> Generator[None, None, None]:
    take = row.popitem if isinstance(row, dict) else row.pop
    while len(row) > CHUNK:
        for _ in range(CHUNK):
            take()
        yield


def unmapped(frame: mmap) -> Generator[None, None, None]:
    """Return the pages of a frame to the system, last pages first, unless a part of the frame is still in use."""
    try:
        while len(frame) > FREED_BYTES:
            frame.resize(len(frame) - FREED_BYTES)
            yield
    except BufferError:
        return
