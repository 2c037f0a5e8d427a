"""A truncation leaves the producers in the state that the remaining batches give."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, Log, LogConfig, names
from klamm.log.memory_files import MemoryFiles
from klamm.log.producer_history import MAX_CHANGES, MAX_OLD_CHANGES
from klamm.log.producer_state import ProducerStateManager
from tests.unit.log.harness import NOW, TP, Bench, append, batch, marker, read_batches

CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=150, file_delete_delay_ms=0)


class Producer:
    """A client that continues behind the state that its log has of it."""

    def __init__(self, producer_id: int) -> None:
        self.id = producer_id
        self.epoch = 0

    def write(self, rng: Random, log: Log) -> None:
        entry = log.producers.entries.get(self.id)
        if entry is not None:
            self.epoch = max(self.epoch, entry.producer_epoch)
        has_open = entry is not None and entry.current_txn_first_offset is not None
        if rng.random() < 0.05 and not has_open:
            self.epoch += 1
        if rng.random() < (0.4 if has_open else 0.05):
            append(log, marker(self.id, self.epoch, abort=rng.random() < 0.5), origin=AppendOrigin.COORDINATOR)
            return
        sequence = entry.last_sequence + 1 if entry is not None and entry.producer_epoch == self.epoch else 0
        values = [b"v"] * rng.randint(1, 3)
        is_transactional = has_open or rng.random() < 0.4
        producer = self.id, self.epoch, sequence
        append(log, batch(*values, timestamp=timestamp(rng), producer=producer, transactional=is_transactional))


def timestamp(rng: Random) -> int:
    return NOW + rng.randint(0, 50)


def state(producers: ProducerStateManager, *, has_all_batches: bool) -> dict[int, tuple[object, ...]]:
    """A snapshot has one batch of each producer, with the time of its last marker if that is newer."""
    return {
        entry.producer_id: (
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.last_timestamp,
            entry.current_txn_first_offset,
            entry.batches if has_all_batches else [batch[:3] for batch in entry.batches[-1:]],
        )
        for entry in producers.entries.values()
    }


def read_again(log: Log) -> ProducerStateManager:
    """The state after all batches of the log, without snapshots."""
    producers = ProducerStateManager()
    for found in read_batches(log, 0):
        if found.producer_id >= 0:
            producers.update(found)
    producers.on_high_watermark(log.high_watermark)
    return producers


def cuts(rng: Random, log: Log, producers: list[Producer]) -> Iterator[bool]:
    """Write, replicate and truncate; yield after each truncation whether it cut only what was not replicated."""
    for _ in range(rng.randint(1, 6)):
        for _ in range(rng.randint(1, 40)):
            if rng.random() < 0.2:
                append(log, batch(b"plain", timestamp=timestamp(rng)))
            else:
                rng.choice(producers).write(rng, log)
            if rng.random() < 0.3:
                log.update_high_watermark(rng.randint(log.high_watermark, log.log_end_offset))
        is_above = rng.random() < 0.8
        target = rng.randint(log.high_watermark if is_above else 0, log.log_end_offset)
        was_above = target >= log.high_watermark
        log.truncate_to(target)
        yield was_above


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=200, deadline=None)
def test_a_truncation_undoes_the_batches_that_it_cuts(seed: int) -> None:
    rng = Random(seed)
    log = Bench(CONFIG).open()
    producers = [Producer(id_) for id_ in range(rng.randint(1, 4))]
    remembers_all = True
    for was_above in cuts(rng, log, producers):
        remembers_all &= was_above
        expected = read_again(log)
        assert state(log.producers, has_all_batches=remembers_all) == state(expected, has_all_batches=remembers_all)
        assert log.producers.first_unstable_offset == expected.first_unstable_offset
        newest = max((b.max_timestamp for b in read_batches(log, log.segments.active.base_offset)), default=-1)
        assert log.segments.active.max_timestamp_so_far().timestamp == newest
        assert all(offset <= log.log_end_offset for offset in log.local.snapshots.offsets)


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=200, deadline=None)
def test_a_truncation_of_a_recovered_log_undoes_the_batches_that_it_cuts(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(CONFIG)
    log = bench.open()
    producers = [Producer(id_) for id_ in range(rng.randint(1, 4))]
    for _ in cuts(rng, log, producers):
        pass
    log = bench.open(high_watermark=log.high_watermark)
    for _ in cuts(rng, log, producers):
        assert state(log.producers, has_all_batches=False) == state(read_again(log), has_all_batches=False)


def out_of_files(after: int) -> Callable[[str, str], None]:
    """A fault of the files: the limit of open files is reached after some of them were opened."""
    opened = count()

    def fault(operation: str, path: str) -> None:
        if operation in ("open", "write", "read", "fsync") and next(opened) >= after:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    return fault


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=200, deadline=None)
def test_a_truncation_that_finds_no_file_half_way_is_completed_later(seed: int) -> None:
    """Also in a log whose segments have few snapshots, because they were recovered."""
    rng = Random(seed)
    bench = Bench(replace(CONFIG, segment_bytes=rng.choice((800, 2_000))))
    log = bench.open()
    producers = [Producer(id_) for id_ in range(rng.randint(1, 4))]
    for _ in range(rng.randint(1, 5)):
        for _ in range(rng.randint(1, 40)):
            rng.choice(producers).write(rng, log)
        if rng.random() < 0.5:
            log = bench.open(high_watermark=log.high_watermark)
        log.update_high_watermark(rng.randint(log.high_watermark, log.log_end_offset))
        for segment in log.segments:
            if rng.random() < 0.7:
                segment.release()
        target = rng.randint(0, log.log_end_offset)
        bench.files.fault = out_of_files(rng.randint(0, 12))
        error = log.truncate_to(target)
        bench.files.fault = None
        if error and rng.random() < 0.5:
            assert log.truncate_to(target) is ErrorCode.NONE
        assert log.is_usable()
        log.update_high_watermark(log.log_end_offset)  # A snapshot has no transactions whose end is not replicated.
        expected = read_again(log)
        assert state(log.producers, has_all_batches=False) == state(expected, has_all_batches=False)
        assert log.producers.first_unstable_offset == expected.first_unstable_offset


def test_a_cut_of_few_batches_reads_few() -> None:
    reads: list[str] = []
    bench = Bench(
        LogConfig(), MemoryFiles(lambda operation, path: reads.append(path) if operation == "pread" else None)
    )
    log = bench.open()
    for number in range(3_000):
        append(log, batch(b"v" * 5_000, producer=(7, 0, number)))
        log.update_high_watermark(number - 5)
    reads.clear()
    log.truncate_to(log.high_watermark)
    assert log.producers.entries[7].last_sequence == log.high_watermark - 1
    few = len(reads)
    log.truncate_to(2_000)  # The batches after it had been replicated, so what they changed is forgotten.
    assert log.producers.entries[7].last_sequence == 1_999
    assert few < (len(reads) - few) / 3


def recovered_with(bench: Bench, high_watermark: int | None) -> Log:
    """A log of 3,000 batches after a kill, with a checkpoint of its high watermark."""
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for number in range(3_000):
        append(log, batch(b"v" * 5_000, producer=(7, 0, number)))
    if high_watermark is not None:
        manager.checkpoints.write_high_watermarks({TP: high_watermark})
    manager.abandon()
    log = bench.manager().logs[TP]
    assert log.is_open and log.log_end_offset == 3_000
    return log


def test_a_recovered_log_is_cut_without_reading_its_active_segment_again() -> None:
    """As after the kill of a leader whose newest batches were not replicated."""
    reads: list[str] = []
    bench = Bench(
        LogConfig(), MemoryFiles(lambda operation, path: reads.append(path) if operation == "pread" else None)
    )
    log = recovered_with(bench, high_watermark=2_490)
    reads.clear()
    log.truncate_to(2_500)
    few = len(reads)
    assert log.producers.entries[7].last_sequence == 2_499
    log.truncate_to(2_400)  # It had been replicated, so what it changed is not remembered.
    assert log.producers.entries[7].last_sequence == 2_399
    assert few < (len(reads) - few) / 3


def test_a_recovered_log_remembers_what_is_not_known_to_be_replicated() -> None:
    """Very many logs can be recovered after a kill."""
    for high_watermark, remembered in ((2_990, 10), (2_490, 510), (0, MAX_CHANGES), (None, MAX_OLD_CHANGES)):
        producers = recovered_with(Bench(LogConfig()), high_watermark).producers
        assert not producers.truncate_to(2_999 - remembered)
        assert producers.truncate_to(3_000 - remembered)


def test_a_log_remembers_few_changes_while_followers_lag() -> None:
    log = Bench().open()
    for number in range(MAX_CHANGES + 500):
        append(log, batch(b"v", producer=(7, 0, number)))
    assert not log.producers.truncate_to(499)
    assert log.producers.truncate_to(600)
    assert log.producers.entries[7].last_sequence == 599


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_an_idle_log_remembers_no_change_that_is_replicated(is_opened_again: bool) -> None:
    """A follower that catches up gets many batches at once, in very many logs."""
    bench = Bench()
    log = bench.open()
    for number in range(100):
        append(log, batch(b"v", producer=(7, 0, number)))
    if is_opened_again:
        log = bench.open()
    log.update_high_watermark(70)
    assert len(log.producers.history) == 30
    assert not log.producers.truncate_to(69) and log.producers.truncate_to(70)
    append(log, batch(b"v", producer=(7, 0, 70)))
    log.update_high_watermark(log.log_end_offset)
    assert len(log.producers.history) == 0
    assert log.truncate_to(40) is ErrorCode.NONE
    assert log.producers.entries[7].last_sequence == 39


def test_a_log_that_is_opened_remembers_few_changes() -> None:
    bench = Bench()
    log = bench.open()
    for number in range(MAX_OLD_CHANGES + 10):
        append(log, batch(b"v", producer=(7, 0, number)))
    again = bench.open()  # without a known high watermark
    assert len(again.producers.history) == MAX_OLD_CHANGES
    assert not again.producers.truncate_to(9)
    assert again.producers.truncate_to(20)
    assert again.producers.entries[7].last_sequence == 19


def test_a_log_that_is_opened_later_remembers_no_change_that_is_replicated() -> None:
    bench = Bench()
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for number in range(20):
        append(log, batch(b"v", producer=(7, 0, number)))
    manager.shutdown({TP: 15})
    log = bench.manager().logs[TP]
    bench.files.unlink(f"{log.dir}/{names.file_name(20, names.SNAPSHOT)}")
    log.update_high_watermark(15)
    assert not log.is_open and len(log.producers.history) == 5


def test_a_log_that_starts_over_has_no_producers() -> None:
    log = Bench().open()
    append(log, batch(b"v", producer=(7, 0, 0), transactional=True))
    log.truncate_fully_and_start_at(100)
    assert not log.producers.entries
    assert log.producers.first_unstable_offset is None
    append(log, batch(b"v", producer=(7, 0, 5)))
    log.truncate_to(100)
    assert not log.producers.entries
