"""A compacted log has the same last value for every key as before, for any records in any order."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.log import AppendOrigin, Log, LogConfig, append_as_leader
from klamm.protocol.record_batch import Record, build_batch, records
from tests.unit.log.harness import NOW, TP, Bench, marker, read_batches

CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=150,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)


def committed(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """The records that a read_committed consumer sees."""
    aborted = log.local.collect_aborted(0, 1 << 40)
    seen = []
    for batch in read_batches(log):
        hidden = any(
            t.producer_id == batch.producer_id and t.first_offset <= batch.base_offset < t.last_offset for t in aborted
        )
        if not batch.is_control and not (batch.is_transactional and hidden):
            seen += [(r.offset, r.key, r.value) for r in records(batch)]
    return seen


def table(rows: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, key, value in rows}


def write(rng: Random, log: Log, open_txns: dict[int, bool], sequences: dict[int, int], now_ms: int) -> None:
    producer_id = rng.choice((-1, 1, 2, 3))
    keys = [b"k%d" % rng.randrange(12) for _ in range(rng.randint(1, 4))]
    rows = [Record(timestamp=now_ms, key=k, value=rng.choice((None, rng.randbytes(rng.randrange(20))))) for k in keys]
    if producer_id in open_txns and rng.random() < 0.5:
        del open_txns[producer_id]
        data = marker(producer_id, 0, abort=rng.random() < 0.5)
        result = append_as_leader(log, data, 0, origin=AppendOrigin.COORDINATOR)
    else:
        transactional = producer_id >= 2
        sequence = sequences.get(producer_id, 0)
        if producer_id >= 0:
            sequences[producer_id] = sequence + len(rows)
        if transactional:
            open_txns[producer_id] = True
        data = build_batch(
            rows,
            compression=rng.randrange(5),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
            is_transactional=transactional,
        )
        result = append_as_leader(log, data, 0)
    assert result.error == 0, result


@example(25496907)  # a producer that aborted before the dirty part: its later tombstone was not taken into account
@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=120, deadline=None)
def test_compaction_keeps_the_table(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(CONFIG)
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    open_txns: dict[int, bool] = {}
    sequences: dict[int, int] = {}
    now_ms = NOW
    for _ in range(rng.randint(1, 6)):
        for _ in range(rng.randint(0, 25)):
            write(rng, log, open_txns, sequences, now_ms)
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        before, end, stable = committed(log), log.log_end_offset, log.last_stable_offset
        any(manager.passes.compaction(now_ms))
        after = committed(log)
        assert set(after) <= set(before), "nothing is invented or moved"
        lost = table(before).items() - table(after).items()
        assert all(value is None for _, (_, value) in lost), "only tombstones disappear"
        assert table(after).items() <= table(before).items()
        assert (log.log_end_offset, log.last_stable_offset) == (end, stable)
        if rng.random() < 0.3:
            manager.abandon()
            manager = bench.manager()
            log = manager.logs[TP]
            log.update_high_watermark(log.log_end_offset)
            assert committed(log) == after
            assert (log.log_end_offset, log.last_stable_offset) == (end, stable)
            for producer_id, next_sequence in sequences.items():
                assert log.producers.entries[producer_id].last_sequence == next_sequence - 1
        now_ms += rng.choice((0, 500, 2000))
