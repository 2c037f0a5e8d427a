"""Controller scenarios as text. A command begins with `>` (or `>>`, which hides its output); the lines after it are the
controller's actions.

There is no time and no network here: after each command every event runs to its end, in order. Reads are not shown.
"""

from __future__ import annotations

import re
from collections import deque
from random import Random

from klamm.controller.config import ControllerConfig, InterBrokerProtocol
from klamm.controller.controller import KafkaController
from klamm.controller.effects import (
    ActiveControllerChanged,
    AddChannel,
    AskSessionId,
    BrokerRegistered,
    CloseAllChannels,
    CloseChannel,
    Enqueue,
    LeadershipChanged,
    RegistrationsChanged,
    Reply,
    Send,
    Steps,
    ZkMulti,
    ZkRead,
)
from klamm.controller.events import (
    AlterPartition,
    AlterPartitionItem,
    ApiPartitionReassignment,
    ControlledShutdown,
    ControllerEvent,
    CreatablePartitions,
    CreatableTopic,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    LogEndsReceived,
    ReplicaLeaderElection,
    Startup,
    UncleanReplicaWaitOver,
)
from klamm.controller.replies import DONE, EventReply
from klamm.controller.requests import ControlRequest, LeaderAndIsrRequest, StopReplicaRequest
from klamm.controller.responses import ControlResponse, response_event
from klamm.controller.suspects import LogEnd
from klamm.controller.watches import event_of
from klamm.errors import ErrorCode
from klamm.model import BrokerEndPoints, EndPoint, ReplicaAssignment, TopicPartition
from klamm.sim.transcript import show_effect
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import encode_broker
from klamm.zk.model.ops import Create, Delete, MultiFailed, NoNode, ReadOp, ReadResult, WriteOp, ZkError, multi_failure
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.model.znodes import TopicZnode, encode_topic


class FrozenClock:
    """Stands still unless a test sets `seconds`."""

    seconds = 0.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Harness:
    """One controller core over a tree; other brokers are their registrations only. Sessions are broker ids plus one."""

    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self.tools = 1_000
        self.tree.create_session(self.tools, 1 << 40, 0)
        for path in paths.PERSISTENT_PATHS:
            parts = path.split("/")[1:]
            for i in range(1, len(parts) + 1):
                parent = "/" + "/".join(parts[:i])
                if parent not in self.tree.nodes:
                    self.tree.write(self.tools, Create(parent), 0)
        self.protocol = "3.9"
        self.controller: KafkaController | None = None
        self.me = -1
        self.queue: deque[ControllerEvent] = deque()
        self.sent: list[tuple[int, ControlRequest]] = []
        self.lines: list[str] = []
        self.channels: set[int] = set()
        self.replies: list[EventReply] = []
        self.clock = FrozenClock()

    def run(self, command: str) -> list[str]:
        """Carry out one command; return the lines of the controller's actions."""
        self.lines = []
        verb, *args = command.split()
        getattr(self, "do_" + verb.replace("-", "_"))(*args)
        self.drain()
        return self.lines

    # --- the controller ----------------------------------------------------------------------------------------------

    def drain(self) -> None:
        while True:
            for watcher, watch in self.tree.take_events():
                event = event_of(watch)
                if event is not None and watcher == self.me + 1:
                    self.queue.append(event)
            if not self.queue or self.controller is None:
                return
            self._process(self.queue.popleft())

    def _process(self, event: ControllerEvent) -> None:
        assert self.controller is not None
        self.drive(event, self.controller.process(event))

    def drive(self, event: ControllerEvent, steps: Steps[None]) -> None:
        """Carry out the effects that `steps` yields, to its end."""
        shown, replied = [], False
        value: object = None
        error: Exception | None = None
        while True:
            try:
                effect = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration:
                break
            value = error = None
            line = "  " + show_effect(effect)
            if isinstance(effect, ZkRead):
                value = tuple(map(self._read, effect.ops))
                continue
            if isinstance(effect, AskSessionId):
                value = self.session_id()
                continue
            if isinstance(effect, ZkMulti):
                try:
                    value = self._multi(effect.ops)
                except ZkError as failed:
                    error = failed
            elif isinstance(effect, Send):
                self.sent.append((effect.broker_id, effect.request))
            elif isinstance(effect, AddChannel | CloseChannel | CloseAllChannels):
                self._change_channels(effect)
            elif isinstance(effect, Enqueue):
                self.queue.append(effect.event)
            elif isinstance(effect, Reply):
                if replied or effect.value == DONE:
                    continue
                replied = True
                self.replies.append(effect.value)
            elif isinstance(
                effect, BrokerRegistered | ActiveControllerChanged | LeadershipChanged | RegistrationsChanged
            ):
                continue
            shown.append(line)
        if shown:
            self.lines += [f"{type(event).__name__}:", *shown]

    def _change_channels(self, effect: AddChannel | CloseChannel | CloseAllChannels) -> None:
        if isinstance(effect, AddChannel):
            self.channels.add(effect.broker.id)
        elif isinstance(effect, CloseChannel):
            self.channels.discard(effect.broker_id)
        else:
            self.channels.clear()

    def session_id(self) -> int:
        return self.me + 1

    def _read(self, op: ReadOp) -> ReadResult | None:
        try:
            return self.tree.read(op, self.me + 1)
        except NoNode:
            return None

    def _multi(self, ops: tuple[WriteOp, ...]) -> object:
        results = self.tree.multi(self.me + 1, ops, 0)
        failure = multi_failure(ops, results)
        if failure is not None:
            raise MultiFailed(failure)
        return results

    # --- commands ----------------------------------------------------------------------------------------------------

    def do_protocol(self, version: str) -> None:
        self.protocol = version

    def do_brokers(self, *ids: str) -> None:
        """Registers brokers that live before the controller starts."""
        for broker in map(int, ids):
            self._register(broker)

    def _register(self, broker: int, *, unclean: bool = False) -> None:
        endpoints = (EndPoint("PLAINTEXT", f"host{broker}", 9092),)
        self.tree.create_session(broker + 1, 1 << 40, 0)
        data = encode_broker(BrokerEndPoints(broker, endpoints), 0, unclean_shutdown=unclean)
        self.tree.write(broker + 1, Create(paths.broker_path(broker), data, ephemeral=True), 0)

    def do_controller(self, broker: str) -> None:
        """This broker starts: it registers, competes, fails over."""
        self.me = int(broker)
        if self.me + 1 not in self.tree.sessions:
            self.tree.create_session(self.me + 1, 1 << 40, 0)
        config = ControllerConfig(
            self.me,
            endpoints=(EndPoint("PLAINTEXT", f"host{broker}", 9092),),
            inter_broker_protocol=InterBrokerProtocol.parse(self.protocol),
        )
        self.controller = KafkaController(config, self.clock, Random(0))
        self.queue.append(Startup())

    def do_controller_fails_over_to(self, broker: str, *bounced: str) -> None:
        """The controller loses its role to a broker that has just started; its own session stays.

        Meanwhile others may go and come back, with a `!` after a loss of power: nobody sees it.
        """
        self.tree.write(self.tools, Delete(paths.CONTROLLER), 0)
        for other in bounced:
            self.do_bounces_unclean(other.removesuffix("!")) if other.endswith("!") else self.do_bounces(other)
        self.tree.take_events()
        self.queue.clear()
        self.do_controller(broker)

    def do_dies(self, *brokers: str) -> None:
        for broker in brokers:
            self.tree.close_session(int(broker) + 1, 0)

    def do_starts(self, broker: str) -> None:
        self._register(int(broker))

    def do_bounces(self, broker: str) -> None:
        """It dies and is back before anybody looked."""
        self.do_dies(broker)
        self.do_starts(broker)

    def do_starts_unclean(self, broker: str) -> None:
        self._register(int(broker), unclean=True)

    def do_bounces_unclean(self, broker: str) -> None:
        self.do_dies(broker)
        self.do_starts_unclean(broker)

    def do_log_ends(self, broker: str, *ends: str) -> None:
        """The broker answers: `T-0=3,12` is the epoch of the last record and the end."""
        assert self.controller is not None
        epoch = self.controller.context.brokers.live_or_shutting_down[int(broker)].epoch
        answers = ((name, _ids(end)) for name, _, end in (text.partition("=") for text in ends))
        found = tuple((_partition(name), LogEnd(*end)) for name, end in answers)
        self.queue.append(LogEndsReceived(int(broker), epoch, found))

    def do_wait_is_over(self) -> None:
        self.clock.seconds += 1_000
        self.queue.append(UncleanReplicaWaitOver())

    def do_create(self, topic: str, *partitions: str) -> None:
        plan = tuple((i, _ids(text)) for i, text in enumerate(partitions))
        self.queue.append(CreateTopics((CreatableTopic(topic, assignments=plan),)))

    def do_tool_creates(self, topic: str, *partitions: str) -> None:
        znode = TopicZnode({i: ReplicaAssignment(_ids(text)) for i, text in enumerate(partitions)})
        self.tree.write(self.tools, Create(paths.topic_path(topic), encode_topic(znode)), 0)

    def do_grow(self, topic: str, *partitions: str) -> None:
        assert self.controller is not None
        count = len(self.controller.context.topics[topic]) + len(partitions)
        spec = CreatablePartitions(topic, count, tuple(map(_ids, partitions)))
        self.queue.append(CreatePartitions((spec,)))

    def do_delete(self, topic: str) -> None:
        self.queue.append(DeleteTopics((topic,)))

    def do_stop_replicas_answered(self) -> None:
        """Every StopReplica that deletes is answered with success, once."""
        sent, self.sent = self.sent, []
        for broker, request in sent:
            if isinstance(request, StopReplicaRequest):
                errors = tuple((state.partition, ErrorCode.NONE) for state in request.partitions)
                event = response_event(broker, request, ControlResponse(partition_errors=errors))
                if event is not None:
                    self.queue.append(event)

    def do_leaders_answer(self) -> None:
        """Every LeaderAndIsr to a live broker is answered with success, once."""
        sent, self.sent = self.sent, []
        for broker, request in sent:
            if isinstance(request, LeaderAndIsrRequest) and broker + 1 in self.tree.sessions:
                errors = tuple((state.partition, ErrorCode.NONE) for state in request.partitions)
                event = response_event(broker, request, ControlResponse(partition_errors=errors))
                assert event is not None
                self.queue.append(event)

    def do_isr(self, partition: str, isr: str) -> None:
        """The leader asks for this ISR."""
        assert self.controller is not None
        tp = _partition(partition)
        state = self.controller.context.states.leadership[tp].leader_and_isr
        epoch = self.controller.context.brokers.live_or_shutting_down[state.leader].epoch
        item = AlterPartitionItem(tp.partition, state.leader_epoch, _ids(isr), state.partition_epoch, topic=tp.topic)
        self.queue.append(AlterPartition(state.leader, epoch, (item,)))

    def do_elect(self, partition: str) -> None:
        self.queue.append(ReplicaLeaderElection((_partition(partition),)))

    def do_reassign(self, partition: str, target: str) -> None:
        self.queue.append(ApiPartitionReassignment(((_partition(partition), _ids(target)),)))

    def do_cancel(self, partition: str) -> None:
        self.queue.append(ApiPartitionReassignment(((_partition(partition), None),)))

    def do_shuts_down(self, broker: str) -> None:
        assert self.controller is not None
        known = self.controller.context.brokers.live_or_shutting_down[int(broker)]
        self.queue.append(ControlledShutdown(int(broker), known.epoch))


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _partition(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


_SEND = re.compile(r"  send (\d+) (\w+ epoch \d+) broker epoch (\d+)(.*)")


def fold(lines: list[str]) -> list[str]:
    """Neighbouring requests that differ only in the broker they are for become one line."""
    folded: list[str] = []
    group: list[re.Match[str]] = []

    def flush() -> None:
        if group:
            first = group[0]
            brokers, epochs = ",".join(m[1] for m in group), ",".join(m[3] for m in group)
            folded.append(f"  send {brokers} {first[2]} broker epoch {epochs}{first[4]}")
            group.clear()

    for line in lines:
        match = _SEND.fullmatch(line)
        reported = {m[1] for m in group}
        if match is None or match[1] in reported or (group and match.group(2, 4) != group[0].group(2, 4)):
            flush()
        if match is None:
            folded.append(line)
        else:
            group.append(match)
    flush()
    return folded


def play(text: str) -> str:
    """The transcript of a scenario: its commands and comments as they are, the rest as it happens now."""
    harness = Harness()
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            out.append(line)
        elif line.startswith(">>"):
            harness.run(line[2:].strip())
            out.append(line)
        elif line.startswith(">"):
            out += [line, *fold(harness.run(line[1:].strip()))]
    return "\n".join(out) + "\n"
