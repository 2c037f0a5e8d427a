"""Idempotent and transactional producers: duplicates, gaps, epochs, markers, the last stable offset, snapshots."""

from __future__ import annotations

import pytest

from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, LogConfig, ReadResult, append_as_leader
from klamm.log.producer_entry import BatchMetadata, ProducerStateEntry
from klamm.log.producer_snapshots import CorruptSnapshotError, decode_snapshot, encode_snapshot
from klamm.log.producer_state import MAX_PRODUCERS
from klamm.log.transaction_index import AbortedTxn
from tests.unit.log.harness import NOW, Bench, append, batch, close, end_txn, marker

SMALL = LogConfig(segment_bytes=1000)
INT32_MAX = 0x7FFFFFFF


def test_a_duplicate_is_answered_with_the_original_offset() -> None:
    log = Bench().open()
    for i in range(8):
        append(log, batch(b"a", b"b", producer=(7, 0, 2 * i), timestamp=NOW + i))
    for i in range(3, 8):
        result = append(log, batch(b"a", b"b", producer=(7, 0, 2 * i), timestamp=NOW + i))
        assert (result.base_offset, result.last_offset, result.is_duplicate) == (2 * i, 2 * i + 1, True)
        assert result.log_append_time_ms == NOW + i + 1
    assert log.log_end_offset == 16
    old = append_as_leader(log, batch(b"a", b"b", producer=(7, 0, 4)), 0)
    assert old.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "only five batches are remembered"


def test_gaps_and_repeats_of_another_size() -> None:
    log = Bench().open()
    append(log, batch(b"a", b"b", producer=(7, 0, 0)))
    for sequence in (0, 1, 3):
        result = append_as_leader(log, batch(b"a", producer=(7, 0, sequence)), 0)
        assert result.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, batch(b"c", producer=(7, 0, 2))).base_offset == 2


def test_epochs_of_a_producer() -> None:
    log = Bench().open()
    append(log, batch(b"a", producer=(7, 3, 0)))
    assert append_as_leader(log, batch(b"a", producer=(7, 2, 1)), 0).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert append_as_leader(log, batch(b"a", producer=(7, 4, 1)), 0).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, batch(b"a", producer=(7, 4, 0)))
    assert log.producers.entries[7].producer_epoch == 4


def test_a_log_remembers_the_producers_that_wrote_last() -> None:
    log = Bench().open()
    append(log, batch(b"a", producer=(1, 0, 0), transactional=True))
    append(log, batch(b"a", producer=(2, 0, 0)))
    append(log, batch(b"a", producer=(3, 0, 0)))
    for producer_id in range(4, MAX_PRODUCERS + 1):
        append(log, batch(b"a", producer=(producer_id, 0, 0)))
    append(log, batch(b"b", producer=(2, 0, 1)))
    assert len(log.producers.entries) == MAX_PRODUCERS
    for producer_id in range(MAX_PRODUCERS + 1, MAX_PRODUCERS + 11):
        append(log, batch(b"a", producer=(producer_id, 0, 0)))
    kept = log.producers.entries
    assert len(kept) <= MAX_PRODUCERS + 1, "new ids cannot fill the memory"
    assert 1 in kept, "its transaction is open"
    assert 2 in kept and 3 not in kept
    assert append(log, batch(b"b", producer=(2, 0, 1))).is_duplicate
    append(log, batch(b"c", producer=(3, 0, 1)))


def test_an_unknown_producer_may_start_anywhere() -> None:
    log = Bench().open()
    assert append(log, batch(b"a", producer=(7, 2, 4711))).base_offset == 0
    assert append(log, batch(b"a", producer=(7, 2, 4712))).base_offset == 1


def test_sequences_wrap_around() -> None:
    log = Bench().open()
    append(log, batch(b"a", b"b", producer=(7, 0, INT32_MAX - 1)))
    append(log, batch(b"c", b"d", producer=(7, 0, 0)))
    log = Bench().open()
    append(log, batch(b"a", b"b", b"c", producer=(7, 0, INT32_MAX)))
    assert append(log, batch(b"a", b"b", b"c", producer=(7, 0, INT32_MAX))).is_duplicate
    append(log, batch(b"d", producer=(7, 0, 2)))


def test_the_coordinator_writes_without_sequences() -> None:
    log = Bench().open()
    append(log, batch(b"a", producer=(7, 0, 5)), origin=AppendOrigin.COORDINATOR)
    append(log, batch(b"a", producer=(7, 0, 50)), origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("clean", [True, False])
def test_state_survives_a_restart(clean: bool) -> None:
    bench = Bench(SMALL)
    log = bench.open()
    for i in range(40):
        append(log, batch(b"a", b"b", producer=(7 + i % 3, 1, i // 3 * 2)))
    if clean:
        close(log)
    again = bench.open(clean=clean, recovery_point=log.recovery_point)
    assert set(again.producers.entries) == {7, 8, 9}
    for producer_id, entry in log.producers.entries.items():
        restored = again.producers.entries[producer_id]
        assert (restored.producer_epoch, restored.batches[-1]) == (entry.producer_epoch, entry.batches[-1])
    assert append(again, batch(b"a", b"b", producer=(7, 1, 26))).is_duplicate
    assert append(again, batch(b"x", producer=(7, 1, 28))).base_offset == 80


def test_producers_expire() -> None:
    bench = Bench()
    log = bench.open()
    append(log, batch(b"a", producer=(7, 0, 0), timestamp=NOW))
    append(log, batch(b"a", producer=(8, 0, 0), timestamp=NOW + 1000))
    append(log, batch(b"a", producer=(9, 0, 0), timestamp=NOW - 999_999_999, transactional=True))
    log.producers.remove_expired(NOW + 86_400_000)
    assert set(log.producers.entries) == {8, 9}, "an open transaction keeps its producer"
    close(log)
    bench.clock.ms = NOW + 2000 + 86_400_000
    again = bench.open(clean=True, recovery_point=3)
    assert set(again.producers.entries) == {9}


def test_transactions_hold_back_the_last_stable_offset() -> None:
    log = Bench().open()
    append(log, batch(b"a", producer=(1, 0, 0), transactional=True))
    append(log, batch(b"b"))
    append(log, batch(b"c", producer=(2, 0, 0), transactional=True))
    log.update_high_watermark(3)
    assert (log.high_watermark, log.last_stable_offset) == (3, 0)
    end_txn(log, 1, abort=True)
    assert log.last_stable_offset == 0, "the marker is not replicated yet"
    log.update_high_watermark(4)
    assert log.last_stable_offset == 2
    end_txn(log, 2, abort=False)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 5
    assert log.local.collect_aborted(0, 5) == (AbortedTxn(1, 0, 3, 2),)
    result = log.read(0, 1 << 20, max_offset=5, include_aborted=True)
    assert isinstance(result, ReadResult)
    assert result.aborted == (AbortedTxn(1, 0, 3, 2),)
    later = log.read(4, 1 << 20, max_offset=5, include_aborted=True)
    assert isinstance(later, ReadResult)
    assert later.aborted == ()


def test_a_batch_outside_of_an_open_transaction_is_refused() -> None:
    log = Bench().open()
    append(log, batch(b"a", producer=(1, 0, 0), transactional=True))
    assert append_as_leader(log, batch(b"b", producer=(1, 0, 1)), 0).error == ErrorCode.INVALID_TXN_STATE
    end_txn(log, 1, abort=False)
    append(log, batch(b"b", producer=(1, 0, 1)))


def test_markers_are_fenced() -> None:
    log = Bench().open()
    append(log, batch(b"a", producer=(1, 3, 0), transactional=True))
    end_txn(log, 1, 3, abort=False, coordinator_epoch=5)
    old = append_as_leader(log, marker(1, 3, abort=True, coordinator_epoch=4), 0, origin=AppendOrigin.COORDINATOR)
    assert old.error == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    zombie = append_as_leader(log, marker(1, 2, abort=True, coordinator_epoch=6), 0, origin=AppendOrigin.COORDINATOR)
    assert zombie.error == ErrorCode.INVALID_PRODUCER_EPOCH
    end_txn(log, 1, 4, abort=True, coordinator_epoch=5)
    assert log.producers.entries[1].batches == (), "a new epoch starts from sequence 0"
    append(log, batch(b"b", producer=(1, 4, 0)))


@pytest.mark.parametrize("clean", [True, False])
def test_transactions_survive_a_restart(clean: bool) -> None:
    bench = Bench(LogConfig(segment_bytes=400))
    log = bench.open()
    for i in range(12):
        append(log, batch(b"a", producer=(i, 0, 0), transactional=True))
        if i % 3:
            end_txn(log, i, abort=i % 3 == 1)
    log.update_high_watermark(log.log_end_offset)
    if clean:
        close(log)
    again = bench.open(clean=clean, recovery_point=log.recovery_point)
    again.update_high_watermark(again.log_end_offset)
    assert again.last_stable_offset == log.last_stable_offset == 0
    assert again.local.collect_aborted(0, 100) == log.local.collect_aborted(0, 100) != ()
    if not clean:
        everything = bench.open(recovery_point=0)
        assert everything.local.collect_aborted(0, 100) == log.local.collect_aborted(0, 100)
    for i in range(0, 12, 3):
        end_txn(again, i, abort=False)
    again.update_high_watermark(again.log_end_offset)
    assert again.last_stable_offset == again.log_end_offset


def test_truncation_takes_producers_back() -> None:
    log = Bench(SMALL).open()
    for i in range(30):
        append(log, batch(b"a", producer=(7, 0, i)))
    log.truncate_to(20)
    assert log.producers.entries[7].last_sequence == 19
    append(log, batch(b"a", producer=(7, 0, 20)))
    log = Bench(SMALL).open()
    append(log, batch(b"a", producer=(1, 0, 0), transactional=True))
    end_txn(log, 1, abort=True)
    log.truncate_to(1)
    assert log.local.collect_aborted(0, 10) == ()
    assert log.producers.entries[1].current_txn_first_offset == 0


def test_a_snapshot_is_kafkas_version_1() -> None:
    entry = ProducerStateEntry(0x1122334455667788, 3, 9, NOW, 77, (BatchMetadata(41, 100, 4, NOW),))
    data = encode_snapshot([entry])
    assert data.hex() == (
        "0001" + data[2:6].hex() + "00000001" + "1122334455667788" + "0003" + "00000029" + "0000000000000064"
        "00000004" + NOW.to_bytes(8, "big").hex() + "00000009" + "000000000000004d"
    )
    assert decode_snapshot(data) == [entry]
    for cut in range(len(data)):
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(data[:cut])
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(data[:-1] + b"\xff")


def test_a_broken_snapshot_is_passed_over() -> None:
    bench = Bench(SMALL)
    log = bench.open()
    for i in range(40):
        append(log, batch(b"a", producer=(7, 0, i)))
    close(log)
    path = log.local.snapshots.path(40)
    bench.files.write_atomic(path, b"\x00\x01garbage")
    again = bench.open(clean=True, recovery_point=40)
    assert again.producers.entries[7].last_sequence == 39
