"""Aimed scenarios of requests that wait until the previous transaction is complete (decision 0045)."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.errors import ErrorCode
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.network import Detention
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import Aim, Stage

SHORT_S: Final = 0.03
"""Requests arrive in this time, and it is shorter than the wait."""
LONG_WAIT_MS: Final = 10_000


async def _begin(stage: Stage) -> tuple[Actor, Detention]:
    """A commit whose markers are held back."""
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0])
    markers = stage.detain((await stage.coordinator("w")).host, WriteTxnMarkersRequest)
    await actor.commit()
    await stage.detained(markers)
    return actor, markers


async def _wait(stage: Stage) -> None:
    """The next transaction begins with the first request for it, even if markers are slow."""
    actor, markers = await _begin(stage)
    adding = asyncio.ensure_future(actor.ask_to_add(stage.tps[1]))
    await asyncio.sleep(SHORT_S)
    markers.release()
    expect("partitions that are added early", await adding, ErrorCode.NONE)
    await actor.write(stage.tps[1])
    await actor.commit()


async def _wait_in_vain(stage: Stage) -> None:
    """The markers take longer than the wait: the producer learns of it."""
    actor, markers = await _begin(stage)
    refused = await actor.ask_to_add(stage.tps[1])
    expect("partitions that are added too early", refused, ErrorCode.CONCURRENT_TRANSACTIONS)
    markers.release()
    await actor.write(stage.tps[1])
    await actor.commit()


async def _give_up_while_waiting(stage: Stage) -> None:
    """The producer gives up a connection whose request waits, and repeats it on another one."""
    actor, markers = await _begin(stage)
    coordinator = await stage.coordinator("w")
    await actor.connect(coordinator, on="second")
    late = asyncio.ensure_future(actor.ask_to_add(stage.tps[1]))
    await asyncio.sleep(SHORT_S)
    current = asyncio.ensure_future(actor.ask_to_add(stage.tps[0], on="second"))
    await asyncio.sleep(SHORT_S)
    markers.release()
    expect("a request on a connection that was given up", await late, None)
    expect("the request on the next connection", await current, ErrorCode.NONE)
    await actor.write(stage.tps[0])
    await actor.abort()


async def _take_over_while_completing(stage: Stage) -> None:
    """A new producer aborts the open transaction and gets its epoch with its first request."""
    first, second = Actor(stage, "w", host="w.1"), Actor(stage, "w", host="w.2")
    await first.init()
    await first.write(stage.tps[0])
    markers = stage.detain((await stage.coordinator("w")).host, WriteTxnMarkersRequest)
    beginning = asyncio.ensure_future(second.init(once=True))
    await stage.detained(markers)
    await asyncio.sleep(SHORT_S)
    markers.release()
    expect("the first request of a new producer", await beginning, ErrorCode.NONE)
    await second.write(stage.tps[0])
    await second.commit()


_PATIENT: Final = {"add.partitions.to.txn.retry.backoff.max.ms": LONG_WAIT_MS}
AIMS_OF_WAITS: Final[dict[str, Aim]] = {
    "request that waits": Aim(_wait, _PATIENT),
    "request that waits too long": Aim(_wait_in_vain),
    "given-up request that waits": Aim(_give_up_while_waiting, _PATIENT),
    "new producer that waits": Aim(_take_over_while_completing, _PATIENT),
}
