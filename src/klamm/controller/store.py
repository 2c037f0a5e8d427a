"""Reads and writes of partition states: fenced, many at once, with a certain outcome.

Every write is a multi that begins with a check of `/controller_epoch`: if that check fails, another broker is the
controller and `ControllerMoved` ends the event. A multi whose answer was lost may have taken effect: the znodes are
read again, and a state equal to the intended one counts as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from klamm.controller.context import ControllerContext
from klamm.controller.effects import MultiResults, Note, ReadResults, Steps, ZkMulti, ZkRead
from klamm.model import NO_LEADER, LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import (
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    Delete,
    GetChildren,
    GetChildrenResult,
    GetData,
    GetDataResult,
    MultiFailed,
    NodeExists,
    NoNode,
    ReadOp,
    SetData,
    SetDataResult,
    WriteOp,
    ZkError,
    request_size,
)
from klamm.zk.model.znodes import ZnodeFormatError, decode_config, decode_partition_state, encode_partition_state

MAX_OPS = 1000
"""Maximum operations per transaction: measured against a real ZooKeeper, more do not make it faster."""
MAX_BYTES = 800_000
"""Maximum bytes per transaction, well below ZooKeeper's limit."""


class ControllerMoved(Exception):
    """Another broker became the controller: this one must resign."""


def read(ops: Iterable[ReadOp]) -> Steps[ReadResults]:
    ops = tuple(ops)
    if not ops:
        return ()
    results: ReadResults = yield ZkRead(ops)
    return results


def read_data(paths_: Iterable[str], *, watch: bool = False) -> Steps[list[GetDataResult | None]]:
    results = yield from read(GetData(path, watch) for path in paths_)
    return [result if isinstance(result, GetDataResult) else None for result in results]


def read_children(path: str, *, watch: bool = False) -> Steps[tuple[str, ...]]:
    """Return the names of the children in order; none if the znode does not exist."""
    (result,) = yield from read([GetChildren(path, watch)])
    return tuple(sorted(result.children)) if isinstance(result, GetChildrenResult) else ()


def fenced(ctx: ControllerContext, ops: Sequence[WriteOp]) -> Steps[MultiResults]:
    """Run one transaction fenced by the controller epoch; returns the results of `ops`."""
    fence = Check(paths.CONTROLLER_EPOCH, ctx.epoch_zk_version)
    try:
        results: MultiResults = yield ZkMulti((fence, *ops))
    except MultiFailed as failed:
        if failed.index == 0:
            raise ControllerMoved(f"controller epoch {ctx.epoch} is over") from failed
        raise
    return results[1:]


def may_be_tried_again(failed: MultiFailed) -> bool:
    """Whether the znode changed concurrently. Retrying does not help against any other refusal (no permission)."""
    return isinstance(failed.error, BadVersion | NodeExists | NoNode)


def delete_all(ctx: ControllerContext, doomed: Sequence[str]) -> Steps[dict[str, ZkError]]:
    """Delete znodes; missing ones count as deleted. Log and return those that ZooKeeper does not delete."""
    return (yield from delete_groups(ctx, {path: [path] for path in doomed}))


def delete_groups(ctx: ControllerContext, groups: Mapping[str, Sequence[str]]) -> Steps[dict[str, ZkError]]:
    """Delete the znodes of each group in order; returns the reason for each group that stays."""
    left = [(group, path) for group, paths_ in groups.items() for path in paths_]
    refused: dict[str, ZkError] = {}
    while left:
        chunk = left[:MAX_OPS]
        try:
            yield from fenced(ctx, [Delete(path) for _, path in chunk])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            group, path = chunk[failed.index - 1]
            if isinstance(failed.error, NoNode):
                left.remove((group, path))
                continue
            yield Note(f"{path} cannot be deleted: {failed.error}")
            refused[group] = failed.error
            left = [each for each in left if each[0] != group]
            continue
        del left[: len(chunk)]
    return refused


# ---- partition states ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Updated:
    """The result of `update_states`: states that were written, left unchanged, are missing, or were refused."""

    changed: dict[TopicPartition, LeaderIsrAndControllerEpoch] = field(default_factory=dict)
    unchanged: dict[TopicPartition, LeaderIsrAndControllerEpoch] = field(default_factory=dict)
    missing: list[TopicPartition] = field(default_factory=list)
    refused: dict[TopicPartition, ZkError] = field(default_factory=dict)


def read_states(
    tps: Sequence[TopicPartition], mzxids: dict[TopicPartition, int] | None = None
) -> Steps[dict[TopicPartition, LeaderIsrAndControllerEpoch]]:
    """Return the states of partitions that have one; `partition_epoch` is the version of the znode.

    `mzxids` receives the zxid of each last write.
    """
    results = yield from read_data(paths.partition_state_path(*tp) for tp in tps)
    states = {}
    known: dict[tuple[bytes | None, int], LeaderIsrAndControllerEpoch] = {}
    for tp, result in zip(tps, results, strict=True):
        if result is None:
            continue
        key = result.data, result.stat.version
        state = known.get(key)  # many partitions have equal states, and values can be shared
        if state is None:
            try:
                state = known[key] = decode_partition_state(tp, result.data, result.stat.version)
            except ZnodeFormatError as error:
                yield Note(str(error), True)
                continue
        states[tp] = state
        if mzxids is not None:
            mzxids[tp] = result.stat.mzxid
    return states


def update_states(
    ctx: ControllerContext,
    tps: Sequence[TopicPartition],
    decide: Callable[[TopicPartition, LeaderAndIsr], LeaderAndIsr | None],
) -> Steps[Updated]:
    """Compare and swap until every partition is decided. `decide` returns the new state, or None for no change.

    The cached state is tried first: if it is stale, the version check fails and the znode is read. If leaders write the
    ISR themselves, the cache lags, and the znode is read first.
    """
    updated, pending, intended = Updated(), list(tps), dict[TopicPartition, LeaderAndIsr]()
    known: dict[tuple[int, tuple[int, ...] | None], LeaderIsrAndControllerEpoch] = {}
    chunk = MAX_OPS
    from_cache = ctx.config.inter_broker_protocol.has_alter_partition
    while pending:
        states = _cached(ctx, pending) if from_cache else (yield from read_states(pending))
        _refuse_newer_epochs(ctx, states)
        from_cache = False
        wanted = dict[TopicPartition, LeaderAndIsr]()
        contents = dict[TopicPartition, LeaderIsrAndControllerEpoch]()
        for tp in pending:
            state = states.get(tp)
            if state is None:
                updated.missing.append(tp)
            elif intended and tp in intended and _is_ours(ctx, state, intended[tp]):
                updated.changed[tp] = state
            elif (new := decide(tp, state.leader_and_isr)) is None:
                updated.unchanged[tp] = state
            else:
                wanted[tp] = new
                former = _former_isr(ctx, tp, state.leader_and_isr, new)
                content = known.get((id(new), former))
                if content is None:  # its value keeps `new` alive, and so its identity
                    content = known[id(new), former] = LeaderIsrAndControllerEpoch(new, ctx.epoch, former)
                contents[tp] = content
        yield from _write_states(ctx, contents, chunk, updated)
        intended = wanted
        pending = [tp for tp in wanted if tp not in updated.changed and tp not in updated.refused]
        chunk = max(1, chunk // 4)
    for tp, error in updated.refused.items():
        yield Note(f"the state of {tp} cannot be written: {error}")
    return updated


def _former_isr(
    ctx: ControllerContext, tp: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr
) -> tuple[int, ...] | None:
    """Return the former members that the znode lists; None for no list.

    A new leader that leads without members of the last ISR needs none: its state counts as unsettled until
    `SETTLED_LEADERS` is written, which costs one write for all partitions. A complete ISR has no former members, and a
    topic that is being deleted needs none.
    """
    isr, replicas = after.isr, ctx.topics.assignment(tp).replicas
    if isr == replicas or set(isr).issuperset(replicas):
        return None
    if len(isr) < len(before.isr) and after.leader_epoch > before.leader_epoch and after.leader != NO_LEADER:
        return None  # as in every ordinary failover; the rest is rarer
    former = ctx.suspects.former_isr(tp, before, after)
    return None if (former and after.leader != NO_LEADER) or ctx.deletions.is_queued(tp.topic) else former


def _cached(ctx: ControllerContext, tps: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderIsrAndControllerEpoch]:
    leadership = ctx.states.leadership
    return {tp: state for tp in tps if (state := leadership.get(tp)) is not None}


def _refuse_newer_epochs(ctx: ControllerContext, states: dict[TopicPartition, LeaderIsrAndControllerEpoch]) -> None:
    epoch = ctx.epoch
    for tp, state in states.items():
        if state.controller_epoch > epoch:
            raise ControllerMoved(f"the state of {tp} was written by controller epoch {state.controller_epoch}")


def _is_ours(ctx: ControllerContext, found: LeaderIsrAndControllerEpoch, meant: LeaderAndIsr) -> bool:
    same = found.leader_and_isr.with_partition_epoch(meant.partition_epoch) == meant
    return same and found.controller_epoch == ctx.epoch


def _write_states(
    ctx: ControllerContext, wanted: dict[TopicPartition, LeaderIsrAndControllerEpoch], chunk: int, updated: Updated
) -> Steps[None]:
    """Write in transactions of `chunk` states. The caller reads states again if their transaction failed."""
    ops: dict[TopicPartition, WriteOp] = {}
    encoded: dict[int, bytes] = {}
    for tp, state in wanted.items():
        data = encoded.get(id(state))  # `wanted` keeps the states alive, and many partitions share one
        if data is None:
            data = encoded[id(state)] = encode_partition_state(state)
        ops[tp] = SetData(paths.partition_state_path(*tp), data, state.leader_and_isr.partition_epoch)
    written: dict[tuple[int, int], LeaderIsrAndControllerEpoch] = {}
    for part in _parts(ops, lambda tp: request_size(ops[tp]), chunk):
        try:
            results = yield from fenced(ctx, [ops[tp] for tp in part])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if not may_be_tried_again(failed):
                updated.refused[part[failed.index - 1]] = failed.error
            continue
        for tp, result in zip(part, results, strict=True):
            assert isinstance(result, SetDataResult)
            state, version = wanted[tp], result.stat.version
            stored = written.get((id(state), version))
            if stored is None:
                leadership = state.leader_and_isr.with_partition_epoch(version)
                stored = LeaderIsrAndControllerEpoch(leadership, ctx.epoch, state.former_isr)
                written[id(state), version] = stored
            updated.changed[tp] = stored


def _parts(
    tps: Iterable[TopicPartition], size_of: Callable[[TopicPartition], int], count: int
) -> Iterator[list[TopicPartition]]:
    """Split into pieces of at most `count` that also fit into a transaction by size."""
    part: list[TopicPartition] = []
    size = 0
    for tp in tps:
        own = size_of(tp)
        if part and (len(part) == count or size + own > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(tp)
        size += own
    if part:
        yield part


def state_size(tp: TopicPartition, state: LeaderAndIsr) -> int:
    """The approximate bytes for the creation of a partition's first state: two znodes and their parents."""
    return 3 * (len(tp.topic) + 130) + 120 + 12 * len(state.isr)


def state_creation_ops(
    ctx: ControllerContext, states: dict[TopicPartition, LeaderAndIsr], existing: set[str]
) -> list[WriteOp]:
    """The creations for these states below their topic znodes. Skips `existing` paths and adds to them."""
    ops: list[WriteOp] = []
    for tp, state in states.items():
        for path in (paths.topic_partitions_path(tp.topic), paths.partition_path(*tp)):
            if path not in existing:
                existing.add(path)
                ops.append(Create(path))
        data = encode_partition_state(LeaderIsrAndControllerEpoch(state, ctx.epoch))
        ops.append(Create(paths.partition_state_path(*tp), data))
    return ops


def create_states(
    ctx: ControllerContext, wanted: dict[TopicPartition, LeaderAndIsr]
) -> Steps[dict[TopicPartition, LeaderIsrAndControllerEpoch]]:
    """Create first states. An existing state (half-created topic, lost answer) is adopted.

    A state that ZooKeeper refuses for another reason is logged and left out.
    """
    created: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
    for part in _parts(wanted, lambda tp: state_size(tp, wanted[tp]), MAX_OPS // 2):
        pending = {tp: wanted[tp] for tp in part}
        existing = {paths.topic_partitions_path(t) for t in {tp.topic for tp in part} if _has_states(ctx, t)}
        while pending:
            try:
                yield from fenced(ctx, state_creation_ops(ctx, pending, set(existing)))
            except (MultiFailed, ConnectionLoss) as failed:
                if isinstance(failed, MultiFailed) and not may_be_tried_again(failed):
                    yield Note(f"partition states cannot be created: {failed}")
                    pending = {tp: state for tp, state in pending.items() if failed.op.path not in _path_to(tp)}
                    continue
                found, existing = yield from _what_exists(list(pending))
                created.update(found)
                pending = {tp: state for tp, state in pending.items() if _can_be_created(tp, existing)}
                continue
            created.update({tp: LeaderIsrAndControllerEpoch(state, ctx.epoch) for tp, state in pending.items()})
            break
    return created


def _can_be_created(tp: TopicPartition, existing: set[str]) -> bool:
    return paths.topic_path(tp.topic) in existing and paths.partition_state_path(*tp) not in existing


def _has_states(ctx: ControllerContext, topic: str) -> bool:
    return any(tp in ctx.states.leadership for tp in ctx.topics.partitions_of(topic))


def _path_to(tp: TopicPartition) -> tuple[str, ...]:
    """Return the paths from the topic down to the state."""
    return (
        paths.topic_path(tp.topic),
        paths.topic_partitions_path(tp.topic),
        paths.partition_path(*tp),
        paths.partition_state_path(*tp),
    )


def _what_exists(
    tps: list[TopicPartition],
) -> Steps[tuple[dict[TopicPartition, LeaderIsrAndControllerEpoch], set[str]]]:
    """Return the readable states, and which of these znodes and their parents exist."""
    above = dict.fromkeys(path for tp in tps for path in _path_to(tp))
    nodes = yield from read_data(above)
    states = yield from read_states(tps)
    return states, {path for path, node in zip(above, nodes, strict=True) if node is not None}


def read_topic_configs(topics: Iterable[str]) -> Steps[dict[str, dict[str, str]]]:
    """Return the stored configuration overrides of topics, without unreadable ones."""
    topics = list(topics)
    results = yield from read_data(paths.config_entity_path("topics", topic) for topic in topics)
    configs = {}
    for topic, result in zip(topics, results, strict=True):
        try:
            data = None if result is None else result.data
            configs[topic] = decode_config(paths.config_entity_path("topics", topic), data)
        except ZnodeFormatError as error:
            yield Note(str(error), True)
    return configs
