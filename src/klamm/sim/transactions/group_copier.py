"""A member of a consumer group that copies its partitions exactly once, with a transactional id of its own (KIP-447).

The group fences it: offsets of an earlier generation are refused, and the next owner of a partition waits until no
transaction may still change the group's offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from klamm.model import TopicPartition
from klamm.sim.clients import Client
from klamm.sim.group_member import Committed, GroupMember, Refused
from klamm.sim.history import History
from klamm.sim.transactions.committed_reader import CommittedReader
from klamm.sim.transactions.txn_clients import TransactionalClient, copy_records, stable_offset
from klamm.sim.transactions.txn_errors import TransactionFailed


class GroupCopier(GroupMember):
    def __init__(
        self,
        client: Client,
        group: str,
        readers: Mapping[TopicPartition, CommittedReader],
        target: TopicPartition,
        producing: TransactionalClient,
    ) -> None:
        super().__init__(client, group, list(readers), History(), Committed())
        self._readers = readers
        self._target = target
        self._producing = producing
        self._needs_producer = True

    async def _live_one_generation(self) -> None:
        try:
            if self._needs_producer:
                await self._producing.producer.init()
                self._needs_producer = False
            await super()._live_one_generation()
        except TransactionFailed as failure:
            self._needs_producer = True
            self._producing.last_failure = str(failure)
            await asyncio.sleep(self._client.rng.uniform(0.0, 0.5))
            raise Refused(str(failure)) from failure

    async def _fetch_offsets(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: max(0, await stable_offset(self._client, self._group, tp)) for tp in tps}

    async def _advance(self, tp: TopicPartition) -> None:
        """Copy the next records, then continue at the committed offset."""
        reader = self._readers[tp]
        reader.seek(self.positions[tp])
        poll = await reader.poll(max_bytes=400)
        if poll is None or poll.end == poll.start:
            return
        member = (self.generation, self._member_id)
        if await copy_records(self._producing, self._group, poll, self._target, self._client.rng, member):
            self.positions[tp] = poll.end
        else:
            raise Refused("the transaction was aborted: the position is read again")
