"""The front end's model: a control log with dates, without the kinds of a simulator, gives the same chain."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, expect

from klamm.cli.dashboard import new_source
from klamm.dashboard.serve import DashboardServer
from klamm.sim.scripted import ScriptedRun, plan_of
from tests.support.browser import until

OWN = {"fault", "session", "watch", "action", "replica", "request_delivered", "proposal_sent", "answered", "tool_write"}
DATE = 1_794_780_483_000


def as_live(actions: list[str], end_ms: int = 1_500) -> tuple[bytes, ...]:
    """The records that a live cluster would have written, at a date instead of virtual time."""
    run = ScriptedRun(plan_of({"end_ms": end_ms, "actions": actions}))
    run.run()
    records: list[dict[str, Any]] = [json.loads(line) for line in run.recording.lines]
    kept = [{**record, "at_ms": record["at_ms"] + DATE} for record in records if record["kind"] not in OWN]
    return tuple(json.dumps(record).encode() for record in kept)


def test_a_cache_is_stale_from_the_decision_to_the_update(page: Page) -> None:
    records = as_live(["250.create.orders.1", "700.kill.1"])
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        stale = page.evaluate(
            """() => {
                const { run } = window.klammViewer;
                const decided = run.truth.get("orders-0").last.at;
                const applied = run.known.get("3/orders-0").last.at;
                const at = (time) => run.isStale(3, "orders-0", time);
                return [at(decided - 1), at(decided), at(applied - 1), at(applied), applied > decided];
            }"""
        )
        assert stale == [False, True, True, False, True]
        assert page.evaluate("window.klammViewer.run.replicas.get('1/orders-0').last.role") == "none"


def test_the_chain_names_the_broker_that_is_gone(page: Page) -> None:
    records = as_live(["250.create.orders.1", "700.kill.1"])
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(f"{server.address}#p=orders-0")
        until(page, f"document.body.dataset.records === '{len(records)}'")
        page.keyboard.press("w")
        expect(page.locator(".why")).to_contain_text("ZooKeeper reports that broker 1 is gone")
        expect(page.locator(".why")).to_contain_text("UpdateMetadata to broker 2")
        expect(page.locator(".state")).to_contain_text("down")
