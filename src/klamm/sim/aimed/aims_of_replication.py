"""Aimed scenarios of replication: damaged leader epochs, a full disk, deleted records of an idle partition."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.errors import ErrorCode
from klamm.log import names
from klamm.log.checkpoints import encode_checkpoint
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from klamm.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.record_batch import Record, build_batch
from klamm.sim.aimed.cluster_stage import LOOK_S, ClusterAim, ClusterStage, expect
from klamm.sim.cluster import SimNode
from klamm.sim.violation import require

_FAR: Final = 100
_KNOWN_PRODUCER: Final = 101
_NEW_PRODUCER: Final = 102
_CORRECTED_S: Final = 4.0
_FULL_S: Final = 12.0
"""Longer than the pause between two checks of a full disk."""
_REVIVED_S: Final = 25.0
_IDLE_S: Final = 0.5
"""Longer than a Fetch waits for records."""


async def _damage_epochs(stage: ClusterStage) -> None:
    """The epoch file of a stopped follower names a future epoch: it must follow again, with the leader's epochs."""
    tp = stage.tps[0]
    leader = await stage.leader(tp)
    await stage.write(tp, 4)
    follower, other = stage.followers(leader)
    await stage.lead(tp, other)
    await stage.lead(tp, leader)
    await stage.write(tp, 4)
    await stage.wait(lambda: stage.log(follower, tp).high_watermark == 8, "the follower has all records")
    for start in (2, 6, 9):
        await _stop_and_damage(stage, tp, follower, start)
        follower.start()
        await stage.wait(lambda: follower.is_ready, "the follower answers")
        await stage.in_sync(follower, _CORRECTED_S)
        await stage.write(tp)
        _check_epochs(stage, tp, leader, follower)


async def _stop_and_damage(stage: ClusterStage, tp: TopicPartition, node: SimNode, start: int) -> None:
    """Without its summary, which Kafka does not know, a log is opened at the start, with the epochs of its file."""
    entries = stage.log(node, tp).leader_epochs.entries
    await node.stop()
    stage.cluster.note(f"aimed: the epochs of broker {node.id} are damaged from offset {start} on")
    kept = [entry for entry in entries if entry.start_offset < start]
    lines = [f"{epoch} {offset}" for epoch, offset in (*kept, (entries[-1].epoch + _FAR, start))]
    path = f"/data/{tp.topic}-{tp.partition}/{names.LEADER_EPOCH_CHECKPOINT}"
    node.files.write_atomic(path, encode_checkpoint(lines))
    node.files.unlink(f"/data/{names.LOG_SUMMARY}")


def _check_epochs(stage: ClusterStage, tp: TopicPartition, leader: SimNode, follower: SimNode) -> None:
    wanted, found = (stage.log(node, tp).leader_epochs.entries for node in (leader, follower))
    require(found == wanted, f"the epochs of broker {follower.id} are {found}, those of its leader {wanted}")


async def _fill_disk(stage: ClusterStage) -> None:
    """A write does not fit on the disk, and the partitions go offline. They come back without a restart."""
    tp, node = await _fill(stage)
    expect("a record for a full disk", await stage.try_write(node, tp), ErrorCode.KAFKA_STORAGE_ERROR)
    await stage.wait(lambda: node.id not in stage.isr(tp), "the broker has left the ISR")
    await stage.write(tp)
    await _make_room(stage, tp, node)


async def _fill_idle_disk(stage: ClusterStage) -> None:
    """A checkpoint does not fit on the disk. The logs stay offline until there is room."""
    tp, node = await _fill(stage)
    assert node.broker is not None
    dirs = node.broker.logs.dirs
    await stage.wait(lambda: not dirs.live, "the broker knows that its disk is full")
    until_s = stage.now_s + _FULL_S
    while stage.now_s < until_s:
        require(not dirs.live, f"broker {node.id} uses a disk that is still full")
        await asyncio.sleep(LOOK_S)
    await _make_room(stage, tp, node)


async def _fill(stage: ClusterStage) -> tuple[TopicPartition, SimNode]:
    tp = await stage.partition_away_from(stage.controller)
    node = await stage.leader(tp)
    for each in stage.tps:
        await stage.write(each)
    stage.cluster.note(f"aimed: the disk of broker {node.id} is full")
    node.is_disk_full = True
    return tp, node


async def _make_room(stage: ClusterStage, tp: TopicPartition, node: SimNode) -> None:
    process = node.process
    stage.cluster.note(f"aimed: the disk of broker {node.id} has room")
    node.is_disk_full = False
    await stage.in_sync(node, _REVIVED_S)
    require(node.process is process, f"broker {node.id} was restarted")
    await stage.lead(tp, node)
    await stage.write(tp)


async def _delete_records(stage: ClusterStage) -> None:
    """DeleteRecords of an idle partition is answered when the start of all logs has moved."""
    tp = stage.tps[0]
    leader = await stage.leader(tp)
    await stage.write(tp, 4)
    for offset in (2, 3):
        await asyncio.sleep(_IDLE_S)
        await _delete_up_to(stage, leader, tp, offset)
        starts = [stage.log(node, tp).log_start_offset for node in stage.nodes]
        require(starts == [offset] * 3, f"the logs of {tp} start at {starts} after a DeleteRecords up to {offset}")


async def _delete_up_to(stage: ClusterStage, leader: SimNode, tp: TopicPartition, offset: int) -> None:
    wanted = DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
    topic = DeleteRecordsTopic(name=tp.topic, partitions=[wanted])
    response = await stage.ask(leader, DeleteRecordsRequest(topics=[topic], timeout_ms=1_000), 2)
    code = ErrorCode(response.topics[0].partitions[0].error_code)
    expect("DeleteRecords of an idle partition", code, ErrorCode.NONE)


async def _move_between_disks(stage: ClusterStage) -> None:
    """All replicas of a partition move to another directory of their brokers, between writes and after a deletion."""
    tp = stage.tps[0]
    await stage.write(tp, 4)
    leader = await stage.leader(tp)
    await _delete_up_to(stage, leader, tp, 2)
    for node in stage.nodes:
        await _move_replica(stage, node, tp)
    await stage.write(tp)
    end = stage.log(leader, tp).log_end_offset
    require(end == 8, f"{tp} ends at {end} after 8 records")


async def _move_replica(stage: ClusterStage, node: SimNode, tp: TopicPartition) -> None:
    (target,) = {"/data", "/disk"} - {stage.log(node, tp).log_dir}
    topic = AlterReplicaLogDirTopic(name=tp.topic, partitions=[tp.partition])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=target, topics=[topic])])
    response = await stage.ask(node, request, 2)
    expect("AlterReplicaLogDirs", ErrorCode(response.results[0].partitions[0].error_code), ErrorCode.NONE)
    await stage.write(tp)
    await stage.wait(lambda: stage.log(node, tp).log_dir == target, f"{tp} of broker {node.id} is in {target}")
    start = stage.log(node, tp).log_start_offset
    require(start == 2, f"{tp} of broker {node.id} starts at {start} after its move, and not at 2")


async def _use_up_files(stage: ClusterStage) -> None:
    """Batches after one that the leader could not write for lack of files are neither out of order nor appended."""
    tp = stage.tps[0]
    leader = await stage.leader(tp)
    for producer_id in (_KNOWN_PRODUCER, _NEW_PRODUCER):
        first = 1 if producer_id == _KNOWN_PRODUCER else 0
        for sequence in range(first):
            await _produce(stage, leader, tp, producer_id, sequence, ErrorCode.NONE)
        stage.cluster.note(f"aimed: broker {leader.id} has no file descriptors")
        leader.has_no_files = True
        await _produce(stage, leader, tp, producer_id, first, ErrorCode.KAFKA_STORAGE_ERROR)
        leader.has_no_files = False
        await _produce(stage, leader, tp, producer_id, first + 1, ErrorCode.KAFKA_STORAGE_ERROR)
        for sequence in (first, first + 1):
            await _produce(stage, leader, tp, producer_id, sequence, ErrorCode.NONE)
        await _produce(stage, leader, tp, producer_id, first + 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


async def _cut_batches(stage: ClusterStage) -> None:
    """A leader is replaced before its newest batch is replicated. The batch is new to it when it leads again."""
    await _cut(stage, has_files=True)


async def _cut_batches_without_files(stage: ClusterStage) -> None:
    """The same with a truncation that finds no file descriptor when it has cut the data file."""
    await _cut(stage, has_files=False)


async def _cut(stage: ClusterStage, *, has_files: bool) -> None:
    tp = stage.tps[0]
    leader = await stage.leader(tp)
    successor = stage.followers(leader)[0]
    await _produce(stage, leader, tp, _KNOWN_PRODUCER, 0, ErrorCode.NONE)
    if not has_files:  # The epoch of the next batch must be removed from a file.
        await stage.lead(tp, successor)
        await stage.lead(tp, leader)
    fetches = [stage.detain(follower.host, FetchRequest, leader) for follower in stage.followers(leader)]
    for fetch in fetches:
        await stage.detained(fetch)
    await _produce(stage, leader, tp, _KNOWN_PRODUCER, 1, ErrorCode.REQUEST_TIMED_OUT)
    fetches.append(stage.detain(leader.host, FetchRequest, successor))
    await stage.detained(fetches[-1])
    await stage.lead(tp, successor)
    leader.has_no_files = not has_files
    for fetch in fetches:
        fetch.release()
    await stage.wait(lambda: stage.log(leader, tp).log_end_offset == 1, f"broker {leader.id} truncates")
    leader.has_no_files = False
    await stage.write(tp)
    await stage.lead(tp, leader)
    await _produce(stage, leader, tp, _KNOWN_PRODUCER, 1, ErrorCode.NONE)
    end = stage.log(leader, tp).log_end_offset
    require(end == 3, f"broker {leader.id} acknowledged offset 2 and ends at {end}")


async def _produce(
    stage: ClusterStage, leader: SimNode, tp: TopicPartition, producer_id: int, sequence: int, expected: ErrorCode
) -> None:
    record = Record(timestamp=0, value=b"aimed")
    batch = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    what = f"batch {sequence} of producer {producer_id}"
    expect(what, await stage.try_append(leader, tp, batch), expected)


AIMS_OF_REPLICATION: Final[dict[str, ClusterAim]] = {
    "epochs to come": ClusterAim(_damage_epochs),
    "full disk": ClusterAim(_fill_disk),
    "full disk of an idle broker": ClusterAim(_fill_idle_disk),
    "no file descriptors": ClusterAim(_use_up_files),
    "truncated batches": ClusterAim(_cut_batches),
    "truncated batches without files": ClusterAim(_cut_batches_without_files),
    "deleted records": ClusterAim(_delete_records),
    "other directory": ClusterAim(_move_between_disks, {"log.dirs": "/data,/disk"}),
}
