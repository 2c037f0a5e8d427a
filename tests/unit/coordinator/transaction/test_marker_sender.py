"""The task that sends markers to one broker."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from klamm.coordinator.transaction.marker_sender import MarkerConnection, TransactionMarkerSender
from klamm.coordinator.transaction.transaction_markers import WRITES_PER_TURN
from klamm.coordinator.transaction.transaction_metadata import TransactionState
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.support.waiting import until
from tests.unit.coordinator.transaction.test_transaction_markers import prepared
from tests.unit.coordinator.transaction.txn_harness import T0, TxnHarness


@pytest.mark.parametrize("failure", [ConnectionRefusedError("nobody listens"), KeyError("a bug")])
def test_markers_that_could_not_be_sent_are_sent_again(failure: Exception) -> None:
    """Otherwise the transaction would never end."""
    broker = TxnHarness().start()
    broker.holds = True
    prepared(broker, T0)
    attempts: list[int] = []

    async def connect(broker_id: int) -> MarkerConnection:
        attempts.append(broker_id)
        raise failure

    async def scenario() -> None:
        sender = TransactionMarkerSender(connect, asyncio.get_running_loop())
        sender.start(broker.completions.markers)
        sender.wake(1)
        await until(lambda: attempts)
        await sender.close()

    asyncio.run(scenario())
    broker.pass_ms(10_000)
    broker.deliver()
    assert [marker.tp for marker in broker.leaders.received] == [T0]
    assert broker.state() is TransactionState.COMPLETE_COMMIT


class _Leader:
    """A connection to a broker that writes every marker."""

    is_closed = False

    async def highest_version(self, request: Any, limit: int | None = None) -> int:
        return 1

    def send(self, request: Any, version: int) -> asyncio.Future[Any]:
        assert isinstance(request, WriteTxnMarkersRequest)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result(WriteTxnMarkersResponse(markers=[self._written(marker) for marker in request.markers]))
        return answer

    def _written(self, marker: Any) -> WritableTxnMarkerResult:
        topics = [
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=0)
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)

    def close(self) -> None:
        pass


def test_an_answer_that_completes_many_transactions_does_not_hold_the_loop() -> None:
    """Each completion is written to the log."""
    broker = TxnHarness().start()
    broker.holds = True
    names = [f"id-{number}" for number in range(5 * WRITES_PER_TURN)]
    for name in names:
        started = broker.init(transactional_id=name)
        producer = started.producer_id, started.producer_epoch
        broker.coordinator.add_partitions(name, *producer, [T0])
        broker.coordinator.end_transaction(name, *producer, commit=True)
    written: list[int] = []

    async def connect(broker_id: int) -> MarkerConnection:
        return _Leader()

    def is_over() -> bool:
        states = {broker.partition.transactions[name].state for name in names}
        return states == {TransactionState.COMPLETE_COMMIT}

    async def scenario() -> None:
        sender = TransactionMarkerSender(connect, asyncio.get_running_loop())
        sender.start(broker.completions.markers)
        sender.wake(1)
        while not is_over():
            written.append(len(broker.log.records(0)))
            await asyncio.sleep(0)
        written.append(len(broker.log.records(0)))
        await sender.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert max(after - before for before, after in pairwise(written)) <= WRITES_PER_TURN
