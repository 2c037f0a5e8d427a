"""A start that trusts the record of complete logs finds what a start that opens every log finds."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.log import AppendOrigin, Log, LogConfig, LogManager
from klamm.log.memory_files import MemoryFiles
from klamm.log.names import LOG_SUMMARY
from klamm.model import TopicPartition
from tests.unit.log.harness import DIR, NOW, Bench, append, batch, marker, read_batches

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, file_delete_delay_ms=0)
PARTITIONS = [TopicPartition("orders", i) for i in range(4)]


def change(rng: Random, manager: LogManager, bench: Bench, epochs: dict[TopicPartition, int]) -> None:
    """One thing that happens to a log, or to all of them."""
    tp = rng.choice(PARTITIONS)
    log = manager.get_or_create_log(tp, is_new=True)
    log.update_high_watermark(log.log_end_offset)
    match rng.randrange(10):
        case 0:
            epochs[tp] = epochs.get(tp, 0) + rng.randint(1, 3)
            log.assign_epoch(epochs[tp], log.log_end_offset)
        case 1:
            log.flush()
        case 2:
            log.truncate_to(rng.randint(log.log_start_offset, log.log_end_offset))
        case 3:
            log.increment_log_start_offset(rng.randint(log.log_start_offset, log.log_end_offset))
        case 4:
            known = log.producers.entries.get(9)
            producer = (9, 0, known.last_sequence + 1 if known is not None else 0)
            append(log, batch(b"t" * rng.randint(1, 99), producer=producer, transactional=True), epochs.get(tp, 0))
        case 5:
            data = marker(9, 0, abort=rng.random() < 0.5)
            append(log, data, epochs.get(tp, 0), origin=AppendOrigin.COORDINATOR)
        case 6:
            list(manager.checkpoints.summary_pass())
            manager.checkpoints.write_recovery_points()
            manager.checkpoints.write_log_start_offsets()
        case 7:
            list(manager.passes.retention(NOW))
        case _:
            for _ in range(rng.randint(1, 8)):
                timestamp = NOW + rng.randint(-50, 50)
                append(log, batch(b"v" * rng.randint(1, 99), timestamp=timestamp), epochs.get(tp, 0))


def stopped(rng: Random, manager: LogManager, bench: Bench) -> MemoryFiles:
    kind = rng.randrange(3)
    if kind == 0:
        manager.shutdown({})
        return bench.files.after_kill()
    manager.abandon()
    return bench.files.after_kill() if kind == 1 else bench.files.crash(rng)


def facts(log: Log) -> tuple[object, ...]:
    """The offsets, size and latest epoch are asked for first: a log that is not open must not be opened for them."""
    known = (log.log_start_offset, log.log_end_offset, log.size_bytes, log.latest_epoch, log.contents.first_base_offset)
    last_stable_offset = log.update_high_watermark(log.log_end_offset), log.last_stable_offset
    ends = [log.end_offset_for_epoch(epoch) for epoch in range(12)]
    times = [log.offset_for_timestamp(NOW + i) for i in range(-50, 51, 10)], log.max_timestamp_offset()
    read = read_batches(log)
    producers = {p: (e.last_sequence, e.current_txn_first_offset) for p, e in log.producers.entries.items()}
    # Recovery does not see what producers wrote before the start of the log. A transaction that has only its marker
    # after the start has no record that a reader would have to skip.
    if log.log_start_offset > 0:
        producers = {}
    written = {(b.producer_id, b.base_offset) for b in read if not b.is_control}
    aborted = [
        (t.producer_id, t.last_offset)
        for t in log.local.collect_aborted(0, 1 << 40)
        if any(p == t.producer_id and t.first_offset <= offset < t.last_offset for p, offset in written)
    ]
    views = [bytes(b.view) for b in read]
    return known, last_stable_offset, ends, times, views, log.leader_epochs.entries, producers, aborted


@example(912)  # the file of the epochs knew of a later log start than the checkpoint
@example(29616)  # a truncation left the old index on the disk
@example(14292)  # recovery had written a transaction index that was not flushed
@example(721021)  # a run that was killed had deleted all records after the summary
@example(7673)  # a killed run had raised the log start, and a clean stop of the next one recorded the older epochs
@example(1075)  # only the marker of an aborted transaction was after the log start
@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=60, deadline=None)
def test_a_recorded_log_is_what_an_opened_one_is(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(CONFIG)
    epochs: dict[TopicPartition, int] = {}
    for _ in range(rng.randint(1, 4)):
        manager = bench.manager()
        for _ in range(rng.randint(0, 15)):
            change(rng, manager, bench, epochs)
        bench.files = stopped(rng, manager, bench)
    eager = Bench(CONFIG, bench.files.after_kill())
    eager.files.unlink(f"{DIR}/{LOG_SUMMARY}")
    expected = {tp: facts(log) for tp, log in eager.manager().logs.items()}
    lazy = bench.manager()
    assert {tp: facts(log) for tp, log in lazy.logs.items()} == expected
    assert not any(log.damages or log.lost_tail for log in lazy.logs.values())
