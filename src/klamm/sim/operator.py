"""Operations on a simulated cluster while clients use it: moves of partitions and leader elections.

A request is answered at once or not at all; the brokers finish accepted operations in spite of faults.
"""

from __future__ import annotations

from collections.abc import Sequence

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from klamm.sim.checkers import Violation
from klamm.sim.clients import Client

_EXPECTED = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


async def reassign(client: Client, controller: int, tp: TopicPartition, replicas: Sequence[int] | None) -> ErrorCode:
    """Move a partition to `replicas`; None cancels the last move."""
    wanted = ReassignablePartition(partition_index=tp.partition, replicas=replicas)
    topic = ReassignableTopic(name=tp.topic, partitions=[wanted])
    request = AlterPartitionReassignmentsRequest(timeout_ms=1_000, topics=[topic])
    try:
        response = await client.ask(controller, request, 0)
    except OSError:
        return ErrorCode.REQUEST_TIMED_OUT
    answers = [p.error_code for topic in response.responses for p in topic.partitions]
    return _expected(f"a move of {tp} to {replicas}", response.error_code or answers[0])


async def elect_preferred(client: Client, controller: int, tp: TopicPartition) -> ErrorCode:
    """Request the election of a partition's preferred leader."""
    wanted = [TopicPartitions(topic=tp.topic, partitions=[tp.partition])]
    request = ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=1_000)
    try:
        response = await client.ask(controller, request, 2)
    except OSError:
        return ErrorCode.REQUEST_TIMED_OUT
    answers = [p.error_code for topic in response.replica_election_results for p in topic.partition_result]
    return _expected(f"an election for {tp}", response.error_code or answers[0])


def _expected(what: str, code: int) -> ErrorCode:
    error = ErrorCode(code)
    if error not in _EXPECTED:
        raise Violation(f"{what} was answered {error.name}")
    return error
