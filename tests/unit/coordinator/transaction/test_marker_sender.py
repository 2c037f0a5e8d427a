"""The task that sends markers to one broker."""

from __future__ import annotations

import asyncio

import pytest

from klamm.coordinator.transaction.marker_sender import MarkerConnection, TransactionMarkerSender
from klamm.coordinator.transaction.transaction_metadata import TransactionState
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
