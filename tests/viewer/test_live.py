"""The viewer of a live cluster of three while a broker is killed, of a replayed seed, and of a very large log."""

from __future__ import annotations

import json

from playwright.sync_api import Page, expect

from klamm.cli.cluster_why import read_control_log
from klamm.cli.dashboard import live_source, new_source
from klamm.control_log.chains import chains
from klamm.dashboard.serve import DashboardServer
from klamm.sim.scripted import Plan, ScriptedRun
from klamm.testing import LocalCluster
from tests.support.browser import until
from tests.support.calm import kill_at_once

PARTITIONS = 10_000
HOUR_MS = 3_600_000


def test_a_killed_broker_is_explained(page: Page, cluster: LocalCluster) -> None:
    with DashboardServer(live_source(cluster.bootstrap_servers)) as server:
        page.goto(server.address)
        until(page, "Boolean(window.klammViewer?.run?.truth.has('orders-0'))")
        leader = page.evaluate("window.klammViewer.run.truth.get('orders-0').last.leader")
        page.locator("select[aria-label=Partition]").select_option("orders-0")
        kill_at_once(cluster, leader)
        until(
            page,
            "(leader) => { const last = window.klammViewer.run.truth.get('orders-0').last;"
            " return last.leader >= 0 && last.leader !== leader; }",
            leader,
        )
        until(
            page,
            """() => {
                const { run } = window.klammViewer;
                const { epoch } = run.truth.get("orders-0").last;
                const know = (broker) => run.known.get(`${broker}/orders-0`)?.last.epoch === epoch;
                return run.sortedBrokers().filter(know).length >= 2;
            }""",
        )
        page.keyboard.press("w")
        expect(page.locator(".why")).to_contain_text("is processed")
        expect(page.locator(".why")).to_contain_text("written to ZooKeeper")
        expect(page.locator(".why")).to_contain_text("LeaderAndIsr to broker")
        expect(page.locator(".why")).to_contain_text("UpdateMetadata to broker")
        page.get_by_role("tab", name="Requests").click()
        expect(page.locator("#requests table")).to_contain_text("Fetch")
        page.get_by_role("tab", name="Cluster").click()
        expect(page.locator("#cluster")).to_contain_text("missing")
        expect(page.locator("#cluster")).to_contain_text("under-replicated")
        page.locator("#cluster tr.link", has_text="orders-0").click()
        expect(page.locator("#viewer")).to_be_visible()
        cluster.start(leader)
        page.get_by_role("tab", name="Cluster").click()
        expect(page.locator("#cluster")).to_contain_text("None: every partition has a leader", timeout=60_000)
        page.goto("about:blank")  # before the server ends, which the page would report as an error


def test_the_terminal_explains_the_same(cluster: LocalCluster) -> None:
    """`klamm cluster why` has the chain of the same records."""
    found = chains(read_control_log(cluster.bootstrap_servers), "orders", 0, 10)
    assert found[0].change["strategy"] == "initial"
    assert [step.kind for step in found[0].steps][:4] == ["cause", "event", "znode", "decision"]
    applied = {step.text.split()[1] for step in found[0].steps if step.kind == "applied"}
    assert applied == {"1", "2", "3"}


def test_a_replayed_seed(page: Page) -> None:
    run = ScriptedRun(Plan(7, chaos=True))
    run.run()
    records = tuple(line.encode() for line in run.recording.lines)
    with DashboardServer(new_source(title="seed 7", records=records, end_ms=7_800)) as server:
        page.goto(f"{server.address}#t=900&view=600-1100")
        until(page, f"document.body.dataset.records === '{len(records)}'")
        expect(page.locator("#title")).to_have_text("seed 7")
        assert page.evaluate("window.klammViewer.time") == 900
        terms = page.evaluate("window.klammViewer.run.terms.map((it) => [it.epoch, it.broker])")
        assert {epoch: broker for epoch, broker in terms} == run.world.checkers.controllers


def big_log() -> tuple[bytes, ...]:
    """An hour with 1,000 topics of 10 partitions: every partition changes several times, and every request is seen."""
    records: list[bytes] = []

    def add(kind: str, at: float, broker: int, **fields: object) -> None:
        common = {"kind": kind, "at_ms": at, "broker_id": broker, "controller_epoch": 1}
        records.append(json.dumps({**common, **fields}).encode())

    add("controller_changed", 0, 1, controller_id=1)
    count = 12_000
    for number in range(count):
        at = number * HOUR_MS / count
        tp = number % PARTITIONS
        topic, partition, leader, epoch = f"topic{tp // 10}", tp % 10, number % 3 + 1, number // PARTITIONS
        listed = [{"topic": topic, "partition": partition, "leader": leader, "leader_epoch": epoch}]
        event = {"event": "AlterPartition", "number": number, "state": 9, "state_name": "IsrChange"}
        add("event_queued", at, 1, cause="request", topics=[topic], about_broker=leader, queue_size=1, **event)
        add("event_started", at + 1, 1, queue_ms=1.0, **event)
        change = {"topic": topic, "partition": partition, "leader": leader, "leader_epoch": epoch, "isr": [1, 2, 3]}
        before = {"previous_leader": leader, "previous_isr": [1, 2], "partition_epoch": number}
        add("isr_change", at + 5, 1, event="AlterPartition", number=number, **change, **before)
        for broker in (1, 2, 3):
            of = {
                "api": "UpdateMetadata",
                "target": broker,
                "broker_epoch": 5,
                "partition_count": 1,
                "partitions": listed,
            }
            add("request_sent", at + 6, 1, send_number=number, correlation_id=number, attempt=1, queue_ms=0.2, **of)
            applied = {"update_count": number, "live_brokers": [1, 2, 3], "partition_count": 1, "partitions": listed}
            add("metadata_applied", at + 8, broker, controller_id=1, correlation_id=number, **applied)
        add("event_done", at + 9, 1, duration_ms=8.0, outcome="done", **event)
    return tuple(records)


def test_an_hour_with_ten_thousand_partitions_stays_fluent(page: Page) -> None:
    """Frames draw only what is visible. The bound is generous: it catches work that grows with the whole log."""
    records = big_log()
    with DashboardServer(new_source(title="an hour", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        drawn = page.evaluate(
            """async () => {
                const viewer = window.klammViewer;
                const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
                const measure = async (span) => {
                    const times = [];
                    for (let share = 0; share < 1; share += 0.05) {
                        const start = viewer.bounds.start + share * (viewer.bounds.end - viewer.bounds.start - span);
                        viewer.look({ start, end: start + span, time: start + span * 0.9 });
                        await frame(); await frame();
                        times.push(viewer.chart.frames.at(-1));
                    }
                    return times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
                };
                const [minute, hour] = [await measure(60_000), await measure(3_600_000)];
                return { minute, hour, messages: viewer.run.messages.length };
            }"""
        )
        print(f"median frame: {drawn['minute']:.1f} ms for a minute, {drawn['hour']:.1f} ms for the hour")
        assert drawn["messages"] == 4 * 12_000
        assert drawn["minute"] < 100 and drawn["hour"] < 500, drawn
