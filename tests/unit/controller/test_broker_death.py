"""The death of a broker costs each survivor one LeaderAndIsr and one UpdateMetadata, and each partition one write."""

from __future__ import annotations

from collections import Counter

import pytest

from klamm.controller.requests import ControlRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from klamm.model import TopicPartition
from klamm.zk.model.ops import SetData
from tests.unit.controller.core import Core

TOPICS = ("create led 1,2,3 1,3,2", "create followed 2,1,3 3,2,1", "create single 1", "create elsewhere 2,3")


def _requests(core: Core) -> dict[str, list[int]]:
    """The brokers that each kind of request went to."""
    return {
        kind.__name__: [broker for broker, request in core.sent if isinstance(request, kind)]
        for kind in (LeaderAndIsrRequest, UpdateMetadataRequest)
    }


def _partitions(request: ControlRequest) -> set[TopicPartition]:
    states = request.body.partitions if isinstance(request, UpdateMetadataRequest) else request.partitions
    return {state.partition for state in states}


def _after_death(*dead: str, protocol: str = "3.9", commands: tuple[str, ...] = TOPICS) -> Core:
    core = Core(f"protocol {protocol}", "brokers 1 2 3 4", "controller 0", *commands)
    core.sent.clear()
    core.multis.clear()
    core.run("dies " + " ".join(dead))
    return core


@pytest.mark.parametrize("protocol", ["3.9", "2.6"])
def test_every_survivor_gets_one_request_of_each_kind(protocol: str) -> None:
    core = _after_death("1", protocol=protocol)
    assert _requests(core) == {"LeaderAndIsrRequest": [2, 3], "UpdateMetadataRequest": [0, 2, 3, 4]}
    for _, request in core.sent:
        topics = Counter(tp.topic for tp in _partitions(request))
        expected = {"led": 2, "followed": 2}
        assert topics == (expected if isinstance(request, LeaderAndIsrRequest) else expected | {"single": 1})


@pytest.mark.parametrize("protocol", ["3.9", "2.6"])
def test_every_state_is_written_once(protocol: str) -> None:
    core = _after_death("1", protocol=protocol)
    written = Counter(op.path for ops in core.multis for op in ops if isinstance(op, SetData))
    assert set(written.values()) == {1} and len(written) == 5


def test_two_brokers_that_die_together_cost_one_batch() -> None:
    core = _after_death("1", "3")
    assert _requests(core) == {"LeaderAndIsrRequest": [2], "UpdateMetadataRequest": [0, 2, 4]}
    assert core.controller is not None
    states = core.controller.context.states.leadership
    assert {states[TopicPartition("led", p)].leader_and_isr.isr for p in (0, 1)} == {(2,)}
    assert states[TopicPartition("elsewhere", 0)].leader_and_isr.isr == (2,)


def test_the_death_of_a_broker_without_replicas_is_sent_once() -> None:
    core = _after_death("4")
    assert _requests(core) == {"LeaderAndIsrRequest": [], "UpdateMetadataRequest": [0, 1, 2, 3]}
    for _, request in core.sent:
        assert isinstance(request, UpdateMetadataRequest)
        assert {broker.id for broker in request.body.live_brokers} == {0, 1, 2, 3}
        assert not request.body.partitions
