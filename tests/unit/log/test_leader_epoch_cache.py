"""The file of the leader epochs: written over while it grows, replaced where it shrinks, refused when it is torn."""

from __future__ import annotations

import pytest

from klamm.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from klamm.log.memory_files import MemoryFiles

DIRECTORY = "/data/t-0"


class Counting(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self.replaced = 0

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self.replaced += 1
        super().write_atomic(path, data, sync=sync)


def loaded(files: MemoryFiles) -> LeaderEpochCache:
    cache = LeaderEpochCache(files, DIRECTORY)
    cache.load()
    return cache


def test_a_file_that_grows_is_written_in_place() -> None:
    files = Counting()
    cache = loaded(files)
    cache.assign(0, 0)
    cache.assign(3, 10)
    assert files.replaced == 0
    assert loaded(files).entries == [EpochEntry(0, 0), EpochEntry(3, 10)]
    loaded(files).assign(4, 20)
    assert files.replaced == 0
    assert loaded(files).entries[-1] == EpochEntry(4, 20)


def test_a_file_that_shrinks_or_is_long_is_replaced() -> None:
    files = Counting()
    cache = loaded(files)
    for epoch in range(2):
        cache.assign(epoch, epoch * 10)
    cache.truncate_from_end(10)
    assert files.replaced == 1
    assert loaded(files).entries == [EpochEntry(0, 0)]
    for epoch in range(1, 1000):
        cache.assign(epoch, epoch * 10)
    assert files.replaced > 500
    assert loaded(files).entries == cache.entries


def test_a_file_that_was_not_read_is_replaced() -> None:
    files = Counting()
    loaded(files).assign(1, 100_000)
    LeaderEpochCache(files, DIRECTORY).assign(2, 5)
    assert files.replaced == 1
    assert loaded(files).entries == [EpochEntry(2, 5)]


@pytest.mark.parametrize("cut", [1, 2, 4, 9])
def test_a_torn_file_is_refused_and_replaced(cut: int) -> None:
    files = Counting()
    cache = loaded(files)
    cache.assign(0, 0)
    cache.assign(31, 1000)
    whole = files.read_bytes(cache.path)
    files.write_atomic(cache.path, whole[:-cut])
    files.replaced = 0
    again = LeaderEpochCache(files, DIRECTORY)
    assert not again.load() and again.entries == []
    again.assign(31, 1000)
    assert files.replaced == 1
    assert loaded(files).entries == [EpochEntry(31, 1000)]
