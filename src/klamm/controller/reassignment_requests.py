"""Requests for reassignments: by the API (KIP-455) and, for old tools, by the znode `/admin/reassign_partitions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.controller import store
from klamm.controller.context import ControllerContext
from klamm.controller.effects import Enqueue, Note, Reply, Steps
from klamm.controller.events import (
    ApiPartitionReassignment,
    ListPartitionReassignments,
    ZkPartitionReassignment,
)
from klamm.controller.reassignment import on_partition_reassignment
from klamm.controller.replies import PartitionResult, PartitionResults, Reassignments
from klamm.controller.topic_store import topic_size
from klamm.controller.topic_validation import MAX_TOPIC_BYTES, Refused
from klamm.errors import ErrorCode
from klamm.model import ReplicaAssignment, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, Delete, Exists, ExistsResult, MultiFailed, SetData
from klamm.zk.model.znodes import ZnodeFormatError, decode_reassignment, encode_reassignment

Target = tuple[int, ...] | None


def on_api_reassignment(ctx: ControllerContext, event: ApiPartitionReassignment) -> Steps[None]:
    accepted, results = {}, []
    for tp, target in event.reassignments:
        planned = plan(ctx, tp, target)
        if isinstance(planned, Refused):
            results.append(PartitionResult(tp, planned.error, planned.message))
        else:
            accepted[tp] = planned
            results.append(PartitionResult(tp))
    large = _too_large(ctx, accepted)
    if large:
        accepted = {tp: planned for tp, planned in accepted.items() if tp not in large}
        results = [large.get(result.partition, result) if not result.error else result for result in results]
    if accepted:
        yield from _drop_from_znode(ctx, accepted)
    for tp, assignment in accepted.items():
        yield from on_partition_reassignment(ctx, tp, assignment)
    yield Reply(PartitionResults(tuple(results)))


def _too_large(
    ctx: ControllerContext, accepted: Mapping[TopicPartition, ReplicaAssignment]
) -> dict[TopicPartition, PartitionResult]:
    """The partitions of topics whose znode would no longer fit into a request to ZooKeeper."""
    by_topic: dict[str, dict[int, ReplicaAssignment]] = {}
    for tp, assignment in accepted.items():
        by_topic.setdefault(tp.topic, {})[tp.partition] = assignment
    sizes = {topic: topic_size(ctx, topic, changes) for topic, changes in by_topic.items()}
    return {
        tp: PartitionResult(
            tp,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The replica assignment would take {sizes[tp.topic]} bytes in ZooKeeper; "
            f"at most {MAX_TOPIC_BYTES} are possible.",
        )
        for tp in accepted
        if sizes[tp.topic] > MAX_TOPIC_BYTES
    }


def plan(ctx: ControllerContext, tp: TopicPartition, target: Target) -> ReplicaAssignment | Refused:
    """Return the assignment during the move to `target` (None: cancel), or the refusal."""
    if target is None and tp not in ctx.topics.reassigning:
        return Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    if target is not None and (refused := _check_target(ctx, target)) is not None:
        return refused
    if not ctx.topics.has_assignment(tp) or ctx.deletions.is_queued(tp.topic):
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    current = ctx.topics.assignment(tp)
    if target is None:
        planned = current.reassign_to(current.origin_replicas)
    else:
        known = {*ctx.brokers.live_ids, *current.origin_replicas}
        unknown = [r for r in target if r not in known]
        if unknown:
            listed = ", ".join(map(str, unknown))
            return Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Replica assignment has brokers that are not alive: {listed}.",
            )
        planned = current.reassign_to(target)
    return _keep_in_sync_replica(ctx, tp, planned)


def _check_target(ctx: ControllerContext, target: tuple[int, ...]) -> Refused | None:
    message = None
    if not target:
        message = "Empty replica list specified in partition reassignment."
    elif len(set(target)) != len(target):
        message = f"Duplicate replica ids in partition reassignment replica list: {list(target)}"
    elif any(r < 0 for r in target):
        message = f"Invalid replica id in partition reassignment replica list: {list(target)}"
    return None if message is None else Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _keep_in_sync_replica(
    ctx: ControllerContext, tp: TopicPartition, planned: ReplicaAssignment
) -> ReplicaAssignment | Refused:
    """Replicas dropped at once (a cancelled or replaced move) must not be the only ones in sync."""
    state = ctx.states.leadership.get(tp)
    if state is None or any(r in planned.replicas for r in state.leader_and_isr.isr):
        return planned
    return Refused(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"None of the replicas {list(planned.replicas)} is in sync; in sync are {list(state.leader_and_isr.isr)}.",
    )


def on_list_reassignments(ctx: ControllerContext, event: ListPartitionReassignments) -> Steps[None]:
    wanted: Iterable[TopicPartition] = ctx.topics.reassigning if event.partitions is None else event.partitions
    moving = tuple((tp, ctx.topics.assignment(tp)) for tp in wanted if tp in ctx.topics.reassigning)
    yield Reply(Reassignments(moving))


def on_zk_reassignment(ctx: ControllerContext) -> Steps[None]:
    """Handle the moves that a tool wrote to the znode, and watch it for the next ones."""
    targets = yield from _read_znode()
    ctx.topics.note_zk_reassignment(bool(targets))
    refused = set()
    for tp, target in targets.items():
        if ctx.topics.has_assignment(tp) and ctx.topics.assignment(tp).target_replicas == target:
            continue
        planned = plan(ctx, tp, target)
        if isinstance(planned, ReplicaAssignment) and tp in (large := _too_large(ctx, {tp: planned})):
            planned = Refused(large[tp].error, large[tp].message or "")
        if isinstance(planned, Refused):
            refused.add(tp)
            yield Note(f"reassignment of {tp} to {list(target)} is refused: {planned.message}")
        else:
            yield from on_partition_reassignment(ctx, tp, planned)
    done = [tp for tp in targets if tp in refused or tp not in ctx.topics.reassigning]
    if done:
        yield from _drop_from_znode(ctx, done)


def _read_znode() -> Steps[Mapping[TopicPartition, tuple[int, ...]]]:
    (there,) = yield from store.read([Exists(paths.REASSIGN_PARTITIONS, watch=True)])
    if not isinstance(there, ExistsResult) or there.stat is None:
        return {}
    (result,) = yield from store.read_data([paths.REASSIGN_PARTITIONS])
    if result is None:
        return {}
    try:
        return decode_reassignment(result.data)
    except ZnodeFormatError as error:
        yield Note(str(error), True)
        return {}


def _drop_from_znode(ctx: ControllerContext, tps: Iterable[TopicPartition]) -> Steps[None]:
    """Rewrite the znode without `tps`. If nothing is left, delete it and set the watch again."""
    gone = set(tps)
    while True:
        (result,) = yield from store.read_data([paths.REASSIGN_PARTITIONS])
        if result is None:
            return
        try:
            targets = decode_reassignment(result.data)
        except ZnodeFormatError:
            return
        left = {tp: target for tp, target in targets.items() if tp not in gone}
        if len(left) == len(targets):
            return
        path, version = paths.REASSIGN_PARTITIONS, result.stat.version
        op = SetData(path, encode_reassignment(left), version) if left else Delete(path, version)
        try:
            yield from store.fenced(ctx, [op])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if store.may_be_tried_again(failed):
                continue
            yield Note(f"{path} stays as it is: {failed}")
            return
        if not left:
            yield Enqueue(ZkPartitionReassignment())
        return
