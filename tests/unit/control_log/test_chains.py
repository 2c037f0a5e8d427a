"""The chain behind a change, from records of a simulated cluster: the production journal wrote them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from klamm.control_log.chains import chains
from klamm.sim.scripted import ScriptedRun, plan_of

DEATH = ["250.create.orders.1", "700.kill.1"]
OWN = {"fault", "session", "watch", "action", "replica", "request_delivered", "proposal_sent", "answered", "tool_write"}


def records(actions: list[str]) -> list[dict[str, Any]]:
    run = ScriptedRun(plan_of({"end_ms": 1_500, "actions": actions}))
    run.run()
    found = [json.loads(line) for line in run.recording.lines]
    return [record for record in found if record["kind"] not in OWN]


def test_an_election_is_explained_from_its_cause_to_the_last_broker() -> None:
    (chain,) = chains(records(DEATH), "orders", 0, 1)
    kinds = [step.kind for step in chain.steps]
    assert kinds[:5] == ["session", "cause", "event", "znode", "decision"]
    assert chain.steps[0].text == "session of broker 1 ended: it is gone"
    assert "BrokerChange" in chain.steps[1].text and "cause: watch" in chain.steps[1].text
    assert "leader 2 (was 1), epoch 1" in chain.steps[4].text
    applied = [step.text for step in chain.steps if step.kind == "applied"]
    assert {text.split()[1] for text in applied} == {"2", "3"} and len(applied) == 4
    assert chain.steps[-1].kind == "applied" and chain.total_ms > 20


def test_a_decision_its_requests_and_their_effects_join_on_keys() -> None:
    """As docs/reference/control-log.md describes them, without the contents of the requests."""
    found = records(["250.create.orders.1", "260.create.events.2", "700.kill.1", "900.start.1", "1100.kill.2"])
    elections = [it for it in found if it["kind"] == "election" and it["strategy"] in ("initial", "offline")]
    assert {it["topic"] for it in elections} == {"orders", "events"}
    for election in elections:
        assert election["state_name"] in ("TopicChange", "BrokerChange", "ControllerChange")
        requests = [
            it
            for it in found
            if it["kind"] == "request_sent"
            and it["broker_id"] == election["broker_id"]
            and election["number"] in it["event_numbers"]
        ]
        apis = {it["api"] for it in requests}
        assert apis == {"LeaderAndIsr", "UpdateMetadata"}
        keys = {(it["controller_epoch"], it["target"], it["correlation_id"]) for it in requests}
        assert len(keys) == len(requests), "a key names one attempt"
        effects = [
            it
            for it in found
            if it["kind"] in ("metadata_applied", "role_changed")
            and (it["controller_epoch"], it["broker_id"], it["correlation_id"]) in keys
        ]
        roles = [(it["topic"], it["partition"]) for it in effects if it["kind"] == "role_changed"]
        assert (election["topic"], election["partition"]) in roles
        listed = [part for it in effects if it["kind"] == "metadata_applied" for part in it["partitions"]]
        assert {part["leader_epoch"] for part in listed if part["topic"] == election["topic"]} == {
            election["leader_epoch"]
        }


def test_the_order_of_the_records_does_not_matter() -> None:
    """Each broker writes its own records; the topic has them in the order of writing."""
    found = records(DEATH)
    mixed = Random(1).sample(found, len(found))
    assert {chain.steps[0] for chain in chains(mixed, "orders", 0, 5)} == {
        chain.steps[0] for chain in chains(found, "orders", 0, 5)
    }


def test_the_last_changes_come_oldest_first() -> None:
    found = chains(records([*DEATH, "1000.start.1"]), "orders", 0, 10)
    assert [it.change["at_ms"] for it in found] == sorted(it.change["at_ms"] for it in found)
    assert found[0].change["strategy"] == "initial" and len(found) >= 3
    assert chains(records(DEATH), "orders", 7, 1) == []
