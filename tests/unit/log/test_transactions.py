"""Transactions in a leader's log: verification, markers of each version, what readers and the index see."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, AppendResult, Log, LogConfig, ReadResult, append_as_leader
from klamm.log import verification_state as verification
from klamm.log.producer_snapshots import decode_snapshot
from klamm.log.retention import delete_old_segments
from klamm.log.transaction_index import AbortedTxn
from klamm.log.verification_state import NOT_REQUIRED, TransactionCheck, VerificationGuard
from klamm.model import TransactionVersion
from klamm.protocol.record_batch import batches
from tests.unit.log.harness import DIR, NOW, Bench, append, batch, close, end_txn, marker

TV_1, TV_2 = TransactionVersion.TV_1, TransactionVersion.TV_2
DAY_MS = 86_400_000


def begin(log: Log, producer_id: int = 7, epoch: int = 0, sequence: int = 0) -> VerificationGuard:
    guard = log.producers.begin_verification(producer_id, epoch, sequence, log.clock.now_ms())
    assert isinstance(guard, VerificationGuard)
    return guard


def send(
    log: Log,
    guard: VerificationGuard | None,
    producer: tuple[int, int, int] = (7, 0, 0),
    version: TransactionVersion = TV_1,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> AppendResult:
    data = batch(b"a", producer=producer, transactional=True)
    return append_as_leader(log, data, 0, origin=origin, transaction=TransactionCheck(version, guard))


def end(
    log: Log, producer_id: int, epoch: int, version: TransactionVersion, *, coordinator_epoch: int = 0
) -> AppendResult:
    data = marker(producer_id, epoch, abort=False, coordinator_epoch=coordinator_epoch)
    return append_as_leader(log, data, 0, origin=AppendOrigin.COORDINATOR, transaction=TransactionCheck(version))


class TestVerification:
    def test_the_first_batch_needs_the_guard_and_the_next_ones_do_not(self) -> None:
        log = Bench().open()
        assert send(log, None).error == ErrorCode.INVALID_TXN_STATE
        assert send(log, VerificationGuard()).error == ErrorCode.INVALID_TXN_STATE
        guard = begin(log)
        assert send(log, guard).error == 0
        assert log.producers.begin_verification(7, 0, 1, NOW) is None, "the transaction is open"
        assert send(log, None, (7, 0, 1)).error == 0
        assert len(log.producers.verifications) == 0

    def test_a_marker_ends_the_verification_that_is_under_way(self) -> None:
        log = Bench().open()
        guard = begin(log)
        end_txn(log, 7, abort=True)
        assert send(log, guard).error == ErrorCode.INVALID_TXN_STATE
        again = begin(log)
        assert again is not guard, "the answer to the first question says nothing about the next transaction"
        assert send(log, guard).error == ErrorCode.INVALID_TXN_STATE
        assert send(log, again).error == 0

    def test_a_marker_ends_the_transaction_for_batches_that_needed_no_verification(self) -> None:
        log = Bench().open()
        send(log, begin(log))
        assert log.producers.begin_verification(7, 0, 1, NOW) is None
        end_txn(log, 7, abort=True)
        assert send(log, None, (7, 0, 1)).error == ErrorCode.INVALID_TXN_STATE

    def test_a_newer_epoch_replaces_the_guard(self) -> None:
        log = Bench().open()
        old = begin(log, epoch=3)
        new = begin(log, epoch=4)
        assert new is not old
        assert log.producers.begin_verification(7, 3, 0, NOW) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert send(log, old, (7, 3, 0)).error == ErrorCode.INVALID_TXN_STATE
        assert send(log, new, (7, 4, 0)).error == 0
        assert log.producers.begin_verification(7, 3, 0, NOW) == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_an_open_transaction_of_an_older_epoch_does_not_count(self) -> None:
        log = Bench().open()
        send(log, begin(log))
        assert send(log, None, (7, 1, 0)).error == ErrorCode.INVALID_TXN_STATE
        assert isinstance(log.producers.begin_verification(7, 1, 0, NOW), VerificationGuard)

    def test_a_stale_epoch_is_named_before_a_missing_verification(self) -> None:
        log = Bench().open()
        send(log, begin(log, epoch=5), (7, 5, 0))
        end_txn(log, 7, 5, abort=False)
        assert send(log, None, (7, 4, 0)).error == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_a_batch_waits_for_the_lower_sequence_that_failed(self) -> None:
        """An unknown producer may start anywhere, but not with its second batch while the first one is repeated."""
        log = Bench().open()
        first = begin(log, sequence=0)
        assert begin(log, sequence=1) is first
        assert send(log, first, (7, 0, 1)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(log, first, (7, 0, 0)).error == 0
        assert send(log, None, (7, 0, 1)).error == 0

    def test_a_lower_sequence_may_come_later(self) -> None:
        log = Bench().open()
        begin(log, sequence=5)
        guard = begin(log, sequence=3)
        assert send(log, guard, (7, 0, 5)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(log, guard, (7, 0, 3)).error == 0

    def test_version_2_starts_every_epoch_with_sequence_0(self) -> None:
        log = Bench().open()
        guard = begin(log, sequence=4)
        assert send(log, guard, (7, 0, 4), TV_2).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(log, guard, (7, 0, 4), TV_1).error == 0, "the state of an old producer may have expired"

    def test_a_coordinator_has_no_sequences(self) -> None:
        log = Bench().open()
        guard = begin(log, sequence=-1)
        assert send(log, guard, (7, 0, -1), TV_2, AppendOrigin.COORDINATOR).error == 0

    def test_without_verification_any_batch_begins_a_transaction(self) -> None:
        log = Bench().open()
        assert send(log, NOT_REQUIRED).error == 0
        assert log.producers.has_open_transaction(7, 0)

    def test_plain_batches_keep_the_guard(self) -> None:
        log = Bench().open()
        guard = begin(log, sequence=1)
        append(log, batch(b"a", producer=(7, 0, 0)))
        assert send(log, guard, (7, 0, 1)).error == 0

    def test_a_duplicate_needs_no_guard(self) -> None:
        log = Bench().open()
        send(log, begin(log))
        assert send(log, None).is_duplicate

    def test_forgotten_verifications_expire(self) -> None:
        bench = Bench()
        log = bench.open()
        old = begin(log, 1)
        bench.clock.ms += 1000
        begin(log, 2)
        log.producers.remove_expired(NOW + DAY_MS)
        assert len(log.producers.verifications) == 1
        assert send(log, old, (1, 0, 0)).error == ErrorCode.INVALID_TXN_STATE

    def test_their_number_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verification, "MAX_VERIFICATIONS", 3)
        log = Bench().open()
        guards = [begin(log, producer_id) for producer_id in range(5)]
        assert len(log.producers.verifications) == 3
        assert send(log, guards[0], (0, 0, 0)).error == ErrorCode.INVALID_TXN_STATE
        assert send(log, guards[4], (4, 0, 0)).error == 0

    def test_clients_need_a_producer_id(self) -> None:
        log = Bench().open()
        result = append_as_leader(log, batch(b"a", transactional=True), 0)
        assert result.error == ErrorCode.INVALID_RECORD


class TestMarkers:
    def test_version_1_has_the_epoch_of_the_records(self) -> None:
        log = Bench().open()
        send(log, begin(log, epoch=3), (7, 3, 0))
        assert end(log, 7, 3, TV_1).error == 0
        assert not log.producers.has_open_transaction(7, 3)

    def test_kafka_19446_late_markers_of_version_2_are_refused(self) -> None:
        """A marker that arrives again during the next transaction must not end it: the coordinator always bumps."""
        log = Bench().open()
        send(log, begin(log, epoch=3), (7, 3, 0), TV_2)
        assert end(log, 7, 4, TV_2).error == 0
        send(log, begin(log, epoch=4), (7, 4, 0), TV_2)
        assert end(log, 7, 4, TV_2).error == ErrorCode.INVALID_PRODUCER_EPOCH
        assert end(log, 7, 3, TV_2).error == ErrorCode.INVALID_PRODUCER_EPOCH
        assert log.producers.has_open_transaction(7, 4)
        assert end(log, 7, 5, TV_2).error == 0

    def test_kafka_19999_a_repeated_marker_of_version_2_succeeds(self) -> None:
        """The answer was lost, or the coordinator moved: refused, the transaction would never complete."""
        log = Bench().open()
        send(log, begin(log, epoch=3), (7, 3, 0), TV_2)
        for coordinator_epoch in (0, 0, 1):
            assert end(log, 7, 4, TV_2, coordinator_epoch=coordinator_epoch).error == 0
        assert end(log, 7, 4, TV_2).error == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        log.update_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == log.log_end_offset

    def test_a_producer_that_the_log_does_not_know(self) -> None:
        log = Bench().open()
        assert end(log, 7, 4, TV_2).error == 0
        assert log.producers.entries[7].producer_epoch == 4

    def test_a_marker_fits_into_any_topic(self) -> None:
        log = Bench(LogConfig(max_message_bytes=10)).open()
        assert end(log, 7, 0, TV_1).error == 0
        refused = append_as_leader(log, batch(b"a"), 0, origin=AppendOrigin.COORDINATOR)
        assert refused.error == ErrorCode.MESSAGE_TOO_LARGE

    def test_clients_cannot_write_markers(self) -> None:
        log = Bench().open()
        assert append_as_leader(log, marker(7, 0, abort=True), 0).error == ErrorCode.INVALID_RECORD


def stable_offsets(log: Log, high_watermarks: Sequence[int]) -> list[int]:
    """The last stable offset at each high watermark."""
    found = []
    for high_watermark in high_watermarks:
        log.update_high_watermark(high_watermark)
        found.append(log.last_stable_offset)
    return found


class TestLastStableOffset:
    def test_the_first_of_several_unreplicated_ends_holds_it_back(self) -> None:
        log = Bench().open()
        for producer_id in (1, 2, 3):
            append(log, batch(b"a", producer=(producer_id, 0, 0), transactional=True))
        log.update_high_watermark(3)
        for producer_id in (3, 1, 2):  # markers at 3, 4 and 5
            end_txn(log, producer_id, abort=False)
        assert stable_offsets(log, (3, 4, 5, 6)) == [0, 0, 1, 6]

    def test_a_later_end_of_an_earlier_start_replaces_the_others(self) -> None:
        log = Bench().open()
        for producer_id in (1, 2):
            append(log, batch(b"a", producer=(producer_id, 0, 0), transactional=True))
        log.update_high_watermark(2)
        end_txn(log, 2, abort=False)  # at 2
        end_txn(log, 1, abort=False)  # at 3
        append(log, batch(b"a", producer=(3, 0, 0), transactional=True))
        assert stable_offsets(log, (2, 3, 4, 5)) == [0, 0, 4, 4]

    def test_deleted_records_of_an_open_transaction(self) -> None:
        log = Bench().open()
        for i in range(4):
            append(log, batch(b"a", producer=(1, 0, i), transactional=True))
        log.update_high_watermark(4)
        log.increment_log_start_offset(3)
        assert log.last_stable_offset == 3, "never before the start of the log"
        end_txn(log, 1, abort=True)
        log.update_high_watermark(5)
        assert log.last_stable_offset == 5
        assert log.local.collect_aborted(3, 5) == (AbortedTxn(1, 0, 4, 5),)

    def test_open_transactions_of_a_snapshot_are_in_order(self) -> None:
        bench = Bench()
        log = bench.open()
        for producer_id in (1, 2, 3):
            append(log, batch(b"a", producer=(producer_id, 0, 0), transactional=True))
        for producer_id in (2, 1):  # now 3 comes first by its last batch
            append(log, batch(b"a", producer=(producer_id, 0, 1), transactional=True))
        close(log)
        again = bench.open(clean=True, recovery_point=5)
        again.update_high_watermark(5)
        assert again.last_stable_offset == 0
        end_txn(again, 1, abort=False)
        again.update_high_watermark(6)
        assert again.last_stable_offset == 1

    def test_the_oldest_open_transaction_reports_its_last_batch(self) -> None:
        log = Bench().open()
        append(log, batch(b"a", producer=(1, 0, 0), transactional=True, timestamp=NOW - 5000))
        append(log, batch(b"a", producer=(2, 0, 0), transactional=True, timestamp=NOW - 9000))
        assert log.producers.oldest_open_timestamp == NOW - 5000
        append(log, batch(b"a", producer=(1, 0, 1), transactional=True, timestamp=NOW - 100))
        assert log.producers.oldest_open_timestamp == NOW - 100
        end_txn(log, 1, abort=True)
        assert log.producers.oldest_open_timestamp == NOW - 9000


@pytest.mark.parametrize("start", [0, 100])
def test_batches_from_before_an_abort_are_late_after_a_truncation(start: int) -> None:
    """The leader's log may start after the marker, so the log cannot know of the abort."""
    bench = Bench()
    bench.host.youngest_connection = lambda: 9
    log = bench.open()
    append(log, batch(b"a", producer=(1, 0, 0), transactional=True))
    end_txn(log, 1, abort=True)
    assert log.truncate_fully_and_start_at(start) is ErrorCode.NONE
    append(log, batch(b"b", producer=(1, 0, 1)))
    assert log.producers.is_late(1, 0, 9) and not log.producers.is_late(1, 0, 10)


class TestTransactionIndex:
    def test_its_entries_are_kafkas(self) -> None:
        """34 bytes: version 0, producer id, first offset, marker's offset, last stable offset then."""
        bench = Bench()
        log = bench.open()
        append(log, batch(b"a", producer=(0x1122334455667788, 0, 0), transactional=True))
        append(log, batch(b"b", producer=(2, 0, 0), transactional=True))
        end_txn(log, 0x1122334455667788, abort=True)
        end_txn(log, 2, abort=True)
        rows = bench.files.read_bytes(f"{DIR}/orders-0/00000000000000000000.txnindex")
        first = "00001122334455667788000000000000000000000000000000020000000000000001"
        second = "00000000000000000002000000000000000100000000000000030000000000000004"
        assert rows.hex() == first + second

    def test_commits_and_empty_transactions_have_no_entry(self) -> None:
        bench = Bench()
        log = bench.open()
        append(log, batch(b"a", producer=(1, 0, 0), transactional=True))
        end_txn(log, 1, abort=False)
        end_txn(log, 1, abort=True)
        assert not any(name.endswith(".txnindex") for name in bench.names())

    def test_readers_get_aborted_transactions_by_their_first_offset(self) -> None:
        """The index has them in the order of their ends. franz-go 1.21 looked at the first one only."""
        log = Bench(LogConfig(segment_bytes=400)).open()
        for producer_id in range(6):
            append(log, batch(b"a", producer=(producer_id, 0, 0), transactional=True))
        for producer_id in reversed(range(6)):
            end_txn(log, producer_id, abort=True)
        result = log.read(0, 1 << 20, max_offset=log.log_end_offset, include_aborted=True)
        assert isinstance(result, ReadResult)
        found = [(txn.producer_id, txn.first_offset) for txn in result.aborted]
        assert len(found) > 1 and found == sorted(found)

    def test_reads_of_any_size_get_the_aborted_transactions_of_their_records(self) -> None:
        """Many small batches: the position of the last one comes from the offset index."""
        log = Bench(LogConfig(segment_bytes=60_000, index_interval_bytes=1_000)).open()
        sequences = dict.fromkeys(range(5), 0)
        for number in range(500):
            producer_id = number * 3 % 5
            append(log, batch(b"v" * 100, producer=(producer_id, 0, sequences[producer_id]), transactional=True))
            sequences[producer_id] += 1
            if number % 4 == 3:
                end_txn(log, (number * 3 - 6) % 5, abort=number % 12 != 3)
        aborted = [txn for segment in log.local.segments for txn in segment.txn_index.all()]
        assert len(aborted) > 50
        for offset in range(0, log.log_end_offset, 41):
            for max_bytes in (1, 10_000, 20_000, 45_000):
                result = log.read(offset, max_bytes, max_offset=log.log_end_offset, include_aborted=True)
                assert isinstance(result, ReadResult)
                end_offset = max(read.next_offset for read in batches(bytes(result.records)))
                expected = [txn for txn in aborted if txn.last_offset >= offset and txn.first_offset < end_offset]
                assert list(result.aborted) == sorted(expected, key=lambda txn: txn.first_offset)

    def test_a_snapshot_knows_open_transactions(self) -> None:
        bench = Bench()
        log = bench.open()
        append(log, batch(b"a", producer=(1, 2, 0), transactional=True))
        append(log, batch(b"b", producer=(3, 4, 0), transactional=True))
        end_txn(log, 3, 4, abort=False, coordinator_epoch=9)
        close(log)
        entries = {e.producer_id: e for e in decode_snapshot(bench.files.read_bytes(log.local.snapshots.path(3)))}
        assert entries[1].current_txn_first_offset == 0
        assert (entries[3].current_txn_first_offset, entries[3].coordinator_epoch) == (None, 9)


@pytest.mark.parametrize("is_ended", [False, True])
def test_retention_takes_the_old_records_of_a_first_transaction(is_ended: bool) -> None:
    """As in Kafka. The marker has the time of the broker, so it begins a segment, which stays."""
    log = Bench(LogConfig(retention_ms=DAY_MS)).open()
    old = batch(*[b"v"] * 7, timestamp=NOW - 30 * DAY_MS, producer=(7, 0, 0), transactional=True)
    append(log, old)
    if is_ended:
        end_txn(log, 7, abort=False)
        append(log, batch(b"later", timestamp=NOW - 30 * DAY_MS, producer=(7, 0, 7), transactional=True))
    log.update_high_watermark(log.log_end_offset)
    assert delete_old_segments(log, NOW) == 1 and delete_old_segments(log, NOW) == 0
    assert (log.log_start_offset, log.log_end_offset) == ((7, 9) if is_ended else (7, 7))
    assert end_txn(log, 7, abort=False).error == 0, "the transaction can still end"
