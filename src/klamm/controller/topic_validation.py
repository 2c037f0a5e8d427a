"""Validation of new topics: names, counts, explicit assignments. Pure; the messages are Kafka's.

`plan_topic` and `plan_partitions` decide without changing anything, so they serve `validate_only` as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from klamm.controller.assignment import AssignmentError, Rng, assign_replicas
from klamm.controller.context.known_topics import collision_key
from klamm.controller.events import CreatablePartitions, CreatableTopic
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ReplicaAssignment

MAX_NAME_LENGTH: Final = 249
MAX_TOPIC_BYTES: Final = 900_000
"""Maximum size of a topic's znode and its config together: ZooKeeper accepts requests of 1 MB."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")

Assignment = dict[int, tuple[int, ...]]


@lazy_dataclass(frozen=True, slots=True)
class Refused:
    error: ErrorCode
    message: str


@lazy_dataclass(frozen=True, slots=True)
class TopicDefaults:
    num_partitions: int = 1
    replication_factor: int = 1
    max_partitions: int = 100_000


class PartitionBudget:
    """Limit of new partitions per request, over all its topics: as many as one topic may have.

    They are planned in one step, so a short request for millions of them would block the controller and its session for
    minutes.
    """

    def __init__(self, defaults: TopicDefaults) -> None:
        self._most = self._left = defaults.max_partitions

    def take(self, wanted: int) -> Refused | None:
        """Return None if there is room; a topic that is too large by itself is refused by its plan."""
        if not 0 < wanted <= self._most:
            return None
        if wanted > self._left:
            message = f"A request may ask for {self._most} new partitions in all: {wanted} more are too many."
            return Refused(ErrorCode.POLICY_VIOLATION, message)
        self._left -= wanted
        return None


def validate_topic_name(name: str) -> Refused | None:
    """Apply Kafka's rule for names; returns None for a valid name."""
    reason = None
    if name == "":
        reason = "Topic name is invalid: the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"Topic name is invalid: '{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
        )
    elif _LEGAL.fullmatch(name) is None:
        reason = (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None if reason is None else Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)


def check_size(topic_bytes: int, config_bytes: int = 0) -> Refused | None:
    """Return why the znodes of a topic do not fit into a request to ZooKeeper; None if they do."""
    if topic_bytes + config_bytes <= MAX_TOPIC_BYTES:
        return None
    if config_bytes > topic_bytes:
        message = f"The configuration takes {config_bytes} bytes in ZooKeeper; at most {MAX_TOPIC_BYTES} are possible."
        return Refused(ErrorCode.INVALID_CONFIG, message)
    message = f"The replica assignment takes {topic_bytes} bytes in ZooKeeper; at most {MAX_TOPIC_BYTES} are possible."
    return Refused(ErrorCode.INVALID_PARTITIONS, message)


def colliding_topic(name: str, collision_keys: Mapping[str, str]) -> str | None:
    """Return a topic that differs only by '.' and '_'. `collision_keys`: the key of each topic with such a
    character."""
    other = collision_keys.get(collision_key(name)) if "." in name or "_" in name else None
    return None if other == name else other


def plan_topic(
    spec: CreatableTopic,
    *,
    exists: bool,
    collides_with: str | None,
    brokers: Mapping[int, str | None],
    defaults: TopicDefaults,
    rng: Rng,
) -> Assignment | Refused:
    """Return the replicas of each partition of a topic to create, or the refusal."""
    if (refused := validate_topic_name(spec.name)) is not None:
        return refused
    if exists:
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{spec.name}' already exists.")
    if collides_with is not None:
        return Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{spec.name}' collides with existing topics: {collides_with}",
        )
    if spec.assignments:
        if spec.num_partitions != -1 or spec.replication_factor != -1:
            return Refused(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. "
                "Both cannot be used at the same time.",
            )
        return _explicit(spec.assignments, brokers, defaults)
    partitions = defaults.num_partitions if spec.num_partitions == -1 else spec.num_partitions
    factor = defaults.replication_factor if spec.replication_factor == -1 else spec.replication_factor
    return _automatic(partitions, factor, brokers, defaults, rng)


def _automatic(
    partitions: int, factor: int, brokers: Mapping[int, str | None], defaults: TopicDefaults, rng: Rng
) -> Assignment | Refused:
    if not 0 < partitions <= defaults.max_partitions:
        return Refused(ErrorCode.INVALID_PARTITIONS, _partition_bounds(partitions, defaults))
    start, shift = (rng.randrange(len(brokers)), rng.randrange(len(brokers))) if brokers else (0, 0)
    try:
        return assign_replicas(brokers, partitions, factor, start_index=start, shift=shift)
    except AssignmentError as error:
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error))


def _partition_bounds(partitions: int, defaults: TopicDefaults) -> str:
    if partitions <= 0:
        return "Number of partitions must be larger than 0."
    return f"Number of partitions must not be larger than {defaults.max_partitions}."


def _explicit(
    assignments: Iterable[tuple[int, tuple[int, ...]]], brokers: Mapping[int, str | None], defaults: TopicDefaults
) -> Assignment | Refused:
    given = list(assignments)
    plan = dict(sorted(given))
    if len(plan) != len(given) or list(plan) != list(range(len(plan))):
        return _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    if len(plan) > defaults.max_partitions:
        return Refused(ErrorCode.INVALID_PARTITIONS, _partition_bounds(len(plan), defaults))
    for partition, replicas in plan.items():
        if (refused := _check_replicas(partition, replicas, brokers)) is not None:
            return refused
    if len({len(replicas) for replicas in plan.values()}) != 1:
        return _bad_assignment("All partitions should have the same number of replicas.")
    return plan


def _check_replicas(partition: int, replicas: tuple[int, ...], brokers: Mapping[int, str | None]) -> Refused | None:
    if not replicas:
        return _bad_assignment(f"Cannot have replication factor of 0 for partition id {partition}.")
    if len(set(replicas)) != len(replicas):
        listed = ", ".join(map(str, replicas))
        return _bad_assignment(
            f"Duplicate brokers not allowed in replica assignment: {listed} for partition {partition}."
        )
    unknown = sorted(r for r in replicas if r not in brokers)
    if unknown:
        listed = ", ".join(map(str, unknown))
        return _bad_assignment(f"Unknown broker(s) in replica assignment for partition {partition}: {listed}.")
    return None


def _bad_assignment(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def plan_partitions(
    spec: CreatablePartitions,
    current: Mapping[int, ReplicaAssignment],
    brokers: Mapping[int, str | None],
    defaults: TopicDefaults,
) -> Assignment | Refused:
    """Return the replicas of the new partitions of a growing topic; existing partitions stay."""
    have = len(current)
    if spec.count <= have:
        fault = "which would not be an increase" if spec.count < have else "so nothing would change"
        return Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {have} partitions, and {spec.count} were asked for, {fault}.",
        )
    if spec.count > defaults.max_partitions:
        return Refused(ErrorCode.INVALID_PARTITIONS, _partition_bounds(spec.count, defaults))
    factor = len(current[min(current)].replicas) if current else defaults.replication_factor
    if spec.assignments is None:
        return _grow(spec.count - have, have, factor, current, brokers)
    if len(spec.assignments) != spec.count - have:
        return _bad_assignment(
            f"Increasing the number of partitions by {spec.count - have} "
            f"but {len(spec.assignments)} assignments provided."
        )
    plan = dict(enumerate(spec.assignments, start=have))
    for partition, replicas in plan.items():
        if (refused := _check_replicas(partition, replicas, brokers)) is not None:
            return refused
        if len(replicas) != factor:
            return _bad_assignment(
                f"Inconsistent replication factor between partitions, partition 0 has {factor} while "
                f"partition {partition} has {len(replicas)}."
            )
    return plan


def _grow(
    added: int,
    first: int,
    factor: int,
    current: Mapping[int, ReplicaAssignment],
    brokers: Mapping[int, str | None],
) -> Assignment | Refused:
    """New partitions continue from the placement of partition 0, as in Kafka."""
    ids = sorted(brokers)
    head = current[min(current)].replicas[0] if current else -1
    start = ids.index(head) if head in ids else 0
    try:
        return assign_replicas(brokers, added, factor, start_index=start, shift=start, first_partition=first)
    except AssignmentError as error:
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error))
