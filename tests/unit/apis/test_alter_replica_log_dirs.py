"""AlterReplicaLogDirs on one broker with two directories: errors, cancelling, and copies under any changes."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from klamm.apis import alter_replica_log_dirs, describe_log_dirs
from klamm.apis.slices import SLICE
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log import Log, LogConfig, append_as_follower
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from klamm.replica import log_dir_moves
from klamm.replica.fetchers import NoFetchers
from klamm.replica.partition import Partition
from tests.support.log_passes import delete_logs
from tests.support.one_broker import OneBroker
from tests.unit.log.harness import append, batch, read_batches

TP = TopicPartition("t", 0)
DIRS = ("a", "b")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    made = OneBroker(tmp_path, log_dirs=DIRS)
    made.topic_configs["t"] = LogConfig(segment_bytes=4000)
    made.lead("t")
    yield made
    made.close()


def current(one: OneBroker) -> Log:
    return one.broker.logs.logs[TP]


def other_dir(one: OneBroker) -> str:
    return next(path for path in one.log_dirs if path != current(one).log_dir)


def alter(one: OneBroker, path: str, topic: str = "t", partition: int = 0, version: int = 2) -> ErrorCode:
    topics = [AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
    (result,) = one.ask(alter_replica_log_dirs.API, request, version).results
    return ErrorCode(result.partitions[0].error_code)


def described(one: OneBroker) -> set[tuple[str, bool, int]]:
    response = one.ask(describe_log_dirs.API, DescribeLogDirsRequest(topics=None), 4)
    return {
        (result.log_dir, p.is_future_key, p.offset_lag)
        for result in response.results
        for topic in result.topics
        for p in topic.partitions
    }


def finish(one: OneBroker) -> None:
    for _ in range(1000):
        if TP not in one.broker.logs.futures.logs:
            return
        one.spin()
    raise AssertionError("the move did not end")


def test_a_bug_in_one_move_does_not_stop_others(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The move that met it continues after the next LeaderAndIsr."""
    step, bugs = log_dir_moves.LogDirMoves._step, [KeyError("a bug")]

    def step_with_a_bug(moves: log_dir_moves.LogDirMoves, tp: TopicPartition) -> int:
        if bugs:
            raise bugs.pop()
        return step(moves, tp)

    monkeypatch.setattr(log_dir_moves.LogDirMoves, "_step", step_with_a_bug)
    append(current(one), batch(b"a"))
    target = other_dir(one)
    assert alter(one, target) is ErrorCode.NONE
    one.spin()
    assert not bugs and current(one).log_dir != target
    one.lead("t", leader_epoch=1, partition_epoch=1)
    finish(one)
    assert current(one).log_dir == target


class CountedFetchers(NoFetchers):
    """Knows which partitions are fetched."""

    def __init__(self) -> None:
        self.fetched: set[TopicPartition] = set()

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        self.fetched.difference_update(partitions)

    def add(self, partitions: Iterable[Partition]) -> None:
        self.fetched.update(partition.topic_partition for partition in partitions)


def test_a_follower_whose_change_over_meets_a_bug_is_fetched_again(
    one: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetchers = one.broker.replicas.fetchers = CountedFetchers()
    assert one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2)).error_code == 0
    assert fetchers.fetched == {TP}
    bugs = [KeyError("a bug")]

    def swap(tp: TopicPartition) -> Log:
        raise bugs.pop()

    monkeypatch.setattr(one.broker.logs, "swap_with_future", swap)
    assert alter(one, other_dir(one)) is ErrorCode.NONE
    one.spin()
    assert not bugs and fetchers.fetched == {TP}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_replica_is_moved(one: OneBroker, version: int) -> None:
    for i in range(50):
        append(current(one), batch(b"%d" % i * 100))
    one.broker.replicas.partitions[TP].maybe_increment_high_watermark(0)
    before, source, target = [bytes(b.view) for b in read_batches(current(one))], current(one), other_dir(one)
    assert alter(one, target, version=version) == ErrorCode.NONE
    assert described(one) == {(source.log_dir, False, 0), (target, True, 50)}
    finish(one)
    moved = current(one)
    assert moved is not source and moved.log_dir == target and one.broker.replicas.partitions[TP].log is moved
    assert [bytes(b.view) for b in read_batches(moved)] == before
    assert moved.high_watermark == source.high_watermark == 50 and moved.topic_id == source.topic_id
    assert described(one) == {(target, False, 0)}
    assert append(moved, batch(b"more")).base_offset == 50
    names = sorted(p.name for p in Path(source.log_dir).iterdir() if p.is_dir())
    assert len(names) == 1 and names[0].startswith("t-0.") and names[0].endswith("-delete")


def test_all_logs_are_described_in_slices(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every step, also in the one that sorts them by directory."""
    count = 2 * SLICE + SLICE // 2
    one.leader_and_isr({"t": range(1, count)})
    looked_up: list[TopicPartition] = []

    class Noting(dict[TopicPartition, Log]):
        def get(self, tp: TopicPartition, default: Any = None) -> Any:
            looked_up.append(tp)
            return super().get(tp, default)

    monkeypatch.setattr(one.broker.logs.futures, "_logs", Noting())
    steps = one.dispatch(describe_log_dirs.API, DescribeLogDirsRequest(topics=None), 4)
    seen = [0, len(looked_up)]
    for _ in steps:
        seen.append(len(looked_up))
    assert max(after - before for before, after in pairwise(seen)) <= SLICE
    assert seen[-1] == count and len(seen) >= 5


def test_logs_that_are_deleted_while_they_are_described_are_left_out(one: OneBroker) -> None:
    count = 2 * SLICE
    one.leader_and_isr({"t": range(1, count)})
    steps = one.dispatch(describe_log_dirs.API, DescribeLogDirsRequest(topics=None), 4)
    delete_logs(one.broker.logs, [TopicPartition("t", index) for index in range(1, count)])
    while True:
        try:
            next(steps)
        except StopIteration as done:
            response = done.value
            break
    partitions = [p for result in response.results for topic in result.topics for p in topic.partitions]
    assert [(p.partition_index, p.is_future_key) for p in partitions] == [(0, False)]


def test_replicas_that_cannot_be_moved(one: OneBroker) -> None:
    assert alter(one, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(one, other_dir(one), "unknown") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(one, other_dir(one), "t" * 230) == ErrorCode.INVALID_TOPIC_EXCEPTION
    target = other_dir(one)
    one.broker.logs.failed(target, OSError(5, "broken"), "testing")
    assert alter(one, target) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_replica_that_is_not_here_yet_is_created_there(one: OneBroker) -> None:
    one.update_metadata({"t": [0, 1]})
    for partition, path in ((1, one.log_dirs[0]), (2, one.log_dirs[1])):
        one.update_metadata({"t": [0, partition]})
        assert alter(one, path, partition=partition) == ErrorCode.REPLICA_NOT_AVAILABLE
        one.leader_and_isr({"t": [partition]})
        assert one.broker.logs.logs[TopicPartition("t", partition)].log_dir == path


def test_a_move_is_cancelled_by_naming_where_the_replica_is(one: OneBroker) -> None:
    append(current(one), batch(b"x"))
    source = current(one)
    assert alter(one, other_dir(one)) == ErrorCode.NONE
    future = one.broker.logs.futures.logs[TP]
    assert alter(one, other_dir(one)) == ErrorCode.NONE and one.broker.logs.futures.logs[TP] is future
    assert alter(one, source.log_dir) == ErrorCode.NONE
    for _ in range(5):
        one.spin()
    assert current(one) is source and not one.broker.logs.futures.logs
    one.broker.logs.passes.deletion(elapsed_ms(one.clock) + 1)
    assert not Path(future.dir).exists()


def test_a_deleted_replica_takes_its_copy_along(one: OneBroker) -> None:
    append(current(one), batch(b"x"))
    assert alter(one, other_dir(one)) == ErrorCode.NONE
    delete_logs(one.broker.logs, [TP])
    one.broker.replicas.drop(TP)
    for _ in range(5):
        one.spin()
    assert not one.broker.logs.futures.logs
    one.broker.logs.passes.deletion(elapsed_ms(one.clock) + 100_000)
    assert not any(p.is_dir() for path in one.log_dirs for p in Path(path).iterdir())


def begin_slowly(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies a part of the log and continues slowly."""
    monkeypatch.setattr(log_dir_moves, "CHUNK_BYTES", 500)
    for i in range(30):
        append(current(one), batch(b"%d" % i * 100))
    one.broker.replicas.log_dir_moves.max_bytes_per_s = 1
    assert alter(one, other_dir(one)) == ErrorCode.NONE
    one.spin()
    assert 0 < one.broker.logs.futures.logs[TP].log_end_offset < 30


def kill_and_start(one: OneBroker, tmp_path: Path) -> OneBroker:
    one.broker.replicas.log_dir_moves.stop()
    one.broker.logs.abandon()
    return OneBroker(tmp_path, log_dirs=DIRS)


def test_an_unfinished_copy_does_not_bring_a_deleted_replica_back(
    one: OneBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topic of the same name would have got the old records."""
    begin_slowly(one, monkeypatch)
    one.stop_replica("t", 0)
    again = kill_and_start(one, tmp_path)
    assert not again.broker.logs.logs and not again.broker.logs.futures.logs
    again.broker.logs.passes.deletion(elapsed_ms(again.clock) + 100_000)
    assert not any(p.is_dir() for path in again.log_dirs for p in Path(path).iterdir())
    again.close()


def test_a_move_that_was_cancelled_does_not_continue_after_a_kill(
    one: OneBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_slowly(one, monkeypatch)
    source = current(one)
    assert alter(one, source.log_dir) == ErrorCode.NONE
    again = kill_and_start(one, tmp_path)
    assert not again.broker.logs.futures.logs
    again.lead("t", leader_epoch=1, partition_epoch=1)
    again.spin()
    assert current(again).log_dir == source.log_dir and current(again).log_end_offset == 30
    again.close()


def test_a_move_continues_after_a_restart(one: OneBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dir_moves, "CHUNK_BYTES", 500)
    for i in range(30):
        append(current(one), batch(b"%d" % i * 100))
    before, target = [bytes(b.view) for b in read_batches(current(one))], other_dir(one)
    one.broker.replicas.log_dir_moves.max_bytes_per_s = 1
    assert alter(one, target) == ErrorCode.NONE
    one.spin()
    copied = one.broker.logs.futures.logs[TP].log_end_offset
    assert 0 < copied < 30
    one.broker.replicas.log_dir_moves.stop()
    one.broker.logs.abandon()
    again = OneBroker(tmp_path, log_dirs=DIRS)
    assert again.broker.logs.futures.logs[TP].log_end_offset == copied
    again.lead("t", leader_epoch=1, partition_epoch=1)
    finish(again)
    assert current(again).log_dir == target
    assert [bytes(b.view) for b in read_batches(current(again))] == before
    again.close()


def test_a_swap_that_was_cut_off_is_completed_by_the_next_start(
    one: OneBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(current(one), batch(b"kept"))
    monkeypatch.setattr(one.broker.replicas.log_dir_moves, "resume", lambda partitions: None)
    assert alter(one, other_dir(one)) == ErrorCode.NONE
    target, source = other_dir(one), current(one)
    future = one.broker.logs.futures.logs[TP]
    append_as_follower(future, batch(b"kept"))
    source.rename_dir(f"{source.log_dir}/t-0.{1:032x}-delete")
    one.broker.replicas.log_dir_moves.stop()
    one.spin()
    one.broker.logs.abandon()
    again = OneBroker(tmp_path, log_dirs=DIRS)
    assert current(again).log_dir == target and current(again).log_end_offset == 1
    assert Path(target, "t-0").is_dir()
    again.close()


def test_directories_of_replicas_that_never_come_are_forgotten(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dir_moves, "MAX_PREFERRED", 10)
    for partition in range(30):
        assert alter(one, one.log_dirs[0], "never", partition) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(one.broker.logs.preferred_dirs) == [TopicPartition("never", p) for p in range(20, 30)]


def test_a_swap_that_the_disk_refuses_leaves_the_log_in_use(
    one: OneBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(current(one), batch(b"kept"))
    target, source = other_dir(one), current(one)
    rename = source.env.files.rename

    def refuse(old: str, new: str) -> None:
        if old.startswith(target):
            raise OSError(errno.EIO, "Input/output error", old)
        rename(old, new)

    monkeypatch.setattr(source.env.files, "rename", refuse)
    assert alter(one, target) == ErrorCode.NONE
    finish(one)
    append(current(one), batch(b"later"))
    assert current(one) is source and one.broker.replicas.partitions[TP].log is source
    one.broker.logs.abandon()
    again = OneBroker(tmp_path, log_dirs=DIRS)
    again.broker.logs.passes.deletion(elapsed_ms(again.clock) + 100_000)
    assert current(again).log_dir == source.log_dir and current(again).log_end_offset == 2
    again.close()


def test_a_swap_that_the_old_disk_refuses_fails_that_disk_only(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    append(current(one), batch(b"kept"))
    target, source = other_dir(one), current(one)
    rename = source.env.files.rename

    def refuse(old: str, new: str) -> None:
        if old.startswith(source.log_dir):
            raise OSError(errno.EIO, "Input/output error", old)
        rename(old, new)

    monkeypatch.setattr(source.env.files, "rename", refuse)
    assert alter(one, target) == ErrorCode.NONE
    for _ in range(5):
        one.spin()
    assert list(one.broker.logs.dirs.failures) == [source.log_dir]
    assert [log_dir.path for log_dir in one.broker.logs.dirs.live] == [target]


def test_a_swap_that_cannot_be_undone_fails_the_old_disk(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    append(current(one), batch(b"kept"))
    target, source = other_dir(one), current(one)
    rename = source.env.files.rename

    def refuse(old: str, new: str) -> None:
        if not new.endswith("-delete") and (old.startswith(target) or old.endswith("-delete")):
            raise OSError(errno.EIO, "Input/output error", old)
        rename(old, new)

    monkeypatch.setattr(source.env.files, "rename", refuse)
    assert alter(one, target) == ErrorCode.NONE
    for _ in range(5):
        one.spin()
    assert list(one.broker.logs.dirs.failures) == [source.log_dir]
    assert TP not in one.broker.replicas.log_dir_moves._moving


def test_the_old_name_is_gone_for_good_before_the_new_one_is_there(
    one: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power that undoes only the first rename would leave two logs, with which no broker starts."""
    append(current(one), batch(b"kept"))
    source, target = current(one), other_dir(one)
    synced: list[str] = []
    sync = source.env.files.fsync_path

    def note(path: str) -> None:
        synced.append(path)
        sync(path)

    monkeypatch.setattr(source.env.files, "fsync_path", note)
    assert alter(one, target) == ErrorCode.NONE
    finish(one)
    assert synced.index(source.log_dir) < synced.index(target)


@pytest.mark.parametrize("seed", range(20))
def test_the_copy_is_the_log_whatever_happens_to_it(one: OneBroker, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends, truncations and deleted records between the chunks, as for a leader under load or a new follower."""
    monkeypatch.setattr(log_dir_moves, "CHUNK_BYTES", 700)
    rng, epoch, log = Random(seed), 0, current(one)
    moves = one.broker.replicas.log_dir_moves
    monkeypatch.setattr(moves, "resume", lambda partitions: moves._moving.update({TP: -1}))
    for step in range(60):
        if step == 20:
            assert alter(one, other_dir(one)) == ErrorCode.NONE
        match rng.randrange(6) if step < 45 else 5:
            case 0:
                log.truncate_to(rng.randint(log.log_start_offset, log.log_end_offset))
                epoch += 1
                log.assign_epoch(epoch, log.log_end_offset)
            case 1:
                log.update_high_watermark(log.log_end_offset)
                log.increment_log_start_offset(rng.randint(log.log_start_offset, log.log_end_offset))
            case 2 | 3:
                for _ in range(rng.randint(1, 5)):
                    values = [b"v" * rng.randint(1, 200)] * rng.randint(1, 3)
                    append(log, batch(*values), epoch)
            case _:
                if TP in one.broker.logs.futures.logs:
                    moves._step(TP)
                    log = current(one)
    for _ in range(200):
        if TP in one.broker.logs.futures.logs:
            expected = [bytes(b.view) for b in read_batches(log)], log.log_start_offset, log.log_end_offset
            epochs = log.latest_epoch
            moves._step(TP)
            if TP not in one.broker.logs.futures.logs:
                moved = current(one)
                found = [bytes(b.view) for b in read_batches(moved)], moved.log_start_offset, moved.log_end_offset
                assert found == expected and moved.latest_epoch == epochs
    assert TP not in one.broker.logs.futures.logs and current(one).log_dir != one.log_dirs[0]
