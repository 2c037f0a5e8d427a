"""The models of level 1, compared with production: the queue of events with its preemption, and the senders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from klamm.client.patience import Patience
from klamm.controller import channel_manager
from klamm.controller.channel_manager import RequestSender
from klamm.controller.config import ControllerConfig
from klamm.controller.effects import Reply, Steps, ZkRead
from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import ControllerEvent, Expire, ListPartitionReassignments
from klamm.controller.journal import ControllerJournal
from klamm.controller.metrics import ControllerMetrics
from klamm.controller.replies import DONE, EventReply
from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataRequest,
)
from klamm.controller.responses import ControlResponse
from klamm.metrics import MetricsRegistry
from klamm.model import BrokerEndPoints, EndPoint, LeaderAndIsr, TopicPartition
from klamm.sim.channels import Channel
from klamm.sim.node import Node
from klamm.sim.world import World

Log = list[tuple[str, object]]


def _event(number: int) -> ListPartitionReassignments:
    return ListPartitionReassignments((TopicPartition("t", number),))


class ScriptedController:
    """Reads three times for an event, then answers; what it begins with is noted."""

    is_active = False

    broker_id = 1

    def __init__(self, log: Log) -> None:
        self._log = log

    def process(self, event: ControllerEvent) -> Steps[None]:
        self._log.append(("begins", event))
        for _ in range(3):
            yield ZkRead(())
        yield Reply(DONE)


def _script(rng: Random) -> list[str]:
    return rng.choices(["put", "answer", "expire"], [5, 6, 1], k=60)


def _on_reply(log: Log, number: int) -> Callable[[EventReply], None]:
    return lambda reply: log.append((type(reply).__name__, number))


def _by_the_model(script: list[str]) -> Log:
    log: Log = []
    world = World(0, brokers=1)
    node: Node = world.nodes[1]
    world.scheduler.run_until(1_000)
    waiting: list[Callable[[], None]] = []
    for channel in node.channels.values():
        channel.close()
    node.channels.clear()
    node.scheduled.clear()
    world.checkers.after_event = lambda *_: None  # type: ignore[method-assign]
    node.controller = ScriptedController(log)  # type: ignore[assignment]
    node._ask_zookeeper = lambda running, effect: waiting.append(lambda: node._advance(running, (), None))  # type: ignore[method-assign]
    for number, step in enumerate(script):
        if step == "put":
            node.put(_event(number), _on_reply(log, number))
        elif step == "expire":
            node.clear_and_put(Expire())
        elif waiting:
            waiting.pop(0)()
    return log


async def _by_production(script: list[str]) -> Log:
    log: Log = []
    waiting: list[asyncio.Future[Any]] = []

    class Coordination:
        session_id = 1

        async def read(self, _: object) -> Any:
            waiting.append(asyncio.get_running_loop().create_future())
            return await waiting[-1]

    controller: Any = ScriptedController(log)
    world = World(0, brokers=1)
    metrics = ControllerMetrics(MetricsRegistry(World(0, brokers=1).scheduler), world.nodes[1].controller)
    clock = world.scheduler
    manager = ControllerEventManager(controller, Coordination(), object(), clock=clock, metrics=metrics)  # type: ignore[arg-type]
    task = asyncio.get_running_loop().create_task(manager.run())
    for number, step in enumerate(script):
        if step == "put":
            manager.put(_event(number), _on_reply(log, number))
        elif step == "expire":
            manager.clear_and_put(Expire())
        elif waiting:
            waiting.pop(0).set_result(())
        for _ in range(20):
            await asyncio.sleep(0)
    so_far = list(log)
    task.cancel()  # which refuses the event that is being processed
    await asyncio.gather(task, return_exceptions=True)
    return so_far


@pytest.mark.parametrize("seed", range(20))
def test_events_are_processed_preempted_and_answered_in_the_same_order(seed: int) -> None:
    script = _script(Random(seed))
    model, production = _by_the_model(script), asyncio.run(_by_production(script))
    begun = {event for kind, event in model if kind == "begins"}
    assert len(begun) > 3 and any(isinstance(event, Expire) for event in begun)
    assert model == production


# --- senders ----------------------------------------------------------------------------------------------------------

ENDPOINTS = (EndPoint("PLAINTEXT", "host2", 9092),)
HEAD = RequestHead(1, 1, 1)


def _request(rng: Random, number: int) -> ControlRequest:
    tp = TopicPartition("t", rng.randrange(3))
    kind = rng.randrange(3)
    if kind == 0:
        state = LeaderAndIsrPartition(tp, LeaderAndIsr(2, number, (2,)), 1, (2,))
        return LeaderAndIsrRequest(HEAD, (state,), ())
    if kind == 1:
        return StopReplicaRequest(HEAD, (StopReplicaPartition(tp, number, rng.random() < 0.5),))
    return UpdateMetadataRequest(HEAD, UpdateMetadataBody((), (), (BrokerEndPoints(2, ENDPOINTS, epoch=number),)))


def _sender_script(seed: int) -> list[ControlRequest | str]:
    """The first request has the live brokers, as on every channel. Some of the later requests and answers are lost."""
    rng = Random(seed)
    first = UpdateMetadataRequest(HEAD, UpdateMetadataBody((), (), ()))
    script: list[ControlRequest | str] = [first, "answer"]
    for number in range(1, 60):
        script.append(_request(rng, number) if rng.random() < 0.6 else rng.choice(["answer", "answer", "lose"]))
    return [*script, *["answer"] * 60]


def _sent_by_the_model(script: list[ControlRequest | str]) -> list[ControlRequest]:
    """The requests that arrive at the broker, repeated where the answer was lost."""
    world = World(0, brokers=2)
    world.calm = True
    world.scheduler.run_until(1_000)
    channel = Channel(world, 1, 2, world.nodes[2].config.endpoints, lambda _: None)
    arrived: list[ControlRequest] = []
    answers: list[bool] = []

    def deliver(source: int, target: int, request: ControlRequest) -> ControlResponse:
        arrived.append(request)
        return ControlResponse()

    world.deliver = deliver  # type: ignore[method-assign]
    world.answer_is_lost = lambda: answers.pop(0)  # type: ignore[method-assign]
    world.network_delay_ms = lambda kind="": 1  # type: ignore[method-assign]
    held: list[Callable[[], None]] = []
    arrive = channel._arrive
    channel._arrive = lambda *args: held.append(lambda: arrive(*args))  # type: ignore[method-assign]
    for step in script:
        if not isinstance(step, str):
            channel.send(step)
        elif held:
            answers.append(step == "lose")
            held.pop(0)()
        world.scheduler.run_until(world.scheduler.time_ms + 300)
    return arrived


async def _sent_by_production(
    script: list[ControlRequest | str], monkeypatch: pytest.MonkeyPatch
) -> list[ControlRequest]:
    arrived: list[ControlRequest] = []
    held: list[asyncio.Future[None]] = []

    class Connection:
        is_closed = False
        next_correlation_id = 0

        @classmethod
        async def connect(cls, *_: object, **__: object) -> Connection:
            return cls()

        async def ready(self) -> None:
            pass

        async def send_encoded(self, _: int, __: int, request: ControlRequest) -> None:
            held.append(asyncio.get_running_loop().create_future())
            requests.append(request)
            await held[-1]

        def close(self) -> None:
            pass

    def encoded(request: ControlRequest, _: object) -> Generator[None, None, tuple[int, int, ControlRequest]]:
        yield from ()
        return 0, 0, request

    requests: list[ControlRequest] = []
    monkeypatch.setattr(channel_manager, "BrokerConnection", Connection)
    monkeypatch.setattr(channel_manager, "encode_in_steps", encoded)
    monkeypatch.setattr(channel_manager, "decode_response", lambda *_: ControlResponse())
    monkeypatch.setattr(channel_manager, "CONTROL_REQUEST", Patience(None, backoff_ms=0))
    sender = RequestSender(
        BrokerEndPoints(2, ENDPOINTS),
        ControllerConfig(1, socket_timeout_ms=1_000, request_timeout_ms=1_000),
        clock=World(0, brokers=1).scheduler,
        metrics=MetricsRegistry(World(0, brokers=1).scheduler),
        on_event=lambda _: None,
        journal=ControllerJournal(),
    )
    for step in script:
        if not isinstance(step, str):
            sender.put(step)
        elif held:
            arrived.append(requests.pop(0))
            if step == "lose":
                held.pop(0).set_exception(ConnectionError("the answer is lost"))
            else:
                held.pop(0).set_result(None)
        for _ in range(30):
            await asyncio.sleep(0)
    sender.close()
    await asyncio.sleep(0)
    return arrived


@pytest.mark.parametrize("seed", range(20))
def test_requests_are_merged_sent_and_repeated_in_the_same_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = _sender_script(seed)
    model = _sent_by_the_model(script)
    assert model == asyncio.run(_sent_by_production(script, monkeypatch))
    assert any(a is b for a, b in pairwise(model)), "no answer was lost"
