"""Codes and texts of the controller's answers, as Kafka 3.9 gives them."""

from __future__ import annotations

import pytest

from klamm.controller.events import ApiPartitionReassignment, ElectionType, ReplicaLeaderElection
from klamm.controller.replies import PartitionResults
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from tests.unit.controller.core import Core

UNKNOWN = TopicPartition("unknown", 0)


def election(core: Core, tp: TopicPartition, kind: ElectionType) -> tuple[ErrorCode, str | None]:
    reply = core.ask(ReplicaLeaderElection((tp,), kind))
    assert isinstance(reply, PartitionResults)
    (result,) = reply.partitions
    return result.error, result.message


def test_texts_of_elections() -> None:
    core = Core("brokers 2", "controller 1", "create t 2,1", "create alone 2")
    t, alone = TopicPartition("t", 0), TopicPartition("alone", 0)
    needless = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    assert election(core, t, ElectionType.PREFERRED) == needless
    assert election(core, UNKNOWN, ElectionType.PREFERRED) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "The partition does not exist.",
    )
    core.run("dies 2")
    assert election(core, t, ElectionType.PREFERRED) == (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "Failed to elect leader for partition t-0 under strategy PreferredReplicaPartitionLeaderElectionStrategy",
    )
    assert election(core, alone, ElectionType.UNCLEAN) == (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Failed to elect leader for partition alone-0 under strategy OfflinePartitionLeaderElectionStrategy(true)",
    )


@pytest.mark.parametrize(
    ("target", "error"),
    [
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_reassignment_of_an_unknown_topic(target: tuple[int, ...] | None, error: ErrorCode) -> None:
    core = Core("controller 1")
    reply = core.ask(ApiPartitionReassignment(((UNKNOWN, target),)))
    assert isinstance(reply, PartitionResults)
    assert [result.error for result in reply.partitions] == [error]


class _CountedId(int):
    """A broker id that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        _CountedId.comparisons += 1
        return int.__eq__(self, other) is True

    __hash__ = int.__hash__


def test_a_reassignment_to_very_many_brokers_costs_what_it_names() -> None:
    """A request may name a million brokers. Before, each was compared with all the others."""
    core = Core("brokers 2", "controller 1", "create t 2,1")
    target = tuple(_CountedId(broker) for broker in range(1, 2_001))
    _CountedId.comparisons = 0
    reply = core.ask(ApiPartitionReassignment(((TopicPartition("t", 0), target),)))
    assert isinstance(reply, PartitionResults)
    assert [result.error for result in reply.partitions] == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert _CountedId.comparisons < 10 * len(target)
