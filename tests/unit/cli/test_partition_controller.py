"""`klamm partition` with a controller that is late, moves, or loses its voice: a broker that follows a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli import controller as controller_module
from klamm.cli import moves
from klamm.cli.app import app
from klamm.cli.moves import Move
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from klamm.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.wire import Message
from tests.support.scripted_broker import scripted_broker, view

MOVE = ("reassign", "-t", "t", "-p", "0", "--replicas", "2")
CANCEL = ("reassign", "-t", "t", "-p", "0", "--cancel")


class Script:
    """Broker 1, which names the controllers and knows the replicas of t-0 as they are written here.

    The last of these holds on; an answer to another request is given once.
    """

    def __init__(self) -> None:
        self.address = ("", 0)
        self.controllers = [1]
        self.replicas: list[tuple[int, ...]] = [(1,)]
        self.answers: dict[type[Message], list[Message | None]] = {}

    def say(self, request: type[Message], *answers: Message | None) -> None:
        self.answers.setdefault(request, []).extend(answers)

    def __call__(self, request: Message) -> Message | None:
        if not isinstance(request, MetadataRequest):
            return self.answers[type(request)].pop(0)
        if not request.topics:
            return view({1: self.address}, _next(self.controllers), {})
        return view({1: self.address}, self.controllers[0], {"t": _next(self.replicas)})

    def klamm(self, *arguments: str, code: int = 0) -> Any:
        servers = f"{self.address[0]}:{self.address[1]}"
        done = CliRunner().invoke(app, ["partition", *arguments, "-b", servers])
        assert done.exit_code == code, (done.output, done.exception)
        return done


def _next(script: list[Any]) -> Any:
    return script.pop(0) if len(script) > 1 else script[0]


@pytest.fixture
def broker() -> Iterator[Script]:
    script = Script()
    with scripted_broker(script) as script.address:
        yield script


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits; how often it would have been."""
    taken: list[float] = []
    monkeypatch.setattr("time.sleep", taken.append)
    monkeypatch.setattr(moves, "SETTLE_S", 600.0)
    return taken


def listed(*moving: Move) -> ListPartitionReassignmentsResponse:
    partitions = [
        OngoingPartitionReassignment(
            partition_index=0, replicas=move.replicas, adding_replicas=move.adding, removing_replicas=move.removing
        )
        for move in moving
    ]
    topics = [OngoingTopicReassignment(name="t", partitions=partitions)] if partitions else []
    return ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=topics)


def altered(code: ErrorCode = ErrorCode.NONE) -> AlterPartitionReassignmentsResponse:
    partition = ReassignablePartitionResponse(partition_index=0, error_code=code, error_message=None)
    topic = ReassignableTopicResponse(name="t", partitions=[partition])
    return AlterPartitionReassignmentsResponse(error_code=0, error_message=None, responses=[topic])


def elected(code: ErrorCode) -> ElectLeadersResponse:
    partition = PartitionResult(partition_id=0, error_code=code, error_message=None)
    return ElectLeadersResponse(
        replica_election_results=[ReplicaElectionResult(topic="t", partition_result=[partition])]
    )


def test_a_broker_that_learns_late_of_the_end_is_asked_again(broker: Script, pauses: list[float]) -> None:
    broker.say(AlterPartitionReassignmentsRequest, altered())
    broker.say(ListPartitionReassignmentsRequest, listed())
    broker.replicas = [(1,), (2, 1), (2,)]
    assert broker.klamm(*MOVE, "--wait").stdout.endswith("All moves have finished.\n")
    assert len(pauses) == 2


def test_a_move_that_was_seen_and_cancelled_is_reported_at_once(broker: Script, pauses: list[float]) -> None:
    broker.say(AlterPartitionReassignmentsRequest, altered())
    broker.say(ListPartitionReassignmentsRequest, listed(Move([2, 1], [2], [1])), listed())
    broker.replicas = [(2, 1), (1,)]
    reported = str(broker.klamm(*MOVE, "--wait", code=1).exception)
    assert reported == "Another client cancelled or replaced moves: t-0 is on 1 and not on 2."
    assert len(pauses) == 1


def test_a_move_that_was_replaced_is_reported_at_once(broker: Script, pauses: list[float]) -> None:
    broker.say(AlterPartitionReassignmentsRequest, altered())
    broker.say(ListPartitionReassignmentsRequest, listed(Move([3, 1], [3], [1])))
    reported = str(broker.klamm(*MOVE, "--wait", code=1).exception)
    assert reported == "Another client cancelled or replaced moves: t-0 moves to 3 and not to 2."
    assert not pauses


@pytest.mark.parametrize("command", [MOVE, CANCEL, ("reassign", "--list"), ("elect", "--preferred")])
def test_the_timeout_bounds_the_search_for_a_controller(
    broker: Script, pauses: list[float], command: tuple[str, ...]
) -> None:
    broker.controllers = [-1]
    reported = str(broker.klamm(*command, "--timeout", "0", code=1).exception)
    assert " has no controller that answers (looked for 0 s); `klamm cluster status` shows more." in reported
    assert not pauses


@pytest.mark.parametrize(
    ("command", "request_class", "may_happen"),
    [
        (MOVE, AlterPartitionReassignmentsRequest, True),
        (("elect", "--preferred"), ElectLeadersRequest, True),
        (("reassign", "--list"), ListPartitionReassignmentsRequest, False),
    ],
)
def test_a_request_that_was_sent_may_still_take_effect(
    broker: Script, command: tuple[str, ...], request_class: type[Message], may_happen: bool
) -> None:
    broker.say(request_class, None)
    reported = str(broker.klamm(*command, "--timeout", "0", code=1).exception)
    assert " has no controller that answers" in reported
    assert reported.endswith("so it may still take effect.") is may_happen


def test_a_search_is_not_silent(broker: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_SILENT_S", 0.0)
    broker.controllers = [-1, -1, 1]
    broker.say(ListPartitionReassignmentsRequest, listed())
    reported = broker.klamm("reassign", "--list").stderr
    assert reported == "No controller answers yet; looking for one for 30 s.\nNothing is being moved.\n"


def test_a_cancel_whose_answer_was_lost_is_not_refused(broker: Script) -> None:
    broker.say(ListPartitionReassignmentsRequest, listed(Move([2, 1], [2], [1])))
    broker.say(AlterPartitionReassignmentsRequest, None, altered(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS))
    assert broker.klamm(*CANCEL).stdout == "Partition t-0 is no longer being moved.\n"


def test_a_cancel_of_nothing_is_refused(broker: Script) -> None:
    broker.say(ListPartitionReassignmentsRequest, listed())
    broker.say(AlterPartitionReassignmentsRequest, altered(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS))
    reported = broker.klamm(*CANCEL, code=1).stderr
    assert reported == "Partition t-0 is not moved: NO_REASSIGNMENT_IN_PROGRESS.\n"


def test_a_cancel_names_the_replicas_and_warns_of_another_order(broker: Script) -> None:
    broker.say(ListPartitionReassignmentsRequest, listed(Move([3, 4, 1, 2], [4], [1, 2])))
    broker.say(AlterPartitionReassignmentsRequest, altered())
    assert broker.klamm(*CANCEL).stdout == (
        "Partition t-0 moves back to 3,1,2. Their order, and with it the preferred leader, may differ from that before "
        "the move; the preferred leader is 3 now.\n"
    )
    assert Move([4, 5, 1, 2], [4, 5], [1, 2]).has_kept_order


def test_an_election_is_asked_for_again_when_the_controller_has_moved(broker: Script) -> None:
    """Apache Kafka's brokers say NOT_CONTROLLER of every partition."""
    broker.say(ElectLeadersRequest, elected(ErrorCode.NOT_CONTROLLER), elected(ErrorCode.NONE))
    done = broker.klamm("elect", "--preferred", "-t", "t", "-p", "0")
    assert done.stdout == f"Partition {TopicPartition('t', 0)} has a new leader.\n"
