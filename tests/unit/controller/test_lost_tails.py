"""Replicas that may have lost their tail: which one leads, which ones wait, and the cost of an ordinary failover."""

from __future__ import annotations

from klamm.controller.effects import AskLogEnds, Send, Steps
from klamm.controller.events import (
    AlterPartition,
    AlterPartitionItem,
    ControllerEvent,
    ElectionType,
    LeaderAndIsrResponseReceived,
    LogEndsReceived,
    ReplicaLeaderElection,
)
from klamm.controller.log_end_query import build_request, read_response
from klamm.controller.replies import AlterPartitionResults
from klamm.controller.requests import RequestHead
from klamm.controller.suspects import NOTHING_TO_COMPARE, LogEnd
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import decode_broker
from klamm.zk.model.ops import NoAuth, ReadOp, ReadResult
from klamm.zk.model.znodes import decode_partition_state, encode_config
from tests.unit.controller.core import Core

TP = TopicPartition("T", 0)
STATE = paths.partition_state_path(*TP)
START = ("brokers 1 2 3", "controller 0", "create T 1,2,3")


class CountingCore(Core):
    """Counts what an event costs: znodes read, operations written, requests sent, log ends asked for."""

    def __init__(self, *commands: str) -> None:
        self.znodes_read = self.requests = self.questions = 0
        super().__init__(*commands)

    def _read(self, op: ReadOp) -> ReadResult | None:
        self.znodes_read += 1
        return super()._read(op)

    def drive(self, event: ControllerEvent, steps: Steps[None]) -> None:
        def counted() -> Steps[None]:
            value, error = None, None
            while True:
                try:
                    effect = steps.throw(error) if error is not None else steps.send(value)
                except StopIteration:
                    return
                self.requests += isinstance(effect, Send)
                self.questions += isinstance(effect, AskLogEnds)
                value, error = None, None
                try:
                    value = yield effect
                except Exception as thrown:
                    error = thrown

        super().drive(event, counted())

    def cost(self, command: str) -> tuple[int, int, int, int]:
        self.znodes_read = self.requests = self.questions = 0
        self.multis.clear()
        self.run(command)
        return self.znodes_read, sum(map(len, self.multis)), self.requests, self.questions


def state(core: Core) -> tuple[int, tuple[int, ...]]:
    led = decode_partition_state(TP, core.tree.nodes[STATE].data, 0).leader_and_isr
    return led.leader, led.isr


def reports_unclean(core: Core, broker: int) -> bool:
    znode = core.tree.nodes[paths.broker_path(broker)]
    return decode_broker(broker, znode.data, znode.czxid).unclean_shutdown


def leader_answers(core: Core) -> None:
    """The leader of T-0 has taken up its role."""
    assert core.controller is not None
    ctx = core.controller.context
    now = ctx.states.leadership[TP].leader_and_isr
    head = RequestHead(0, ctx.epoch, ctx.brokers.live_or_shutting_down[now.leader].epoch)
    errors = ((TP, ErrorCode.NONE),)
    core.queue.append(LeaderAndIsrResponseReceived(now.leader, head, ErrorCode.NONE, errors, (now.leader_epoch,)))
    core.drain()


def test_an_ordinary_failover_costs_nothing_more() -> None:
    """The reads and writes are those of the code before there were suspects, but for one znode that a new controller
    reads: whether the elected leaders have answered.
    """
    core = CountingCore("brokers 1 2 3", "controller 0", "create T 1,2,3 2,3,1 3,1,2 1,2,3 2,3,1 3,1,2")
    assert core.cost("dies 1") == (4, 8, 5, 0)
    assert core.cost("starts 1") == (5, 0, 9, 0)
    assert core.cost("bounces 2") == (5, 8, 14, 0)
    assert core.cost("controller-fails-over-to 4") == (29 + 1, 4, 13, 0)


def test_leaders_that_answered_are_recorded_once() -> None:
    """One write after the last answer, whatever the number of partitions; the first one creates the znode."""
    core = CountingCore("brokers 1 2 3", "controller 0", "create T 1,2,3 2,3,1 3,1,2", "leaders-answer", "dies 1")
    assert core.cost("leaders-answer") == (1, 2 + 3, 0, 0)
    core.run("dies 2")
    assert core.cost("leaders-answer") == (0, 2, 0, 0)
    assert core.cost("leaders-answer") == (0, 0, 0, 0)


def test_a_former_member_with_a_failed_directory_is_waited_for() -> None:
    """Broker 1 is elected in the place of broker 2, has lost its tail and never answered."""
    core = Core("brokers 1 2", "controller 0", "create T 2,1", "leaders-answer", "dies 2", "dies 1")
    core.run("controller-fails-over-to 4")
    for command in ("starts-unclean 1", "starts-unclean 2", "log-ends 1 T-0=0,5"):
        core.run(command)
    assert core.controller is not None
    epoch = core.controller.context.brokers.live_or_shutting_down[2].epoch
    core.queue.append(LogEndsReceived(2, epoch, ((TP, None),)))
    core.drain()
    assert state(core) == (-1, (1,))
    core.run("wait-is-over")
    assert state(core) == (1, (1,))


def test_a_kafka_broker_that_was_a_member_is_not_waited_for_when_it_is_back() -> None:
    """It never answers. Broker 1 may have lost its tail, and leads by Kafka's rule."""
    core = Core("brokers 1 2", "controller 0", "create T 2,1", "leaders-answer", "dies 2", "dies 1")
    for command in ("starts-unclean 1", "log-ends 1 T-0=0,5"):
        core.run(command)
    assert state(core) == (-1, (1,))
    for command in ("starts 2", "log-ends 2 T-0=-1,-1"):
        core.run(command)
    assert state(core) == (1, (1,))


def test_a_broker_that_returns_after_a_kill_costs_one_write_more() -> None:
    """The report in its registration is cleared, and watchers read it again. No ISR depends on the old log."""
    core = CountingCore("brokers 1 2 3", "controller 0", "create T 1,2,3 2,3,1 3,1,2 1,2,3 2,3,1 3,1,2", "dies 1")
    assert core.cost("starts-unclean 1") == (5 + 2, 2, 9, 0)
    assert not reports_unclean(core, 1)


def test_a_registration_of_kafka_is_trusted() -> None:
    core = Core(*START, "dies 1 2 3", "starts 1")
    assert state(core) == (1, (1,))


def test_a_suspect_is_not_elected_as_preferred_leader() -> None:
    core = Core(*START, "dies 1 2 3", "starts-unclean 1")
    core.run("elect T-0")
    assert state(core) == (-1, (1, 2, 3)) and reports_unclean(core, 1)


def test_an_operator_need_not_wait() -> None:
    core = Core(
        *START, "dies 1 2 3", "starts-unclean 1", "starts-unclean 2", "log-ends 1 T-0=0,5", "log-ends 2 T-0=0,9"
    )
    core.ask(ReplicaLeaderElection((TP,), ElectionType.UNCLEAN))
    assert state(core) == (2, (2,)) and not reports_unclean(core, 2)


def test_a_topic_that_may_lose_records_does_not_wait_for_missing_replicas() -> None:
    core = Core(*START)
    core.tool_writes(paths.config_entity_path("topics", "T"), encode_config({"unclean.leader.election.enable": "true"}))
    for command in ("dies 1 2 3", "starts-unclean 1", "starts-unclean 2", "log-ends 1 T-0=0,5"):
        core.run(command)
    assert state(core) == (-1, (1, 2, 3))
    core.run("log-ends 2 T-0=0,9")
    assert state(core) == (2, (2,))


def test_the_last_in_sync_leads_at_once_without_a_replica_to_compare_it_with() -> None:
    core = CountingCore("brokers 1 2 3", "controller 0", "create T 1", "dies 1")
    assert core.cost("starts-unclean 1")[3] == 0
    assert state(core) == (1, (1,))


def test_a_new_controller_finds_the_suspects_again() -> None:
    core = Core(*START, "dies 1 2 3", "starts-unclean 1")
    core.run("controller-fails-over-to 4")
    assert state(core) == (-1, (1, 2, 3)) and reports_unclean(core, 1)
    for command in ("log-ends 1 T-0=0,5", "starts-unclean 2", "log-ends 2 T-0=0,9", "starts-unclean 3"):
        core.run(command)
    core.run("log-ends 3 T-0=0,7")
    assert state(core) == (2, (2,)) and not any(reports_unclean(core, b) for b in (1, 2, 3))


def test_answers_of_an_earlier_life_do_not_count() -> None:
    core = Core(*START, "dies 1 2 3", "starts-unclean 1", "log-ends 1 T-0=0,100", "bounces-unclean 1")
    for command in ("starts-unclean 2", "log-ends 2 T-0=0,9", "starts-unclean 3", "log-ends 3 T-0=0,7"):
        core.run(command)
    assert state(core) == (-1, (1, 2, 3))
    core.run("log-ends 1 T-0=0,5")
    assert state(core) == (2, (2,))


def test_a_wait_that_ended_with_its_replicas_is_not_resumed() -> None:
    """The last replica goes while it waits. Replicas that come after the end of that wait are compared all the same."""
    core = Core(*START, "dies 1 2 3", "starts-unclean 1", "dies 1", "wait-is-over", "starts-unclean 1")
    assert state(core) == (-1, (1, 2, 3))
    for command in ("log-ends 1 T-0=0,5", "starts-unclean 2", "log-ends 2 T-0=0,9", "starts-unclean 3"):
        core.run(command)
    core.run("log-ends 3 T-0=0,7")
    assert state(core) == (2, (2,))


def test_members_that_went_before_the_new_leader_answered_are_waited_for() -> None:
    """All lose power, and their sessions end one after the other."""
    core = Core(*START, "dies 1", "dies 2", "dies 3", "starts-unclean 3", "log-ends 3 T-0=0,5")
    assert state(core) == (-1, (3,))
    for command in ("starts-unclean 1", "log-ends 1 T-0=0,7", "starts-unclean 2", "log-ends 2 T-0=0,6"):
        core.run(command)
    assert state(core) == (1, (1,))


def test_members_that_went_are_not_waited_for_when_the_leader_has_answered_since() -> None:
    core = Core(*START, "dies 1", "dies 2")
    leader_answers(core)
    for command in ("dies 3", "starts-unclean 3"):
        core.run(command)
    assert state(core) == (3, (3,))


def test_a_leader_cannot_add_a_replica_as_it_was_before_it_lost_power() -> None:
    core = Core(*START, "dies 3", "starts 3")
    assert core.controller is not None
    ctx = core.controller.context
    earlier, now = ctx.brokers.live_or_shutting_down[3].epoch, ctx.states.leadership[TP].leader_and_isr
    core.run("bounces-unclean 3")
    item = AlterPartitionItem(
        0, now.leader_epoch, (1, 2, 3), now.partition_epoch, "T", ZERO_UUID, isr_broker_epochs=(-1, -1, earlier)
    )
    reply = core.ask(AlterPartition(1, ctx.brokers.live_or_shutting_down[1].epoch, (item,)))
    assert isinstance(reply, AlterPartitionResults)
    assert [result.error for result in reply.partitions] == [ErrorCode.INELIGIBLE_REPLICA]


def test_a_move_does_not_end_on_replicas_that_are_suspected() -> None:
    core = Core("brokers 1 2 3", "controller 0", "create T 1,2", "dies 1 2", "starts-unclean 1")
    core.run("reassign T-0 1")
    assert state(core) == (-1, (1, 2))
    assert core.controller is not None and 2 in core.controller.context.topics.assignment(TP).replicas


def test_a_registration_that_cannot_be_written_is_left_alone() -> None:
    core = Core(*START, "dies 1")
    core.refused[paths.broker_path(1)] = NoAuth()
    core.run("starts-unclean 1")
    assert reports_unclean(core, 1) and len(core.multis) < 20


def test_log_ends_on_the_wire() -> None:
    request = build_request({TP: 7, TopicPartition("T", 1): 8})
    asked = [(p.partition, p.current_leader_epoch, p.leader_epoch) for p in request.topics[0].partitions]
    assert request.replica_id == -2 and asked == [(0, 7, 2**31 - 1), (1, 8, 2**31 - 1)]
    answers = [
        EpochEndOffset(error_code=ErrorCode.NONE, partition=0, leader_epoch=6, end_offset=40),
        EpochEndOffset(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH, partition=1),
        EpochEndOffset(error_code=ErrorCode.KAFKA_STORAGE_ERROR, partition=2),
        EpochEndOffset(error_code=ErrorCode.NONE, partition=3, leader_epoch=-1, end_offset=-1),
    ]
    response = OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="T", partitions=answers)])
    assert read_response(response) == {
        TP: LogEnd(6, 40),
        TopicPartition("T", 2): None,
        TopicPartition("T", 3): NOTHING_TO_COMPARE,  # a leader of Kafka
    }
