"""Former members of an ISR across a change of the controller: who else may have every acknowledged record?

A controller removes members from an ISR when it elects a leader without them. Until that leader has answered, nothing
was committed without them, so a partition that waits for a reliable log waits for them too. The controller remembers
them (`Suspects.left`), and its successor reconstructs them from ZooKeeper:

- The znode of a partition without a leader lists them. If the leader itself requested the smaller ISR, the znode
  contains an empty list.
- The state of an elected leader does not list them, because most leaders answer at once. The state counts as settled
  if `SETTLED_LEADERS` was written after it. Otherwise any replica outside the ISR may be a former member.
"""

from __future__ import annotations

from collections.abc import Mapping

from klamm.controller import store
from klamm.controller.context import ControllerContext
from klamm.controller.effects import Note, Steps
from klamm.model import NO_LEADER, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, Create, MultiFailed, NoNode, SetData
from klamm.zk.model.znodes import encode_controller_epoch

_ANY_VERSION = -1
_NEVER = -1


def settle(ctx: ControllerContext) -> Steps[None]:
    """If all elected leaders have answered, record it: one small write after a failover, not one per partition."""
    suspects = ctx.suspects
    if not suspects.unsettled or any(_is_awaited(ctx, tp) for tp in suspects.left):
        return
    path, data = paths.SETTLED_LEADERS, encode_controller_epoch(ctx.epoch)
    try:
        try:
            yield from store.fenced(ctx, [SetData(path, data, _ANY_VERSION)])
        except MultiFailed as failed:
            if not isinstance(failed.error, NoNode):
                raise
            parent = path.rpartition("/")[0]
            (there,) = yield from store.read_data([parent])
            yield from store.fenced(ctx, [*([Create(parent)] if there is None else []), Create(path, data)])
    except ConnectionLoss:
        return  # the next answer tries again; until then the states count as unsettled
    except MultiFailed as failed:
        yield Note(f"{path} cannot be written: {failed}")
    suspects.unsettled = False


def _is_awaited(ctx: ControllerContext, tp: TopicPartition) -> bool:
    """Whether the partition has a leader that must answer. The znode of a partition without one lists the members."""
    state = ctx.states.leadership.get(tp)
    return state is not None and state.leader_and_isr.leader != NO_LEADER and not ctx.deletions.is_queued(tp.topic)


def read_settled_zxid() -> Steps[int]:
    """Return the zxid of the last time when all leaders had answered."""
    (found,) = yield from store.read_data([paths.SETTLED_LEADERS])
    return _NEVER if found is None else found.stat.mzxid


def adopt(ctx: ControllerContext, mzxids: Mapping[TopicPartition, int], settled_zxid: int) -> None:
    """Reconstruct the former members of partitions whose states were just read."""
    leadership, assignment = ctx.states.leadership, ctx.topics.assignment
    for tp, mzxid in mzxids.items():
        state = leadership[tp]
        isr, replicas = state.leader_and_isr.isr, assignment(tp).replicas
        if isr == replicas or set(isr).issuperset(replicas):
            continue
        if state.former_isr is not None:
            ctx.suspects.put_former_isr(tp, state.former_isr)
        elif mzxid > settled_zxid or state.leader_and_isr.leader == NO_LEADER:
            ctx.suspects.put_former_isr(tp, tuple([replica for replica in replicas if replica not in isr]))
