"""The order of a producer's batches in a log: epochs never go back, and sequence numbers have no gaps."""

from __future__ import annotations

from klamm.protocol.record_batch import Record, batches, build_batch
from klamm.sim.transactions.txn_quiet import broken_order


def batch(epoch: int, sequence: int, producer_id: int = 7) -> bytes:
    record = Record(timestamp=0, value=b"v")
    return build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def marker(epoch: int) -> bytes:
    record = Record(timestamp=0, key=bytes(4), value=bytes(6))
    return build_batch([record], producer_id=7, producer_epoch=epoch, is_control=True, is_transactional=True)


def problems(*log: bytes) -> int:
    return len(list(broken_order(batches(b"".join(log)))))


def test_a_correct_log() -> None:
    assert not problems(batch(0, 0), batch(0, 1), marker(0), batch(0, 2), batch(0, 0, 8), marker(1), batch(1, 0))
    assert not problems(build_batch([Record(timestamp=0, value=b"v")]))


def test_an_epoch_goes_back() -> None:
    assert problems(batch(1, 0), batch(0, 0)) == 1
    assert problems(batch(0, 0), marker(1), batch(0, 1)) == 1


def test_a_sequence_has_a_gap_or_comes_twice() -> None:
    assert problems(batch(0, 1)) == 1
    assert problems(batch(0, 0), batch(0, 2)) == 1
    assert problems(batch(0, 0), batch(0, 0)) == 1
