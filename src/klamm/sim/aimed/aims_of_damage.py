"""Aimed scenarios of damaged logs: files of a broker are damaged while it is stopped.

If a sealed segment is truncated or removed, the log ends where it did, but it has a gap. A log start offset beyond the
end of the log names all records as deleted. A directory may be that of another topic. In the end the damaged replica
must have all records again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from klamm.errors import ErrorCode
from klamm.log import names
from klamm.log.checkpoints import encode_offsets
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, build_batch
from klamm.sim.aimed.cluster_stage import ClusterAim, ClusterStage, expect
from klamm.sim.cluster import SimNode
from klamm.sim.cluster_quiet import content
from klamm.sim.violation import require
from klamm.zk.model import paths

_RECORDS: Final = 12
_SMALL_SEGMENTS: Final[dict[str, object]] = {"log.segment.bytes": 250}
_BACK_S: Final = 20.0
"""Maximum time until a broker that was started is in sync."""
_UNUSED_S: Final = 3.0
"""Longer than a follower with all records takes to be in sync."""


class _Gap(NamedTuple):
    start_offset: int
    end_offset: int


def _truncate_segment(stage: ClusterStage, node: SimNode, tp: TopicPartition) -> _Gap:
    """A sealed segment loses its second half, with at least one record."""
    bases = _bases(node, tp)
    path = _path(tp, bases[1])
    stage.cluster.note(f"aimed: {path} of broker {node.id} is truncated")
    size = len(node.files.read_bytes(path))
    node.files.open(path).truncate(size // 2)
    return _Gap(bases[1] + (bases[2] - bases[1]) // 2, bases[2])


def _remove_segment(stage: ClusterStage, node: SimNode, tp: TopicPartition) -> _Gap:
    return _remove(stage, node, tp, 2)


def _remove_first_segment(stage: ClusterStage, node: SimNode, tp: TopicPartition) -> _Gap:
    return _remove(stage, node, tp, 0)


def _remove(stage: ClusterStage, node: SimNode, tp: TopicPartition, index: int) -> _Gap:
    bases = _bases(node, tp)
    path = _path(tp, bases[index])
    stage.cluster.note(f"aimed: {path} of broker {node.id} is removed")
    node.files.unlink(path)
    return _Gap(bases[index], bases[index + 1])


def _bases(node: SimNode, tp: TopicPartition) -> list[int]:
    """Return the base offsets of the segments. Each has the same number of records, of the same size."""
    found = [names.parse_file_name(info.name) for info in node.files.list_dir(_directory(tp))]
    bases = sorted(parsed[0] for parsed in found if parsed is not None and parsed[1:] == (names.LOG, ""))
    assert len(bases) == 4, f"{tp} has other segments: {bases}"
    return bases


def _directory(tp: TopicPartition) -> str:
    return f"/data/{names.dir_name(tp)}"


def _path(tp: TopicPartition, base_offset: int) -> str:
    return f"{_directory(tp)}/{names.file_name(base_offset, names.LOG)}"


# --- scenarios -------------------------------------------------------------------------------------------------------


async def _damage_follower(stage: ClusterStage) -> None:
    """A stopped follower is damaged: it fetches the missing records from its leader, and can lead then."""
    tp = stage.tps[0]
    await stage.write(tp, _RECORDS)
    for harm in (_truncate_segment, _remove_segment, _remove_first_segment):
        follower = stage.followers(await stage.leader(tp))[0]
        await follower.stop()
        harm(stage, follower, tp)
        await _start(stage, follower)
        await stage.in_sync(follower, _BACK_S)
        _check_records(stage, tp)
        await stage.lead(tp, follower)
        _check_records(stage, tp)


async def _damage_log_start(stage: ClusterStage) -> None:
    """The log start offset of a stopped, then of a killed follower is far too high: no record may be missing."""
    tp = stage.tps[0]
    await stage.write(tp, _RECORDS)
    for is_stopped in (True, False):
        follower = stage.followers(await stage.leader(tp))[0]
        if is_stopped:
            await follower.stop()
        else:
            follower.kill()
        path = f"/data/{names.LOG_START_OFFSET_CHECKPOINT}"
        stage.cluster.note(f"aimed: {path} of broker {follower.id} is damaged")
        follower.files.write_atomic(path, encode_offsets({tp: 1_000_000}))
        await _start(stage, follower)
        await stage.in_sync(follower, _BACK_S)
        _check_records(stage, tp)
        await stage.lead(tp, follower)
        _check_records(stage, tp)


async def _damage_last_leader(stage: ClusterStage) -> None:
    """All brokers are stopped, and the last is damaged. It is the whole ISR, but must not lead: others have more."""
    tp = stage.tps[0]
    await stage.write(tp, _RECORDS)
    for harm in (_truncate_segment, _remove_segment, _remove_first_segment):
        last = await _stop_all(stage, tp)
        harm(stage, last, tp)
        await _start(stage, *stage.followers(last))
        await _start(stage, last)
        await _all_in_sync(stage)
        require(stage.is_led_by_other(tp, last), f"broker {last.id} leads {tp} with a damaged log")
        _check_records(stage, tp)


async def _damage_lonely_leader(stage: ClusterStage) -> None:
    """The damaged last member of the ISR returns alone: it leads and reports the loss.

    The others have these records. The damaged broker hands over the leadership as soon as it is asked to lead again
    while they are in sync.
    """
    tp = stage.tps[0]
    await stage.write(tp, _RECORDS)
    for harm in (_truncate_segment, _remove_segment):
        last = await _stop_all(stage, tp)
        await _lead_alone(stage, tp, last, harm(stage, last, tp))
        others = stage.followers(last)
        await _start(stage, *others)
        await _all_in_sync(stage)
        await stage.prefer(tp, others[0])  # The leader stays, in a new epoch.
        await stage.wait(partial(stage.is_led_by_other, tp, last), f"{tp} has an intact leader")
        await _all_in_sync(stage)
        _check_records(stage, tp)


async def _replace_log(stage: ClusterStage) -> None:
    """The log of a stopped follower is replaced by one of another topic, such as by a restored directory.

    It is not used: its records are those of the other topic. Without it, the follower copies the replica again.
    """
    tp, other = stage.tps[0], await stage.create_topic("other", 3)
    await stage.write(tp, _RECORDS)
    leader = await stage.leader(tp)
    for number in range(_RECORDS):
        batch = build_batch([Record(timestamp=0, value=b"other %d" % number)])
        expect("a record", await stage.try_append(await stage.leader(other), other, batch), ErrorCode.NONE)
    follower = stage.followers(leader)[0]
    await follower.stop()
    stage.cluster.note(f"aimed: {_directory(tp)} of broker {follower.id} is that of {other}")
    files = follower.files
    files.remove_tree(_directory(tp))
    files.make_dirs(_directory(tp))
    for info in files.list_dir(_directory(other)):
        files.write_atomic(f"{_directory(tp)}/{info.name}", files.read_bytes(f"{_directory(other)}/{info.name}"))
    await _start(stage, follower)
    others = [each for each in stage.tps if each != tp]
    await stage.wait(lambda: all(follower.id in stage.isr(each) for each in others), "the other replicas are in sync")
    await asyncio.sleep(_UNUSED_S)
    assert follower.broker is not None
    require(follower.id not in stage.isr(tp), f"broker {follower.id} is in sync with records of {other}")
    hosted = follower.broker.replicas.partitions.get(tp)
    require(hosted is None or hosted.log is None, f"broker {follower.id} uses the log of {other} for {tp}")
    await follower.stop()
    follower.files.remove_tree(_directory(tp))
    await _start(stage, follower)
    await stage.in_sync(follower, _BACK_S)
    _check_records(stage, tp)


async def _lead_alone(stage: ClusterStage, tp: TopicPartition, node: SimNode, gap: _Gap) -> None:
    await _start(stage, node)
    leader = await stage.leader(tp)
    require(leader is node, f"broker {leader.id} leads {tp}, only broker {node.id} was started")
    loss = paths.lost_records_path(*tp, *gap)
    await stage.wait(lambda: loss in stage.cluster.zookeeper.tree.nodes, f"{loss} reports the loss")


async def _stop_all(stage: ClusterStage, tp: TopicPartition) -> SimNode:
    """Stop all brokers, the leader last, and return it."""
    last = await stage.leader(tp)
    for node in (*stage.followers(last), last):
        await node.stop()
    require(stage.isr(tp) == {last.id}, f"the ISR of {tp} is {set(stage.isr(tp))}, the last broker was {last.id}")
    return last


async def _start(stage: ClusterStage, *nodes: SimNode) -> None:
    for node in nodes:
        node.start()
    await stage.wait(lambda: all(node.is_ready for node in nodes), "the brokers answer")


async def _all_in_sync(stage: ClusterStage) -> None:
    for node in stage.nodes:
        await stage.in_sync(node, _BACK_S)


def _check_records(stage: ClusterStage, tp: TopicPartition) -> None:
    """All replicas have all records."""
    logs = {}
    for node in stage.nodes:
        assert node.broker is not None
        end = stage.log(node, tp).log_end_offset
        require(end == _RECORDS, f"{tp} of broker {node.id} ends at {end}, there are {_RECORDS} records")
        logs[node.id] = content(node.broker, tp)
    require(len(set(logs.values())) == 1, f"the replicas of {tp} have different records")


AIMS_OF_DAMAGE: Final[dict[str, ClusterAim]] = {
    "damaged follower": ClusterAim(_damage_follower, _SMALL_SEGMENTS),
    "damaged log start": ClusterAim(_damage_log_start, _SMALL_SEGMENTS),
    "damaged last leader": ClusterAim(_damage_last_leader, _SMALL_SEGMENTS),
    "log of another topic": ClusterAim(_replace_log),
    "damaged lonely leader": ClusterAim(_damage_lonely_leader, _SMALL_SEGMENTS),
}
