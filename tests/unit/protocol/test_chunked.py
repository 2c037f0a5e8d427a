"""Arrays in pieces: they read like lists, and what is held is freed a row at a time."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.chunked import (
    CHUNK,
    Chunked,
    ChunkedList,
    Held,
    SpreadDict,
    chunk_sizes,
    of_chunks,
    pieces,
    release,
)

LISTS = st.lists(st.lists(st.integers(), min_size=1, max_size=4), max_size=6)


@given(LISTS, st.integers(-30, 30), st.integers(-30, 30))
def test_an_array_of_lists_reads_like_one_list(lists: list[list[int]], start: int, stop: int) -> None:
    array, flat = Chunked(lists), [number for numbers in lists for number in numbers]
    assert len(array) == len(flat) and list(array) == flat and array == flat and flat == array
    assert array[start:stop] == flat[start:stop] and array[start:stop:-2] == flat[start:stop:-2]
    assert [array[index] for index in range(-len(flat), len(flat))] == flat + flat
    assert array != [*flat, 1] and array != [*flat[:-1], "x"]
    assert repr(array) == repr(flat) and list(reversed(array)) == flat[::-1]


def test_an_index_beyond_the_end_is_an_error() -> None:
    for index in (2, -3):
        with pytest.raises(IndexError):
            Chunked([[1], [2]])[index]


def test_an_array_grows_in_pieces() -> None:
    array: ChunkedList[int] = ChunkedList(range(3))
    for sizes in (CHUNK, 1, 3 * CHUNK):
        array.extend(range(sizes))
    array.append(9)
    assert list(array) == [*range(3), *range(CHUNK), 0, *range(3 * CHUNK), 9]
    assert {len(chunk) for chunk in array.chunks[:-1]} == {CHUNK}
    assert array[-1] == 9 and array[2:4] == [2, 0]


@pytest.mark.parametrize("count", [0, 1, CHUNK, CHUNK + 1, 5 * CHUNK])
def test_long_arrays_have_short_pieces(count: int) -> None:
    assert sum(chunk_sizes(count)) == count and max(chunk_sizes(count)) <= CHUNK and len(chunk_sizes(count)) >= 1
    numbers = list(range(count))
    for array in (numbers, ChunkedList(numbers), tuple(numbers)):
        found = list(pieces(array))
        assert [number for piece in found for number in piece] == numbers
        assert max(map(len, found), default=0) <= CHUNK
    assert list(accumulate(len(chunk) for chunk in ChunkedList(numbers).chunks)) == ChunkedList(numbers)._ends


def test_a_single_list_stays_what_it_is() -> None:
    only = [1, 2]
    assert of_chunks([only]) is only
    assert of_chunks([only, []]) == only == of_chunks([[], only])


class Element:
    """Something whose end can be noticed."""


def test_held_rows_are_freed_one_at_a_time_and_the_outer_array_first() -> None:
    inner = [[Element() for _ in range(3)] for _ in range(2)]
    alive = [weakref.ref(element) for elements in inner for element in elements]
    outer = [Chunked([elements]) for elements in inner]
    held: Held = [[outer], [inner[0]], [inner[1]]]
    message = outer
    del inner, outer, message
    counts = [sum(ref() is not None for ref in alive)]
    for _ in release(held):
        counts.append(sum(ref() is not None for ref in alive))
    assert counts == [6, 6, 3, 0]


def test_elements_that_are_used_elsewhere_stay() -> None:
    elements = [Element(), Element()]
    kept = Chunked([elements])
    held: Held = [[elements]]
    del elements
    for _ in release(held):
        pass
    assert len(kept) == 2 and all(isinstance(element, Element) for element in kept)


def test_a_dictionary_of_very_many_keys_has_short_parts() -> None:
    spread: SpreadDict[str, int] = SpreadDict()
    for number in range(100_000):
        assert spread.setdefault(f"k{number}", number) == number
        assert spread.setdefault(f"k{number}", -1) == number
    assert sorted(spread.items()) == sorted((f"k{number}", number) for number in range(100_000))
    assert max(map(len, spread.dicts)) < 5 * CHUNK
    assert len(SpreadDict[str, int]().dicts) == 1


def test_a_dictionary_of_very_many_keys_is_a_dictionary() -> None:
    plain: dict[int, int] = {}
    spread: SpreadDict[int, int] = SpreadDict()
    for number in range(3 * CHUNK):
        for dictionary in (plain, spread):
            dictionary[number] = number
            dictionary[number % 7] = -number
            if number % 3 == 0:
                assert dictionary.pop(number // 2, None) is not None or number // 2 % 3 == 0
    for number in range(3 * CHUNK):
        assert (number in spread, spread.get(number)) == (number in plain, plain.get(number))
    assert len(spread) == len(plain) and dict(spread.items()) == plain == {key: spread[key] for key in spread}
    taken = [spread.popitem() for _ in range(len(spread))]
    assert dict(taken) == plain and len(spread) == 0 and not spread
    with pytest.raises(KeyError):
        spread.popitem()
    with pytest.raises(KeyError):
        del spread[1]
    spread[1] = 2
    assert list(spread.items()) == [(1, 2)]


def test_steps_among_the_rows_are_taken() -> None:
    taken: list[int] = []

    def steps() -> Generator[None, None, None]:
        for number in range(3):
            taken.append(number)
            yield

    held: Held = [steps(), [1]]
    assert len(list(release(held))) == 5 and taken == [0, 1, 2] and not held
