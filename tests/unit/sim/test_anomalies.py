"""Each checker of transactions finds its anomaly in a history made by hand, and nothing in a correct one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.model import TopicPartition
from klamm.sim.transactions.anomalies import (
    CHECKERS,
    aborted_reads,
    check_anomalies,
    cycles,
    cyclic_information_flow,
    dirty_writes,
    duplicates,
    lost_writes,
    misplaced_writes,
    nonmonotonic_polls,
    reported_kinds,
    skipped_polls,
    torn_transactions,
    unstable_ends,
    wrong_copies,
)
from klamm.sim.transactions.observations import (
    End,
    Move,
    Observations,
    Outcome,
    Poll,
    Read,
    Recorder,
    Seen,
    Source,
    Txn,
    Write,
)
from klamm.sim.violation import Violation

X, Y, OUT = TopicPartition("x", 0), TopicPartition("y", 0), TopicPartition("out", 0)
COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN


def txn(
    number: int, outcome: Outcome, *writes: Write, by: str = "w", process: str = "p", reads: tuple[Read, ...] = ()
) -> Txn:
    return Txn(number, by, process, outcome, writes, reads)


def write(tp: TopicPartition, value: bytes, offset: int = -1) -> Write:
    return Write(tp, value, offset)


def log(*values: bytes) -> tuple[Seen, ...]:
    return tuple(Seen(offset, value) for offset, value in enumerate(values))


GOOD = Observations(
    txns=(
        txn(1, COMMITTED, write(X, b"1", 0), write(Y, b"2", 0)),
        txn(2, ABORTED, write(X, b"3", 2)),
        txn(3, UNKNOWN, write(Y, b"4", 2)),
        txn(4, COMMITTED, write(X, b"5", 4), reads=(Read(X, 0, b"1"),)),
    ),
    polls={
        "r": (Poll(X, 0, (Seen(0, b"1"),), 2), Poll(X, 2, (Seen(4, b"5"),), 6)),
        "s": (Poll(Y, 0, (Seen(0, b"2"),), 2),),
    },
    logs={X: (Seen(0, b"1"), Seen(4, b"5")), Y: (Seen(0, b"2"),)},
)


def test_a_correct_history_has_no_anomalies() -> None:
    check_anomalies(GOOD)


@pytest.mark.parametrize("kind", CHECKERS)
def test_nothing_happened(kind: str) -> None:
    assert not list(CHECKERS[kind](Observations()))


def test_an_unknown_outcome_may_be_a_commit() -> None:
    check_anomalies(replace(GOOD, logs={**GOOD.logs, Y: (Seen(0, b"2"), Seen(2, b"4"))}))


def test_lost_write() -> None:
    seen = Observations((txn(1, COMMITTED, write(X, b"1", 0), write(X, b"2", 1)),), logs={X: log(b"1")})
    assert len(list(lost_writes(seen))) == 1
    aborted = Observations((txn(1, ABORTED, write(X, b"1", 0)), txn(2, UNKNOWN, write(X, b"2"))))
    assert not list(lost_writes(aborted))


def test_misplaced_write() -> None:
    elsewhere = Observations((txn(1, COMMITTED, write(X, b"1", 0)),), logs={Y: log(b"1")})
    later = Observations((txn(1, COMMITTED, write(X, b"1", 0)),), logs={X: (Seen(1, b"1"),)})
    assert len(list(misplaced_writes(elsewhere))) == len(list(misplaced_writes(later))) == 1
    without_offset = Observations((txn(1, COMMITTED, write(X, b"1")),), logs={X: (Seen(1, b"1"),)})
    assert not list(misplaced_writes(without_offset))


def test_dirty_write_between_two_logs() -> None:
    one, two = txn(1, COMMITTED, write(X, b"1"), write(Y, b"2")), txn(2, COMMITTED, write(X, b"3"), write(Y, b"4"))
    other = replace(two, process="q")
    assert list(dirty_writes(Observations((one, other), logs={X: log(b"1", b"3"), Y: log(b"4", b"2")})))
    assert not list(dirty_writes(Observations((one, other), logs={X: log(b"1", b"3"), Y: log(b"2", b"4")})))


def test_dirty_write_within_a_log() -> None:
    one, two = txn(1, COMMITTED, write(X, b"1"), write(X, b"3")), txn(2, COMMITTED, write(X, b"2"), process="q")
    assert list(dirty_writes(Observations((one, two), logs={X: log(b"1", b"2", b"3")})))


def test_dirty_write_against_the_order_of_a_process() -> None:
    one, two = txn(1, UNKNOWN, write(X, b"1")), txn(2, COMMITTED, write(X, b"2"))
    assert list(dirty_writes(Observations((one, two), logs={X: log(b"2", b"1")})))
    assert not list(dirty_writes(Observations((one, two), logs={X: log(b"1", b"2")})))


def test_writes_of_different_ids_interleave() -> None:
    one, two = txn(1, COMMITTED, write(X, b"1"), write(X, b"3")), txn(2, COMMITTED, write(X, b"2"), by="v")
    assert not list(dirty_writes(Observations((one, two), logs={X: log(b"1", b"2", b"3")})))


@pytest.mark.parametrize("outcome", [ABORTED, UNKNOWN])
def test_aborted_read_of_a_reader(outcome: Outcome) -> None:
    seen = Observations((txn(1, outcome, write(X, b"1")),), {"r": (Poll(X, 0, (Seen(0, b"1"),), 1),)})
    assert len(list(aborted_reads(seen))) == 1


def test_aborted_read_of_a_transaction() -> None:
    reader = txn(2, COMMITTED, reads=(Read(X, 0, b"1"),))
    assert len(list(aborted_reads(Observations((txn(1, ABORTED, write(X, b"1")), reader))))) == 1


def test_aborted_record_in_the_log() -> None:
    assert list(aborted_reads(Observations((txn(1, ABORTED, write(X, b"1")),), logs={X: log(b"1")})))


def test_cyclic_information_flow() -> None:
    one = txn(1, COMMITTED, write(X, b"1"), by="v", reads=(Read(Y, 0, b"2"),))
    two = txn(2, COMMITTED, write(Y, b"2"), by="w", reads=(Read(X, 0, b"1"),))
    logs = {X: log(b"1"), Y: log(b"2")}
    assert list(cyclic_information_flow(Observations((one, two), logs=logs)))
    assert not list(cyclic_information_flow(Observations((one, replace(two, reads=())), logs=logs)))


def test_cyclic_information_flow_with_the_order_of_writes() -> None:
    """The second of two transactions of one id is read by another one, from which the first one reads."""
    first = txn(1, COMMITTED, write(X, b"1"), reads=(Read(Y, 0, b"3"),))
    second = txn(2, COMMITTED, write(X, b"2"))
    other = txn(3, COMMITTED, write(Y, b"3"), by="v", reads=(Read(X, 1, b"2"),))
    logs = {X: log(b"1", b"2"), Y: log(b"3")}
    assert list(cyclic_information_flow(Observations((first, second, other), logs=logs)))


def test_a_transaction_reads_itself() -> None:
    one = txn(1, COMMITTED, write(X, b"1"), reads=(Read(X, 0, b"1"),))
    assert list(cyclic_information_flow(Observations((one,), logs={X: log(b"1")})))


@pytest.mark.parametrize("outcome", Outcome)
def test_torn_transaction(outcome: Outcome) -> None:
    one = txn(1, outcome, write(X, b"1"), write(Y, b"2"))
    assert len(list(torn_transactions(Observations((one,), logs={X: log(b"1"), Y: ()})))) == 1
    assert not list(torn_transactions(Observations((one,), logs={X: (), Y: ()})))
    assert not list(torn_transactions(Observations((one,), logs={X: log(b"1"), Y: log(b"2")})))


def test_skipped_poll() -> None:
    logs = {X: log(b"1", b"2", b"3")}
    skips = {"r": (Poll(X, 0, (Seen(0, b"1"), Seen(2, b"3")), 3),)}
    jumps = {"r": (Poll(X, 0, (Seen(0, b"1"),), 2), Poll(X, 2, (Seen(2, b"3"),), 3))}
    assert len(list(skipped_polls(Observations(polls=skips, logs=logs)))) == 1
    assert len(list(skipped_polls(Observations(polls=jumps, logs=logs)))) == 1


def test_nonmonotonic_poll() -> None:
    within = {"r": (Poll(X, 0, (Seen(1, b"2"), Seen(0, b"1")), 2),)}
    between = {"r": (Poll(X, 0, (Seen(0, b"1"),), 1), Poll(X, 0, (Seen(0, b"1"),), 1))}
    back = {"r": (Poll(X, 0, (Seen(0, b"1"), Seen(1, b"2")), 1),)}
    for polls in (within, between, back):
        assert len(list(nonmonotonic_polls(Observations(polls=polls)))) == 1


def test_duplicate() -> None:
    assert len(list(duplicates(Observations(logs={X: log(b"1", b"2", b"1")})))) == 1
    assert len(list(duplicates(Observations(logs={X: log(b"1"), Y: log(b"1")})))) == 1


@pytest.mark.parametrize(("outcome", "end", "count"), [(COMMITTED, 1, 1), (COMMITTED, 0, 0), (ABORTED, 1, 0)])
def test_unstable_end(outcome: Outcome, end: int, count: int) -> None:
    """A transaction that was aborted may have ended before the question was answered."""
    one = replace(txn(1, outcome, write(X, b"1", 0)), ends=(End(X, end, 0),))
    assert len(list(unstable_ends(Observations((one,))))) == count


def copy(number: int, outcome: Outcome, start: int, *values: bytes) -> Txn:
    writes = tuple(Write(OUT, value, source=Source(X, start + i)) for i, value in enumerate(values))
    return Txn(number, "copy", "p", outcome, writes, moves=(Move("g", X, start, start + len(values)),))


@pytest.mark.parametrize(
    ("txns", "copies", "committed"),
    [
        ((copy(1, COMMITTED, 0, b"a"),), (b"a",), 2),
        ((copy(1, COMMITTED, 0, b"a"),), (b"a",), -1),
        ((copy(1, COMMITTED, 0, b"a"), copy(2, COMMITTED, 0, b"b", b"c")), (b"a", b"b", b"c"), 2),
        ((copy(1, COMMITTED, 1, b"b"), copy(2, COMMITTED, 0, b"a")), (b"b", b"a"), 2),
    ],
    ids=["offset without a copy", "copy without an offset", "copied twice", "order"],
)
def test_copies_and_offsets_disagree(txns: tuple[Txn, ...], copies: tuple[bytes, ...], committed: int) -> None:
    logs = {X: log(b"1", b"2"), OUT: log(*copies)}
    assert len(list(wrong_copies(Observations(txns, logs=logs, offsets={("g", X): committed})))) == 1


def test_copies_and_offsets_agree() -> None:
    logs = {X: log(b"1", b"2", b"3"), OUT: log(b"a", b"b")}
    txns = (copy(1, COMMITTED, 0, b"a"), copy(2, ABORTED, 1, b"z"), copy(3, UNKNOWN, 1, b"b"))
    assert not list(wrong_copies(Observations(txns, logs=logs, offsets={("g", X): 2})))


def test_cycles() -> None:
    assert cycles({1: {2}, 2: {3}, 3: {1}, 4: {1}, 5: {6}, 6: {5, 7}}) == [[1, 2, 3], [5, 6]]
    assert cycles({1: {2}, 2: {3}}) == []


def test_the_check_names_every_kind() -> None:
    seen = replace(GOOD, logs={X: log(b"1", b"1")})
    with pytest.raises(Violation, match=r"lost write: .*torn transaction: .*duplicate: ") as raised:
        check_anomalies(seen)
    expected = {kind for kind, check in CHECKERS.items() if list(check(seen))}
    assert len(expected) > 3
    assert reported_kinds(f"Violation: {raised.value}") == expected
    assert not reported_kinds("Violation: after 60 s it is not so that all clients are done")


def test_a_recorder_keeps_what_it_is_given() -> None:
    recorder = Recorder()
    one, two = recorder.begin("w", "p"), recorder.begin("w", "p")
    one.writes.append(write(X, b"1"))
    one.outcome = COMMITTED
    two.reads.append(Read(X, 0, b"1"))
    recorder.on_polled("r", Poll(X, 0, (Seen(0, b"1"),), 1))
    seen = recorder.observations({X: log(b"1")}, {})
    assert [txn.number for txn in seen.txns] == [1, 2]
    assert recorder.count(COMMITTED) == recorder.count(ABORTED) == 1
    assert seen.polls["r"][0].end == 1
    check_anomalies(seen)
