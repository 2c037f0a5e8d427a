"""Faults and operations on the cluster of level 1. Each is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Final, Protocol

from klamm.controller.events import (
    AllocateProducerIds,
    ControlledShutdown,
    ControllerEvent,
    UncleanLeaderElectionEnable,
)
from klamm.controller.replies import ControlledShutdownResult, EventReply, ProducerIdsBlock
from klamm.controller.requests import RequestHead, UpdateMetadataBody, UpdateMetadataRequest
from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH, BrokerEndPoints
from klamm.sim.broker_model import LOG_DIRS
from klamm.sim.checkers import require
from klamm.sim.node import Node
from klamm.sim.world import World
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import decode_broker, encode_broker
from klamm.zk.model.ops import Create, Delete, SetData, WriteOp
from klamm.zk.model.znodes import encode_log_dir_event

_FALSE_EPOCH: Final = 1_000_000
_ANSWERED_MS: Final = 100
"""Enough for a request to the controller and its answer in a quiet cluster."""
Action = Callable[[], None]


class Work(Protocol):
    """`klamm.sim.workload.Workload`, as far as faults use it."""

    world: World
    rng: Random

    def up(self) -> list[Node]: ...

    def ask(self, event: ControllerEvent, on_reply: Callable[[EventReply], None], node: Node | None = ...) -> None: ...

    def tool(self, what: str, *ops: WriteOp) -> bool: ...

    def leave_note(self, what: str, note: Create) -> None: ...


class Faults:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._world = work.world
        self._rng = work.rng

    def actions(self) -> list[tuple[int, Action]]:
        """The faults and operations, with their weights."""
        return [
            (12, self._crash),
            (8, self._power_failure),
            (12, self._pause),
            (4, self._delete_controller_znode),
            (5, self._cut_link),
            (5, self._lose_answers),
            (2, self._zookeeper_away),
            (5, self._controlled_stop),
            (4, self._fail_log_dir),
            (2, self._restart_elsewhere),
            (2, self.move_in_place),
            (2, self._jump_clock),
            (1, self._unclean_by_default),
        ]

    def _count(self, name: str) -> None:
        self._world.faults[name] += 1

    def _crash(self) -> None:
        up = self._work.up()
        if len(up) > 1:
            self._count("crashes")
            self._world.crash(self._rng.choice(up), self._rng.randint(5, 80), self._rng.randint(5, 250))

    def _power_failure(self) -> None:
        """Power failure of one broker, of two, or of all at once; each comes back at a random time."""
        up = self._work.up()
        count = min(len(up), self._rng.choice((1, 1, 2, len(self._world.nodes))))
        for node in self._rng.sample(up, count):
            self._world.lose_power(node, self._rng.randint(1, 80), self._rng.randint(5, 250))
        if count:
            several = str(count) if count < 3 else "several"
            self._count(f"power failures of {'all' if count == len(self._world.nodes) else several} brokers")

    def _restart_elsewhere(self) -> None:
        """Stop a broker and restart it under another address: fast, so that it is sometimes missed, or later."""
        up = self._work.up()
        if len(up) > 1:
            self._count("changed addresses at a restart")
            node = self._rng.choice(up)
            self._world.crash(node, self._rng.randint(1, 30), self._rng.randint(5, 250))
            self._world.move(node, in_place=False)

    def move_in_place(self) -> None:
        """A broker rewrites its registration: other listeners, same incarnation."""
        world = self._world
        up = [node for node in self._work.up() if node.broker.broker_epoch >= 0]
        node = self._rng.choice(up) if up else None
        znode = world.zookeeper.tree.nodes.get(paths.broker_path(node.id)) if node is not None else None
        if node is None or znode is None or node.session is None or world.zookeeper.is_away:
            return
        if znode.ephemeral_owner == node.session.id:
            self._count("changed addresses of a running broker")
            world.move(node, in_place=True)
            version = 5 if world.protocol.has_features else 4
            me = BrokerEndPoints(node.id, node.config.endpoints, node.config.rack)
            was_unclean = decode_broker(node.id, znode.data, znode.czxid).unclean_shutdown
            data = encode_broker(me, node.clock.now_ms(), version=version, unclean_shutdown=was_unclean)
            self._work.tool(f"broker {node.id} registers again", SetData(paths.broker_path(node.id), data))

    def _pause(self) -> None:
        if up := self._work.up():
            self._count("pauses")
            self._world.pause(self._rng.choice(up), self._rng.randint(20, 300))

    def _delete_controller_znode(self) -> None:
        """Sometimes twice: the second time before all brokers have seen the effects of the first."""
        self._delete_controller()
        if self._rng.random() < 0.5:
            self._world.later(self._rng.randint(5, 80), self._delete_controller)

    def _delete_controller(self) -> None:
        self._world.faults["/controller deleted"] += self._work.tool("deletes /controller", Delete(paths.CONTROLLER))

    def _cut_link(self) -> None:
        self._count("cut links")
        source, target = self._rng.choice(list(self._world.nodes)), self._rng.choice(list(self._world.nodes))
        self._world.cut(source, target, self._rng.randint(50, 500))

    def _lose_answers(self) -> None:
        self._world.note_fault("zk", "lossy", "ANSWERS GET LOST")
        self._world.zookeeper.loss_rate = 0.3
        self._world.later(self._rng.randint(20, 200), self._lose_no_more)

    def _lose_no_more(self) -> None:
        self._world.zookeeper.loss_rate = 0.0

    def _zookeeper_away(self) -> None:
        """Sometimes long enough for sessions to expire."""
        world, duration = self._world, self._rng.randint(20, 250)
        if world.zookeeper.is_away:
            return
        self._count("ZooKeeper away")
        world.note_fault("zk", "away", f"AWAY FOR {duration} ms", duration)
        world.zookeeper.away_until_ms = world.scheduler.time_ms + duration
        for node in self._work.up():
            if self._rng.random() < 0.2:
                world.later(duration + self._rng.randint(0, 30), partial(world.expire, node))

    def _controlled_stop(self) -> None:
        up = self._work.up()
        controllers = self._world.active()
        if len(up) < 2 or not controllers:
            return
        self._count("controlled shutdowns")
        node = self._rng.choice(up)
        generation = node.generation

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, ControlledShutdownResult)
            if reply.error is ErrorCode.NONE and not reply.remaining:
                stop()

        def stop() -> None:
            if node.generation == generation and node.alive and not node.is_stopping:
                self._world.stop(node, self._rng.randint(5, 250))

        self._forge_shutdown(node, controllers[0])
        self._forge_control_requests(node, controllers[0])
        self._world.later(500, stop)
        self._work.ask(ControlledShutdown(node.id, node.broker.broker_epoch), on_reply, controllers[0])

    def _forge_shutdown(self, node: Node, controller: Node) -> None:
        """A forger asks in the name of a broker without knowing its broker epoch."""
        event = ControlledShutdown(node.id, node.broker.broker_epoch + _FALSE_EPOCH)

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, ControlledShutdownResult)
            require(reply.error is not ErrorCode.NONE, f"a forged {event} was granted")

        self._count("forged controlled shutdowns")
        controller.when_awake(partial(controller.put, event, on_reply))

    def _forge_control_requests(self, node: Node, controller: Node) -> None:
        """A forger speaks for the controller without knowing the broker epoch. Late requests have the lower epochs."""
        own = node.broker.broker_epoch
        if own == UNKNOWN_BROKER_EPOCH:
            return
        self._count("forged control requests")
        for false in (own + 1, own + _FALSE_EPOCH):
            head = RequestHead(controller.id, controller.controller.context.epoch, false)
            request = UpdateMetadataRequest(head, UpdateMetadataBody((), (), ()))
            error = node.broker.handle(request).error
            require(error is ErrorCode.STALE_BROKER_EPOCH, f"broker {node.id} of epoch {own} obeyed {head}")

    def _fail_log_dir(self) -> None:
        """A directory fails, and the broker writes a notification; the failure of its last directory ends the
        process."""
        up = [node for node in self._work.up() if not node.is_stopping]
        if not up:
            return
        node = self._rng.choice(up)
        self._count("failed log directories")
        if self._world.fail_log_dir(node, self._rng.randrange(LOG_DIRS)):
            note = Create(paths.log_dir_event_path(), encode_log_dir_event(node.id), sequential=True)
            generation = node.generation
            self._world.later(self._rng.randint(1, 60), lambda: self._note(node, generation, note))
        else:
            self._world.crash(node, self._rng.randint(5, 80), self._rng.randint(5, 250))

    def _note(self, node: Node, generation: int, note: Create) -> None:
        if node.generation == generation and node.alive:
            self._world.notes_due += 1
            self._work.leave_note(f"broker {node.id} notes a failed log directory", note)

    def _jump_clock(self) -> None:
        self._count("clock jumps")
        node = self._rng.choice(list(self._world.nodes.values()))
        node.clock.offset_ms = self._rng.choice((-86_400_000, -1_000, 0, 1_000, 86_400_000))
        self._world.note_fault(node.id, "clock", f"CLOCK {node.clock.offset_ms:+d} ms")

    def _unclean_by_default(self) -> None:
        """The dynamic default of all brokers, for a while."""
        self._count("unclean elections allowed by default")
        for enabled, delay in ((True, 0), (False, self._rng.randint(50, 300))):
            event = UncleanLeaderElectionEnable(enabled)
            for node in self._work.up():
                at = delay + self._rng.randint(1, 20)
                self._world.later(at, partial(node.when_awake, partial(node.put, event)))

    def empty_producer_ids(self) -> Iterator[int]:
        """An operator empties the last block of producer ids and restores it. None is given meanwhile.

        This needs a quiet cluster. Yields times, as `runner.run_phases` does.
        """
        yield from self._allocate_producer_ids(ErrorCode.NONE)
        last = self._world.zookeeper.tree.nodes[paths.PRODUCER_ID_BLOCK].data or b""
        self._count("emptied blocks of producer ids")
        for data, error in ((b"", ErrorCode.UNKNOWN_SERVER_ERROR), (last, ErrorCode.NONE)):
            self._work.tool("writes the block of producer ids", SetData(paths.PRODUCER_ID_BLOCK, data))
            yield from self._allocate_producer_ids(error)

    def _allocate_producer_ids(self, error: ErrorCode) -> Iterator[int]:
        (controller,) = self._world.active()
        replies: list[EventReply] = []
        event = AllocateProducerIds(controller.id, controller.broker.broker_epoch)
        self._work.ask(event, replies.append, controller)
        yield self._world.scheduler.time_ms + _ANSWERED_MS
        (reply,) = replies
        assert isinstance(reply, ProducerIdsBlock)
        if reply.error is ErrorCode.NONE:
            self._world.checkers.on_producer_ids(controller.id, reply.start, reply.length)
        require(reply.error is error, f"a request for producer ids: {reply.error.name} instead of {error.name}")
