"""CreateTopics: plan, elect, then one fenced transaction that makes config, assignment and states appear together.

Many topics share a transaction. A topic that is too large is written in two steps: its znode first, then the states by
the partition state machine. Any controller completes such a topic, so a crash leaves nothing half-created.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from klamm.controller import deletion, topic_store
from klamm.controller.context import ControllerContext
from klamm.controller.context.known_topics import collision_key
from klamm.controller.context.replica import PartitionReplica
from klamm.controller.effects import Enqueue, Reply, Steps, report_leadership
from klamm.controller.election import INITIAL, initial_leader_and_isr
from klamm.controller.events import CreatableTopic, CreateTopics, PartitionModifications
from klamm.controller.replies import TopicResult, TopicResults
from klamm.controller.request_batch import ControllerBrokerRequestBatch, LeaderAndIsrUpdate
from klamm.controller.states import PartitionState, ReplicaState
from klamm.controller.store import MAX_BYTES, MAX_OPS, fenced, read, state_creation_ops, state_size
from klamm.controller.topic_validation import (
    PartitionBudget,
    Refused,
    TopicDefaults,
    check_size,
    colliding_topic,
    plan_topic,
)
from klamm.controller.topics import (
    broker_racks,
    duplicates,
    on_new_partition_creation,
    random_topic_id,
    topic_defaults,
)
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, LeaderAndIsr, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import (
    ConnectionLoss,
    Create,
    Exists,
    ExistsResult,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    WriteOp,
    request_size,
)
from klamm.zk.model.znodes import TopicZnode, encode_config, encode_topic

Outcome = TopicResult | None


@dataclass(slots=True)
class _Plan:
    """One topic to create: the content of its znodes."""

    spec: CreatableTopic
    znode: TopicZnode
    states: dict[TopicPartition, LeaderAndIsr]
    topic_data: bytes
    config_data: bytes
    config_exists: bool = False
    is_large: bool = field(init=False)
    """Too large to be written at once."""

    def __post_init__(self) -> None:
        size = len(self.topic_data) + len(self.config_data)
        size += sum(state_size(tp, state) for tp, state in self.states.items())
        self.is_large = size > MAX_BYTES or len(self.znode.assignment) * 2 + 4 > MAX_OPS

    @property
    def name(self) -> str:
        return self.spec.name

    def ops(self, ctx: ControllerContext) -> list[WriteOp]:
        config_path = paths.config_entity_path("topics", self.name)
        config = self.config_data
        first: WriteOp = SetData(config_path, config) if self.config_exists else Create(config_path, config)
        states = {} if self.is_large else self.states
        topic = Create(paths.topic_path(self.name), self.topic_data)
        return [first, topic, *state_creation_ops(ctx, states, set())]

    def result(self) -> TopicResult:
        first = next(iter(self.znode.assignment.values()))
        return TopicResult(
            self.name,
            topic_id=self.znode.topic_id or ZERO_UUID,
            num_partitions=len(self.znode.assignment),
            replication_factor=len(first.replicas),
        )


def on_create_topics(ctx: ControllerContext, event: CreateTopics) -> Steps[None]:
    plans, results = _plan_all(ctx, event)
    if not event.validate_only and plans:
        yield from _note_existing_configs(plans)
        for name, refused in (yield from _write_all(ctx, plans)).items():
            results[name] = TopicResult(name, refused.error, refused.message)
            del plans[name]
        yield from _adopt(ctx, list(plans.values()))
    results |= {name: plan.result() for name, plan in plans.items()}
    yield Reply(TopicResults(tuple(results[spec.name] for spec in event.topics)))


def _plan_all(ctx: ControllerContext, event: CreateTopics) -> tuple[dict[str, _Plan], dict[str, TopicResult]]:
    plans: dict[str, _Plan] = {}
    results: dict[str, TopicResult] = {}
    twice = duplicates(spec.name for spec in event.topics)
    planned_keys: dict[str, str] = {}
    known_keys = ctx.topics.collision_keys
    brokers = broker_racks(ctx)
    defaults = topic_defaults(ctx)
    budget = PartitionBudget(defaults)
    for spec in event.topics:
        if spec.name in twice:
            error = ErrorCode.INVALID_REQUEST
            results[spec.name] = TopicResult(spec.name, error, "Found multiple entries for this topic.")
            continue
        planned = budget.take(_partition_count(spec, defaults)) or plan_topic(
            spec,
            exists=spec.name in ctx.topics,
            collides_with=colliding_topic(spec.name, planned_keys) or colliding_topic(spec.name, known_keys),
            brokers=brokers,
            defaults=defaults,
            rng=ctx.rng,
        )
        if isinstance(planned, Refused):
            results[spec.name] = TopicResult(spec.name, planned.error, _why_refused(ctx, spec.name, planned))
            continue
        plan = _plan(ctx, spec, planned)
        refused = check_size(len(plan.topic_data), len(plan.config_data))
        if refused is not None:
            results[spec.name] = TopicResult(spec.name, refused.error, refused.message)
            continue
        plans[spec.name] = plan
        planned_keys[collision_key(spec.name)] = spec.name
    return plans, results


def _partition_count(spec: CreatableTopic, defaults: TopicDefaults) -> int:
    if spec.assignments:
        return len(spec.assignments)
    return defaults.num_partitions if spec.num_partitions == -1 else spec.num_partitions


def _why_refused(ctx: ControllerContext, topic: str, refused: Refused) -> str:
    """Explain why a topic "exists" that is being deleted: no metadata shows it."""
    if refused.error != ErrorCode.TOPIC_ALREADY_EXISTS or not ctx.deletions.is_queued(topic):
        return refused.message
    absent = deletion.waiting_for(ctx, topic)
    waits = f", and its deletion waits for broker {', '.join(map(str, absent))} to return" if absent else ""
    return f"Topic '{topic}' already exists: it is marked for deletion{waits}."


def _plan(ctx: ControllerContext, spec: CreatableTopic, replicas: dict[int, tuple[int, ...]]) -> _Plan:
    topic_id = random_topic_id(ctx) if ctx.config.inter_broker_protocol.has_topic_ids else None
    znode = TopicZnode({p: ReplicaAssignment(r) for p, r in replicas.items()}, topic_id)
    states = {}
    for partition, brokers in replicas.items():
        tp = TopicPartition(spec.name, partition)
        first = initial_leader_and_isr(brokers, [b for b in brokers if ctx.brokers.is_replica_online(b, tp)])
        if first is not None:
            states[tp] = first
    return _Plan(spec, znode, states, encode_topic(znode), encode_config(dict(spec.configs)))


def _note_existing_configs(plans: dict[str, _Plan]) -> Steps[None]:
    """An existing config znode (left over or written early) is overwritten, as in Kafka."""
    results = yield from read(Exists(paths.config_entity_path("topics", name)) for name in plans)
    for plan, result in zip(plans.values(), results, strict=True):
        plan.config_exists = isinstance(result, ExistsResult) and result.stat is not None


def _write_all(ctx: ControllerContext, plans: dict[str, _Plan]) -> Steps[dict[str, Refused]]:
    refused: dict[str, Refused] = {}
    pending = list(plans.values())
    while pending:
        group, ops, owners = _next_group(ctx, pending)
        try:
            yield from fenced(ctx, ops)
        except ConnectionLoss:
            done = yield from _already_written(group)
            pending = [plan for plan in pending if plan.name not in done]
        except MultiFailed as failed:
            plan = owners[failed.index - 1]
            reason = yield from _resolve(plan, failed)
            if reason is not None:
                refused[plan.name] = reason
            if reason is not None or plan.name in (yield from _already_written([plan])):
                pending.remove(plan)
        else:
            del pending[: len(group)]
    return refused


def _next_group(ctx: ControllerContext, pending: list[_Plan]) -> tuple[list[_Plan], list[WriteOp], list[_Plan]]:
    """Return as many topics as fit into a transaction, its operations, and the topic of each operation."""
    group: list[_Plan] = []
    ops: list[WriteOp] = []
    owners: list[_Plan] = []
    size = 0
    for plan in pending:
        own = plan.ops(ctx)
        size += sum(map(request_size, own))
        if group and (len(ops) + len(own) > MAX_OPS or size > MAX_BYTES):
            break
        group.append(plan)
        ops += own
        owners += [plan] * len(own)
    return group, ops, owners


def _already_written(group: Sequence[_Plan]) -> Steps[frozenset[str]]:
    """Return topics whose znode equals the intended one: the transaction succeeded and its answer was lost."""
    stored = yield from topic_store.read_topics(plan.name for plan in group)
    return frozenset(p.name for p in group if p.name in stored and stored[p.name].znode == p.znode)


def _resolve(plan: _Plan, failed: MultiFailed) -> Steps[Refused | None]:
    """Return why an operation failed; None if the plan was corrected or the topic is ours."""
    if failed.op.path == paths.config_entity_path("topics", plan.name) and isinstance(
        failed.error, NodeExists | NoNode
    ):
        plan.config_exists = isinstance(failed.error, NodeExists)
        return None
    if isinstance(failed.error, NodeExists) and failed.op.path == paths.topic_path(plan.name):
        if plan.name in (yield from _already_written([plan])):
            return None
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{plan.name}' already exists.")
    return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"ZooKeeper refused {failed.op.path}: {failed.error}")


def _adopt(ctx: ControllerContext, plans: Sequence[_Plan]) -> Steps[None]:
    """Add created topics to the context, send them in one batch, and watch for changes by others."""
    updates, unfinished, changes = [], [], []
    for plan in plans:
        ctx.topics.put(plan.name, plan.znode.topic_id or ZERO_UUID)
        for partition, assignment in plan.znode.assignment.items():
            tp = TopicPartition(plan.name, partition)
            ctx.put_assignment(tp, assignment)
            state = None if plan.is_large else plan.states.get(tp)
            if state is None:
                unfinished.append(tp)
                continue
            changes.append(ctx.states.put_leadership(tp, LeaderIsrAndControllerEpoch(state, ctx.epoch), INITIAL))
            ctx.states.put_partition_state(tp, PartitionState.ONLINE)
            for replica in assignment.replicas:
                ctx.states.put_replica_state(PartitionReplica(tp, replica), ReplicaState.ONLINE)
            updates.append(LeaderAndIsrUpdate(state.isr, tp, is_new=True))
    yield from report_leadership(changes)
    if updates:
        yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()
    yield from on_new_partition_creation(ctx, unfinished)
    stored = yield from topic_store.read_topics((plan.name for plan in plans), watch=True)
    for plan in plans:
        if plan.name not in stored or stored[plan.name].znode != plan.znode:
            yield Enqueue(PartitionModifications(plan.name))
