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


def test_a_cache_that_knows_more_than_the_log_is_not_stale(page: Page) -> None:
    """The controller was killed before it wrote its last decisions. The brokers have written what they applied."""
    all_records = as_live(["250.create.orders.1", "700.kill.1"])
    made = [json.loads(record) for record in all_records]
    lost = {index for index, it in enumerate(made) if it["kind"] == "election" and it["leader_epoch"] > 0}
    assert lost
    records = tuple(record for index, record in enumerate(all_records) if index not in lost)
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        found = page.evaluate(
            """() => {
                const { run } = window.klammViewer;
                const [truth, known] = [run.truth.get("orders-0").last, run.knownOf(3, "orders-0").last];
                return [known.epoch > truth.epoch, run.isStale(3, "orders-0", run.end)];
            }"""
        )
        assert found == [True, False]


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


def test_caches_know_partitions_beyond_the_list_of_a_record(page: Page) -> None:
    """A record lists at most 16 partitions. This update has 40, and its record may come before the controller's."""
    records = as_live(["250.create.orders.40", "700.kill.1"])
    applied = [line for line in records if json.loads(line)["kind"] == "metadata_applied"]
    counts = [json.loads(line)["partition_count"] for line in applied]
    assert max(counts) == 40
    others = [line for line in records if line not in applied]
    late_caches, early_caches = (*others, *applied), (*applied, *others)
    for lines in (records, late_caches, early_caches):
        with DashboardServer(new_source(title="kept", records=lines)) as server:
            page.goto(server.address)
            until(page, f"document.body.dataset.records === '{len(lines)}'")
            known = page.evaluate(
                """() => {
                    const { run } = window.klammViewer;
                    const names = [...run.truth.keys()];
                    const epoch = (broker, tp) => run.knownOf(broker, tp)?.last.epoch;
                    const isKnown = (broker, tp) => epoch(broker, tp) === run.truth.get(tp).last.epoch;
                    return [2, 3].map((broker) => names.filter((tp) => isKnown(broker, tp)).length);
                }"""
            )
            assert known == [40, 40]
            page.goto("about:blank")


def test_the_chain_names_the_broker_that_is_gone(page: Page) -> None:
    records = as_live(["250.create.orders.1", "700.kill.1"])
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(f"{server.address}#p=orders-0")
        until(page, f"document.body.dataset.records === '{len(records)}'")
        page.keyboard.press("w")
        expect(page.locator(".why")).to_contain_text("ZooKeeper reports that broker 1 is gone")
        expect(page.locator(".why")).to_contain_text("UpdateMetadata to broker 2")
        expect(page.locator(".state")).to_contain_text("down")


def test_a_broker_is_behind_from_the_request_to_the_update(page: Page) -> None:
    records = as_live(["250.create.orders.1", "700.kill.1"])
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        sizes = page.evaluate("window.klammViewer.run.metadataLag.get(3).items.map((it) => it.size)")
        assert set(sizes) == {0, 1} and sizes[-1] == 0
        assert page.evaluate("window.klammViewer.run.metadataLag.get(3).at(0)") is None
        strips = page.evaluate(
            """async () => {
                const { run, chart } = window.klammViewer;
                const { cachePieces } = await import("./static/strips.js");
                const view = { start: run.start, end: run.end };
                const pieces = (stretchMs) => cachePieces(
                    { run, view, stretchMs, partition: "orders-0", colours: chart.colours },
                    chart.layout.lanes.get(3), run.knownOf(3, "orders-0"), run.end);
                const all = pieces(0.001);
                const isJoined = all.every((it, index) => !index || it.from === all[index - 1].to);
                return { texts: all.map((it) => it.text), isJoined, wide: pieces(1_000).map((it) => it.text) };
            }"""
        )
        number = page.evaluate("window.klammViewer.run.metadata.get(3).last.count")
        assert strips["isJoined"] and len(set(strips["texts"])) == len(strips["texts"])
        assert f"stale: knows leader 1 e0  update {number - 1}, no newer one sent" in strips["texts"]
        assert f"stale: knows leader 1 e0  update {number - 1}, 1 behind" in strips["texts"]
        assert strips["texts"][-1] == f"knows leader 2 e1  update {number}, current"
        assert len(strips["wide"]) < len(strips["texts"]), "a long window has fewer pieces, which have room for texts"


def test_observed_offsets_do_not_replace_newer_roles(page: Page) -> None:
    """Metadata that a client asked for may be older than the control log."""
    records = as_live(["250.create.orders.1", "700.kill.1"])
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        seen = page.evaluate(
            """() => {
                const { run } = window.klammViewer;
                const leader = run.truth.get("orders-0").last.leader;
                const series = run.replicas.get(`${leader}/orders-0`);
                const { epoch } = series.last;
                const found = { now_ms: run.end + 5, leader, isr: [2, 3], high_watermark: 7 };
                const old = { leader: 1, leader_epoch: epoch - 1, high_watermark: 6, log_ends: { [leader]: 6 } };
                run.observe("orders-0", { ...found, ...old });
                const older = { ...series.last };
                const now = { leader_epoch: epoch, now_ms: run.end + 1, log_ends: { [leader]: 7 } };
                run.observe("orders-0", { ...found, ...now });
                const { role, logEnd, highWatermark } = series.last;
                return [older.role, older.epoch === epoch, older.logEnd, role, logEnd, highWatermark];
            }"""
        )
        assert seen == ["leader", True, 6, "leader", 7, 7]


def test_sessions_and_refused_proposals_of_a_live_cluster(page: Page) -> None:
    """The chain begins with the fault of a drill and the end of the session; a refused proposal is red, with epochs."""
    found: list[dict[str, Any]] = list(
        map(json.loads, as_live(["250.create.orders.1", "700.kill.1", "1100.start.1"], 2_600))
    )
    answer = next(it for it in reversed(found) if it["kind"] == "proposal_answered")
    answer["partitions"][0]["error"] = "INELIGIBLE_REPLICA"
    drilled = {"place": "1", "name": "kill", "text": "killed", "duration_ms": 0}
    found.append({"kind": "drill", "at_ms": DATE + 700, "broker_id": 1, **drilled})
    elected = next(it for it in reversed(found) if it["kind"] == "election")
    records = tuple(json.dumps(record).encode() for record in found)
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(f"{server.address}#p=orders-0")
        until(page, f"document.body.dataset.records === '{len(records)}'")
        page.evaluate("(at) => window.klammViewer.seek(at)", elected["at_ms"])
        page.keyboard.press("w")
        expect(page.locator(".why li").nth(0)).to_contain_text("broker 1: killed")
        expect(page.locator(".why li").nth(1)).to_contain_text("session of broker 1 ended")
        until(page, "location.hash.includes('sel=')")
        shared = page.url
        states = page.evaluate(
            """async () => {
                const { run, chart } = window.klammViewer;
                const { rolePieces } = await import("./static/strips.js");
                const refused = run.messages.filter((it) => it.type === "AlterPartition" && it.error !== "NONE");
                window.klammViewer.select({ type: "message", item: refused[0] });
                chart.view = { start: run.start, end: run.end };
                return { sessions: run.sessions.get(1).items.map((it) => it.isOpen),
                    refused: refused.map((it) => [it.error, it.epoch, it.brokerEpoch > 0, Boolean(it.isAnswer)]),
                    roles: rolePieces(chart, run.replicas.get("2/orders-0"), run.end).map((it) => it.text) };
            }"""
        )
        assert states["sessions"] == [False, True]
        assert states["refused"] == [["INELIGIBLE_REPLICA", 1, True, False], ["INELIGIBLE_REPLICA", 1, True, True]]
        assert "leader e1  ISR 2,3" in states["roles"] and "leader e1  ISR 2,3,1" in states["roles"]
        expect(page.locator(".selection")).to_contain_text("INELIGIBLE_REPLICA")
        expect(page.locator(".selection")).to_contain_text("leader epoch 1, partition epoch 1")
        page.goto("about:blank")
        page.goto(shared)
        expect(page.locator(".why li").nth(1)).to_contain_text("session of broker 1 ended")
        kept = page.evaluate(
            """() => {
                const { run } = window.klammViewer;
                run.forget(100);
                const first = Math.min(...run.messages.map((it) => it.start));
                const counted = run.messageLevels.between(run.messages, run.start, run.end, 8).found;
                const count = counted.reduce((sum, it) => sum + it.accepted + it.refused, 0);
                return [run.records.length, run.forgotten, first >= run.start, count === run.messages.length,
                    run.truth.get("orders-0").at(run.start) !== null];
            }"""
        )
        assert kept == [100, len(records) - 100, True, True, True]


def test_an_internal_partition_gives_way_to_others_until_one_is_chosen(page: Page) -> None:
    records = as_live(["250.create.orders.1"])
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        shown = page.evaluate(
            """async () => {
                const viewer = window.klammViewer;
                const { Run } = await import("./static/model.js");
                const [run, election] = [new Run(), viewer.run.changes[0]];
                const names = ["__offsets", "orders", "__other"].map((topic) => {
                    run.add([{ ...election, topic }]);
                    viewer.setRun(run, { start: run.start });
                    return viewer.partition;
                });
                viewer.choose("__other-0");
                run.add([{ ...election, topic: "more" }]);
                viewer.setRun(run, { start: run.start });
                return [...names, viewer.partition];
            }"""
        )
        assert shown == ["__offsets-0", "orders-0", "orders-0", "__other-0"]


def test_a_broker_without_records_of_its_own_has_a_lane(page: Page) -> None:
    """For example one of Apache Kafka in a mixed cluster: requests to it need an end in the chart and in the trace."""
    records = as_live(["250.create.orders.1"])
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        brokers, threads = page.evaluate(
            """async () => {
                const { Run } = await import("./static/model.js");
                const { chromeTrace } = await import("./static/trace.js");
                const run = new Run();
                const isKept = (it) => it.kind === "request_sent" || it.kind === "request_acknowledged";
                run.add(window.klammViewer.run.records.filter(isKept));
                const { traceEvents } = JSON.parse(chromeTrace(run));
                return [run.sortedBrokers(), traceEvents.filter((it) => it.ph === "f").map((it) => it.tid)];
            }"""
        )
        assert brokers == [1, 2, 3]
        assert set(threads) == {3, 4, 5}


KNOWLEDGE = """([brokers, partitions, at]) => {
    const { run } = window.klammViewer;
    const found = { stale: [], unknown: [] };
    for (const broker of brokers) {
        for (let number = 0; number < partitions; number += 1) {
            const known = run.knownOf(broker, `orders-${number}`)?.at(at);
            if (!known || known.epoch === null) found.unknown.push(`${broker}/${number}`);
            if (run.isStale(broker, `orders-${number}`, at)) found.stale.push(`${broker}/${number}`);
        }
    }
    return found;
}"""


def test_partitions_that_a_record_does_not_list(page: Page) -> None:
    """A record lists 16 partitions of an update. The caches have all 40, and the chain of each has its requests."""
    records = as_live(["250.create.orders.40", "700.kill.1", "1100.start.1"], 3_000)
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(f"{server.address}#p=orders-38")
        until(page, f"document.body.dataset.records === '{len(records)}'")
        for brokers, at_ms in (([1, 2, 3], 690), ([2, 3], 1_090), ([1, 2, 3], 2_990)):
            assert page.evaluate(KNOWLEDGE, [brokers, 40, DATE + at_ms]) == {"stale": [], "unknown": []}
        changed = page.evaluate("window.klammViewer.run.truth.get('orders-38').items.map((it) => it.at)")[1]
        assert page.evaluate(KNOWLEDGE, [[2, 3], 40, changed])["stale"]
        expect(page.locator(".state")).not_to_contain_text("stale")
        page.evaluate("(at) => window.klammViewer.seek(at)", DATE + 1_090)
        page.keyboard.press("w")
        for text in ("session of broker 1 ended", "LeaderAndIsr to broker 3", "UpdateMetadata to broker 2"):
            expect(page.locator(".why")).to_contain_text(text)


def test_a_deleted_topic_and_another_one_of_the_same_name(page: Page) -> None:
    """Caches that have forgotten a deleted partition are right, and epochs begin again with the next topic."""
    actions = ["250.create.orders.20", "700.kill.1", "1100.start.1", "3000.delete.orders", "4500.create.orders.20"]
    records = as_live(actions, 6_000)
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(f"{server.address}#p=orders-19")
        until(page, f"document.body.dataset.records === '{len(records)}'")
        for at_ms in (4_400, 5_900):
            assert page.evaluate(KNOWLEDGE, [[1, 2, 3], 20, DATE + at_ms])["stale"] == []
        page.evaluate("(at) => window.klammViewer.seek(at)", DATE + 4_400)
        expect(page.locator(".state .facts")).to_contain_text("orders-19 is deleted")
        page.evaluate("(at) => window.klammViewer.seek(at)", DATE + 5_900)
        expect(page.locator(".state .facts")).to_contain_text("epoch 0")
        expect(page.locator(".state")).not_to_contain_text("stale")
