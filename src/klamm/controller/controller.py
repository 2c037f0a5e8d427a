"""KafkaController: events in, effects out. One event runs to its end before the next begins.

`process(event)` is a generator. Its driver carries out the effects that it yields and resumes it with the answers. If
the driver stops resuming it, that is a crash. The core has no clock, no source of randomness and no socket of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from klamm.clock import Clock
from klamm.controller import (
    broker_changes,
    deletion,
    elections,
    failover,
    isr_changes,
    lost_tails,
    producer_ids,
    reassignment,
    reassignment_requests,
    shutdown,
    store,
    topic_creation,
    topics,
)
from klamm.controller import events as e
from klamm.controller.assignment import Rng
from klamm.controller.config import ControllerConfig
from klamm.controller.context import ControllerContext
from klamm.controller.effects import ActiveControllerChanged, Enqueue, Note, Reply, Schedule, Steps
from klamm.controller.replies import BrokerRegistration
from klamm.controller.store import ControllerMoved
from klamm.errors import ErrorCode
from klamm.model import NO_CONTROLLER
from klamm.zk.model import paths
from klamm.zk.model.ops import SessionExpired

_RoleEvent = (
    e.Startup
    | e.ControllerChange
    | e.Reelect
    | e.RegisterBrokerAndReelect
    | e.RegistrationDeleted
    | e.Expire
    | e.ShutdownEventThread
)
_TopicEvent = (
    e.TopicChange
    | e.PartitionModifications
    | e.CreateTopics
    | e.CreatePartitions
    | e.DeleteTopics
    | e.TopicDeletion
    | e.TopicDeletionStopReplicaResponseReceived
)
_MoveEvent = (
    e.ZkPartitionReassignment
    | e.ApiPartitionReassignment
    | e.ListPartitionReassignments
    | e.PartitionReassignmentIsrChange
    | e.ReplicaLeaderElection
    | e.AutoPreferredReplicaLeaderElection
    | e.UncleanLeaderElectionEnable
    | e.TopicUncleanLeaderElectionEnable
)
_BrokerEvent = (
    e.BrokerChange
    | e.BrokerModifications
    | e.LogEndsReceived
    | e.UncleanReplicaWaitOver
    | e.ControlledShutdown
    | e.AlterPartition
    | e.IsrChangeNotification
    | e.LogDirEventNotification
    | e.LeaderAndIsrResponseReceived
    | e.UpdateMetadataResponseReceived
    | e.AllocateProducerIds
)
_ActiveEvent = _TopicEvent | _MoveEvent | _BrokerEvent
_SETTLES_SUSPECTS = (
    e.BrokerChange,
    e.LogEndsReceived,
    e.UncleanReplicaWaitOver,
    e.LeaderAndIsrResponseReceived,
    e.ReplicaLeaderElection,
    e.UncleanLeaderElectionEnable,
    e.TopicUncleanLeaderElectionEnable,
    e.TopicDeletionStopReplicaResponseReceived,
)
"""Events after which a partition that waits for a replica with a reliable log may get a leader."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""Maximum back-off before competing for the role again after an error; doubles each time."""


class KafkaController:
    """Every broker has one; at most one in the cluster is active."""

    def __init__(self, config: ControllerConfig, clock: Clock, rng: Rng) -> None:
        self.context = ControllerContext(config, clock, rng)
        self._pause_s = 0.0
        self._pause_ends_s = 0.0

    @property
    def broker_id(self) -> int:
        return self.context.config.broker_id

    @property
    def is_active(self) -> bool:
        return self.context.is_active

    def process(self, event: e.ControllerEvent) -> Steps[None]:
        """Handle an event. Every event is answered: by its handler, or with a refusal if it was not carried out."""
        try:
            if isinstance(event, e.UncleanLeaderElectionEnable):
                config = replace(self.context.config, unclean_leader_election_enable=event.enabled)
                self.context.set_config(config)
            if isinstance(event, e.BrokerModifications) and event.broker_id == self.context.config.broker_id:
                yield from failover.on_own_registration_changed(self.context)
            if isinstance(event, _RoleEvent):
                yield from self._process_role(event)
            elif self.is_active:
                yield from self._process_active(event)
        except SessionExpired:
            yield Note(f"{type(event).__name__}: the session with ZooKeeper is over")
            yield from self._resign()
        except ControllerMoved as moved:
            yield Note(f"{type(event).__name__}: {moved}")
            yield from self._settle()
        yield Reply(event.refusal())

    # ---- role --------------------------------------------------------------------------------------------------------

    def _process_role(self, event: _RoleEvent) -> Steps[None]:
        match event:
            case e.Startup() | e.RegisterBrokerAndReelect():
                registration = yield from failover.register_broker(self.context)
                yield Reply(registration)
                yield from self._reelect(registration)
            case e.RegistrationDeleted(broker_id):
                if broker_id == self.context.config.broker_id:
                    yield from failover.register_again(self.context)
            case e.ControllerChange() | e.Reelect():
                yield from self._maybe_resign()
                yield from self._elect()
            case e.Expire() | e.ShutdownEventThread():
                yield from self._resign()
            case _:
                assert_never(event)

    def _reelect(self, registration: BrokerRegistration) -> Steps[None]:
        if registration.error is ErrorCode.NONE:
            yield from self._maybe_resign()
            yield from self._elect()

    def _elect(self) -> Steps[None]:
        """Compete, but not soon after an unexpected error: its cause is probably still there."""
        if self.is_active:
            return
        pause_s = self._pause_ends_s - self.context.clock.monotonic()
        if pause_s > 0:
            yield Schedule(int(pause_s * 1000) + 1, e.Reelect())
            return
        if (yield from failover.elect(self.context)):
            yield from failover.on_controller_failover(self.context)

    def _maybe_resign(self) -> Steps[None]:
        """Read who the controller is; resign if this broker was the controller and no longer is."""
        was_active, me = self.is_active, self.context.config.broker_id
        controller_id = yield from failover.read_role(self.context)
        if was_active and controller_id != me:
            yield from self._resign()
        elif controller_id == me and not was_active:
            yield from failover.drop_orphaned_claim(self.context)
            controller_id = NO_CONTROLLER
        self.context.set_active_controller(controller_id)
        yield ActiveControllerChanged(controller_id, self.context.epoch)

    def _settle(self) -> Steps[None]:
        """The fence failed: this controller is deposed. If there is no controller now, start an election.

        `/controller` may have been created and deleted between two reads: the watch reported the creation only.
        """
        yield from self._resign()
        try:
            yield from self._maybe_resign()
            if self.context.active_controller_id == NO_CONTROLLER:
                yield Enqueue(e.Reelect())
        except SessionExpired:
            yield Note("the session with ZooKeeper is over as well")

    def abandon(self, event: e.ControllerEvent) -> Steps[None]:
        """Give up the role after an unexpected error: the cached state may be wrong, and a failover reads it again."""
        if self.is_active:
            self._lengthen_pause()
            context = self.context
            yield from self._resign()
            try:
                yield from failover.give_up_role(context)
            except SessionExpired:
                yield Note("the session with ZooKeeper is over as well")
        yield Reply(event.refusal(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _lengthen_pause(self) -> None:
        """Double the pause with consecutive errors; a role that was held for long resets it."""
        now = self.context.clock.monotonic()
        in_a_row = now < self._pause_ends_s + LONGEST_PAUSE_S
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S) if in_a_row else FIRST_PAUSE_S
        self._pause_ends_s = now + self._pause_s

    def _resign(self) -> Steps[None]:
        self.context = self.context.after_resignation()
        yield from failover.resign()
        yield ActiveControllerChanged(NO_CONTROLLER, 0)

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _process_active(self, event: _ActiveEvent) -> Steps[None]:
        if isinstance(event, _TopicEvent):
            yield from self._process_topics(event)
        elif isinstance(event, _MoveEvent):
            yield from self._process_moves(event)
        else:
            yield from self._process_brokers(event)
        if isinstance(event, _SETTLES_SUSPECTS):
            yield from lost_tails.review(self.context)

    def _process_topics(self, event: _TopicEvent) -> Steps[None]:
        ctx = self.context
        match event:
            case e.TopicChange():
                yield from topics.on_topic_change(ctx)
            case e.PartitionModifications(topic):
                yield from topics.on_partition_modifications(ctx, topic)
            case e.CreateTopics():
                yield from topic_creation.on_create_topics(ctx, event)
            case e.CreatePartitions():
                yield from topics.on_create_partitions(ctx, event)
            case e.DeleteTopics():
                yield from topics.on_delete_topics(ctx, event)
            case e.TopicDeletion():
                yield from deletion.on_topic_deletion(ctx)
            case e.TopicDeletionStopReplicaResponseReceived():
                yield from deletion.on_stop_replica_response(ctx, event)
            case _:
                assert_never(event)

    def _process_moves(self, event: _MoveEvent) -> Steps[None]:
        """Requested elections and reassignments."""
        ctx = self.context
        match event:
            case e.ZkPartitionReassignment():
                yield from reassignment_requests.on_zk_reassignment(ctx)
            case e.ApiPartitionReassignment():
                yield from reassignment_requests.on_api_reassignment(ctx, event)
            case e.ListPartitionReassignments():
                yield from reassignment_requests.on_list_reassignments(ctx, event)
            case e.PartitionReassignmentIsrChange(tp):
                yield from store.read_data([paths.partition_state_path(*tp)], watch=tp in ctx.topics.reassigning)
                yield from reassignment.maybe_complete(ctx, [tp])
            case e.ReplicaLeaderElection():
                yield from elections.on_replica_leader_election(ctx, event)
            case e.AutoPreferredReplicaLeaderElection():
                yield from elections.on_auto_preferred_election(ctx)
            case e.UncleanLeaderElectionEnable(enabled):
                if enabled:
                    yield from elections.on_unclean_allowed(ctx)
            case e.TopicUncleanLeaderElectionEnable(topic):
                yield from elections.on_unclean_allowed(ctx, topic)
            case _:
                assert_never(event)

    def _process_brokers(self, event: _BrokerEvent) -> Steps[None]:
        """Changes of brokers, and their answers and requests."""
        ctx = self.context
        match event:
            case e.BrokerChange():
                yield from broker_changes.on_broker_change(ctx)
            case e.BrokerModifications(broker_id):
                yield from broker_changes.on_broker_modifications(ctx, broker_id)
            case e.LogEndsReceived():
                lost_tails.on_log_ends(ctx, event)
            case e.UncleanReplicaWaitOver():
                pass  # the review follows
            case e.ControlledShutdown():
                yield from shutdown.on_controlled_shutdown(ctx, event)
            case e.AlterPartition():
                yield from isr_changes.on_alter_partition(ctx, event)
            case e.IsrChangeNotification():
                yield from isr_changes.on_isr_change_notification(ctx)
            case e.LogDirEventNotification():
                yield from isr_changes.on_log_dir_event(ctx)
            case e.LeaderAndIsrResponseReceived():
                yield from isr_changes.on_leader_and_isr_response(ctx, event)
            case e.UpdateMetadataResponseReceived():
                yield from isr_changes.on_update_metadata_response(event)
            case e.AllocateProducerIds():
                yield from producer_ids.on_allocate_producer_ids(ctx, event)
            case _:
                assert_never(event)
