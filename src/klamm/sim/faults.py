"""Faults of a whole-cluster simulation: one after the other, all chosen by the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.forgery import forge, forge_fetch, send_forged
from klamm.sim.operator import elect_preferred, reassign
from klamm.sim.power_failures import PowerFailures
from klamm.sim.zk_server import HOST
from klamm.zk.model import paths
from klamm.zk.model.ops import Delete
from klamm.zk.model.znodes import decode_controller_epoch

_COUNTED = (
    ErrorCode.NONE,
    ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.STALE_CONTROLLER_EPOCH,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
"""Error codes of requests that were executed or correctly refused."""


class Faults:
    """Every fault ends by itself, at `end_s` at the latest; `heal` ends all of them. Each is counted when it
    happens."""

    pause_s = (0.1, 1.6)
    """Pause between two faults."""

    def __init__(self, cluster: SimCluster, end_s: float) -> None:
        self._cluster = cluster
        self._rng = cluster.rng
        self._end_s = end_s
        self._is_over = False
        self._stopping: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[ErrorCode]] = set()
        self._operator = cluster.client_process("operator")
        self._power = PowerFailures(cluster, self._start_later)
        self._client = Client("operator", cluster.addresses, Random(cluster.rng.getrandbits(64)))

    async def run(self) -> None:
        choices = self._choices()
        kinds, weights = list(choices), [weight for weight, _ in choices.values()]
        while (now := self._cluster.loop.time()) < self._end_s:
            kind = self._rng.choices(kinds, weights)[0]
            choices[kind][1]()
            await asyncio.sleep(min(self._rng.uniform(*self.pause_s), self._end_s - now))

    def _count(self, kind: str) -> None:
        self._cluster.counts[kind] += 1

    def _choices(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """Relative weight of each fault."""
        return {
            "kill": (6, self._kill),
            "power failure": (4, self._power.fail),
            "stop": (3, self._stop),
            "pause": (4, self._pause),
            "cut": (4, self._cut),
            "isolate": (2, self._isolate),
            "cut from zookeeper": (3, self._cut_from_zookeeper),
            "slow": (4, self._slow),
            "lost replies": (2, self._lose_replies),
            "zookeeper loses connections": (3, self._lose_zookeeper_answers),
            "zookeeper down": (1, self._stop_zookeeper),
            "operator": (2, self._delete_controller),
            "zombie controller": (3, self._make_zombie_controller),
            "disk": (3, self._break_disk),
            "clock": (3, self._move_clock),
            "reassign": (4, self._reassign),
            "elect": (3, self._elect),
            "forge": (3, self._forge),
        }

    async def heal(self) -> None:
        """End all faults except for failed disks, and start all brokers."""
        cluster = self._cluster
        self._is_over = True
        cluster.note("--- quiet")
        cluster.network.heal()
        cluster.zookeeper.loss_rate = 0.0
        if cluster.zookeeper.is_down:
            cluster.zookeeper.set_down(False)
        for node in cluster.nodes.values():
            self._resume(node)
        if self._stopping or self._asking:
            await asyncio.wait({*self._stopping, *self._asking})
        for node in cluster.nodes.values():
            node.start()

    def repair_disks(self) -> None:
        for node in self._cluster.nodes.values():
            if node.is_disk_broken:
                self._cluster.note(f"broker {node.id} gets its disk repaired")
                node.kill()
                node.start()

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _some_node(self) -> SimNode:
        return self._rng.choice(list(self._cluster.nodes.values()))

    def _until(self, longest_s: float) -> float:
        return min(self._cluster.loop.time() + self._rng.uniform(0.2, longest_s), self._end_s)

    def _at(self, when_s: float, call: Callable[..., object], *args: object) -> None:
        self._cluster.outside(when_s - self._cluster.loop.time(), call, *args)

    # --- brokers ---------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        """Also kills a starting broker. Sometimes it is back before anyone can have noticed."""
        node = self._some_node()
        if node.process is None or node.is_paused:
            return
        self._count("kill")
        node.note.is_a_copy = self._rng.random() < 0.2
        self._cluster.note(f"kill broker {node.id}")
        node.kill()
        self._start_later(node)

    def _start_later(self, node: SimNode) -> None:
        self._at(self._until(0.4 if self._rng.random() < 0.4 else 4.0), node.start)

    def _stop(self) -> None:
        node = self._some_node()
        if not node.is_ready or node.is_paused or any(not other.is_ready for other in self._cluster.nodes.values()):
            return
        self._count("controlled shutdown")
        self._cluster.note(f"stop broker {node.id}")
        task = self._cluster.loop.create_task(self._stop_and_start(node))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop_and_start(self, node: SimNode) -> None:
        await node.stop()
        if not self._is_over:
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        node.start()

    def _pause(self) -> None:
        """Pause a broker for less or for more than its session timeout."""
        node = self._some_node()
        if node.process is None or node.is_paused:
            return
        until_s = self._until(5.0)
        self._cluster.note(f"pause broker {node.id} until {until_s:.3f}")
        self._count("pause")
        self._cluster.loop.pause(node.process)
        self._at(until_s, self._resume, node)

    def _resume(self, node: SimNode) -> None:
        if node.process is not None and node.is_paused:
            self._cluster.note(f"resume broker {node.id}")
            self._cluster.loop.resume(node.process)

    def _break_disk(self) -> None:
        node = self._some_node()
        if not node.is_ready or node.is_disk_broken:
            return
        self._cluster.note(f"the disk of broker {node.id} fails")
        self._count("disk")
        node.break_disk()
        until_s = self._until(8.0)
        if until_s < self._end_s:  # otherwise it stays broken until the end: see `repair_disks`
            self._at(until_s, self._replace_disk, node, node.process)

    def _replace_disk(self, node: SimNode, process: object) -> None:
        if node.process is process and node.is_disk_broken and not node.is_paused:
            self._cluster.note(f"broker {node.id} gets its disk repaired")
            node.kill()
            node.start()

    def _move_clock(self) -> None:
        node = self._some_node()
        jump_ms = self._rng.choice([-600_000, -5_000, -500, 500, 5_000, 600_000])
        self._cluster.note(f"the clock of broker {node.id} jumps by {jump_ms} ms")
        self._count("clock forwards" if jump_ms > 0 else "clock backwards")
        node.clock.offset_ms += jump_ms

    # --- the network -----------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """One direction, or both."""
        if len(self._cluster.nodes) < 2:
            return
        one, other = self._rng.sample(list(self._cluster.nodes.values()), 2)
        until_s = self._until(4.0)
        self._cluster.note(f"cut {one.host} to {other.host} until {until_s:.3f}")
        self._cluster.network.cut(one.host, other.host, until_s)
        is_both = self._rng.random() < 0.5
        self._count("cut both ways" if is_both else "cut one way")
        if is_both:
            self._cluster.network.cut(other.host, one.host, until_s)

    def _isolate(self) -> None:
        node, until_s = self._some_node(), self._until(4.0)
        hosts = [other.host for other in self._cluster.nodes.values() if other is not node]
        if self._rng.random() < 0.5:
            hosts.append(HOST)
        self._count("isolate")
        self._cluster.note(f"isolate {node.host} from {', '.join(hosts)} until {until_s:.3f}")
        for host in hosts:
            self._cluster.network.cut(node.host, host, until_s)
            self._cluster.network.cut(host, node.host, until_s)

    def _cut_from_zookeeper(self) -> None:
        node, until_s = self._some_node(), self._until(5.0)
        self._count("cut from zookeeper")
        self._cluster.note(f"cut {node.host} from ZooKeeper until {until_s:.3f}")
        self._cluster.network.cut(node.host, HOST, until_s)
        if self._rng.random() < 0.7:
            self._cluster.network.cut(HOST, node.host, until_s)

    def _slow(self) -> None:
        hosts = [*(node.host for node in self._cluster.nodes.values()), HOST]
        one, other = self._rng.sample(hosts, 2)
        until_s = self._until(4.0)
        self._count("slow link")
        self._cluster.note(f"slow {one} to {other} until {until_s:.3f}")
        self._cluster.network.slow(one, other, until_s)

    def _lose_replies(self) -> None:
        until_s = self._until(2.0)
        self._cluster.note(f"replies are lost until {until_s:.3f}")
        self._count("lost replies")
        self._cluster.network.lost_replies = 0.08
        self._at(until_s, self._keep_replies)

    def _keep_replies(self) -> None:
        self._cluster.network.lost_replies = 0.0

    # --- ZooKeeper -------------------------------------------------------------------------------------------------

    def _lose_zookeeper_answers(self) -> None:
        until_s = self._until(2.0)
        self._cluster.note(f"ZooKeeper loses connections until {until_s:.3f}")
        self._count("zookeeper loses connections")
        self._cluster.zookeeper.loss_rate = 0.3
        self._at(until_s, self._keep_zookeeper_answers)

    def _keep_zookeeper_answers(self) -> None:
        self._cluster.zookeeper.loss_rate = 0.0

    def _stop_zookeeper(self) -> None:
        if not self._cluster.zookeeper.is_down:
            until_s = self._until(4.0)
            self._cluster.note(f"ZooKeeper is down until {until_s:.3f}")
            self._count("zookeeper down")
            self._cluster.zookeeper.set_down(True)
            self._at(until_s, self._start_zookeeper)

    def _start_zookeeper(self) -> None:
        if self._cluster.zookeeper.is_down:
            self._cluster.zookeeper.set_down(False)

    def _make_zombie_controller(self) -> None:
        """A controller's request to one broker is delayed and overtaken by its successor's."""
        nodes = list(self._cluster.nodes.values())
        owners = [node for node in nodes if node.broker is not None and node.broker.controller.is_active]
        others = [node for node in nodes if node not in owners and node.process is not None and not node.is_paused]
        if not owners or len(others) < 2:
            return
        late, bounced = self._rng.sample(others, 2)
        until_s = self._until(3.0)
        self._count("late controller")
        self._cluster.note(f"what {owners[0].host} sends to {late.host} comes at {until_s:.3f}, then it is deposed")
        self._cluster.network.cut(owners[0].host, late.host, until_s)
        bounced.kill()
        now = self._cluster.loop.time()
        self._at(now + self._rng.uniform(0.05, 0.3), bounced.start)
        self._at(now + self._rng.uniform(0.2, 0.6), self._delete_controller)

    def _delete_controller(self) -> None:
        if not self._cluster.zookeeper.is_down and self._cluster.zookeeper.operate(Delete(paths.CONTROLLER)):
            self._count("controller deleted")
            self._cluster.note("an operator deletes /controller")

    # --- requests of operators ---------------------------------------------------------------------------------------

    def _reassign(self) -> None:
        """Move a partition to other replicas, possibly more or fewer of them; sometimes cancel the last move."""
        tp, ids = self._rng.choice(self._cluster.partitions), list(self._cluster.nodes)
        size = self._rng.randint(min(2, len(ids)), min(3, len(ids)))
        replicas = None if self._rng.random() < 0.15 else self._rng.sample(ids, size)
        self._ask("reassignment", tp, replicas, lambda to: reassign(self._client, to, tp, replicas))

    def _elect(self) -> None:
        tp = self._rng.choice(self._cluster.partitions)
        self._ask("leader election", tp, "its preferred leader", lambda to: elect_preferred(self._client, to, tp))

    def _forge(self) -> None:
        """A sender that is not the controller sends a control request, or one that is not a broker fetches as one."""
        node = self._some_node()
        znode = self._cluster.zookeeper.tree.nodes.get(paths.CONTROLLER_EPOCH)
        if node.broker is None or znode is None or node.is_paused:
            return
        tp, epoch = self._rng.choice(self._cluster.partitions), decode_controller_epoch(znode.data)
        is_proof_needed = self._cluster.is_proof_needed
        kind = "forged request"
        if is_proof_needed and self._rng.random() < 0.5:
            kind, others = "forged follower fetch", [other for other in self._cluster.nodes if other != node.id]
            request, version = forge_fetch(node, tp, self._rng.choice(others or [node.id]))
        else:
            request, version = forge(self._rng, node, tp, node.broker.controller_id, epoch)
        self._cluster.note(f"somebody sends broker {node.id} a forged {type(request).__name__}")
        sent = send_forged(self._client, node.id, request, version, is_proof_needed=is_proof_needed)
        task = self._cluster.loop.spawn(self._operator, sent)
        self._asking.add(task)
        task.add_done_callback(lambda done: self._on_answer(kind, tp, done))

    def _ask(
        self, kind: str, tp: TopicPartition, what: object, ask: Callable[[int], Coroutine[Any, Any, ErrorCode]]
    ) -> None:
        owners = [n.id for n in self._cluster.nodes.values() if n.broker is not None and n.broker.controller.is_active]
        if not owners:
            return
        self._cluster.note(f"an operator asks for {what} for {tp}")
        task = self._cluster.loop.spawn(self._operator, ask(owners[0]))
        self._asking.add(task)
        task.add_done_callback(lambda done: self._on_answer(kind, tp, done))

    def _on_answer(self, kind: str, tp: TopicPartition, done: asyncio.Task[ErrorCode]) -> None:
        self._asking.discard(done)
        if (failure := done.exception()) is not None:
            self._cluster.problem(str(failure))
            return
        self._cluster.note(f"{kind} of {tp}: {done.result().name}")
        if done.result() in _COUNTED:
            self._count(kind)
