"""A walk of the controller over all partitions gives the control loop back after a bounded number of them."""

from __future__ import annotations

import pytest

from klamm.controller import elections, request_batch
from klamm.controller.events import AutoPreferredReplicaLeaderElection
from klamm.controller.requests import UpdateMetadataRequest
from tests.unit.controller.core import Core

TEN = " ".join(["1,2"] * 10)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_batch, "PARTITIONS_PER_STEP", 3)
    monkeypatch.setattr(elections, "PARTITIONS_PER_STEP", 3)


def test_the_metadata_for_a_broker_that_registers_is_collected_in_steps() -> None:
    core = Core("brokers 1 2", "controller 0", f"create many {TEN}", "create one 2,1")
    core.sent.clear()
    lines = core.run("starts 3")
    assert lines.count("  pause") == 11 // 3
    updates = [request for broker, request in core.sent if broker == 3 and isinstance(request, UpdateMetadataRequest)]
    assert len(updates[0].body.partitions) == 11
    assert [topic for topic, _ in updates[0].body.topic_ids] == ["many", "one"]


def test_the_timer_of_the_preferred_leaders_looks_at_few_partitions_per_step() -> None:
    core = Core("brokers 1 2", "controller 0", f"create many {TEN}")
    assert core.run_event(AutoPreferredReplicaLeaderElection()).count("  pause") == 0, "nothing is out of balance"
    for command in ("dies 1", "starts 1", "isr many-0 2,1", "isr many-1 2,1"):
        core.run(command)
    lines = core.run_event(AutoPreferredReplicaLeaderElection())
    assert lines.count("  pause") == 10 // 3
    assert core.controller is not None
    led = core.controller.context.states.led_by(1)
    assert [str(tp) for tp in led] == ["many-0", "many-1"]
