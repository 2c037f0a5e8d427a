"""The controller's core alone: driven on a `ZnodeTree` in this process, its requests encoded and thrown away.

Only the controller's own work is timed, without ZooKeeper's process, sockets and brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from bench.control_plane.seeding import PARENTS, topic_names, transactions
from klamm.clock import SystemClock
from klamm.controller.config import ControllerConfig, InterBrokerProtocol
from klamm.controller.control_wire import Encoded, encode_in_steps
from klamm.controller.controller import KafkaController
from klamm.controller.effects import AskSessionId, Effect, Enqueue, Pause, Reply, Send, ZkMulti, ZkRead
from klamm.controller.events import ControllerEvent, Startup
from klamm.controller.requests import ControlRequest, UpdateMetadataRequest
from klamm.metadata.update import MAX_PARTITIONS
from klamm.model import BrokerEndPoints, EndPoint
from klamm.zk.client.batches import levels_of
from klamm.zk.model import ops, paths
from klamm.zk.model.broker_znode import encode_broker
from klamm.zk.model.tree import ZnodeTree

BROKERS: Final = (1, 2, 3)
_SESSION: Final = 1


def new_tree(names: Sequence[str], partitions: int, brokers: Sequence[int] = BROKERS) -> ZnodeTree:
    """Seeded topics on `brokers`, all of which are registered, but for broker 1: the controller that is to start."""
    tree = ZnodeTree()
    tree.create_session(_SESSION, 3_600_000, 0)
    for path in levels_of((*paths.PERSISTENT_PATHS, *PARENTS)):
        if path not in tree.nodes:
            tree.multi(_SESSION, [ops.Create(path)], 0)
    for transaction in transactions(names, partitions, brokers, len(brokers)):
        tree.multi(_SESSION, transaction, 0)
    return tree


def register(tree: ZnodeTree, broker_id: int) -> None:
    broker = BrokerEndPoints(broker_id, (EndPoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id),))
    tree.multi(_SESSION, [ops.Create(paths.broker_path(broker_id), encode_broker(broker, 0), ephemeral=True)], 0)


class CoreDriver:
    """One controller, and a tree that answers at once. `sent` are the requests of the last event."""

    def __init__(self, tree: ZnodeTree, broker_id: int = 1) -> None:
        endpoint = EndPoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id)
        config = ControllerConfig(broker_id, (endpoint,))
        self.tree = tree
        self.controller = KafkaController(config, SystemClock(), Random(7))
        self.sent: list[tuple[int, ControlRequest]] = []
        self.replies: list[object] = []
        self.sent_bytes = 0
        self.on_step: Callable[[], None] = lambda: None
        """Called wherever the control loop would do other work: at a pause, before a request is encoded, and while it
        waits for ZooKeeper."""
        self.on_answer: Callable[[], None] = lambda: None
        """Called when ZooKeeper has answered."""

    def start(self) -> None:
        """Registers, wins the election, fails over."""
        self.process(Startup())

    def process(self, event: ControllerEvent) -> None:
        """Runs an event to its end, with all that it puts into the queue, and encodes what is to be sent."""
        events, self.sent, self.replies, self.sent_bytes = [event], [], [], 0
        while events:
            self._drive(events.pop(0), events)
        protocol = self.controller.context.config.inter_broker_protocol
        for _, request in self.sent:
            for part in request.slices(MAX_PARTITIONS) if isinstance(request, UpdateMetadataRequest) else (request,):
                self.on_step()
                self.sent_bytes += sum(map(len, self._encode(part, protocol)[2]))

    def _encode(self, request: ControlRequest, protocol: InterBrokerProtocol) -> Encoded:
        steps = encode_in_steps(request, protocol)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                encoded: Encoded = done.value
                return encoded
            self.on_step()

    def _drive(self, event: ControllerEvent, events: list[ControllerEvent]) -> None:
        steps = self.controller.process(event)
        value: Any = None
        error: ops.ZkError | None = None
        while True:
            try:
                effect = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration:
                return
            value = error = None
            try:
                value = self._answer(effect, events)
            except ops.ZkError as caught:
                error = caught

    def _answer(self, effect: Effect, events: list[ControllerEvent]) -> Any:
        if isinstance(effect, ZkRead | ZkMulti):
            self.on_step()
            try:
                return self._ask_zookeeper(effect)
            finally:
                self.on_answer()
        if isinstance(effect, AskSessionId):
            return _SESSION
        if isinstance(effect, Pause):
            self.on_step()
        elif isinstance(effect, Send):
            self.sent.append((effect.broker_id, effect.request))
        elif isinstance(effect, Enqueue):
            events.append(effect.event)
        elif isinstance(effect, Reply):
            self.replies.append(effect.value)
        return None

    def _ask_zookeeper(self, effect: ZkRead | ZkMulti) -> Any:
        if isinstance(effect, ZkRead):
            return tuple(map(self._read, effect.ops))
        results = self.tree.multi(_SESSION, effect.ops, 0)
        if (failure := ops.multi_failure(effect.ops, results)) is not None:
            raise ops.MultiFailed(failure)
        return results

    def _read(self, op: ops.ReadOp) -> ops.ReadResult | None:
        try:
            return self.tree.read(op, _SESSION)
        except ops.NoNode:
            return None


def cluster(partitions: int, partitions_a_topic: int = 10, brokers: Sequence[int] = BROKERS) -> ZnodeTree:
    """A tree with so many partitions; brokers other than 1 are registered."""
    tree = new_tree(topic_names(partitions // partitions_a_topic), partitions_a_topic, brokers)
    for broker_id in brokers[1:]:
        register(tree, broker_id)
    return tree
