"""The chaos test's judge: it must see every way in which a log can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from klamm.protocol.record_batch import Record, batches, build_batch
from tests.support.chaos import check_files
from tests.support.chaos_clients import Account, Written, check, check_sequences, repeated, unread

Log = dict[int, list[Written]]


def account_of(acked: Sequence[int], timed_out: Sequence[int] = ()) -> Account:
    """One writer, one partition, one reader who has seen what was acknowledged."""
    account = Account(1)
    account.acked[0, 0] = list(acked)
    account.timed_out = {(0, 0, number) for number in timed_out}
    account.produced[0, 0] = len(acked) + len(timed_out)
    return account


def log_of(*numbers: int, writer: int = 0) -> Log:
    return {0: [Written(writer, number) for number in numbers]}


def test_a_value_names_its_writer() -> None:
    assert Written.decode(Written(3, 12345).encode()) == Written(3, 12345)


@pytest.mark.parametrize("found", [(0, 1, 2, 4), (0, 1, 2, 3, 4)], ids=["not written", "written"])
def test_a_record_that_timed_out_may_be_there_or_not(found: tuple[int, ...]) -> None:
    assert check(account_of([0, 1, 2, 4], timed_out=[3]), log_of(*found)) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ((0, 1, 3), "1 acknowledged records are lost: 2"),
        ((), "4 acknowledged records are lost: 0, 1, 2, 3"),
        ((0, 1, 1, 2, 3), "1 are there more than once"),
        ((0, 2, 1, 3), "out of order after 2"),
        ((0, 1, 2, 3, 4), "never acknowledged, not timed out, but there: 4"),
    ],
)
def test_a_wrong_log(found: tuple[int, ...], problem: str) -> None:
    assert [each for each in check(account_of([0, 1, 2, 3]), log_of(*found)) if problem in each]


def test_a_pipelined_writer_may_repeat_unanswered_records() -> None:
    account, log = account_of([0, 1, 2, 3]), log_of(0, 1, 2, 1, 2, 3)
    assert check(account, log) != [] and repeated(account, log) == 0
    account.pipelined = frozenset({0})
    assert check(account, log) == [] and repeated(account, log) == 2
    assert check(account, log_of(0, 1, 3)) != []


@pytest.mark.parametrize(
    ("sent", "problems"),
    [
        ([(0, 0, (0, 1)), (0, 2, (2,)), (1, 0, (2, 3)), (1, 2, (4,))], []),
        ([(0, 0, (0, 1)), (0, 3, (3,))], ["sequence 3 where 2 was expected"]),
        ([(0, 0, (0, 1)), (0, 0, (0, 1))], ["sequence 0 where 2 was expected", "comes after"]),
        ([(0, 0, (0, 1)), (0, 2, (1,))], ["comes after"]),
    ],
)
def test_sequences(sent: list[tuple[int, int, tuple[int, ...]]], problems: list[str]) -> None:
    """Batches as (producer epoch, base sequence, the writer's numbers)."""
    data = b"".join(
        build_batch(
            [Record(i, 0, None, Written(0, number).encode()) for i, number in enumerate(numbers)],
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        for epoch, sequence, numbers in sent
    )
    found = check_sequences({0: batches(memoryview(data))})
    assert bool(found) == bool(problems)
    assert all(any(problem in each for each in found) for problem in problems)


def test_other_problems() -> None:
    assert "acknowledged out of order" in check(account_of([0, 2, 1]), log_of(0, 1, 2))[0]
    assert "nobody is writer 7" in check(account_of([]), log_of(0, writer=7))[0]
    account = account_of([0])
    account.problems.append("reader-0: lost its way")
    assert check(account, log_of(0)) == ["reader-0: lost its way"]


def _changed(read: dict[int, Written]) -> None:
    read[1] = Written(0, 5)


def _beyond_the_end(read: dict[int, Written]) -> None:
    read[3] = Written(0, 3)


@pytest.mark.parametrize("change", [_changed, _beyond_the_end])
def test_records_that_a_consumer_has_read_must_stay(change: Callable[[dict[int, Written]], None]) -> None:
    account, log = account_of([0, 1, 2]), log_of(0, 1, 2)
    account.consumed[0, 0] = dict(enumerate(log[0]))
    assert check(account, log) == [] and unread(account, log) == {}
    change(account.consumed[0, 0])
    assert "what is no longer there" in check(account, log)[0]


def test_records_that_no_member_of_the_group_has_read() -> None:
    account, log = account_of([0, 1, 2]), log_of(0, 1, 2)
    account.consumed[0, 0] = {0: log[0][0]}
    account.consumed[1, 0] = {0: log[0][0], 2: log[0][2]}
    assert unread(account, log) == {0: 1}


def test_the_longest_gap_is_of_one_partition_and_counts_where_it_began() -> None:
    account = Account(2)
    account.ack_times[0, 0] = [0.0, 1.0, 7.0, 7.5]
    account.ack_times[1, 0] = [4.0]
    account.ack_times[0, 1] = [0.0, 0.5, 3.0, 7.5]
    assert account.longest_gap(0, 2) == 3.0
    assert account.longest_gap(2, 8) == 4.5
    assert account.longest_gap(9, 10) == 0.0


def test_replicas_are_compared_over_their_segments(tmp_path: Path) -> None:
    parts = [build_batch([Record(0, 0, None, b"0:%d" % n)], base_sequence=n, producer_id=1) for n in range(2)]
    contents = {1: parts, 2: [b"".join(parts)], 3: parts[:1]}
    for broker_id, segments in contents.items():
        directory = tmp_path / f"broker-{broker_id}" / "chaos-0"
        directory.mkdir(parents=True)
        for number, content in enumerate(segments):
            (directory / f"{number:020}.log").write_bytes(content)
    assert check_files(tmp_path, (1, 2)) == []
    assert check_files(tmp_path, (1, 2, 3)) == ["chaos-0 of broker 3 differs from broker 1's"]
