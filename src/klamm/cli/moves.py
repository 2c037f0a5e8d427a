"""Moves of partitions: request, cancel, list and wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from klamm.cli.controller import ControllerClient, reason, replicas_of
from klamm.cli.output import fail, note, say
from klamm.cli.progress_line import ProgressLine
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

POLL_S: Final = 0.5
SETTLE_S: Final = 10.0
"""A move ends at the controller; the broker that reports the replicas learns of it a little later."""
SHOWN: Final = 10
Moves = dict[TopicPartition, "list[int] | None"]
"""The target replicas of each partition; None cancels its move."""


class Move(NamedTuple):
    """A move in progress: the current replicas, those being added, and those being removed."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @property
    def origin(self) -> list[int]:
        return [replica for replica in self.replicas if replica not in self.adding]

    @property
    def target(self) -> list[int]:
        return [replica for replica in self.replicas if replica not in self.removing]

    @property
    def has_kept_order(self) -> bool:
        """Whether `origin` is in the order before the move: replicas that stay are listed in the target's order."""
        return len(self.origin) == 1 or not set(self.origin) & set(self.target)


def under_way(controller: ControllerClient) -> dict[TopicPartition, Move]:
    request = ListPartitionReassignmentsRequest(topics=None)
    reply = controller.ask(request, 0, ListPartitionReassignmentsResponse).answer
    if reply.error_code:
        fail(reason(reply.error_code, reply.error_message))
    return {
        TopicPartition(topic.name, each.partition_index): Move(
            list(each.replicas), list(each.adding_replicas), list(each.removing_replicas)
        )
        for topic in reply.topics
        for each in topic.partitions
    }


def start(controller: ControllerClient, moves: Moves, moving: Mapping[TopicPartition, Move]) -> Moves:
    """Report rejected moves and return the others.

    `moving`, the moves before the request, shows where a cancelled move returns to.
    """
    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, partition), replicas in moves.items():
        topics.setdefault(topic, []).append(ReassignablePartition(partition_index=partition, replicas=replicas))
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()]
    )
    reply = controller.ask(request, 0, AlterPartitionReassignmentsResponse, _has_moved_controller)
    if reply.answer.error_code:
        fail(reason(reply.answer.error_code, reply.answer.error_message))
    started: Moves = {}
    for answer in reply.answer.responses:
        for each in answer.partitions:
            tp = TopicPartition(answer.name, each.partition_index)
            target = moves[tp]
            if each.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS and target is None and reply.is_repeat:
                say(f"Partition {tp} is no longer being moved.")
            elif each.error_code:
                note(f"Partition {tp} is not moved: {reason(each.error_code, each.error_message)}")
                continue
            else:
                say(f"Partition {tp} moves {_back(moving.get(tp)) if target is None else f'to {ids(target)}.'}")
            started[tp] = target
    return started


def _has_moved_controller(reply: AlterPartitionReassignmentsResponse) -> bool:
    """Whether the controller was replaced, also after a part of many moves: all of them may be requested again."""
    codes = {each.error_code for topic in reply.responses for each in topic.partitions}
    return ErrorCode.NOT_CONTROLLER in {reply.error_code, *codes}


def _back(move: Move | None) -> str:
    if move is None:
        return "back to where it was."
    if move.has_kept_order:
        return f"back to {ids(move.origin)}."
    return (
        f"back to {ids(move.origin)}. Their order, and with it the preferred leader, may differ from that before the "
        f"move; the preferred leader is {move.origin[0]} now."
    )


def wait(servers: str, moves: Moves, timeout_s: float) -> None:
    """Report moves that another client cancelled or replaced."""
    deadline = time.monotonic() + timeout_s
    seen = _SeenInMotion(servers)
    replaced: dict[TopicPartition, str] = {}
    with ProgressLine() as line:
        while True:
            now = under_way(ControllerClient(servers, deadline - time.monotonic()))
            for tp, target in moves.items():
                if tp in now and target is not None and now[tp].target != target:
                    replaced[tp] = f"{tp} moves to {ids(now[tp].target)} and not to {ids(target)}"
            moving = {tp: move for tp, move in now.items() if tp in moves and tp not in replaced}
            if not moving:
                break
            if time.monotonic() >= deadline:
                more = f" and {len(moving) - SHOWN} more" if len(moving) > SHOWN else ""
                names = ", ".join(sorted(map(str, moving))[:SHOWN])
                fail(f"After {timeout_s:g} s still in progress: {names}{more}. They continue.")
            done = len(moves) - len(moving)
            line.show(done / len(moves), f"{done} of {len(moves)} moves have ended")
            seen.look_at(moving)
            time.sleep(POLL_S)
    elsewhere = seen.settle({tp: target for tp, target in moves.items() if tp not in replaced})
    if others := [*replaced.values(), *elsewhere]:
        fail("Another client cancelled or replaced moves: " + "; ".join(others[:SHOWN]) + ".")
    say("All moves have finished.")


class _SeenInMotion:
    """The moves as the first broker has reported them.

    A broker never returns to older knowledge. If it has reported a move, and now reports neither the move
    nor the target, the move has ended. If it has not reported the move, it may only be late.
    """

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._shown: dict[TopicPartition, tuple[object, list[int]]] = {}

    def look_at(self, moving: Mapping[TopicPartition, Move]) -> None:
        unseen = [tp for tp in moving if tp not in self._shown]
        if not unseen:
            return
        broker, replicas = self._replicas(unseen)
        for tp in unseen:
            if replicas[tp] == moving[tp].replicas:
                self._shown[tp] = broker, replicas[tp]

    def settle(self, moves: Moves) -> list[str]:
        """Return partitions that did not reach their target and no longer will."""
        targets = {tp: target for tp, target in moves.items() if target is not None}
        settled_by = time.monotonic() + SETTLE_S
        while targets:
            broker, now = self._replicas(targets)
            elsewhere = {tp: target for tp, target in targets.items() if now[tp] != target}
            is_known = all(self._is_known(tp, broker, now[tp]) for tp in elsewhere)
            if is_known or time.monotonic() >= settled_by:
                return [f"{tp} is on {ids(now[tp])} and not on {ids(target)}" for tp, target in elsewhere.items()]
            time.sleep(POLL_S)
        return []

    def _is_known(self, tp: TopicPartition, broker: object, now: list[int]) -> bool:
        shown_by, then = self._shown.get(tp, (None, now))
        return shown_by == broker and then != now

    def _replicas(self, tps: Iterable[TopicPartition]) -> tuple[object, dict[TopicPartition, list[int]]]:
        wanted = list(tps)
        broker, found = replicas_of(self._servers, {tp.topic for tp in wanted})
        return broker, {tp: found.get(tp.topic, {}).get(tp.partition, []) for tp in wanted}


def ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))
