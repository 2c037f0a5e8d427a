"""Placement of the replicas of new partitions: Kafka's rule, with and without racks.

Leaders are placed round robin from a starting index. Followers are placed at a shift that grows after each full round
of brokers. Randomness is an argument (`start_index`, `shift`): equal arguments give equal assignments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Rng(Protocol):
    """The source of randomness that the core needs; `random.Random` fits."""

    def randrange(self, stop: int, /) -> int: ...

    def getrandbits(self, k: int, /) -> int: ...


class AssignmentError(ValueError):
    """The request cannot be satisfied; the client sees the message."""


def assign_replicas(
    brokers: Mapping[int, str | None],
    num_partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    shift: int,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of `num_partitions` partitions from `first_partition` on. `brokers` maps live brokers to
    racks.

    Racks are used when every broker has one; otherwise they are ignored, as Kafka's "safe" mode does.
    """
    if num_partitions <= 0:
        raise AssignmentError("Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise AssignmentError("Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise AssignmentError(
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}."
        )
    partitions = range(first_partition, first_partition + num_partitions)
    racks = {broker: rack for broker, rack in sorted(brokers.items()) if rack is not None}
    if len(racks) < len(brokers):
        return _rack_unaware(sorted(brokers), partitions, replication_factor, start_index, shift)
    return _rack_aware(racks, partitions, replication_factor, start_index, shift)


def _replica_index(first: int, shift: int, index: int, brokers: int) -> int:
    return (first + 1 + (shift + index) % (brokers - 1)) % brokers


def _rack_unaware(
    brokers: Sequence[int], partitions: range, replication_factor: int, start_index: int, shift: int
) -> dict[int, tuple[int, ...]]:
    n = len(brokers)
    result = {}
    for partition in partitions:
        if partition > 0 and partition % n == 0:
            shift += 1
        first = (partition + start_index) % n
        followers = (brokers[_replica_index(first, shift, j, n)] for j in range(replication_factor - 1))
        result[partition] = (brokers[first], *followers)
    return result


def _rack_aware(
    racks: Mapping[int, str], partitions: range, replication_factor: int, start_index: int, shift: int
) -> dict[int, tuple[int, ...]]:
    brokers = rack_alternated(racks)
    num_racks = len(set(racks.values()))
    result = {}
    for partition in partitions:
        if partition > 0 and partition % len(brokers) == 0:
            shift += 1
        first = (partition + start_index) % len(brokers)
        result[partition] = _spread(brokers, racks, num_racks, first, shift * num_racks, replication_factor)
    return result


def _spread(
    brokers: Sequence[int], racks: Mapping[int, str], num_racks: int, first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    """Place one partition: no rack twice while another has none, no broker twice."""
    replicas = [brokers[first]]
    used_racks = {racks[brokers[first]]}
    k = 0
    while len(replicas) < replication_factor:
        broker = brokers[_replica_index(first, shift, k, len(brokers))]
        k += 1
        rack_is_free = racks[broker] not in used_racks or len(used_racks) == num_racks
        if rack_is_free and broker not in replicas:
            replicas.append(broker)
            used_racks.add(racks[broker])
    return tuple(replicas)


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """Order brokers so that neighbours are in different racks: one per rack (by name) in turn, lowest ids first."""
    by_rack: dict[str, list[int]] = {}
    for broker, rack in sorted(racks.items(), key=lambda item: (item[1], item[0])):
        by_rack.setdefault(rack, []).append(broker)
    columns = list(by_rack.values())
    rounds = max(len(column) for column in columns) if columns else 0
    return [column[i] for i in range(rounds) for column in columns if i < len(column)]
