"""The file of the leader epochs: written over where an entry is added, else replaced, refused when it is torn."""

from __future__ import annotations

import pytest

from klamm.log import LogConfig
from klamm.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from klamm.log.memory_files import MemoryFiles
from tests.unit.log.harness import Bench, append, batch, close

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


@pytest.mark.parametrize("entry", [b"2147483648 5", b"0 9223372036854775808", b"-1 0", b"0 -1"])
def test_a_file_with_numbers_that_no_request_can_carry_is_not_used(entry: bytes) -> None:
    files = MemoryFiles()
    files.write_atomic(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n1\n" + entry + b"\n")
    assert loaded(files).entries == []


@pytest.mark.parametrize("content", [bytes(range(128, 256)), b"0\n1\n0 " + bytes(range(128, 256))])
def test_a_warning_about_a_binary_file_is_short(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    files.write_atomic(f"{DIRECTORY}/leader-epoch-checkpoint", content.replace(b"\x85", b"") + b"\n")
    assert loaded(files).entries == []
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.isascii() and len(warning) < 700


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


def test_of_a_page_that_was_half_written_nothing_wrong_is_believed() -> None:
    """Sectors of 512 bytes, old and new ones in any mixture, and a length that was noted before the bytes were."""
    files = MemoryFiles()
    cache = loaded(files)
    known: dict[bytes, list[EpochEntry]] = {}
    old = b""
    for epoch in range(1, 150):
        cache.assign(epoch, 995 + epoch * 137)
        new = files.read_bytes(cache.path)
        known[new] = list(cache.entries)
        for wrong in torn(old, new):
            files.write_atomic("/elsewhere/leader-epoch-checkpoint", wrong)
            other = LeaderEpochCache(files, "/elsewhere")
            if other.load():
                assert other.entries in (known.get(old), known[new]), (epoch, wrong)
        old = new


def torn(old: bytes, new: bytes) -> list[bytes]:
    grown = old + bytes(len(new) - len(old))
    cuts = range(512, len(new), 512)
    return [grown, *(new[:cut] + grown[cut:] for cut in cuts), *(grown[:cut] + new[cut:] for cut in cuts)]


def test_only_one_more_entry_is_written_in_place() -> None:
    files = Counting()
    cache = loaded(files)
    cache.assign(1, 995)
    cache.assign(2, 2000)
    cache.truncate_from_start(1100)
    assert files.replaced == 1
    assert loaded(files).entries == [EpochEntry(1, 1100), EpochEntry(2, 2000)]


def test_entries_that_do_not_rise_are_refused() -> None:
    files = MemoryFiles()
    files.write_atomic(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n2\n1 100\n2 90\n")
    assert not LeaderEpochCache(files, DIRECTORY).load()


def test_held_changes_are_written_once_at_the_end() -> None:
    files = Counting()
    cache = LeaderEpochCache(files, DIRECTORY)
    assert not cache.load(exists=False)
    with cache.held():
        cache.assign(1, 0)
        cache.assign(2, 10)
        assert not files.exists(cache.path)
    assert files.replaced == 1
    assert loaded(files).entries == [EpochEntry(1, 0), EpochEntry(2, 10)]
    with cache.held():
        pass
    assert files.replaced == 1


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


class Killed(BaseException):
    """The process ends here."""


def test_a_start_that_is_killed_while_it_collects_the_epochs_leaves_no_part_of_them() -> None:
    bench = Bench(LogConfig(segment_bytes=150))
    log = bench.open()
    for epoch in range(1, 6):
        append(log, batch(b"x" * 40), epoch)
    expected, end = log.leader_epochs.entries, log.log_end_offset
    assert len(expected) == 5
    close(log)
    bench.files.unlink(log.leader_epochs.path)
    for operations in range(1000):
        files = bench.files.after_kill()
        was_killed = open_until(files, operations, end)
        again = Bench(bench.config, files.after_kill()).open(recovery_point=end)
        assert again.leader_epochs.entries == expected, operations
        if not was_killed:
            return
    raise AssertionError("a start took more than 1000 operations")


def open_until(files: MemoryFiles, operations: int, recovery_point: int) -> bool:
    """Opens the log of `files`; True when that took more operations than there may be, and the process was killed."""
    left = iter(range(operations))

    def fault(operation: str, path: str) -> int | None:
        if next(left, None) is None:
            raise Killed
        return None

    files.fault = fault
    try:
        Bench(LogConfig(segment_bytes=150), files).open(recovery_point=recovery_point)
    except Killed:
        return True
    finally:
        files.fault = None
    return False
