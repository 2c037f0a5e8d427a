"""Runs that a user directs: recorded, repeatable, and the same as those of the simulator's command."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from klamm.sim import runner
from klamm.sim.scripted import Action, Plan, PlanError, ScriptedRun, plan_of, play


def records(*actions: str, end_ms: int = 1_500, **fields: Any) -> list[dict[str, Any]]:
    run = ScriptedRun(plan_of({"end_ms": end_ms, "actions": actions, **fields}))
    run.run()
    assert run.error is None
    return [json.loads(line) for line in run.recording.lines]


def kinds(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(record["kind"] for record in found)


@pytest.mark.parametrize("seed", [3, 4, 6, 7])
def test_a_recording_does_not_change_the_run_of_a_seed(seed: int) -> None:
    run = ScriptedRun(Plan(seed, chaos=True))
    run.run()
    assert run.world.lines == runner.run_traced(seed)[0].lines
    assert len(run.recording.lines) > 300


def test_the_same_plan_gives_the_same_records() -> None:
    plan = ("250.create.orders.2", "600.kill.1", "900.start.1")
    assert records(*plan) == records(*plan)


def test_records_are_in_the_order_of_time() -> None:
    times = [record["at_ms"] for record in records("250.create.orders.2", "600.pause.c.300")]
    assert times == sorted(times)


def test_a_killed_broker_loses_its_session_and_its_partitions() -> None:
    found = records("250.create.orders.1", "700.kill.1")
    ended = next(it for it in found if it["kind"] == "session" and it["state"] == "ended")
    elected = next(it for it in found if it["kind"] == "election" and it["strategy"] == "offline")
    assert (ended["broker_id"], elected["previous_leader"]) == (1, 1)
    assert elected["leader"] in (2, 3) and elected["leader_epoch"] == 1 and ended["at_ms"] < elected["at_ms"]


def test_a_request_is_followed_from_the_queue_to_the_broker() -> None:
    """Controller epoch, broker and correlation id join the records of both ends."""
    found = records("250.create.orders.1")
    sent = {(it["target"], it["correlation_id"]): it for it in found if it["kind"] == "request_sent"}
    applied = [it for it in found if it["kind"] in ("metadata_applied", "role_changed")]
    assert applied and all((it["broker_id"], it["correlation_id"]) in sent for it in applied)
    assert kinds(found)["request_acknowledged"] == len(sent)


def test_a_slow_brokers_requests_are_merged() -> None:
    found = records(
        "250.create.a.1", "400.slow.3.900", *(f"{450 + 50 * i}.create.t{i}.1" for i in range(6)), end_ms=2500
    )
    merged = [it for it in found if it["kind"] == "request_coalesced"]
    assert merged and {it["target"] for it in merged} == {3}


def test_a_zombie_is_refused() -> None:
    found = records("250.create.a.2", "590.create.b.1", "600.pause.c.350", late_messages=True)
    refused = [it for it in found if it["kind"] == "request_delivered" and it["error"] == "STALE_CONTROLLER_EPOCH"]
    assert refused and refused[0]["own_controller_epoch"] == refused[0]["controller_epoch"] + 1


def test_leaders_propose_an_isr_and_are_answered() -> None:
    found = records("250.create.a.1", "600.kill.3", "900.start.3", end_ms=2_600)
    answers = [it for it in found if it["kind"] == "proposal_answered"]
    assert answers and kinds(found)["proposal_sent"] >= len(answers)
    assert [1, 2, 3] in [sorted(it["partitions"][0]["isr"]) for it in answers]


def test_the_controller_records_registrations() -> None:
    found = records("250.create.a.1", "600.kill.3", "900.start.3", end_ms=2_600)
    changes = [it for it in found if it["kind"] == "registration_changed" and it["about_broker"] == 3]
    assert [it["registration"] for it in changes][-2:] == ["gone", "registered"]
    assert changes[-1]["broker_epoch"] > changes[-2]["broker_epoch"]
    ended = next(it for it in found if it["kind"] == "session" and it["state"] == "ended")
    queued = next(it for it in found if it["kind"] == "event_queued" and it["number"] == changes[-2]["number"])
    assert ended["at_ms"] <= queued["at_ms"] <= changes[-2]["at_ms"]


def test_every_action_can_be_carried_out() -> None:
    actions = (
        *("200.create.a.2", "210.create.b.1.2.3", "300.grow.a.3", "320.elect", "340.move.a.0.2.3", "400.cut.1.2.100"),
        *("450.expire.2", "600.resign", "700.zk.50", "800.disk.3", "900.stop.2", "1300.start.2", "1400.delete.b"),
        *("1500.bounce.1", "1600.power.3", "1700.start.3", "1800.slow.2.100", "1900.pause.1.20", "2000.kill.1"),
    )
    found = records(*actions, end_ms=2_500)
    assert kinds(found)["action"] == len(actions)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"brokers": 0}, "1 to 9 brokers"),
        ({"end_ms": 0}, "lasts up to"),
        ({"actions": ["kill.2"]}, "time.name.argument"),
        ({"actions": ["10.explode"]}, "there is no action 'explode'"),
        ({"actions": ["10.kill.7"]}, "action kill 7"),
        ({"actions": ["10.kill"]}, "action kill"),
        ({"actions": ["10.pause.1.long"]}, "long"),
    ],
)
def test_an_impossible_plan_is_reported(fields: dict[str, Any], problem: str) -> None:
    assert problem in json.loads(play(json.dumps(fields)))["problem"]


def test_actions_have_the_form_of_addresses() -> None:
    assert Action.parse("1200.cut.1.3.400") == Action(1200, "cut", ("1", "3", "400"))
    with pytest.raises(PlanError):
        Action.parse("soon.kill.1")
