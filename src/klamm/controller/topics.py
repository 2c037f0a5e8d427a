"""Topics that others created or grew by writing znodes; growth and deletion requested from the controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from klamm.controller import deletion, partition_state_machine, replica_state_machine, topic_store
from klamm.controller.context import ControllerContext
from klamm.controller.effects import Note, Reply, Schedule, Steps
from klamm.controller.events import CreatablePartitions, CreatePartitions, DeleteTopics, TopicChange
from klamm.controller.replies import TopicResult, TopicResults
from klamm.controller.states import PartitionState, ReplicaState
from klamm.controller.store import read, read_children
from klamm.controller.topic_store import StoredTopic
from klamm.controller.topic_validation import PartitionBudget, Refused, TopicDefaults, check_size, plan_partitions
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, ReplicaAssignment, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import GetChildren, GetChildrenResult

TOPICS_LISTED_PER_S: Final = 30_000
MANY_TOPICS: Final = 3_000
"""From this many topics on, listings of all topics are spaced in time."""


def broker_racks(ctx: ControllerContext) -> dict[int, str | None]:
    """Return the brokers that may host new replicas, with their racks."""
    live = ctx.brokers.live_ids
    return {b: ctx.brokers.live_or_shutting_down[b].rack for b in ctx.brokers.ids() if b in live}


def topic_defaults(ctx: ControllerContext) -> TopicDefaults:
    config = ctx.config
    return TopicDefaults(config.num_partitions, config.default_replication_factor, config.max_topic_partitions)


def random_topic_id(ctx: ControllerContext) -> UUID:
    """Return a version 4 UUID from the controller's random source, never a reserved one."""
    return UUID(int=ctx.rng.getrandbits(128), version=4)


def on_new_partition_creation(ctx: ControllerContext, tps: Iterable[TopicPartition]) -> Steps[None]:
    tps = list(tps)
    yield from partition_state_machine.handle_state_changes(ctx, tps, PartitionState.NEW)
    replicas = ctx.topics.replicas_of(tps)
    yield from replica_state_machine.handle_state_changes(ctx, replicas, ReplicaState.NEW)
    yield from partition_state_machine.handle_state_changes(ctx, tps, PartitionState.ONLINE)
    yield from replica_state_machine.handle_state_changes(ctx, replicas, ReplicaState.ONLINE)


# ---- changes by others -----------------------------------------------------------------------------------------------


def on_topic_change(ctx: ControllerContext) -> Steps[None]:
    """Handle topics whose znodes appeared or disappeared. The latter are dropped: another party deleted them.

    Usually these are the controller's own changes. Listing very many topics takes ZooKeeper and this process some time,
    so the next listing is delayed. Until then there is no watch and therefore no further notification.
    """
    now_s = ctx.clock.monotonic()
    if now_s < ctx.topics.next_list_s:
        yield Schedule(int((ctx.topics.next_list_s - now_s) * 1000) + 1, TopicChange())
        return
    if len(ctx.topics) >= MANY_TOPICS:
        ctx.topics.put_off_next_list(now_s + len(ctx.topics) / TOPICS_LISTED_PER_S)
    listed = yield from read_children(paths.TOPICS, watch=True)
    new = [topic for topic in listed if topic not in ctx.topics]
    present = frozenset(listed)
    for topic in [topic for topic in ctx.topics if topic not in present]:
        ctx.remove_topic(topic)
    stored = yield from topic_store.read_topics(new, watch=True)
    yield from adopt_topics(ctx, stored)
    yield from on_new_partition_creation(ctx, [tp for topic in stored for tp in ctx.topics.partitions_of(topic)])


def adopt_topics(ctx: ControllerContext, stored: Mapping[str, StoredTopic]) -> Steps[None]:
    """Add topics to the context; a topic without an id gets one, written before it is used."""
    for topic, found in stored.items():
        topic_id = found.topic_id
        if topic_id == ZERO_UUID and ctx.config.inter_broker_protocol.has_topic_ids:
            topic_id = yield from _give_topic_id(ctx, topic)
        ctx.topics.put(topic, topic_id)
        ctx.topics.put_new(topic, found.znode.assignment)
        for partition, assignment in found.znode.assignment.items():
            if assignment.adding_replicas or assignment.removing_replicas:
                ctx.topics.start_reassignment(TopicPartition(topic, partition))


def _give_topic_id(ctx: ControllerContext, topic: str) -> Steps[UUID]:
    ctx.topics.propose_id(topic, random_topic_id(ctx))
    znode = yield from topic_store.rewrite_topic(ctx, topic, lambda assignment: assignment)
    return ZERO_UUID if znode is None or znode.topic_id is None else znode.topic_id


def on_partition_modifications(ctx: ControllerContext, topic: str) -> Steps[None]:
    """A topic znode was rewritten: bring new partitions online and ignore other changes."""
    stored = (yield from topic_store.read_topics([topic], watch=True)).get(topic)
    if stored is None or topic not in ctx.topics:
        return
    if stored.topic_id == ZERO_UUID and topic in ctx.topics.ids:
        yield Note(f"topic {topic} lost its id in ZooKeeper: it is written back")
        yield from topic_store.rewrite_topic(ctx, topic, lambda assignment: assignment)
    added = {p: a for p, a in stored.znode.assignment.items() if p not in ctx.topics[topic]}
    if not added:
        return
    if ctx.deletions.is_queued(topic):
        yield from _restore_assignment(ctx, topic)
        return
    for partition, assignment in added.items():
        ctx.put_assignment(TopicPartition(topic, partition), assignment)
    yield from on_new_partition_creation(ctx, [TopicPartition(topic, p) for p in added])


def _restore_assignment(ctx: ControllerContext, topic: str) -> Steps[None]:
    """A topic in deletion does not grow: restore the znode to the existing partitions."""
    (result,) = yield from read([GetChildren(paths.topic_partitions_path(topic))])
    names = result.children if isinstance(result, GetChildrenResult) else ()
    existing = {paths.number_of(name) for name in names}
    kept = {p: a for p, a in ctx.topics[topic].items() if p in existing}
    yield Note(f"topic {topic} is being deleted: partitions that were added to it are removed again")
    yield from topic_store.rewrite_topic(ctx, topic, lambda _: kept)


# ---- requests --------------------------------------------------------------------------------------------------------


def on_create_partitions(ctx: ControllerContext, event: CreatePartitions) -> Steps[None]:
    results = []
    twice = duplicates(topic.name for topic in event.topics)
    budget = PartitionBudget(topic_defaults(ctx))
    for spec in event.topics:
        if spec.name in twice:
            results.append(_refuse(spec.name, ErrorCode.INVALID_REQUEST, "Duplicate topic in request."))
        elif spec.name in ctx.topics and (refused := budget.take(spec.count - len(ctx.topics[spec.name]))) is not None:
            results.append(_refuse(spec.name, refused.error, refused.message))
        else:
            results.append((yield from _grow_topic(ctx, spec, event.validate_only)))
    yield Reply(TopicResults(tuple(results)))


def _grow_topic(ctx: ControllerContext, spec: CreatablePartitions, validate_only: bool) -> Steps[TopicResult]:
    topic = spec.name
    if topic not in ctx.topics:
        return _refuse(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
    if ctx.deletions.is_queued(topic):
        return _refuse(topic, ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
    if any(tp in ctx.topics.reassigning for tp in ctx.topics.partitions_of(topic)):
        message = f"A partition reassignment is in progress for the topic '{topic}'."
        return _refuse(topic, ErrorCode.REASSIGNMENT_IN_PROGRESS, message)
    plan = plan_partitions(spec, ctx.topics[topic], broker_racks(ctx), topic_defaults(ctx))
    if isinstance(plan, Refused):
        return _refuse(topic, plan.error, plan.message)
    added = {p: ReplicaAssignment(replicas) for p, replicas in plan.items()}
    if (refused := check_size(topic_store.topic_size(ctx, topic, added))) is not None:
        return _refuse(topic, refused.error, refused.message)
    if not validate_only:
        written = yield from topic_store.rewrite_topic(ctx, topic, lambda current: {**added, **current})
        if written is None:
            return _refuse(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        if not added.keys() <= written.assignment.keys():
            return _refuse(topic, ErrorCode.UNKNOWN_SERVER_ERROR, "ZooKeeper refused the new assignment.")
        new = {p: a for p, a in written.assignment.items() if p not in ctx.topics[topic]}
        for partition, assignment in new.items():
            ctx.put_assignment(TopicPartition(topic, partition), assignment)
        yield from on_new_partition_creation(ctx, [TopicPartition(topic, p) for p in new])
    return TopicResult(topic, topic_id=ctx.topics.ids.get(topic, ZERO_UUID), num_partitions=spec.count)


def on_delete_topics(ctx: ControllerContext, event: DeleteTopics) -> Steps[None]:
    """Queue topics for deletion in ZooKeeper, answer, and start; clients see the end in the metadata."""
    results, accepted = [], []
    by_name: list[tuple[str | None, UUID]] = [(name, ZERO_UUID) for name in event.names]
    for topic, asked_id in (*by_name, *((ctx.topics.names.get(each), each) for each in event.topic_ids)):
        if topic is None:
            results.append(_unknown_id(asked_id))
            continue
        topic_id = ctx.topics.ids.get(topic, ZERO_UUID)
        if not ctx.config.delete_topic_enable:
            results.append(_refuse(topic, ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled."))
        elif topic not in ctx.topics:
            message = "This server does not host this topic-partition."
            results.append(_refuse(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
        else:
            results.append(TopicResult(topic, topic_id=topic_id))
            if topic not in ctx.deletions.queued:
                accepted.append(topic)
    accepted = list(dict.fromkeys(accepted))
    refused = yield from topic_store.create_delete_entries(ctx, accepted)
    message = "ZooKeeper refused the entry in the queue of deletions."
    yield Reply(
        TopicResults(
            tuple(
                _refuse(each.name, ErrorCode.UNKNOWN_SERVER_ERROR, message) if each.name in refused else each
                for each in results
            )
        )
    )
    if queued := [topic for topic in accepted if topic not in refused]:
        yield from deletion.enqueue_topics(ctx, queued)


def _unknown_id(topic_id: UUID) -> TopicResult:
    return TopicResult("", ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.", topic_id)


def duplicates(names: Iterable[str]) -> frozenset[str]:
    """Return names that a request contains more than once: Kafka refuses all of them."""
    return frozenset(name for name, count in Counter(names).items() if count > 1)


def _refuse(topic: str, error: ErrorCode, message: str) -> TopicResult:
    return TopicResult(topic, error, message)
