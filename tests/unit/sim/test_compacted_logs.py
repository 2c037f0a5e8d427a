"""Replicas of a compacted log are compared by what their readers can observe."""

from __future__ import annotations

from klamm.log.end_markers import marker_record_fields
from klamm.protocol.record_batch import Record, RecordBatch, build_batch
from klamm.sim.compacted_logs import differences, last_values

KEY = b"k"


def batch(offset: int, value: bytes | None, *, producer_id: int = -1, horizon_ms: int | None = None) -> RecordBatch:
    return RecordBatch(
        memoryview(
            build_batch(
                [Record(timestamp=0, key=KEY, value=value)],
                base_offset=offset,
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                is_transactional=producer_id >= 0,
                delete_horizon_ms=horizon_ms,
            )
        )
    )


def marker(offset: int, producer_id: int, *, is_abort: bool) -> RecordBatch:
    key, value = marker_record_fields(is_abort, 0)
    made = build_batch(
        [Record(timestamp=0, key=key, value=value)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )
    return RecordBatch(memoryview(made))


def test_an_older_value_and_another_delete_horizon_are_no_difference() -> None:
    one = [batch(0, b"old"), batch(1, None, horizon_ms=5)]
    other = [batch(1, None, horizon_ms=9)]
    assert not list(differences(one, other))
    assert not list(differences(one, []))


def test_a_deleted_key_that_comes_back_is_a_difference() -> None:
    assert list(differences([batch(0, b"old"), batch(1, None)], [batch(0, b"old")]))


def test_other_content_at_an_offset_is_a_difference() -> None:
    assert list(differences([batch(0, b"a"), batch(1, b"c")], [batch(0, b"b"), batch(1, b"c")]))


def test_only_committed_records_count() -> None:
    log = [batch(0, b"kept"), batch(1, b"aborted", producer_id=7), marker(2, 7, is_abort=True)]
    assert last_values(log)[KEY].value == b"kept"
    assert not list(differences(log, log[:1]))
    log = [batch(0, b"old"), batch(1, b"new", producer_id=7), marker(2, 7, is_abort=False)]
    assert last_values(log)[KEY].value == b"new"
    assert list(differences(log, log[:1]))
