"""Faults for transactions: requests that arrive late on abandoned connections, lost answers, and coordinators that die
between the decision and its markers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from klamm.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.faults import Faults
from klamm.sim.network import is_request
from klamm.sim.operator import elect_preferred, reassign

TRANSACTIONAL: Final = {
    "InitProducerId": InitProducerIdRequest.KEY,
    "AddPartitionsToTxn": AddPartitionsToTxnRequest.KEY,
    "AddOffsetsToTxn": AddOffsetsToTxnRequest.KEY,
    "Produce": ProduceRequest.KEY,
    "TxnOffsetCommit": TxnOffsetCommitRequest.KEY,
    "EndTxn": EndTxnRequest.KEY,
}
_LATE_WEIGHTS: Final = (1, 3, 1, 3, 3, 6)
LATE_S: Final = (0.4, 1.6)
LATE_MARKER_SEEDS: Final = 5
"""One run in this many has late markers: while one is late, its transaction does not progress."""
LATE_MARKER_S: Final = (1.1, 1.8)
"""The coordinator repeats a marker after `request.timeout.ms`."""
MOVE_S: Final = 1.0
"""Maximum wait for a leader to move."""
NEXT_S: Final = 2.5
"""Maximum wait for the next transaction of a client."""
OLD_CLIENT: Final = "w1"
"""The transactional id that always speaks the old protocol, and keeps its epoch for many transactions."""
_END: Final = EndTxnRequest.KEY
_FIRST_STEPS: Final = {"Produce": AddPartitionsToTxnRequest.KEY, "TxnOffsetCommit": AddOffsetsToTxnRequest.KEY}
"""By late request: the first request of a transaction, directly after which the late one can join that transaction."""
COPIER: Final = "c0"
"""The beginning of the transactional ids that send TxnOffsetCommit."""
_STEPS: Final = tuple(key for name, key in TRANSACTIONAL.items() if name not in ("InitProducerId", "EndTxn"))
"""Requests within a transaction."""


def is_careless_run(seed: int) -> bool:
    """Whether clients of the old protocol keep their epoch although they do not know the fate of a request."""
    return seed % 5 == 3


def is_repaired_run(seed: int) -> bool:
    """Whether the cluster has `transaction.version` 2 and expires idle transactional ids.

    In these runs, clients also leave transactions open for good, and writers ask where the committed records end.
    """
    return seed % 8 in (5, 6)


class _Death(NamedTuple):
    """Kill the sender or the target of a request, after `left` others of its kind."""

    kind: str
    is_meant: Callable[[bytes], bool]
    left: int
    is_target: bool


class TransactionFaults(Faults):
    """`hosts` returns the hosts of the transactional clients that run; `kill_client` kills and restarts one of them."""

    pause_s = (0.1, 1.2)

    def __init__(
        self, cluster: SimCluster, end_s: float, hosts: Callable[[], Sequence[str]], kill_client: Callable[[], None]
    ) -> None:
        super().__init__(cluster, end_s)
        self._hosts = hosts
        self._kill_client = kill_client
        self._deaths: list[_Death] = []
        self._sent: dict[tuple[str, int], tuple[float, str]] = {}
        """When a host last sent a request of an API, and to whom."""
        self._delayed: set[str] = set()
        """Hosts of which a request waits for the next transaction."""
        cluster.network.on_sent = self._on_sent

    def _choices(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """Faults of brokers; those of messages are more frequent."""
        inherited = super()._choices()
        kept = {"kill": 3, "stop": 1, "pause": 3, "cut": 2, "isolate": 1, "cut from zookeeper": 2, "slow": 2}
        kept |= {"lost replies": 3, "elect": 1}
        own: dict[str, tuple[int, Callable[[], None]]] = {
            "death at markers": (5, self._plan_death),
            "coordinator there and back": (6, self._move_there_and_back),
            "client killed": (3, self._kill_some_client),
        }
        return {kind: (weight, inherited[kind][1]) for kind, weight in kept.items()} | own

    async def run(self) -> None:
        """In every third run all brokers are healthy, so that clients progress and only messages are late or lost."""
        seed = self._cluster.seed
        tasks = [self._run_messages()]
        if seed % 3:
            tasks.append(super().run())
        if seed % LATE_MARKER_SEEDS == LATE_MARKER_SEEDS - 1:
            nodes = self._cluster.nodes.values()
            tasks += [self._run_late_markers(node.host, Random(seed * 10 + node.id)) for node in nodes]
        await asyncio.gather(*tasks)

    async def _run_messages(self) -> None:
        kinds: dict[Callable[[], None], int] = {
            self._delay_request: 3,
            self._delay_into_next: 14,
            self._slow_client: 1,
            self._lose_answer: 4,
            self._lose_marker_answer: 3,
        }
        while (now := self._cluster.loop.time()) < self._end_s:
            self._rng.choices(list(kinds), list(kinds.values()))[0]()
            await asyncio.sleep(min(self._rng.uniform(0.03, 0.3), self._end_s - now))

    async def heal(self) -> None:
        self._deaths.clear()
        self._cluster.network.on_sent = None
        await super().heal()

    # --- the clients' requests -----------------------------------------------------------------------------------

    def _delay_request(self) -> None:
        """The next request of this kind arrives late, after the client has repeated it over another connection."""
        hosts = self._hosts()
        if not hosts:
            return
        name = self._rng.choices(list(TRANSACTIONAL), _LATE_WEIGHTS)[0]
        self.delay(self._rng.choice(hosts), name, self._cluster.loop.time() + self._rng.uniform(*LATE_S))

    def delay(self, host: str, name: str, until_s: float) -> None:
        self._count("late request")
        self._cluster.note(f"the next {name} of {host} arrives at {until_s:.3f}")
        for node in self._cluster.nodes.values():
            self._cluster.network.hold(host, node.host, is_request(TRANSACTIONAL[name]), until_s)

    def _delay_into_next(self) -> None:
        """A request of a transaction arrives during the client's next transaction."""
        hosts = [host for host in self._hosts() if host not in self._delayed]
        if hosts:
            name = self._rng.choices(list(TRANSACTIONAL), _LATE_WEIGHTS)[0]
            if is_careless_run(self._cluster.seed):
                name = self._rng.choice(list(_FIRST_STEPS))
            aimed = COPIER if name == "TxnOffsetCommit" and is_careless_run(self._cluster.seed) else OLD_CLIENT
            chosen = [host for host in hosts if host.startswith(aimed)]
            self._spawn(self._detain(self._rng.choice(chosen or hosts), name))

    async def _detain(self, host: str, name: str) -> None:
        self._delayed.add(host)
        try:
            await self._detain_until_next(host, name)
        finally:
            self._delayed.discard(host)

    async def _detain_until_next(self, host: str, name: str) -> None:
        detention = self._cluster.network.detain(host, is_request(TRANSACTIONAL[name]))
        began_s = await self._next_sent(host, (TRANSACTIONAL[name],), self._cluster.loop.time())
        if began_s is None or detention.target is None:
            return
        self._cluster.note(f"{name} of {host} is on its way to {detention.target} until the next transaction")
        ended_s = await self._next_sent(host, (_END,), began_s)
        is_careless = is_careless_run(self._cluster.seed)
        steps = (_FIRST_STEPS[name],) if is_careless else _STEPS
        if ended_s is not None and await self._next_sent(host, steps, ended_s) is not None:
            self._count("request in the next transaction")
            self._count(f"{name} in the next transaction")
            await asyncio.sleep(self._rng.uniform(0.005, 0.08))
        self._cluster.note(f"the late {name} of {host} arrives")
        detention.release()

    async def _next_sent(self, host: str, keys: Sequence[int], after_s: float) -> float | None:
        """Wait until the host sends one of these requests; return when, or None if it does not."""
        until_s = min(self._cluster.loop.time() + NEXT_S, self._end_s)
        while self._cluster.loop.time() < until_s:
            times = [self._sent[host, key][0] for key in keys if (host, key) in self._sent]
            if max(times, default=0.0) > after_s:
                return max(times)
            await asyncio.sleep(0.004)
        return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """`heal` waits for it."""
        task = self._cluster.loop.create_task(work)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def _slow_client(self) -> None:
        hosts = self._hosts()
        if hosts:
            host, node, until_s = self._rng.choice(hosts), self._some_node(), self._until(2.0)
            self._count("slow client")
            self._cluster.note(f"slow {host} to {node.host} until {until_s:.3f}")
            self._cluster.network.slow(host, node.host, until_s)

    def _lose_answer(self) -> None:
        hosts = self._hosts()
        if hosts:
            name, host = self._rng.choices(list(TRANSACTIONAL), _LATE_WEIGHTS)[0], self._rng.choice(hosts)
            self._count("lost answer")
            self._cluster.note(f"{host} does not get the answer to its next {name}")
            for node in self._cluster.nodes.values():
                self._cluster.network.lose_answer(host, node.host, is_request(TRANSACTIONAL[name]))

    def _kill_some_client(self) -> None:
        self._count("client killed")
        self._kill_client()

    # --- markers -------------------------------------------------------------------------------------------------

    def _lose_marker_answer(self) -> None:
        """The next markers of every broker are written, and their coordinators do not learn of it."""
        self._cluster.note("the answers to the next markers are lost")
        nodes = self._cluster.nodes.values()
        for one in nodes:
            for other in nodes:
                self._cluster.network.lose_answer(one.host, other.host, self._loses_marker_answer)

    def _loses_marker_answer(self, data: bytes) -> bool:
        is_meant = is_request(WriteTxnMarkersRequest.KEY)(data)
        if is_meant:
            self._count("lost marker answer")
        return is_meant

    async def _run_late_markers(self, host: str, rng: Random) -> None:
        """Markers of a broker arrive late: it has repeated them, and their producers have continued."""
        loop = self._cluster.loop
        while loop.time() < self._end_s:
            detention = self._cluster.network.detain(host, is_request(WriteTxnMarkersRequest.KEY))
            while detention.target is None and loop.time() < self._end_s:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
            self._count("late marker")
            self._cluster.note(f"the markers of {host} to {detention.target} are late")
            await asyncio.sleep(rng.uniform(*LATE_MARKER_S))
            self._cluster.note(f"the late markers of {host} arrive")
            detention.release()

    def _plan_death(self) -> None:
        """Kill the next coordinator after its decision and a number of markers, before or after they arrive."""
        count = self._rng.randint(0, 3)
        kind = f"death after {count} markers"
        if count == 0:
            self._deaths.append(_Death(kind, is_request(EndTxnRequest.KEY), 0, is_target=True))
        else:
            self._deaths.append(_Death(kind, is_request(WriteTxnMarkersRequest.KEY), count - 1, is_target=False))
        self._cluster.note(f"the next coordinator dies after {count} markers")

    def _on_sent(self, source: str, target: str, data: bytes) -> None:
        self._sent[source, int.from_bytes(data[4:6], "big")] = (self._cluster.loop.time(), target)
        for i, death in enumerate(self._deaths):
            if death.is_meant(data):
                if death.left:
                    self._deaths[i] = death._replace(left=death.left - 1)
                else:
                    del self._deaths[i]
                    delay_s = self._rng.uniform(0.0, 0.012)
                    self._cluster.outside(delay_s, self._die, target if death.is_target else source, death.kind)
                return

    def _die(self, host: str, kind: str) -> None:
        for node in self._cluster.nodes.values():
            if node.host == host and node.process is not None and not node.is_paused and not self._is_over:
                self._count(kind)
                self._cluster.note(f"kill broker {node.id}, which writes markers")
                node.kill()
                self._start_later(node)

    # --- coordinators that move ------------------------------------------------------------------------------------

    def _move_there_and_back(self) -> None:
        """A coordinator's partition goes to another broker and returns; no connection is lost."""
        self._spawn(self._there_and_back())

    async def _there_and_back(self) -> None:
        """Meanwhile a request to it is late: it arrives after the return, within a transaction that began elsewhere."""
        tps, hosts = [tp for tp in self._internal() if self._leader(tp) is not None], self._hosts()
        if not tps or not hosts:
            return
        is_groups = self._rng.random() < 0.4
        name = "TxnOffsetCommit" if is_groups else "EndTxn"
        late = self._cluster.network.detain(self._rng.choice(hosts), is_request(TRANSACTIONAL[name]))
        began_s = await self._next_sent(late.source, (TRANSACTIONAL[name],), self._cluster.loop.time())
        topic = GROUP_METADATA_TOPIC if is_groups else TRANSACTION_STATE_TOPIC
        homes = {tp: self._leader(tp) for tp in tps if tp.topic == topic}
        found = [(tp, node) for tp, node in homes.items() if node is not None and node.host == late.target]
        if began_s is not None and found:
            await asyncio.sleep(0.3)  # the client has repeated the request
            await self._move(*self._rng.choice(found), late.source)
        late.release()

    async def _move(self, tp: TopicPartition, home: SimNode, host: str) -> None:
        others = [node.id for node in self._cluster.nodes.values() if node is not home]
        self._rng.shuffle(others)
        self._cluster.note(f"{tp} moves from broker {home.id} to {others[0]} and back; a request of {host} is late")
        client = Client("shifter", self._cluster.addresses, Random(self._rng.getrandbits(64)))
        if not await self._lead(client, tp, [others[0], home.id, *others[1:]]):
            return
        await self._next_sent(host, _STEPS, self._cluster.loop.time() + self._rng.choice((0.0, 0.05)))
        await asyncio.sleep(0.03)
        if await self._lead(client, tp, [home.id, *others]):
            self._count("coordinator there and back")
            await asyncio.sleep(self._rng.uniform(0.0, 0.03))

    async def _lead(self, client: Client, tp: TopicPartition, replicas: list[int]) -> bool:
        """Make the first replica the leader; return whether it is."""
        controllers = [
            n.id for n in self._cluster.nodes.values() if n.broker is not None and n.broker.controller.is_active
        ]
        for step in (reassign(client, to, tp, replicas) for to in controllers[:1]):
            await self._cluster.loop.spawn(self._operator, step)
        until_s = self._cluster.loop.time() + MOVE_S
        while self._cluster.loop.time() < until_s:
            leader = self._leader(tp)
            if leader is not None and leader.id == replicas[0]:
                return True
            for to in controllers[:1]:
                await self._cluster.loop.spawn(self._operator, elect_preferred(client, to, tp))
            await asyncio.sleep(0.05)
        return False

    def _internal(self) -> list[TopicPartition]:
        """Partitions of coordinators."""
        found: dict[TopicPartition, None] = {}
        for node in self._cluster.nodes.values():
            if node.broker is not None:
                names = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
                found |= {tp: None for tp in node.broker.replicas.partitions if tp.topic in names}
        return sorted(found)

    def _leader(self, tp: TopicPartition) -> SimNode | None:
        for node in self._cluster.nodes.values():
            hosted = None if node.broker is None else node.broker.replicas.partitions.get(tp)
            if hosted is not None and hosted.is_leader and self._cluster.watch.is_leader(tp, node.id):
                return node
        return None
