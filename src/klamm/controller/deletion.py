"""Topic deletion: stop and delete every replica, then remove the znodes. A blocked deletion waits for its broker.

A topic is queued from the moment its entry in `/admin/delete_topics` was seen until its znodes are gone. It is
*ineligible* while a replica is not online or a broker failed to delete; a broker that starts makes it eligible again.
Deletion ends a reassignment of the topic: continuing the move would bring deleted replicas back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from klamm.controller import partition_state_machine, replica_state_machine, topic_store
from klamm.controller.context import ControllerContext
from klamm.controller.context.replica import PartitionReplica
from klamm.controller.effects import Enqueue, Note, Steps
from klamm.controller.events import TopicDeletionStopReplicaResponseReceived, ZkPartitionReassignment
from klamm.controller.request_batch import ControllerBrokerRequestBatch
from klamm.controller.requests import RequestHead
from klamm.controller.states import PartitionState, ReplicaState
from klamm.errors import ErrorCode
from klamm.model import TopicPartition

_LOOKED_AT: Final = 1_000
"""Maximum partitions per topic that are inspected to explain why its deletion waits."""


def waiting_for(ctx: ControllerContext, topic: str) -> list[int]:
    """The offline brokers with replicas of a topic: its deletion cannot end without them."""
    left = (
        replica
        for replica in ctx.topics.replicas_of(itertools.islice(ctx.topics.partitions_of(topic), _LOOKED_AT))
        if ctx.states.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL
    )
    return sorted({r.replica for r in left if not ctx.brokers.is_replica_online(r.replica, r.partition)})


def is_current(ctx: ControllerContext, broker_id: int, head: RequestHead) -> bool:
    """Return False for an answer from an earlier term or an earlier incarnation of the broker."""
    broker = ctx.brokers.live_or_shutting_down.get(broker_id)
    return broker is not None and (head.controller_epoch, head.broker_epoch) == (ctx.epoch, broker.epoch)


def enqueue_topics(ctx: ControllerContext, topics: Sequence[str]) -> Steps[None]:
    """Queue topics for deletion. Their reassignments end here: old and added replicas are all deleted."""
    for topic in topics:
        ctx.queue_for_deletion(topic)
    yield from resume(ctx, topics)


def resume_for_topics(ctx: ControllerContext, topics: Iterable[str]) -> Steps[None]:
    """Make topics eligible again: a broker with a replica came back."""
    queued = [topic for topic in topics if ctx.deletions.is_queued(topic)]
    ctx.deletions.resume(queued)
    yield from resume(ctx, queued)


def resume(ctx: ControllerContext, topics: Iterable[str]) -> Steps[None]:
    """Advance each of these topics by one step: finish, retry or start."""
    complete, retry, eligible = [], [], []
    for topic in dict.fromkeys(topics):
        if not ctx.deletions.is_queued(topic):
            continue
        busy = ctx.states.count_in_state(topic, ReplicaState.DELETION_STARTED) > 0
        if ctx.states.are_all_replicas_in_state(topic, ReplicaState.DELETION_SUCCESSFUL):
            complete.append(topic)
        elif not busy and topic not in ctx.deletions.ineligible:
            retry += ctx.states.replicas_in_state(topic, ReplicaState.DELETION_INELIGIBLE)
            eligible.append(topic)
    yield from _complete(ctx, complete)
    yield from replica_state_machine.handle_state_changes(ctx, retry, ReplicaState.OFFLINE)
    if eligible:
        yield from _start(ctx, eligible)


def _start(ctx: ControllerContext, topics: list[str]) -> Steps[None]:
    fresh = [topic for topic in topics if not ctx.deletions.has_started(topic)]
    tps = [tp for topic in fresh for tp in ctx.topics.partitions_of(topic)]
    running = [tp for tp in tps if ctx.states.partition_state(tp) is not PartitionState.NON_EXISTENT]
    yield from partition_state_machine.handle_state_changes(ctx, running, PartitionState.OFFLINE)
    yield from partition_state_machine.handle_state_changes(ctx, running, PartitionState.NON_EXISTENT)
    ctx.deletions.start(fresh)
    all_tps = [tp for topic in topics for tp in ctx.topics.partitions_of(topic)]
    yield from ControllerBrokerRequestBatch.build(ctx, update_metadata=all_tps).send()
    yield from _delete_replicas(ctx, topics)


def _delete_replicas(ctx: ControllerContext, topics: list[str]) -> Steps[None]:
    """Stop and delete online replicas; a topic with an offline replica must wait."""
    dead, alive = [], []
    for topic in topics:
        replicas = ctx.topics.replicas_of(ctx.topics.partitions_of(topic))
        left = [r for r in replicas if ctx.states.replica_state(r) is not ReplicaState.DELETION_SUCCESSFUL]
        online: list[PartitionReplica] = []
        offline: list[PartitionReplica] = []
        for replica in left:
            is_online = ctx.brokers.is_replica_online(replica.replica, replica.partition)
            (online if is_online else offline).append(replica)
        if offline:
            ctx.deletions.suspend([topic])
            yield Note(f"the deletion of {topic} waits for replicas {', '.join(map(str, offline))}")
        dead += [r for r in offline if ctx.states.replica_state(r) is ReplicaState.OFFLINE]
        alive += online
    yield from replica_state_machine.handle_state_changes(ctx, dead, ReplicaState.DELETION_INELIGIBLE)
    yield from replica_state_machine.handle_state_changes(ctx, alive, ReplicaState.OFFLINE)
    yield from replica_state_machine.handle_state_changes(ctx, alive, ReplicaState.DELETION_STARTED)


def fail(ctx: ControllerContext, replicas: Iterable[PartitionReplica]) -> Steps[None]:
    """Mark replicas that cannot be deleted now: their topics wait for a change."""
    failed = [r for r in replicas if ctx.deletions.is_queued(r.partition.topic)]
    topics = dict.fromkeys(r.partition.topic for r in failed)
    stoppable = (ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED)
    moving = [r for r in failed if ctx.states.replica_state(r) in stoppable]
    yield from replica_state_machine.handle_state_changes(ctx, moving, ReplicaState.DELETION_INELIGIBLE)
    ctx.deletions.suspend(topics)
    yield from resume(ctx, topics)


def on_stop_replica_response(ctx: ControllerContext, event: TopicDeletionStopReplicaResponseReceived) -> Steps[None]:
    if not is_current(ctx, event.broker_id, event.head):
        return
    failed: list[PartitionReplica] = []
    deleted: list[PartitionReplica] = []
    answered: list[tuple[TopicPartition, int]] = []
    for (tp, error), leader_epoch in zip(event.partition_errors, event.leader_epochs, strict=True):
        if (event.request_error or error) == ErrorCode.NONE:
            deleted.append(PartitionReplica(tp, event.broker_id))
            answered.append((tp, leader_epoch))
        else:
            failed.append(PartitionReplica(tp, event.broker_id))
    ctx.deletions.forget_strays(event.broker_id, answered)
    if failed:
        yield Note(f"broker {event.broker_id} did not delete {', '.join(str(r.partition) for r in failed)}")
        yield from fail(ctx, failed)
    started = [r for r in deleted if ctx.states.replica_state(r) is ReplicaState.DELETION_STARTED]
    if started:
        yield from replica_state_machine.handle_state_changes(ctx, started, ReplicaState.DELETION_SUCCESSFUL)
        yield from resume(ctx, [r.partition.topic for r in started])


def _complete(ctx: ControllerContext, topics: list[str]) -> Steps[None]:
    """All replicas are deleted: remove the znodes, the queue entry last; then the name is free.

    A topic whose znodes cannot be deleted stays queued; it is retried when one of its brokers comes back, and by the
    next controller.
    """
    if not topics:
        return
    refused = yield from topic_store.delete_topics(ctx, topics)
    ctx.deletions.suspend(refused)
    for topic in topics:
        if topic in refused:
            continue
        yield Note(f"topic {topic} is deleted")
        ctx.remove_topic(topic)
    if ctx.topics.has_zk_reassignment:
        yield Enqueue(ZkPartitionReassignment())


def on_topic_deletion(ctx: ControllerContext) -> Steps[None]:
    """The event of the watch on `/admin/delete_topics`."""
    topics = yield from topic_store.read_delete_topics(watch=True)
    unknown = [topic for topic in topics if topic not in ctx.topics]
    if not ctx.config.delete_topic_enable:
        unknown = list(topics)
    yield from _drop_entries(ctx, unknown)
    wanted = [topic for topic in topics if topic in ctx.topics and topic not in ctx.deletions.queued]
    if ctx.config.delete_topic_enable and wanted:
        yield from enqueue_topics(ctx, wanted)


def _drop_entries(ctx: ControllerContext, topics: list[str]) -> Steps[None]:
    if topics:
        yield Note(f"deletion of {', '.join(topics)} is dropped: unknown topics, or delete.topic.enable is false")
        yield from topic_store.drop_delete_entries(ctx, topics)


def initialise(ctx: ControllerContext) -> Steps[None]:
    """At failover: read the queued topics and find those that must wait."""
    topics = yield from topic_store.read_delete_topics(watch=True)
    if not ctx.config.delete_topic_enable:
        yield from _drop_entries(ctx, list(topics))
        return
    yield from _drop_entries(ctx, [topic for topic in topics if topic not in ctx.topics])
    for topic in topics:
        if topic not in ctx.topics:
            continue
        ctx.queue_for_deletion(topic)
        tps = list(ctx.topics.partitions_of(topic))
        if any(not ctx.brokers.is_replica_online(r.replica, r.partition) for r in ctx.topics.replicas_of(tps)):
            ctx.deletions.suspend([topic])
