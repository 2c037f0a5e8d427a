"""Members of a consumer group in a simulated cluster, and whether the offsets they committed are kept.

A member joins, takes its share of the partitions, continues at the group's offsets and commits as it reads. It reads
records that consumers of the same run have seen, so only the group itself is tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.sim.checkers import Violation, require
from klamm.sim.clients import Client
from klamm.sim.history import History

SESSION_TIMEOUT_MS: Final = 2_000
REBALANCE_TIMEOUT_MS: Final = 3_000
NO_OFFSET: Final = -1
_EXPECTED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)


class Committed:
    """The possible offsets of a group: the last acknowledged one, or one with an unknown outcome.

    A commit of an earlier generation than an acknowledged one took effect before it, or never.
    """

    def __init__(self) -> None:
        self._acknowledged: dict[TopicPartition, tuple[int, int]] = {}
        """Offset and generation."""
        self._maybe: dict[TopicPartition, dict[int, int]] = {}

    def on_sent(self, tp: TopicPartition, offset: int, generation: int) -> None:
        self._maybe.setdefault(tp, {})[offset] = generation

    def on_acknowledged(self, tp: TopicPartition, offset: int, generation: int) -> None:
        if generation < self._acknowledged.get(tp, (NO_OFFSET, -1))[1]:
            return
        self._acknowledged[tp] = (offset, generation)
        later = {other: g for other, g in self._maybe[tp].items() if g >= generation and other != offset}
        self._maybe[tp] = later

    def acknowledged(self, tp: TopicPartition) -> int:
        return self._acknowledged.get(tp, (NO_OFFSET, -1))[0]

    def check_start(self, tp: TopicPartition, found: int, floor: int) -> None:
        """Check where a generation starts: its coordinator must know the offsets acknowledged before its members
        joined."""
        is_known = found >= floor or found in self._maybe.get(tp, ())
        require(is_known, f"a generation starts at {found} of {tp}, its group received {floor} before")

    def check(self, tp: TopicPartition, found: int) -> None:
        """Call it when nothing is in flight."""
        acknowledged = self.acknowledged(tp)
        possible = {acknowledged, *self._maybe.get(tp, ())}
        require(found in possible, f"the group has committed {found} of {tp}, the acknowledged one is {acknowledged}")


class Refused(Exception):
    """An error that makes a member join again."""


class GroupMember:
    def __init__(
        self, client: Client, group: str, tps: Sequence[TopicPartition], history: History, committed: Committed
    ) -> None:
        self._client = client
        self._group = group
        self._tps = tps
        self._history = history
        self._committed = committed
        self._coordinator = -1
        self._member_id = ""
        self.generation = -1
        self.positions: dict[TopicPartition, int] = {}
        """Partitions owned in this generation, with the committed offsets."""

    async def run(self) -> None:
        while True:
            try:
                await self._live_one_generation()
            except (OSError, Refused):
                self.positions = {}
                self._coordinator = -1
                await self._client.rest()

    async def _live_one_generation(self) -> None:
        await self._find_coordinator()
        floors = {tp: self._committed.acknowledged(tp) for tp in self._tps}
        joined = await self._join()
        self.positions = await self._fetch_offsets(await self._sync(joined))
        for tp, position in self.positions.items():
            self._committed.check_start(tp, position, floors[tp])
        while True:
            await asyncio.sleep(self._client.rng.uniform(0.1, 0.5))
            await self._heartbeat()
            for tp in self.positions:
                await self._advance(tp)

    # --- the steps ---------------------------------------------------------------------------------------------------

    async def _find_coordinator(self) -> None:
        self._coordinator = await find_coordinator(self._client, self._group)

    async def _join(self) -> JoinGroupResponse:
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="share", metadata=b"")],
            )
            timeout_ms = REBALANCE_TIMEOUT_MS + 2_000
            response = await self._client.ask(self._coordinator, request, 5, timeout_ms=timeout_ms)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = response.member_id
                continue
            self._note_if_forgotten(response.error_code)
            _check(response.error_code)
            self._member_id, self.generation = response.member_id, response.generation_id
            return response  # type: ignore[no-any-return]

    def _note_if_forgotten(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""

    async def _sync(self, joined: JoinGroupResponse) -> list[TopicPartition]:
        members = sorted(member.member_id for member in joined.members)
        shares = [
            SyncGroupRequestAssignment(
                member_id=member, assignment=bytes(range(len(self._tps)))[position :: len(members)]
            )
            for position, member in enumerate(members)
        ]
        request = SyncGroupRequest(
            group_id=self._group, generation_id=self.generation, member_id=self._member_id, assignments=shares
        )
        response = await self._client.ask(self._coordinator, request, 3, timeout_ms=REBALANCE_TIMEOUT_MS + 2_000)
        self._note_if_forgotten(response.error_code)
        _check(response.error_code)
        return [self._tps[index] for index in response.assignment]

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self._member_id)
        response = await self._client.ask(self._coordinator, request, 3)
        self._note_if_forgotten(response.error_code)
        _check(response.error_code)

    async def _fetch_offsets(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        found = {}
        for tp in tps:
            found[tp] = await fetch_offset(self._client, self._coordinator, self._group, tp)
        return found

    async def _advance(self, tp: TopicPartition) -> None:
        """Commit some of the records read since; nothing if there are none."""
        position, end = self.positions[tp], self._history.read_count(tp)
        if end <= position:
            return
        offset = min(end, max(position, 0) + self._client.rng.randint(1, 40))
        partition = OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self.generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=tp.topic, partitions=[partition])],
        )
        generation = self.generation
        self._committed.on_sent(tp, offset, generation)
        response = await self._client.ask(self._coordinator, request, 7)
        code = response.topics[0].partitions[0].error_code
        self._note_if_forgotten(code)
        _check(code)
        self._committed.on_acknowledged(tp, offset, generation)
        self.positions[tp] = offset


async def find_coordinator(client: Client, group: str) -> int:
    response = await client.ask(client.any_broker(), FindCoordinatorRequest(key=group), 3)
    _check(response.error_code)
    return int(response.node_id)


async def committed_offset(client: Client, group: str, tp: TopicPartition) -> int:
    """Return the answer of the group's current coordinator."""
    while True:
        try:
            return await fetch_offset(client, await find_coordinator(client, group), group, tp)
        except (OSError, Refused):
            await client.rest()


async def fetch_offset(client: Client, coordinator: int, group: str, tp: TopicPartition) -> int:
    request = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=tp.topic, partition_indexes=[tp.partition])]
    )
    response = await client.ask(coordinator, request, 5)
    _check(response.error_code)
    partition = response.topics[0].partitions[0]
    _check(partition.error_code)
    return int(partition.committed_offset)


def _check(code: int) -> None:
    if code in _EXPECTED:
        raise Refused(ErrorCode(code).name)
    if code != ErrorCode.NONE:
        raise Violation(f"a group member was answered {ErrorCode(code).name}")


def check_group(members: Sequence[GroupMember], tps: Sequence[TopicPartition], history: History) -> None:
    """Check the quiet state: one generation, every partition owned once, everything committed."""
    generations = {member.generation for member in members}
    require(len(generations) == 1, f"the members of the group are in the generations {sorted(generations)}")
    owned = sorted(tp for member in members for tp in member.positions)
    require(owned == sorted(tps), f"of {len(tps)} partitions the group owns {owned}")
    for member in members:
        for tp, position in member.positions.items():
            end = history.read_count(tp)
            require(position == end, f"the group has committed {position} of {tp}, which ends at {end}")
