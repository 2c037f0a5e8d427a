"""TxnOffsetCommit in every version, with markers and real logs; the transaction coordinator is a script."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import offset_fetch, txn_offset_commit, write_txn_markers
from klamm.apis.txn_offset_commit import error_for_version
from klamm.errors import ErrorCode
from klamm.model import GROUP_METADATA_TOPIC, TopicPartition
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.unit.coordinator.test_group_apis import GroupBroker

PRODUCER = 5
VERSIONS = range(6)


class TransactionBroker(GroupBroker):
    """`verified` is the answer of the transaction coordinator; `asked` are the questions it got."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.verified = ErrorCode.NONE
        self.asked: list[tuple[str, int, int, tuple[TopicPartition, ...], bool]] = []
        self.broker.replicas.transactional_producers.add_partitions = self._add_partitions

    def _add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> asyncio.Future[dict[TopicPartition, ErrorCode]]:
        self.asked.append((transactional_id, producer_id, producer_epoch, tuple(partitions), verify_only))
        answer: asyncio.Future[dict[TopicPartition, ErrorCode]] = self.loop.create_future()
        answer.set_result(dict.fromkeys(partitions, self.verified))
        return answer

    @property
    def offsets_partition(self) -> TopicPartition:
        return TopicPartition(GROUP_METADATA_TOPIC, self.broker.groups.partition_for("g"))

    def request(self, *offsets: tuple[str, int, int], **changes: Any) -> TxnOffsetCommitRequest:
        topics = [
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=at, committed_metadata="md")
                ],
            )
            for topic, index, at in offsets
        ]
        fields = {"transactional_id": "tx", "group_id": "g", "producer_id": PRODUCER, "producer_epoch": 0}
        return TxnOffsetCommitRequest(**{**fields, "topics": topics, **changes})

    def commit_in_transaction(
        self, version: int, *offsets: tuple[str, int, int], connection: int = 1, **changes: Any
    ) -> dict[tuple[str, int], int] | None:
        """The errors by partition; None if there was no answer."""
        response = self.ask_for_anything(
            txn_offset_commit.API,
            self.request(*offsets, **changes),
            version,
            order=connection,
        )
        if response is None:
            return None
        read = self.as_read(response, version)
        return {(topic.name, p.partition_index): p.error_code for topic in read.topics for p in topic.partitions}

    def end(self, *, commit: bool, producer_id: int = PRODUCER, epoch: int = 0, version: int = 0) -> int:
        topic, index = self.offsets_partition
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            coordinator_epoch=0,
            transaction_version=version,
        )
        response = self.ask(write_txn_markers.API, WriteTxnMarkersRequest(markers=[marker]), 2)
        return int(response.markers[0].topics[0].partitions[0].error_code)

    def stable(self) -> tuple[int, int]:
        """The committed offset of t-0 and the error, for a consumer that requires it to be stable."""
        group = OffsetFetchRequestGroup(
            group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        (row,) = self.ask(offset_fetch.API, request, 9).groups[0].topics[0].partitions
        return row.committed_offset, row.error_code


@pytest.fixture
def one(tmp_path: Path) -> Iterator[TransactionBroker]:
    broker = TransactionBroker(tmp_path)
    broker.lead("t", 2)
    broker.lead_offsets_topic()
    yield broker
    broker.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_and_an_abort(one: TransactionBroker, version: int) -> None:
    assert one.commit_in_transaction(version, ("t", 0, 7)) == {("t", 0): 0}
    assert one.asked == [("tx", PRODUCER, 0, (one.offsets_partition,), version < 5)], "v5 adds the partition itself"
    assert one.stable() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert one.fetch(9)[1]["t", 0] == (-1, -1, "", 0)
    assert one.end(commit=True) == 0
    assert one.stable() == (7, 0)
    assert one.commit_in_transaction(version, ("t", 0, 9)) == {("t", 0): 0}
    assert one.end(commit=False) == 0
    assert one.stable() == (7, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_is_verified_once(one: TransactionBroker, version: int) -> None:
    for offset in (1, 2):
        one.commit_in_transaction(version, ("t", 0, offset))
    assert len(one.asked) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_partitions_are_named(one: TransactionBroker, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    errors = one.commit_in_transaction(version, ("t", 0, 7), ("t", 9, 7), ("none", 0, 7))
    assert errors == {("t", 0): 0, ("t", 9): unknown, ("none", 0): unknown}
    assert one.commit_in_transaction(version, ("none", 0, 7)) == {("none", 0): unknown}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_that_the_coordinator_does_not_know(one: TransactionBroker, version: int) -> None:
    one.verified = ErrorCode.TRANSACTION_ABORTABLE
    expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert one.commit_in_transaction(version, ("t", 0, 7)) == {("t", 0): expected}
    assert one.stable() == (-1, 0)


@pytest.mark.parametrize(
    ("error", "version", "expected"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 4, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.ILLEGAL_GENERATION, 0, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_errors_by_version(error: ErrorCode, version: int, expected: ErrorCode) -> None:
    assert error_for_version(error, version) is expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_is_fenced_where_the_version_names_it(one: TransactionBroker, version: int) -> None:
    member = one.stable_member()
    fields: dict[str, Any] = {}
    if version >= 3:
        fields = {"member_id": member.member_id, "generation_id": member.generation_id - 1}
    expected = ErrorCode.ILLEGAL_GENERATION if version >= 3 else ErrorCode.NONE
    assert one.commit_in_transaction(version, ("t", 0, 7), **fields) == {("t", 0): expected}


def test_a_fenced_producer_is_refused_by_the_log(one: TransactionBroker) -> None:
    assert one.commit_in_transaction(3, ("t", 0, 7), producer_epoch=4) == {("t", 0): 0}
    assert one.end(commit=False, epoch=4) == 0
    assert one.commit_in_transaction(3, ("t", 0, 8), producer_epoch=3) == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    assert one.stable() == (-1, 0)


def test_version_2_of_transactions_raises_the_epoch_with_each_end(one: TransactionBroker) -> None:
    assert one.commit_in_transaction(5, ("t", 0, 7)) == {("t", 0): 0}
    assert one.end(commit=True, epoch=1, version=2) == 0
    assert one.stable() == (7, 0)
    assert one.commit_in_transaction(5, ("t", 0, 8)) == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}, "it is late"
    assert one.commit_in_transaction(5, ("t", 0, 8), producer_epoch=1) == {("t", 0): 0}


def test_a_request_on_an_older_connection_is_not_executed(one: TransactionBroker) -> None:
    assert one.commit_in_transaction(4, ("t", 0, 7), connection=3) == {("t", 0): 0}
    assert one.commit_in_transaction(4, ("t", 0, 1), connection=2) is None
    assert one.last_context.closes_connection
    one.end(commit=True)
    assert one.stable() == (7, 0)


def test_a_request_from_before_the_election_is_not_executed(one: TransactionBroker) -> None:
    one.last_connection = 5
    one.lead_offsets_topic(leader_epoch=1)
    one.leader_and_isr({GROUP_METADATA_TOPIC: [0, 1, 2]}, leader=2, leader_epoch=2, replicas=(1, 2), isr=(1, 2))
    one.lead_offsets_topic(leader_epoch=3)
    assert one.commit_in_transaction(4, ("t", 0, 1), connection=5) is None
    assert one.commit_in_transaction(4, ("t", 0, 7), connection=6) == {("t", 0): 0}


def test_an_open_transaction_survives_the_loss_of_leadership(one: TransactionBroker) -> None:
    one.commit_in_transaction(3, ("t", 0, 7))
    one.leader_and_isr({GROUP_METADATA_TOPIC: [0, 1, 2]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    one.lead_offsets_topic(leader_epoch=2)
    assert one.stable() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    one.end(commit=True)
    assert one.stable() == (7, 0)


def test_too_few_replicas_refuse_a_second_commit_of_a_producer(one: TransactionBroker) -> None:
    """Both batches have the sequence numbers 0 to 0: the second must not be taken for a repetition of the first."""
    one.commit_in_transaction(3, ("t", 0, 7))
    topic, index = one.offsets_partition
    one.leader_and_isr({topic: [index]}, leader_epoch=1, replicas=(1, 2), isr=(1,), partition_epoch=1)
    partition = one.broker.replicas.partitions[TopicPartition(topic, index)]
    assert partition.log is not None
    partition.log.config = replace(partition.log.config, min_insync_replicas=2)
    one.wait_until_loaded()
    assert one.commit_in_transaction(3, ("t", 0, 8)) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
