"""A consumer with `read_committed` keeps committed records only, whatever the order of markers is."""

from __future__ import annotations

from klamm.protocol.record_batch import Record, build_batch
from klamm.sim.transactions.isolation import committed_records
from klamm.sim.transactions.observations import Seen

COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


def batch(offset: int, value: bytes, producer_id: int = -1) -> bytes:
    return build_batch(
        [Record(timestamp=0, value=value)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )


def marker(offset: int, key: bytes, producer_id: int) -> bytes:
    return build_batch(
        [Record(timestamp=0, key=key, value=b"\x00\x00\x00\x00\x00\x00")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )


def test_aborted_records_and_markers_are_dropped() -> None:
    data = batch(0, b"a", 1) + batch(1, b"b", 2) + batch(2, b"c") + marker(3, ABORT, 1) + marker(4, COMMIT, 2)
    assert committed_records(data, [(1, 0)], 0) == ((Seen(1, b"b"), Seen(2, b"c")), 5)


def test_a_producer_is_dropped_up_to_its_abort_marker_only() -> None:
    data = batch(0, b"a", 1) + marker(1, ABORT, 1) + batch(2, b"b", 1) + marker(3, COMMIT, 1)
    assert committed_records(data, [(1, 0)], 0) == ((Seen(2, b"b"),), 4)


def test_a_fetch_may_begin_within_an_aborted_transaction() -> None:
    data = batch(5, b"b", 1) + marker(6, ABORT, 1) + batch(7, b"c", 1) + marker(8, ABORT, 1)
    assert committed_records(data, [(1, 7), (1, 3)], 5) == ((), 9)


def test_records_before_the_position_are_dropped() -> None:
    values = [Record(timestamp=0, value=value) for value in (b"a", b"b")]
    assert committed_records(build_batch(values, base_offset=3), [], 4) == ((Seen(4, b"b"),), 5)
    assert committed_records(b"", [], 4) == ((), 4)
