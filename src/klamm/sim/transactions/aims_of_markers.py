"""Aimed scenarios of decisions and markers: lost answers, moved leaders, deposed coordinators, late markers."""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.replica.transactional_producers import MarkerConnections
from klamm.sim.aimed.cluster_stage import expect
from klamm.sim.transactions.aimed_actor import Actor
from klamm.sim.transactions.aimed_stage import REPAIRED, Aim, Stage

SHORT_S: Final = 0.1
"""Enough for a request to take effect."""
BACK_OFF_S: Final = 0.5
"""By then the coordinator waits for some time before it sends a marker again."""
LONELY_S: Final = 3.0


async def _lose_answers(stage: Stage, *, is_new: bool = False) -> None:
    """The markers are written, and their coordinator does not learn of it."""
    actor = Actor(stage, "w", is_new=is_new)
    await actor.init()
    await actor.write(*stage.tps)
    coordinator = await stage.coordinator(actor.transactional_id)
    stage.lose_answer(coordinator.host, WriteTxnMarkersRequest)
    await actor.commit()
    await actor.write(*stage.tps)
    await actor.abort()


async def _lose_answers_with_bump(stage: Stage) -> None:
    """The repeated markers have the epoch that the leaders know already (KAFKA-19999)."""
    await _lose_answers(stage, is_new=True)


async def _move_leader(stage: Stage) -> None:
    """A marker arrives at a broker that no longer leads the partition."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    await actor.write(tp)
    marker = stage.detain(coordinator.host, WriteTxnMarkersRequest)
    await actor.commit()
    await stage.detained(marker)
    await stage.lead(tp, coordinator)
    marker.release()
    await actor.write(tp)
    await actor.commit()


async def _delete_topic(stage: Stage) -> None:
    """A partition of the transaction is deleted before the markers: the others get theirs."""
    doomed = await stage.create_topic("doomed", 3)
    actor = Actor(stage, "w")
    await actor.init()
    await actor.write(stage.tps[0], doomed)
    await stage.ask(stage.controller, DeleteTopicsRequest(topic_names=[doomed.topic], timeout_ms=1_000), 4)
    brokers = [node.broker for node in stage.nodes if node.broker is not None]
    await stage.wait(lambda: all(doomed.topic not in b.metadata.snapshot.topics for b in brokers), "it is deleted")
    await actor.commit()
    await actor.write(stage.tps[0])
    await actor.commit()


async def _fail_to_store_completion(stage: Stage) -> None:
    """The markers are written, but the followers do not acknowledge that the transaction is complete in time."""
    actor = Actor(stage, "w", timeout_ms=300)
    await actor.init()
    lonely = await stage.create_topic("lonely", 1)
    coordinator = await stage.leader(lonely)
    await stage.lead(stage.transactions_of(actor.transactional_id), coordinator)
    await actor.write(lonely)
    marker = stage.detain(coordinator.host, WriteTxnMarkersRequest)
    await actor.commit()
    await stage.detained(marker)
    others = [node for node in stage.nodes if node is not coordinator]
    for node in others:
        stage.pause(node)
    marker.release()
    await asyncio.sleep(0.8)
    for node in others:
        stage.resume(node)
    actor.timeout_ms = 60_000
    await actor.init()
    await actor.write(lonely)
    await actor.commit()


async def _return_with_old_markers(stage: Stage) -> None:
    """The coordinator moves away and back while markers of its first term still wait (KAFKA-16352)."""
    actor = Actor(stage, "w")
    await actor.init()
    home = await stage.coordinator(actor.transactional_id)
    other = next(node for node in stage.nodes if node is not home)
    if stage.controller not in (home, other):
        other = stage.controller
    third = next(node for node in stage.nodes if node not in (home, other))
    tp = await stage.partition_away_from(home, other)
    await actor.write(tp)
    marker = stage.detain(home.host, WriteTxnMarkersRequest, third)
    await actor.commit()
    await stage.detained(marker)
    third.kill()
    await asyncio.sleep(BACK_OFF_S)
    state = stage.transactions_of(actor.transactional_id)
    await stage.lead(state, other)
    await stage.lead(state, home)
    await stage.wait(lambda: not stage.is_registered(third), "the session of the dead broker has ended")
    await actor.write(tp)
    await actor.commit()


async def _deposed_marker(stage: Stage) -> None:
    """A marker of a deposed coordinator arrives during the next transaction, which has the same epoch."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    leader = await stage.leader(tp)
    await actor.write(tp)
    marker = stage.detain(coordinator.host, WriteTxnMarkersRequest, leader)
    await actor.commit()
    await stage.detained(marker)
    await stage.lead(stage.transactions_of(actor.transactional_id), leader)
    await actor.write(tp)
    marker.release()
    await asyncio.sleep(SHORT_S)
    await actor.abort()


async def _late_marker(stage: Stage, *, is_new: bool) -> None:
    """A marker that its coordinator has repeated arrives during the next transaction."""
    actor = Actor(stage, "w", is_new=is_new)
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    await actor.write(tp)
    marker = stage.detain(coordinator.host, WriteTxnMarkersRequest, await stage.leader(tp))
    await actor.commit()
    await stage.detained(marker)
    await actor.write(tp)
    marker.release()
    await asyncio.sleep(SHORT_S)
    await actor.abort()


async def _late_old_marker(stage: Stage) -> None:
    await _late_marker(stage, is_new=False)


async def _late_bumped_marker(stage: Stage) -> None:
    """Its epoch is that of the next transaction (KAFKA-19446)."""
    await _late_marker(stage, is_new=True)


async def _late_marker_after_return(stage: Stage, *, is_new: bool) -> None:
    """The same, but its partition has moved away and back.

    The leader does not know that the coordinator has sent it again on another connection, to the leader in between.
    """
    actor = Actor(stage, "w", is_new=is_new)
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    home = await stage.leader(tp)
    await actor.write(tp)
    marker = stage.detain(coordinator.host, WriteTxnMarkersRequest, home)
    await actor.commit()
    await stage.detained(marker)
    await stage.lead(tp, next(node for node in stage.nodes if node not in (coordinator, home)))
    await actor.write(stage.tps[0] if tp != stage.tps[0] else stage.tps[1])
    await stage.lead(tp, home)
    await actor.write(tp)
    marker.release()
    await asyncio.sleep(SHORT_S)
    await actor.abort()


async def _late_old_marker_after_return(stage: Stage) -> None:
    """Only its connection shows that it is late: it is older than the leadership."""
    await _late_marker_after_return(stage, is_new=False)


async def _late_bumped_marker_after_return(stage: Stage) -> None:
    """The version in the marker shows that it is late."""
    await _late_marker_after_return(stage, is_new=True)


async def _late_marker_of_forgotten_producer(stage: Stage) -> None:
    """The leader has forgotten on which connection the marker was repeated. Its version shows that it is late."""
    for node in stage.nodes:
        assert node.broker is not None
        node.broker.replicas.transactional_producers.marker_connections = MarkerConnections(1)
    actor, other = Actor(stage, "w", is_new=True), Actor(stage, "x", is_new=True)
    await actor.init()
    await other.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    await actor.write(tp)
    marker = stage.detain(coordinator.host, WriteTxnMarkersRequest, await stage.leader(tp))
    await actor.commit()
    await stage.detained(marker)
    await actor.write(tp)
    await other.write(tp)
    await other.commit()
    await other.write(tp)  # its marker is written
    await other.commit()
    marker.release()
    await asyncio.sleep(SHORT_S)
    await actor.abort()


async def _lonely_decision(stage: Stage) -> None:
    """A coordinator without followers must not answer a commit: its successor does not know the decision."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    await actor.write(await stage.partition_away_from(coordinator))
    for other in stage.nodes:
        if other is not coordinator:
            stage.cut(coordinator, other, LONELY_S)
    answered = await actor.end(commit=True, once=True)
    expect("a commit that no follower has", answered, None)
    coordinator.kill()
    await actor.commit()


async def _lonely_marker(stage: Stage) -> None:
    """A leader dies before a follower has the marker: its successor gets it before the next transaction begins."""
    actor = Actor(stage, "w")
    await actor.init()
    coordinator = await stage.coordinator(actor.transactional_id)
    tp = await stage.partition_away_from(coordinator)
    leader = await stage.leader(tp)
    assert leader.broker is not None
    log = leader.broker.logs.logs[tp]
    await actor.write(tp)
    fetches = [stage.detain(node.host, FetchRequest, leader) for node in stage.nodes if node is not leader]
    for fetch in fetches:
        await stage.detained(fetch)
    await actor.commit()
    await stage.wait(lambda: log.log_end_offset == 2, "the leader has the marker")
    await asyncio.sleep(SHORT_S)
    leader.kill()
    for fetch in fetches:
        fetch.release()
    await actor.write(tp)
    await actor.abort()


AIMS_OF_MARKERS: Final[dict[str, Aim]] = {
    "lost answers of markers": Aim(_lose_answers),
    "lost answers of markers with a bump": Aim(_lose_answers_with_bump, REPAIRED),
    "marker to a former leader": Aim(_move_leader),
    "marker of a deleted partition": Aim(_delete_topic),
    "unstored completion": Aim(_fail_to_store_completion),
    "markers of an earlier term": Aim(_return_with_old_markers),
    "marker of a deposed coordinator": Aim(_deposed_marker),
    "late marker": Aim(_late_old_marker),
    "late marker with a bump": Aim(_late_bumped_marker, REPAIRED),
    "late marker after a return": Aim(_late_old_marker_after_return),
    "late marker with a bump after a return": Aim(_late_bumped_marker_after_return, REPAIRED),
    "late marker of a forgotten producer": Aim(_late_marker_of_forgotten_producer, REPAIRED),
    "lonely decision": Aim(_lonely_decision),
    "lonely marker": Aim(_lonely_marker),
}
