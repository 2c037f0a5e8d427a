"""The controller's view of the cluster. Owner: the task that processes events.

Each part keeps its own indexes with every change, so that an event costs what it changes. Nothing walks over all
partitions, except `topics.all_partitions`, which failover uses. Other modules read the parts and change them by their
methods only. Rules that concern several parts are methods of the `ControllerContext`. Gauges read single values from
the broker loop; nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.clock import Clock
from klamm.controller.assignment import Rng
from klamm.controller.config import ControllerConfig
from klamm.controller.context.brokers import Brokers
from klamm.controller.context.deletions import Deletions
from klamm.controller.context.known_topics import Topics
from klamm.controller.context.partition_states import PartitionStates
from klamm.controller.suspects import Suspects
from klamm.model import (
    NO_CONTROLLER,
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    LeaderAndIsr,
    ReplicaAssignment,
    TopicPartition,
)


class ControllerContext:
    def __init__(self, config: ControllerConfig, clock: Clock, rng: Rng) -> None:
        self._config = config
        self.clock = clock
        self.rng = rng
        self._active_controller_id = NO_CONTROLLER
        self._broker_epoch = UNKNOWN_BROKER_EPOCH
        self._epoch = 0
        self._epoch_zk_version = 0
        self._unclean_elections = 0
        self.brokers = Brokers()
        self.topics = Topics()
        self.deletions = Deletions()
        self.states = PartitionStates(self.topics, self.deletions)
        self.suspects = Suspects()

    def after_resignation(self) -> ControllerContext:
        """An empty context for the same broker: its registration and its counters stay."""
        context = ControllerContext(self._config, self.clock, self.rng)
        context._broker_epoch = self._broker_epoch
        context._unclean_elections = self._unclean_elections
        return context

    # ---- role --------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> ControllerConfig:
        return self._config

    @property
    def active_controller_id(self) -> int:
        return self._active_controller_id

    @property
    def is_active(self) -> bool:
        return self._active_controller_id == self._config.broker_id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def epoch_zk_version(self) -> int:
        """The version of `/controller_epoch`: the fence of everything that this controller writes."""
        return self._epoch_zk_version

    @property
    def broker_epoch(self) -> int:
        return self._broker_epoch

    @property
    def unclean_elections(self) -> int:
        return self._unclean_elections

    def set_config(self, config: ControllerConfig) -> None:
        self._config = config

    def set_broker_epoch(self, epoch: int) -> None:
        self._broker_epoch = epoch

    def set_active_controller(self, controller_id: int) -> None:
        self._active_controller_id = controller_id

    def become_controller(self, epoch: int, epoch_zk_version: int) -> None:
        self._epoch, self._epoch_zk_version = epoch, epoch_zk_version
        self._active_controller_id = self._config.broker_id

    def count_unclean_election(self) -> None:
        self._unclean_elections += 1

    # ---- rules that concern several parts ----------------------------------------------------------------------------

    def online_replicas(self, tp: TopicPartition, *, include_shutting_down: bool = False) -> tuple[int, ...]:
        replicas = self.topics.assignment(tp).replicas
        return self.brokers.online(replicas, tp, include_shutting_down=include_shutting_down)

    def has_online_leader(self, tp: TopicPartition) -> bool:
        state = self.states.leadership.get(tp)
        return state is not None and self.brokers.is_replica_online(state.leader_and_isr.leader, tp)

    def is_last_leader(self, tp: TopicPartition, state: LeaderAndIsr) -> bool:
        """Whether the leader was moved away, but no replica that is assigned and in sync can take over.

        Then it holds the only good copy: it keeps leading, and its leader epoch does not change, or its broker would
        take the log for a stray.
        """
        assigned, online = self.topics.assignment(tp).replicas, self.brokers.is_replica_online
        if state.leader in assigned or not online(state.leader, tp):
            return False
        suspects = self.suspects.of(tp)
        return not any(r in assigned and r not in suspects and online(r, tp) for r in state.isr)

    def partitions_without_online_leader(self, brokers: Iterable[int]) -> list[TopicPartition]:
        """Partitions without a leader, and partitions of leaders in `brokers` whose replica is not online.

        Topics that are being deleted are excluded.
        """
        led = (tp for b in (*sorted(set(brokers)), NO_LEADER) for tp in self.states.led_by(b))
        return [tp for tp in led if not self.deletions.is_queued(tp.topic) and not self.has_online_leader(tp)]

    def put_assignment(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        self.topics.put_assignment(tp, assignment)
        self.states.check_balance(tp)

    def remove_broker(self, broker: int) -> None:
        self.brokers.remove(broker)
        self.suspects.remove_broker(broker)

    def remove_topic(self, topic: str) -> None:
        for tp in list(self.topics.partitions_of(topic)):
            self.states.remove_partition(tp)
            self.suspects.remove_partition(tp)
            self.brokers.forget_partition(tp)
            self.topics.remove_partition(tp)
        self.topics.remove(topic)
        self.states.remove_topic(topic)
        self.deletions.forget(topic)

    def queue_for_deletion(self, topic: str) -> None:
        """From here on the topic does not count as imbalanced, and takes no part in elections and reassignments."""
        if self.deletions.is_queued(topic):
            return
        self.deletions.queue(topic)
        for tp in self.topics.partitions_of(topic):
            self.states.check_balance(tp)
            self.topics.end_reassignment(tp)
