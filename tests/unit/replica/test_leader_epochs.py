"""A new leader's epoch is on the disk soon, and a disk that refuses it leaves everything as it was."""

from __future__ import annotations

import errno

import pytest

from klamm.model import ZERO_UUID
from klamm.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from klamm.replica.partition import Partition
from tests.unit.log.harness import NOW, TP, Bench, append, batch


def leadership(epoch: int) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        partition_index=0,
        controller_epoch=1,
        leader=1,
        leader_epoch=epoch,
        isr=[1],
        partition_epoch=epoch,
        replicas=[1],
        is_new=False,
    )


def test_the_epoch_of_a_new_leader_is_forced_to_the_disk() -> None:
    bench = Bench()
    log = bench.open()
    append(log, batch(b"x"), epoch=0)
    synced: list[str] = []
    bench.files.fault = lambda operation, path: synced.append(path) if operation == "fsync" else None
    Partition(TP, 1, max_lag_ms=1000).make_leader(leadership(5), ZERO_UUID, log, NOW)
    assert synced == [log.leader_epochs.path]
    assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(0, 0), (5, 1)]


def test_a_disk_that_refuses_the_epoch_changes_nothing() -> None:
    bench = Bench()
    log = bench.open()
    append(log, batch(b"x"), epoch=0)
    partition = Partition(TP, 1, max_lag_ms=1000)

    def fault(operation: str, path: str) -> None:
        if operation in ("write", "pwrite"):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    bench.files.fault = fault
    with pytest.raises(OSError, match="No space left"):
        partition.make_leader(leadership(5), ZERO_UUID, log, NOW)
    assert (partition.leader_epoch, log.leader_epochs.latest_epoch) == (-1, 0)
    bench.files.fault = None
    assert partition.make_leader(leadership(5), ZERO_UUID, log, NOW)
    assert bench.open().leader_epochs.latest_epoch == 0, "the epoch has no records yet"
