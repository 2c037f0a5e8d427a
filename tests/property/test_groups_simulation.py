"""A seeded simulation of one group: clients that come, crash, return and leave, a log that stalls and fails, and
coordinators that are replaced, in virtual time.

Held at every step: an assignment comes from one leader of its generation and reaches the members it was made for;
generation ids do not go back while a coordinator lives; an acknowledged offset is never lost. After the faults: every
request has an answer, and the living clients form one stable group.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from klamm.coordinator.config import GroupConfig
from klamm.coordinator.deferred import Deferred
from klamm.coordinator.effects import JoinGroupResult, SyncGroupResult
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.membership import MemberIdentity
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from tests.unit.coordinator.harness import GROUP, Harness

SEEDS = int(os.environ.get("KLAMM_GROUP_SEEDS", "400"))
CHUNKS = 8
STEPS = 250
PARTITIONS = [TopicPartition("t", i) for i in range(3)]
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


@dataclass(eq=False)
class Client:
    """Goes through the protocol as the Java consumer does, one request at a time."""

    name: str
    instance: str | None
    version: int
    member_id: str = ""
    generation_id: int = -1
    metadata: bytes = b"v0"
    is_fenced: bool = False
    is_stable: bool = False
    join: Deferred[JoinGroupResult] | None = None
    sync: Deferred[SyncGroupResult] | None = None
    to_assign: JoinGroupResult | None = None

    def forget(self) -> None:
        self.generation_id = -1
        self.is_stable = False
        self.join = self.sync = self.to_assign = None

    def restart(self) -> None:
        self.forget()
        self.member_id = ""
        self.is_fenced = False


@dataclass
class World:
    seed: int
    rng: random.Random = field(init=False)
    harness: Harness = field(init=False)
    clients: list[Client] = field(default_factory=list)
    waiters: list[Deferred[JoinGroupResult] | Deferred[SyncGroupResult]] = field(default_factory=list)
    commits: list[tuple[TopicPartition, int, Deferred[dict[TopicPartition, ErrorCode]]]] = field(default_factory=list)
    possible: dict[TopicPartition, list[int | None]] = field(default_factory=dict)
    """The offsets that may be read as committed: the last acknowledged one and later ones of unknown result."""
    instances: dict[str, str] = field(default_factory=dict)
    """The client that a member id belongs to."""
    assigners: dict[tuple[int, int], str] = field(default_factory=dict)
    assignments: dict[int, bytes] = field(default_factory=dict)
    incarnation: int = 0
    generation_seen: int = 0
    next_offset: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        config = GroupConfig(
            initial_rebalance_delay_ms=self.rng.choice((0, 3_000)),
            offsets_retention_check_interval_ms=10**9,
            max_size=self.rng.choice((2**31 - 1, 4)),
        )
        self.harness = Harness(config, partition_count=self.rng.choice((1, 7))).start()
        for i in range(self.rng.randint(1, 6)):
            instance = f"i{i}" if self.rng.random() < 0.4 else None
            version = self.rng.choice((0, 4, 9)) if instance is None else self.rng.choice((5, 9))
            self.clients.append(Client(f"c{i}", instance, version))

    # --- clients -------------------------------------------------------------------------------------------------

    def step(self, client: Client) -> None:
        if client.is_fenced:
            return
        if client.join is not None:
            if client.join.done:
                result, client.join = client.join.value, None
                self.on_joined(client, result)
        elif client.sync is not None:
            if client.sync.done:
                synced, client.sync = client.sync.value, None
                self.on_synced(client, synced)
        elif client.to_assign is not None:
            self.send_sync(client, client.to_assign)
        elif client.is_stable:
            self.on_error(client, self.harness.heartbeat(client.member_id, client.generation_id, client.instance))
        else:
            self.send_join(client)

    def send_join(self, client: Client) -> None:
        client.join = self.harness.join(
            client.member_id,
            instance=client.instance,
            client_id=client.name,
            protocols=[("range", client.metadata), ("sticky", client.metadata)],
            version=client.version,
            rebalance_ms=30_000,
        )
        self.waiters.append(client.join)
        owner = client.instance or client.name
        client.join.then(lambda result: self.check_joined(owner, result))

    def check_joined(self, owner: str, result: JoinGroupResult) -> None:
        """When the answer is given, not when the client gets round to reading it."""
        if result.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.instances[result.member_id] = owner
        if result.error is not ErrorCode.NONE:
            return
        assert result.generation_id >= self.generation_seen, "a generation id went back"
        self.generation_seen = result.generation_id
        if result.members and not result.skip_assignment:
            key = (self.incarnation, result.generation_id)
            assert self.assigners.setdefault(key, result.member_id) == result.member_id, "two leaders"

    def on_joined(self, client: Client, result: JoinGroupResult) -> None:
        if result.error is ErrorCode.NONE or result.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        if result.error is ErrorCode.NONE:
            client.generation_id = result.generation_id
            client.to_assign = result
        elif result.error is not ErrorCode.MEMBER_ID_REQUIRED:
            self.on_error(client, result.error)

    def send_sync(self, client: Client, joined: JoinGroupResult) -> None:
        client.to_assign = None
        assignments = {}
        if joined.members and not joined.skip_assignment:
            nonce = self.rng.getrandbits(32)
            assignments = {
                m.member_id: f"{joined.generation_id}:{nonce}:{m.member_id}".encode() for m in joined.members
            }
        client.sync = self.harness.sync(client.member_id, client.generation_id, assignments, instance=client.instance)
        self.waiters.append(client.sync)

    def on_synced(self, client: Client, result: SyncGroupResult) -> None:
        if result.error is not ErrorCode.NONE:
            self.on_error(client, result.error)
            return
        client.is_stable = True
        generation, nonce, member_id = result.assignment.split(b":", 2)
        assert int(generation) == client.generation_id, "an assignment of another generation"
        assert self.assignments.setdefault(client.generation_id, nonce) == nonce, "two assignments of one generation"
        assert self.instances[member_id.decode()] == (client.instance or client.name), "somebody else's assignment"

    def on_error(self, client: Client, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            return
        if error is ErrorCode.FENCED_INSTANCE_ID:
            client.is_fenced = True
        if error in LOST or error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            client.member_id = "" if error is not ErrorCode.ILLEGAL_GENERATION else client.member_id
        client.forget()

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(self, client: Client) -> None:
        tp = self.rng.choice(PARTITIONS)
        self.next_offset += 1
        in_log = sum(self.harness.log.end_offsets.values())
        outcome = self.harness.commit(
            self.next_offset,
            tp=tp,
            member_id=client.member_id,
            generation_id=client.generation_id,
            instance=client.instance,
        )
        if sum(self.harness.log.end_offsets.values()) > in_log:
            self.possible.setdefault(tp, []).append(self.next_offset)
        self.commits.append((tp, self.next_offset, outcome))
        self.collect_commits()

    def collect_commits(self) -> None:
        waiting = []
        for tp, offset, outcome in self.commits:
            if not outcome.done:
                waiting.append((tp, offset, outcome))
            elif outcome.value[tp] is ErrorCode.NONE and offset in self.possible[tp]:
                self.possible[tp] = self.possible[tp][self.possible[tp].index(offset) :]
        self.commits = waiting

    def delete_offsets(self) -> None:
        """An operator deletes offsets. An empty group that has none left must be gone with the answer."""
        manager, wanted = self.harness.manager, self.rng.sample(PARTITIONS, self.rng.randint(1, len(PARTITIONS)))
        in_log = sum(self.harness.log.end_offsets.values())

        def on_deleted(result: dict[TopicPartition, ErrorCode] | ErrorCode) -> None:
            if isinstance(result, ErrorCode) or any(error is not ErrorCode.NONE for error in result.values()):
                return
            group = manager.get(GROUP)
            if group is None:
                self.on_group_gone()
            elif group.state is GroupState.EMPTY and not group.pending_members:
                offsets = group.offsets
                assert offsets.committed or offsets.pending, "an empty group without offsets was left behind"

        outcome = self.harness.delete_offsets(wanted)
        if sum(self.harness.log.end_offsets.values()) > in_log:
            for tp in wanted:
                self.possible.setdefault(tp, []).append(None)
        outcome.then(on_deleted)

    def check_offsets(self) -> None:
        for tp, possible in self.possible.items():
            committed = self.harness.committed(tp)
            if isinstance(committed, ErrorCode):
                continue
            is_acknowledged = all(o.value[t] is not ErrorCode.NONE for t, _, o in self.commits if t == tp and o.done)
            assert committed in possible or (committed is None and is_acknowledged), (tp, committed, possible)

    # --- faults --------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        log = self.harness.log
        client = self.rng.choice(self.clients)
        match self.rng.randrange(10):
            case 0:
                client.restart()
            case 1 if client.member_id:
                self.harness.coordinator.leave_group(GROUP, [MemberIdentity(client.member_id, client.instance)])
                client.restart()
            case 2 if client.instance is not None:
                self.harness.coordinator.leave_group(GROUP, [MemberIdentity("", client.instance)])
            case 3:
                client.metadata = b"v%d" % self.rng.randrange(3)
                client.forget()
            case 4:
                log.holds = True
            case 5:
                log.error = ErrorCode.NOT_ENOUGH_REPLICAS
            case 6:
                self.harness.pass_ms(self.rng.choice((11_000, 40_000)))
            case 7:
                self.replace_coordinator()
            case 8:
                self.delete_offsets()
            case _:
                # The request is repeated on another connection while the first still waits.
                if client.join is not None or client.sync is not None:
                    client.forget()

    def replace_coordinator(self) -> None:
        self.harness = self.harness.restart(f"b{self.incarnation}-")
        self.harness.log.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.collect_commits()
        self.incarnation += 1
        self.generation_seen = 0
        if self.harness.manager.get(GROUP) is None:
            self.assignments.clear()

    def on_group_gone(self) -> None:
        """A group of the same name counts its generations from the start."""
        self.incarnation += 1
        self.generation_seen = 0
        self.assignments.clear()

    def heal_log(self) -> None:
        self.harness.log.holds = False
        self.harness.log.error = ErrorCode.NONE
        outcomes = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self.harness.log.release(self.rng.choices(outcomes, (3, 1))[0])
        self.collect_commits()

    # --- the two phases ------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            roll = self.rng.random()
            client = self.rng.choice(self.clients)
            if roll < 0.70:
                self.step(client)
            elif roll < 0.80:
                self.commit(client)
            elif roll < 0.90:
                self.harness.pass_ms(self.rng.randrange(3_000))
            elif roll < 0.95:
                self.heal_log()
            else:
                self.fault()
            self.check_offsets()
        self.settle()

    def settle(self) -> None:
        """No more faults: as many clients as the group accepts continue, the others are silent."""
        self.heal_log()
        living = self.clients[: self.harness.config.max_size]
        for client in living:
            client.restart()
        for _ in range(600):
            for client in living:
                self.step(client)
            self.harness.pass_ms(1_000)
        group = self.harness.group
        assert group.state is GroupState.STABLE
        assert sorted(group.members) == sorted(client.member_id for client in living)
        assert {client.generation_id for client in living} == {group.generation_id}
        assert all(client.is_stable for client in living)
        unanswered = [waiter for waiter in self.waiters if not waiter.done]
        assert not unanswered, f"{len(unanswered)} requests without an answer"
        self.replace_coordinator()
        self.check_offsets()
        assert not self.commits


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_lives_of_a_group(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        try:
            World(seed).run()
        except (AssertionError, LookupError) as failure:
            raise AssertionError(f"seed {seed}: {failure!r}") from failure
