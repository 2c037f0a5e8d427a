"""Bugs to build into the controller, one at a time: the simulator must catch each of them.

A mutant replaces source text of one module when that module is first imported. A surviving mutant means that a fault or
a checker is missing. A mutant whose text no longer exists must be rewritten.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from klamm.sim.lost_tail_mutants import LOST_TAIL_MUTANTS
from klamm.sim.mutant import Mutant

_C: Final = "klamm.controller."
MUTANTS: Final[dict[str, Mutant]] = {
    "no_fence": Mutant(_C + "store", "yield ZkMulti((fence, *ops))", "(None, *(yield ZkMulti(tuple(ops))))"),
    "no_bounce_detection": Mutant(_C + "broker_changes", "now[b].broker.epoch > known[b].epoch", "False", 120, 115),
    "no_leader_epoch_bump": Mutant(
        "klamm.model", "leader_epoch=self.leader_epoch + 1", "leader_epoch=self.leader_epoch"
    ),
    "elect_outside_isr": Mutant(_C + "election", "if leader in state.isr and leader not in suspects:", "if True:"),
    "empty_isr": Mutant(_C + "election", "isr = staying if any(map(can_lead, staying)) else last", "isr = staying"),
    "no_full_state_at_startup": Mutant(
        _C + "broker_changes",
        "    yield from send_all_metadata(ctx, ids)\n",
        "    yield from send_live_brokers(ctx, ids)\n",
    ),
    "states_lost_at_a_pause": Mutant(
        _C + "request_batch",
        "            yield Pause()\n",
        "            yield Pause()\n            states.clear()\n",
        also=(("PARTITIONS_PER_STEP: Final = 250", "PARTITIONS_PER_STEP: Final = 2"),),
    ),
    "no_live_list_first": Mutant(_C + "failover", "    yield from send_live_brokers(ctx)\n", "    yield from ()\n"),
    "states_in_a_second_step_forgotten": Mutant(
        _C + "partition_state_machine",
        "            ctx.states.put_partition_state(tp, PartitionState.NEW)",
        "            ctx.states.put_partition_state(tp, PartitionState.ONLINE)",
        200,
        first=1,
    ),
    "lost_answer_means_failure": Mutant(
        _C + "topic_creation",
        "if p.name in stored and stored[p.name].znode == p.znode)",
        "if p.name in ())",
        300,
        first=101,
    ),
    "no_election_when_nobody_leads": Mutant(
        _C + "controller",
        "                yield Enqueue(e.Reelect())\n",
        "                pass\n",
        seeds=300,
        first=490,
        also=(
            (
                "yield from self._maybe_resign()\n                yield from self._elect()",
                "yield from self._maybe_resign()\n                if isinstance(event, e.Reelect):\n"
                "                    yield from self._elect()",
            ),
        ),
    ),
    "dead_broker_stays_in_isr": Mutant(
        _C + "broker_changes",
        "    offline = yield from replica_state_machine.take_offline(ctx, others, outcome.elected)\n",
        "    offline = yield from replica_state_machine.take_offline(ctx, (), outcome.elected)\n",
        first=1,
    ),
    "offline_partitions_not_retried": Mutant(
        _C + "broker_changes",
        "    yield from partition_state_machine.trigger_online(ctx)\n    yield from reass",
        "    yield from reass",
        first=9,
    ),
    "deletion_not_resumed": Mutant(
        _C + "broker_changes",
        "    yield from deletion.resume_for_topics(ctx, dict.fromkeys(r.partition.topic for r in replicas))\n",
        "",
        first=2,
    ),
    "deletion_does_not_wait": Mutant(
        _C + "deletion",
        "if ctx.states.are_all_replicas_in_state(topic, ReplicaState.DELETION_SUCCESSFUL):",
        "if ctx.states.count_in_state(topic, ReplicaState.DELETION_SUCCESSFUL):",
    ),
    "stop_replica_is_no_barrier": Mutant(
        _C + "send_queue",
        "            if tp in phase.states or tp in phase.stops:\n                break\n",
        "",
        300,
        first=199,
    ),
    "older_states_win_when_merged": Mutant(
        _C + "send_queue",
        "partitions.update((state.partition, state) for state in request.body.partitions)",
        "[partitions.setdefault(state.partition, state) for state in request.body.partitions]",
    ),
    "queued_events_not_answered": Mutant(
        "klamm.sim.node", "                on_reply(waiting.refusal())", "                pass", 300, first=465
    ),
    "topic_id_lost_on_rewrite": Mutant(
        _C + "topic_store", "stored.znode.topic_id or ctx.topics.ids.get(topic)", "None"
    ),
    "dead_broker_joins_isr": Mutant(
        _C + "isr_changes", "if not _is_eligible(ctx, item, tp):", "if False:", 200, first=2
    ),
    "reassignment_drops_before_sync": Mutant(_C + "reassignment", "set(target) <= set(isr)", "True", 120, 79),
    "shutting_down_broker_elected": Mutant(
        _C + "election", "if r in state.isr and r not in shutting_down", "if r in state.isr", 200, first=1
    ),
    "forged_shutdown_granted": Mutant(
        _C + "shutdown",
        "ErrorCode.NONE if event.broker_epoch == known.epoch else",
        "ErrorCode.NONE if event.broker_epoch >= known.epoch else",
    ),
    "epoch_claimed_without_version": Mutant(
        _C + "failover", "encode_controller_epoch(epoch + 1), version)", "encode_controller_epoch(epoch + 1), -1)"
    ),
    "channels_outlive_the_role": Mutant(_C + "failover", "    yield CloseAllChannels()\n", ""),
    "timers_outlive_the_role": Mutant(_C + "failover", "    yield CancelScheduled()\n", "", 200),
    "unclean_although_the_isr_lives": Mutant(
        _C + "election",
        "    for leader in recipients:\n",
        "    for leader in () if allow_unclean else recipients:\n",
        300,
        first=67,
    ),
    "unclean_leader_is_only_being_added": Mutant(
        _C + "election", "(r for r in recipients if r not in assignment.adding_replicas)", "iter(recipients)", 300, 201
    ),
    "unclean_without_being_asked": Mutant(
        _C + "partition_state_machine", "config.get(key, default).lower()", 'config.get(key, "true").lower()', first=1
    ),
    "unclean_configuration_ignored": Mutant(
        _C + "partition_state_machine", "config.get(key, default).lower()", '"false"', 600, 190
    ),
    "unclean_election_not_written_down": Mutant(
        _C + "election", "    if mark_recovering:\n", "    if False:\n", first=1
    ),
    "failed_directories_believed_healthy": Mutant(
        _C + "isr_changes", "error == ErrorCode.KAFKA_STORAGE_ERROR and", "False and", first=7
    ),
    "note_of_a_failed_directory_not_followed": Mutant(
        _C + "isr_changes",
        "    yield from replica_state_machine.handle_state_changes(ctx, online, ReplicaState.ONLINE)\n",
        "    yield from ()\n",
        200,
        first=83,
    ),
    "producer_ids_overlap": Mutant(_C + "producer_ids", "last.block_end + 1", "last.block_end", first=11),
    "emptied_producer_ids_count_as_never_used": Mutant(
        "klamm.zk.model.znodes", "if version > 0 else", "if False else", seeds=1
    ),
    "producer_ids_without_version": Mutant(
        _C + "producer_ids",
        "SetData(paths.PRODUCER_ID_BLOCK, data, result.stat.version)",
        "SetData(paths.PRODUCER_ID_BLOCK, data, -1)",
        600,
        first=11,
    ),
    "new_addresses_not_sent": Mutant(
        _C + "broker_changes",
        "        yield AddChannel(broker)\n        yield from send_live_brokers(ctx)\n",
        "        yield AddChannel(broker)\n",
    ),
    "new_addresses_not_used": Mutant(
        _C + "broker_changes",
        "        yield AddChannel(broker)\n        yield from send_live_brokers(ctx)\n",
        "        yield from send_live_brokers(ctx)\n",
        200,
        first=59,
    ),
    "moved_replicas_forgotten": Mutant(
        _C + "broker_changes", "    yield from _delete_strays(ctx, ids)\n", "", 200, 126
    ),
    "strays_of_deposed_controllers_kept": Mutant(
        "klamm.replica.stray_replicas",
        "if informed_by > self._informed_by and update.topics and update.is_last_slice:",
        "if False:",
        200,
        first=27,
    ),
    "deletions_not_sent_to_newcomers": Mutant(
        _C + "request_batch",
        "    for tp in ctx.states.leadership:\n        states.append(",
        "    for tp in ctx.states.leadership:\n        if not ctx.deletions.is_queued(tp.topic): states.append(",
        400,
        first=381,
    ),
    "deletions_missed_at_a_failover": Mutant(
        "klamm.metadata.missed_deletions",
        "if update.controller_epoch > before.controller_epoch and len(before.topics):",
        "if False:",
        600,
        first=946,
    ),
    "ends_of_topics_lost_when_merged": Mutant(
        _C + "send_queue", "back = {s.partition.topic for", "back = () and {s.partition.topic for", 200, 331
    ),
    "stop_replica_of_any_epoch_obeyed": Mutant(
        "klamm.sim.broker_model", "if leader_epoch < mine.leader_epoch else", "if False else", 300, 963
    ),
    "zombie_controller_obeyed": Mutant(
        "klamm.sim.broker_model", "if head.controller_epoch < self.controller_epoch:", "if False:"
    ),
    "zombie_of_another_life_obeyed": Mutant(
        "klamm.sim.broker_model", "if head.broker_epoch < self.broker_epoch:", "if False:", 200
    ),
    "forged_broker_epoch_believed": Mutant(
        "klamm.sim.broker_model",
        "if head.broker_epoch > self.broker_epoch and not self.is_registered_as(head.broker_epoch):",
        "if False:",
    ),
    **LOST_TAIL_MUTANTS,
}


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, path: str, mutant: Mutant) -> None:
        self._path = path
        self._mutant = mutant

    def get_source(self, fullname: str) -> str:
        source = Path(self._path).read_text()
        for old, new in ((self._mutant.old, self._mutant.new), *self._mutant.also):
            if old not in source:
                raise LookupError(f"the text of the mutant is not in {fullname}: {old!r}")
            source = source.replace(old, new)
        return source

    def is_package(self, fullname: str) -> bool:
        return False


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        return importlib.machinery.ModuleSpec(fullname, _Loader(spec.origin, self._mutant), origin=spec.origin)


def install(name: str, mutants: Mapping[str, Mutant] = MUTANTS) -> Mutant:
    """Apply a mutant in a process that has not imported its module yet."""
    if name not in mutants:
        raise SystemExit(f"there is no mutant {name!r}; there are: {', '.join(mutants)}")
    mutant = mutants[name]
    for each in (mutant, *mutant.beside):
        if each.module in sys.modules:
            raise SystemExit(f"{each.module} is imported already: run each mutant in its own process")
        sys.meta_path.insert(0, _Finder(each))
    return mutant
