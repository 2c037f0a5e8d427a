"""The role of controller: registration, election, failover, resignation.

`/controller` is the lock, `/controller_epoch` the epoch; both change in one transaction. The version of the epoch's
znode fences every write of this controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from klamm.controller import (
    deletion,
    elections,
    former_members,
    lost_tails,
    partition_state_machine,
    reassignment,
    reassignment_requests,
    replica_state_machine,
    store,
    topic_store,
)
from klamm.controller.broker_changes import send_live_brokers
from klamm.controller.context import ControllerContext
from klamm.controller.effects import (
    ActiveControllerChanged,
    AddChannel,
    AskSessionId,
    BrokerRegistered,
    CancelScheduled,
    CloseAllChannels,
    Enqueue,
    MultiResults,
    Note,
    Schedule,
    Steps,
    ZkMulti,
)
from klamm.controller.events import AutoPreferredReplicaLeaderElection, Reelect, RegistrationDeleted
from klamm.controller.replies import BrokerRegistration
from klamm.controller.request_batch import ControllerBrokerRequestBatch, LeaderAndIsrUpdate
from klamm.controller.store import ControllerMoved
from klamm.controller.topics import adopt_topics
from klamm.errors import ErrorCode
from klamm.model import NO_CONTROLLER, UNKNOWN_BROKER_EPOCH, BrokerEndPoints, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import encode_broker, without_unclean_shutdown
from klamm.zk.model.ops import (
    Check,
    ConnectionLoss,
    Create,
    Delete,
    Exists,
    ExistsResult,
    GetData,
    GetDataResult,
    MultiFailed,
    NodeExists,
    ReadResult,
    SetData,
    SetDataResult,
)
from klamm.zk.model.znodes import (
    FeatureZnode,
    ZnodeFormatError,
    decode_controller,
    decode_controller_epoch,
    decode_feature,
    encode_controller,
    encode_controller_epoch,
    encode_feature,
)

_EPOCH_REMEDY: Final = f"Set {paths.CONTROLLER_EPOCH} to a number that is at least the last controller epoch"
CLAIM_RETRY_MS: Final = 100
UNREADABLE_RETRY_MS: Final = 1_000
"""Pause before a znode that cannot be decoded, or an id that another session holds, is read again."""
HIGHEST_TRUSTED_EPOCH: Final = 2**30
"""A higher controller epoch in a partition state is ignored: beyond it, an int32 has little room for later epochs."""
_UNREADABLE: Final = -2
"""Instead of the controller's id."""


def register_broker(ctx: ControllerContext) -> Steps[BrokerRegistration]:
    """Create this broker's znode; its czxid is the broker epoch. A znode of another session is not touched.

    A znode that this session owns is ours: the answer to its creation was lost, or it was requested twice. Only the
    owner shows this: a znode of this broker's last session looks the same, and will be gone soon.
    """
    config = ctx.config
    path = paths.broker_path(config.broker_id)
    me = BrokerEndPoints(config.broker_id, config.endpoints, config.rack)
    version = 5 if config.inter_broker_protocol.has_features else 4
    data = encode_broker(
        me,
        ctx.clock.now_ms(),
        version=version,
        jmx_port=config.jmx_port,
        unclean_shutdown=config.unclean_shutdown,
    )
    while True:
        try:
            results: MultiResults = yield ZkMulti((Create(path, ephemeral=True), SetData(path, data, 0)))
            stat = results[1]
            assert isinstance(stat, SetDataResult)
            epoch = stat.stat.czxid
        except (ConnectionLoss, MultiFailed) as failed:
            if isinstance(failed, MultiFailed) and not isinstance(failed.error, NodeExists):
                raise
            (found,) = yield from store.read_data([path])
            if found is None:
                continue
            session_id: int = yield AskSessionId()
            if found.stat.ephemeral_owner == session_id:
                return (yield from _registered(ctx, found.stat.czxid))
            message = f"{path} exists already: another broker with id {config.broker_id} lives, or lived until now"
            return BrokerRegistration(error=ErrorCode.DUPLICATE_BROKER_REGISTRATION, message=message)
        return (yield from _registered(ctx, epoch))


def _registered(ctx: ControllerContext, epoch: int) -> Steps[BrokerRegistration]:
    if epoch != ctx.broker_epoch:
        ctx.set_broker_epoch(epoch)
        yield BrokerRegistered(epoch)
    return BrokerRegistration(epoch)


def register_again(ctx: ControllerContext) -> Steps[None]:
    """This broker's znode was deleted while its session lives: without it the broker counts as dead."""
    path, before = paths.broker_path(ctx.config.broker_id), ctx.broker_epoch
    registration = yield from register_broker(ctx)
    if registration.error is not ErrorCode.NONE:
        yield Note(f"znode {path} was deleted and this broker is not registered: {registration.message}", True)
        yield Schedule(UNREADABLE_RETRY_MS, RegistrationDeleted(ctx.config.broker_id))
        return
    if registration.broker_epoch != before:
        yield Note(f"znode {path} was deleted: registered again with epoch {registration.broker_epoch}", True)
    (there,) = yield from store.read([Exists(path, watch=True)])
    if isinstance(there, ExistsResult) and there.stat is None:
        yield Enqueue(RegistrationDeleted(ctx.config.broker_id))


def on_own_registration_changed(ctx: ControllerContext) -> Steps[None]:
    """The controller has cleared this broker's report of an unclean shutdown: the broker does not repeat it if it
    registers again. The watch that fired is spent, so it is set again."""
    path = paths.broker_path(ctx.config.broker_id)
    (found,) = yield from store.read_data([path], watch=True)
    if found is None:
        yield Enqueue(RegistrationDeleted(ctx.config.broker_id))
        return
    try:
        is_taken_back = without_unclean_shutdown(ctx.config.broker_id, found.data) == found.data
    except ZnodeFormatError as error:
        yield Note(str(error), True)
        return
    if is_taken_back and found.stat.czxid == ctx.broker_epoch:
        ctx.set_config(replace(ctx.config, unclean_shutdown=False))


def read_role(ctx: ControllerContext) -> Steps[int]:
    """Return the holder of `/controller`; watch that znode and this broker's own."""
    own = Exists(paths.broker_path(ctx.config.broker_id), watch=True)
    _, found, there = yield from store.read([Exists(paths.CONTROLLER, watch=True), GetData(paths.CONTROLLER), own])
    if ctx.broker_epoch != UNKNOWN_BROKER_EPOCH and isinstance(there, ExistsResult) and there.stat is None:
        yield Enqueue(RegistrationDeleted(ctx.config.broker_id))
    controller_id = yield from _controller_id(found)
    return NO_CONTROLLER if controller_id == _UNREADABLE else controller_id


def read_controller_id() -> Steps[int]:
    """Return the holder of `/controller`, or `_UNREADABLE`; watch that znode."""
    _, found = yield from store.read([Exists(paths.CONTROLLER, watch=True), GetData(paths.CONTROLLER)])
    return (yield from _controller_id(found))


def _controller_id(found: ReadResult | None) -> Steps[int]:
    if not isinstance(found, GetDataResult):
        return NO_CONTROLLER
    try:
        return decode_controller(found.data).broker_id
    except ZnodeFormatError as error:
        yield Note(f"{error}. Delete {paths.CONTROLLER}: the brokers elect a controller then", True)
        return _UNREADABLE


def elect(ctx: ControllerContext) -> Steps[bool]:
    """Compete for the role. Returns True if this broker is the controller now and must fail over."""
    controller_id = yield from read_controller_id()
    if controller_id == ctx.config.broker_id:  # our own claim that could not be dropped must not make us active
        yield Schedule(CLAIM_RETRY_MS, Reelect())
        return False
    if controller_id == _UNREADABLE:
        yield Schedule(UNREADABLE_RETRY_MS, Reelect())
        return False
    ctx.set_active_controller(controller_id)
    if controller_id != NO_CONTROLLER:
        yield ActiveControllerChanged(ctx.active_controller_id, ctx.epoch)
        return False
    try:
        epoch, version = yield from _read_or_create_epoch()
    except ZnodeFormatError as error:
        yield Note(f"no controller can be elected: {error}. {_EPOCH_REMEDY}", True)
        yield Schedule(UNREADABLE_RETRY_MS, Reelect())
        return False
    me = ctx.config.broker_id
    znode_version = 2 if ctx.config.inter_broker_protocol.at_least(3, 4) else 1
    data = encode_controller(me, ctx.clock.now_ms(), version=znode_version)
    try:
        results: MultiResults = yield ZkMulti(
            (
                Create(paths.CONTROLLER, data, ephemeral=True),
                SetData(paths.CONTROLLER_EPOCH, encode_controller_epoch(epoch + 1), version),
            )
        )
        result = results[1]
        assert isinstance(result, SetDataResult)
        new_version = result.stat.version
    except (MultiFailed, ConnectionLoss):
        new_version = yield from _verify_election(me, data, epoch + 1)
    ctx.become_controller(epoch + 1, new_version)
    yield Note(f"broker {me} is the controller with epoch {ctx.epoch}")
    yield ActiveControllerChanged(me, ctx.epoch)
    return True


def _read_or_create_epoch() -> Steps[tuple[int, int]]:
    while True:
        (found,) = yield from store.read_data([paths.CONTROLLER_EPOCH])
        if found is not None:
            return decode_controller_epoch(found.data), found.stat.version
        try:
            yield ZkMulti((Create(paths.CONTROLLER_EPOCH, encode_controller_epoch(0)),))
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if not store.may_be_tried_again(failed):
                raise
            continue
        return 0, 0


def _verify_election(me: int, data: bytes, epoch: int) -> Steps[int]:
    """The transaction failed or its answer was lost: it succeeded only if both znodes prove it."""
    controller, epoch_node = yield from store.read_data([paths.CONTROLLER, paths.CONTROLLER_EPOCH])
    ours = controller is not None and controller.data == data
    if ours and epoch_node is not None and epoch_node.data == encode_controller_epoch(epoch):
        return epoch_node.stat.version
    raise ControllerMoved(f"broker {me} lost the election for epoch {epoch}")


def on_controller_failover(ctx: ControllerContext) -> Steps[None]:
    """Read the whole cluster, send the live brokers, elect where leaders are missing, then send all partitions."""
    yield from _set_up_feature(ctx)
    yield from _clear_notifications(ctx)
    returned = yield from _initialise_context(ctx)
    yield from _raise_low_epoch(ctx)
    yield from deletion.initialise(ctx)
    yield from send_live_brokers(ctx)
    yield from _start_state_machines(ctx, returned)
    yield from reassignment_requests.on_zk_reassignment(ctx)
    yield from reassignment.resume_all(ctx)
    yield from deletion.resume(ctx, list(ctx.deletions.queued))
    yield from elections.on_failover(ctx)
    yield from lost_tails.review(ctx)
    if ctx.config.auto_leader_rebalance_enable:
        yield Schedule(elections.FIRST_BALANCE_CHECK_MS, AutoPreferredReplicaLeaderElection())


def _start_state_machines(ctx: ControllerContext, returned: frozenset[TopicPartition]) -> Steps[None]:
    """Elect where a leader is missing or has `returned`, shrink ISRs to online replicas, and send everything.

    Kafka sends everything first and again with each change. Here each broker receives a partition once, in its state
    after all changes. With many partitions on a dead broker, usually this controller's predecessor, that is less than
    half of the work for all brokers.
    """
    offline = replica_state_machine.startup(ctx)
    first = yield from partition_state_machine.startup(ctx, returned)
    yield from replica_state_machine.leave_isrs(ctx, offline)
    updates = [
        LeaderAndIsrUpdate(ctx.topics.assignment(tp).replicas, tp, is_new=tp in first) for tp in ctx.states.leadership
    ]
    if updates:
        yield from ControllerBrokerRequestBatch.build(ctx, leader_and_isr=updates).send()


def _set_up_feature(ctx: ControllerContext) -> Steps[None]:
    """`/feature`: enabled from protocol 2.7 on. Existing features are kept."""
    protocol = ctx.config.inter_broker_protocol
    wanted = FeatureZnode(protocol.has_features, version=2 if protocol.at_least(3, 3) else 1)
    while True:
        (found,) = yield from store.read_data([paths.FEATURE])
        if found is not None:
            try:
                current = decode_feature(found.data)
            except ZnodeFormatError as error:
                yield Note(str(error), True)
                return
            if current.enabled == wanted.enabled:
                return
        data = encode_feature(wanted)
        version = None if found is None else found.stat.version
        op = Create(paths.FEATURE, data) if version is None else SetData(paths.FEATURE, data, version)
        try:
            yield from store.fenced(ctx, [op])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if store.may_be_tried_again(failed):
                continue
            yield Note(f"{paths.FEATURE} cannot be written: {failed}")
        return


def _clear_notifications(ctx: ControllerContext) -> Steps[None]:
    """Delete earlier notifications: failover reads everything anyway."""
    for parent in (paths.LOG_DIR_EVENT_NOTIFICATION, paths.ISR_CHANGE_NOTIFICATION):
        names = yield from store.read_children(parent, watch=True)
        yield from store.delete_all(ctx, [f"{parent}/{name}" for name in names])


def _initialise_context(ctx: ControllerContext) -> Steps[frozenset[TopicPartition]]:
    """Return the partitions whose leader registered again after it became leader: no controller noticed its restart.

    The state that it kept only in memory as a leader is gone, so it must not continue in the same leader epoch.
    """
    brokers = yield from topic_store.read_brokers(watch=True)
    for registered in brokers.values():
        ctx.brokers.add(registered.broker)
        yield AddChannel(registered.broker)
    topics = yield from store.read_children(paths.TOPICS, watch=True)
    stored = yield from topic_store.read_topics(topics, watch=True)
    yield from adopt_topics(ctx, stored)
    returned: list[TopicPartition] = []
    epochs = {broker_id: broker.epoch for broker_id, broker in ctx.brokers.live_or_shutting_down.items()}
    settled_zxid = yield from former_members.read_settled_zxid()
    for tps in _slices(ctx, 10_000):
        mzxids: dict[TopicPartition, int] = {}
        states = yield from store.read_states(tps, mzxids)
        ctx.states.start_leadership(states)
        for tp, state in states.items():
            leader_epoch = epochs.get(state.leader_and_isr.leader)
            if leader_epoch is not None and leader_epoch > mzxids[tp]:
                returned.append(tp)
        former_members.adopt(ctx, mzxids, settled_zxid)
    for broker_id, registered in brokers.items():
        if registered.unclean_shutdown:
            yield from lost_tails.on_unclean_shutdown(ctx, broker_id)
            led = ctx.states.led_by(broker_id)
            returned += [tp for tp in ctx.suspects.partitions[broker_id] if tp in led]
    return frozenset(returned)


def _raise_low_epoch(ctx: ControllerContext) -> Steps[None]:
    """Raise the controller epoch above that of every partition state, before any broker receives it.

    Somebody has set `/controller_epoch` too low: brokers would reject this controller, and each election raises the
    epoch only by one.
    """
    newest = max((state.controller_epoch for state in ctx.states.leadership.values()), default=0)
    if newest <= ctx.epoch or newest > HIGHEST_TRUSTED_EPOCH:
        return
    epoch = newest + 1
    yield Note(
        f"{paths.CONTROLLER_EPOCH} was too low: a partition state has the controller epoch {newest}, and this "
        f"controller {ctx.epoch}. It continues with epoch {epoch}",
        True,
    )
    change = SetData(paths.CONTROLLER_EPOCH, encode_controller_epoch(epoch), ctx.epoch_zk_version)
    try:
        results: MultiResults = yield ZkMulti((change,))
    except (MultiFailed, ConnectionLoss) as failed:
        raise ControllerMoved(f"controller epoch {ctx.epoch} is over, or too low and not raised: {failed}") from failed
    result = results[0]
    assert isinstance(result, SetDataResult)
    ctx.become_controller(epoch, result.stat.version)
    yield ActiveControllerChanged(ctx.config.broker_id, epoch)


def _slices(ctx: ControllerContext, size: int) -> Iterator[list[TopicPartition]]:
    tps = list(ctx.topics.all_partitions())
    return (tps[i : i + size] for i in range(0, len(tps), size))


def resign() -> Steps[None]:
    """Stop every sender and timer; the caller drops the context. Nothing is written."""
    yield CloseAllChannels()
    yield CancelScheduled()


def drop_orphaned_claim(ctx: ControllerContext) -> Steps[None]:
    """`/controller` names this broker, which is not active: the outcome of its election was unknown.

    The epoch is read first: if it is still the same when the znode is deleted, nobody was elected in between.
    """
    me = ctx.config.broker_id
    (epoch,) = yield from store.read_data([paths.CONTROLLER_EPOCH])
    if epoch is None or (yield from read_controller_id()) != me:
        return
    yield Note(f"broker {me} holds {paths.CONTROLLER} without being active: the znode is deleted")
    try:
        yield ZkMulti((Check(paths.CONTROLLER_EPOCH, epoch.stat.version), Delete(paths.CONTROLLER)))
    except (MultiFailed, ConnectionLoss):
        yield Note(f"{paths.CONTROLLER} is gone already, or its deletion is not certain")


def give_up_role(ctx: ControllerContext) -> Steps[None]:
    """Deletes `/controller`, fenced, so that all brokers compete again: after an error in the middle of failover."""
    try:
        yield from store.fenced(ctx, [Delete(paths.CONTROLLER)])
    except (MultiFailed, ConnectionLoss, ControllerMoved):
        yield Note("cannot resign as controller: another broker has the role already")
