"""The viewer of a live cluster of three while a broker is killed, of kept records, and of a very large log."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from playwright.sync_api import Page, expect

from klamm.cli.cluster_why import read_control_log
from klamm.cli.dashboard import live_source, new_source
from klamm.control_log.chains import Chain, chains
from klamm.dashboard.serve import DashboardServer
from klamm.sim.scripted import Plan, ScriptedRun
from klamm.testing import LocalCluster
from tests.support.browser import is_one_row, until
from tests.support.calm import kill_at_once
from tests.support.long_control_log import CHANGES, long_control_log
from tests.support.viewer_tabs import commit_as_group, tabs_answer

KLAMM = [sys.executable, "-m", "klamm.cli.main"]


def test_a_killed_broker_is_explained(page: Page, cluster: LocalCluster, tmp_path: Path) -> None:
    commit_as_group(cluster, "orders")
    with DashboardServer(live_source(cluster.bootstrap_servers, pipelines=tmp_path)) as server:
        page.goto(server.address)
        until(page, "Boolean(window.klammViewer?.run?.truth.has('orders-0'))")
        leader = page.evaluate("window.klammViewer.run.truth.get('orders-0').last.leader")
        page.locator("select[aria-label=Partition]").select_option("orders-0")
        offsets_are_shown(page, cluster, leader)
        is_controller = page.evaluate("(id) => window.klammViewer.run.controllerAt(Infinity)?.broker === id", leader)
        sessions = "(id) => window.klammViewer.run.sessions.get(id)?.last.isOpen"
        assert page.evaluate(sessions, leader) is True
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
                const know = (broker) => run.knownOf(broker, "orders-0")?.last.epoch === epoch;
                return run.sortedBrokers().filter(know).length >= 2;
            }""",
        )
        until(page, f"(id) => ({sessions})(id) === false", leader)
        page.keyboard.press("w")
        if not is_controller:
            expect(page.locator(".why li").first).to_contain_text(f"session of broker {leader} ended")
        expect(page.locator(".why")).to_contain_text("is processed")
        expect(page.locator(".why")).to_contain_text("written to ZooKeeper")
        expect(page.locator(".why")).to_contain_text("LeaderAndIsr to broker")
        expect(page.locator(".why")).to_contain_text("UpdateMetadata to broker")
        page.get_by_role("tab", name="Requests").click()
        expect(page.locator("#requests table").nth(1)).to_contain_text("Fetch")
        page.get_by_role("tab", name="Cluster").click()
        expect(page.locator("#cluster")).to_contain_text("missing")
        expect(page.locator("#cluster")).to_contain_text("under-replicated")
        brokers_are_shown(page, cluster)
        every_other_tab_answers(page)
        page.get_by_role("tab", name="Cluster").click()
        page.locator("#cluster tr.link", has_text="orders-0").click()
        expect(page.locator("#viewer")).to_be_visible()
        cluster.start(leader)
        page.get_by_role("tab", name="Cluster").click()
        expect(page.locator("#cluster")).to_contain_text("None: every partition has a leader", timeout=60_000)
        page.goto("about:blank")  # before the server ends, which the page would report as an error


def offsets_are_shown(page: Page, cluster: LocalCluster, leader: int) -> None:
    """The strip and the table have high watermark and log ends, and what each metadata cache has applied."""
    reached = (
        "([leader, least]) => window.klammViewer.run.replicas.get(`${leader}/orders-0`)?.last.highWatermark >= least"
    )
    until(page, reached, [leader, 0])
    before = page.evaluate("(id) => window.klammViewer.run.replicas.get(`${id}/orders-0`).last.highWatermark", leader)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(5):
        producer.produce("orders", value=b"1", partition=0)
    assert producer.flush(60) == 0
    until(page, reached, [leader, before + 5])
    expect(page.locator(".state tbody tr", has_text="leader e")).to_contain_text(str(before + 5))
    expect(page.locator(".state tbody tr").first).to_contain_text("current")


def epochs_of(cluster: LocalCluster) -> tuple[int, dict[int, int]]:
    """Return the controller's epoch and those of the live brokers, as ZooKeeper has them."""
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start()
    try:
        brokers = {broker: zookeeper.exists(f"/brokers/ids/{broker}").czxid for broker in cluster.live_brokers}
        return int(zookeeper.get("/controller_epoch")[0]), brokers
    finally:
        zookeeper.stop()
        zookeeper.close()


def brokers_are_shown(page: Page, cluster: LocalCluster) -> None:
    """The Cluster tab has one controller, and rack, epoch and leaders of each live broker as the cluster itself."""
    brokers = page.locator("#cluster table").first
    controller = cluster.controller_id
    expect(brokers.locator(".badge", has_text="controller")).to_have_count(1)
    expect(brokers.locator("tr", has=page.locator(".badge", has_text="controller"))).to_contain_text(
        f"rack-{controller}"
    )
    for broker, epoch in epochs_of(cluster)[1].items():
        row = brokers.locator("tbody tr", has_text=f"rack-{broker}").locator("td")
        expect(row.nth(0)).to_have_text(f"{broker}controller" if broker == controller else str(broker))
        expect(row.nth(3)).to_have_text(f"rack-{broker}")
        expect(row.nth(4)).to_have_text(str(epoch))

    def shown_leaders() -> dict[int, int]:
        rows = brokers.locator("tbody tr", has_text="answers").all()
        return {int(row.locator("b").first.inner_text()): int(row.locator("td").nth(5).inner_text()) for row in rows}

    def leaders() -> dict[int, int]:
        topics = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=60).topics.values()
        found = Counter(partition.leader for topic in topics for partition in topic.partitions.values())
        return {broker: count for broker, count in found.items() if broker >= 0}

    cluster.wait_for(lambda: shown_leaders() == leaders(), what="The leaders of each broker on the page")


def every_other_tab_answers(page: Page) -> None:
    """While the broker is dead: tables with contents, no error, and each page within its own patience."""
    row = page.locator("#cluster tbody tr", has_text="answers").first
    for text in ("PLAINTEXT://", " MB", "free", "%"):
        expect(row).to_contain_text(text)
    expect(page.locator("#cluster .problem")).to_have_count(0)
    tabs_answer(page)
    page.get_by_role("tab", name="Topics", exact=True).click()
    page.locator("#topics tr.link", has_text="orders").first.click()
    page.get_by_role("tab", name="Partitions").click()
    expect(page.locator("#topics tbody tr")).to_have_count(3)
    page.get_by_role("tab", name="Requests").click()
    expect(page.locator("#requests table").first).to_contain_text("%")
    expect(page.locator("#requests table").first).to_contain_text("ms")


def test_the_recorded_past_of_a_live_cluster_is_played(page: Page, cluster: LocalCluster) -> None:
    """Playing begins at the first record and ends the following of the newest ones, although offsets keep arriving.

    Fit shows all of the past, although the page follows the newest records: here ten minutes, by a record that is made.
    """
    with DashboardServer(live_source(cluster.bootstrap_servers)) as server:
        page.goto(server.address)
        until(page, "Boolean(window.klammViewer?.run?.truth.has('orders-0'))")
        expect(page.locator("#live")).to_have_attribute("aria-pressed", "true")
        page.get_by_label("Speed").select_option("50")
        page.get_by_role("button", name="Play").click()
        expect(page.locator("#live")).to_have_attribute("aria-pressed", "false")
        until(page, "window.klammViewer.time > window.klammViewer.bounds.start + 20")
        assert page.evaluate("window.klammViewer.isPlaying")
        assert page.evaluate("window.klammViewer.time < window.klammViewer.bounds.end - 50")
        page.get_by_role("button", name="Pause").click()
        assert not page.evaluate("window.klammViewer.isPlaying")
        page.keyboard.press("l")
        old = "run.add([{ kind: 'made', at_ms: run.start - 600_000, broker_id: 1, controller_epoch: 0 }])"
        page.evaluate(f"(() => {{ const {{ run }} = window.klammViewer; {old}; }})()")
        until(page, "window.klammViewer.bounds.end - window.klammViewer.bounds.start > 600_000")
        end = page.evaluate("window.klammViewer.run.end")
        page.keyboard.press("0")
        until(page, "(end) => window.klammViewer.run.end > end + 1500", end)
        share = "(({ chart, bounds }) => (chart.view.end - chart.view.start) / (bounds.end - bounds.start))"
        assert page.evaluate(f"{share}(window.klammViewer)") > 0.9
        page.goto("about:blank")


PLACE_OF_MESSAGE = """async ([type, topic]) => {
    const viewer = window.klammViewer;
    const isWanted = (it) => it?.type === type && it.end !== null && it.partitions.some((each) => each.topic === topic);
    const message = viewer.run.messages.findLast(isWanted);
    viewer.look({ start: message.start - 20, end: message.end + 20, time: message.end });
    const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
    await frame(); await frame();
    const { x0, y0, x1, y1 } = viewer.chart.ends(message);
    for (let share = 0.02; share < 1; share += 0.02) {
        const [x, y] = [x0 + share * (x1 - x0), y0 + share * (y1 - y0)];
        const item = viewer.chart.hit(x, y)?.item;
        if (isWanted(item)) return { x, y, to: item.to };
    }
    return null;
}"""


def test_requests_have_their_epochs(page: Page, cluster: LocalCluster, tmp_path: Path) -> None:
    """Arrows of the three control requests of a short-lived topic: their facts in the page, and the Chrome trace."""
    topic = cluster.unique_topic_name("short")
    cluster.create_topic(topic, partitions=1, replication_factor=3)
    cluster.delete_topic(topic)
    controller_epoch, broker_epochs = epochs_of(cluster)
    arrived = """([type, topic]) => window.klammViewer?.run?.messages.some((it) =>
        it.type === type && it.end !== null && it.partitions.some((each) => each.topic === topic))"""
    with DashboardServer(live_source(cluster.bootstrap_servers)) as server:
        page.goto(server.address)
        for request in ("LeaderAndIsr", "StopReplica", "UpdateMetadata"):
            until(page, arrived, [request, topic])
            place = page.evaluate(PLACE_OF_MESSAGE, [request, topic])
            assert place is not None, f"no point of the chart selects a {request}"
            page.locator(".plot canvas").click(position={"x": place["x"], "y": place["y"]})
            selection = page.locator(".selection")
            expect(selection.locator("h3")).to_contain_text(request)
            for fact, epoch in (("controller", controller_epoch), ("broker", broker_epochs[place["to"]])):
                expect(selection.locator(f'dt:text-is("{fact} epoch") + dd')).to_have_text(str(epoch))
            expect(selection).to_contain_text(f"{topic}-0")
        with page.expect_download() as started:
            page.get_by_role("button", name="Trace", exact=True).click()
        started.value.save_as(tmp_path / started.value.suggested_filename)
        page.goto("about:blank")
    events = json.loads((tmp_path / "klamm-trace.json").read_text())["traceEvents"]
    is_chrome_trace(events)
    sent = [event["args"] for event in events if event["ph"] == "s" and event["name"] == "StopReplica"]
    assert any(it["controller_epoch"] == controller_epoch for it in sent)
    assert any(it["broker_epoch"] in broker_epochs.values() for it in sent)


def is_chrome_trace(events: list[dict[str, Any]]) -> None:
    """Each event is on a named thread; each arrow has both ends, each in a slice that stands before it; with epochs."""
    threads = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert len(threads) == 5, "ZooKeeper, the controller and three brokers"
    arrows: dict[int, list[dict[str, Any]]] = {}
    slices: set[tuple[int, int]] = set()
    for event in events:
        if event["ph"] not in "MC":
            assert event["tid"] in threads, event
        if event["ph"] != "M":
            assert event["ts"] >= 0, event
        if event["ph"] == "X":
            slices.add((event["tid"], event["ts"]))
        if event["ph"] in "sf":
            assert (event["tid"], event["ts"]) in slices, event
            arrows.setdefault(event["id"], []).append(event)
    assert arrows
    for start, end in arrows.values():
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert start["name"] == end["name"] and start["ts"] <= end["ts"]
        if start["name"] in ("LeaderAndIsr", "StopReplica", "UpdateMetadata"):
            assert start["args"]["controller_epoch"] > 0 and start["args"]["broker_epoch"] > 0, start


def test_the_terminal_explains_the_same(cluster: LocalCluster) -> None:
    """`klamm cluster why` has the chain of the same records."""

    def first_chain() -> Chain | None:
        return next(iter(chains(read_control_log(cluster.bootstrap_servers), "orders", 0, 10)), None)

    def applied(chain: Chain | None) -> set[str]:
        return {step.text.split()[1] for step in chain.steps if step.kind == "applied"} if chain is not None else set()

    deadline = time.monotonic() + 60
    while applied(found := first_chain()) != {"1", "2", "3"}:
        assert time.monotonic() < deadline, found
    assert found is not None and found.change["strategy"] == "initial"
    assert [step.kind for step in found.steps][:4] == ["cause", "event", "znode", "decision"]


def test_records_beyond_the_memory_are_reported(page: Page, cluster: LocalCluster) -> None:
    """The server no longer has the oldest records when the page opens; the page forgets others as new ones arrive."""
    counts = """() => {
        const { textContent } = document.getElementById("status");
        return [...textContent.matchAll(/[0-9,]+/g)].map((it) => Number(it[0].replaceAll(",", "")));
    }"""
    with DashboardServer(replace(live_source(cluster.bootstrap_servers), most_records=20)) as server:
        page.goto(server.address)
        expect(page.locator("#status")).to_have_text(re.compile(r"^20 records; [0-9,]+ older ones are not shown$"))
        _, lost = page.evaluate(counts)
        cluster.create_topic(cluster.unique_topic_name("more"), partitions=3, replication_factor=3)
        until(page, f"(lost) => ({counts})()[1] > lost", lost)
        until(page, f"({counts})()[0] <= 22")
        assert page.evaluate("window.klammViewer.run.forgotten") > 0
        expect(page.locator("#status")).to_contain_text("older ones are not shown")
        assert all(is_one_row(page, row, width) for row in ("header", ".transport") for width in (1440, 1280))
        page.goto("about:blank")


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """Run the command until the page has been used; yields the address that it prints."""
    command = [*KLAMM, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            name, address = process.stdout.readline().split()
            assert name == "dashboard"
            yield address
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode in (0, 130)


def test_a_kept_control_log(page: Page, cluster: LocalCluster, tmp_path: Path) -> None:
    """The two commands of the guide: consume the log of a live cluster into a file, and open the file."""
    kept = tmp_path / "outage.json"
    consume = ["consume", "__klamm_control_log", "--from-beginning", "--exit-at-end", "-b", cluster.bootstrap_servers]

    def consumed() -> list[str]:
        with kept.open("w") as file:
            subprocess.run([*KLAMM, *consume], stdout=file, check=True, timeout=120)
        return kept.read_text().splitlines()

    def has_decision(lines: list[str]) -> bool:
        records = map(json.loads, lines)
        return any(it["kind"] == "election" and (it["topic"], it["partition"]) == ("orders", 0) for it in records)

    lines = cluster.wait_for(lambda: found if has_decision(found := consumed()) else None, what="A kept decision")
    with served("dashboard", "--file", str(kept), "--port", "0") as address:
        page.goto(f"{address}#p=orders-0")
        until(page, f"document.body.dataset.records === '{len(lines)}'")
        expect(page.locator("#tabs")).to_be_hidden()
        page.keyboard.press("w")
        expect(page.locator(".why")).to_contain_text("is processed")
        expect(page.locator(".why")).to_contain_text("written to ZooKeeper")
        expect(page.locator(".why")).to_contain_text("orders-0: ")
        expect(page.locator(".state tbody tr")).to_have_count(3)


def test_a_replayed_seed(page: Page) -> None:
    """`klamm simulate --view` serves the run that the simulator makes here too."""
    run = ScriptedRun(Plan(7, chaos=True))
    run.run()
    with served("simulate", "--seed", "7", "--view") as address:
        page.goto(f"{address}#t=900&view=600-1100")
        until(page, f"document.body.dataset.records === '{len(run.recording.lines)}'")
        expect(page.locator("#title")).to_have_text("seed 7, 3 brokers")
        assert page.evaluate("window.klammViewer.time") == 900
        terms = page.evaluate("window.klammViewer.run.terms.map((it) => [it.epoch, it.broker])")
        assert {epoch: broker for epoch, broker in terms} == run.world.checkers.controllers


@pytest.mark.long
def test_an_hour_with_ten_thousand_partitions_stays_fluent(page: Page) -> None:
    """Frames draw only what is visible. The bound is generous: it catches work that grows with the whole log.

    It grows with the time that two million square roots take, on a machine that needs more than 10 ms for them.
    """
    records = long_control_log()
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
                const roots = () => {
                    const began = performance.now();
                    for (let number = 0, sum = 0; number < 2_000_000; number += 1) sum += Math.sqrt(number);
                    return performance.now() - began;
                };
                const slowness = Math.max(1, Math.min(...Array.from({ length: 5 }, roots)) / 10);
                const [minute, hour] = [await measure(60_000), await measure(3_600_000)];
                const { run, chart } = viewer;
                const drawn = chart.hits.length;
                const counted = (levels) => levels.between(run.messages, run.start, run.end, chart.stretchMs).found
                    .reduce((sum, it) => sum + it.accepted + it.refused, 0);
                const late = run.records.slice(-200).map((it) => ({ ...it, at_ms: it.at_ms - 5 * chart.stretchMs }));
                const failed = { kind: "request_acknowledged", target: 2, correlation_id: late.at(-1).number,
                    controller_epoch: 1, broker_id: 1, at_ms: run.end, error: "STALE_BROKER_EPOCH" };
                run.add([...late, failed]);
                const refused = run.messages.filter((it) => it.error !== "NONE").length;
                const isSorted = run.messages.every((it, index, all) => !index || all[index - 1].start <= it.start);
                const after = counted(run.messageLevels);
                const inRed = run.messageLevels.between(run.messages, run.start, run.end, chart.stretchMs).found
                    .reduce((sum, it) => sum + it.refused, 0);
                const all = run.messages.length;
                return { minute, hour, slowness, drawn, isSorted, refused, inRed, after, all, messages: all - 80 };
            }"""
        )
        print(f"median frame: {drawn['minute']:.1f} ms for a minute, {drawn['hour']:.1f} ms for the hour")
        assert drawn["messages"] == 4 * CHANGES
        assert drawn["minute"] < 100 * drawn["slowness"] and drawn["hour"] < 500 * drawn["slowness"], drawn
        assert drawn["drawn"] < CHANGES / 2, "the hour is drawn by stretches"
        assert drawn["isSorted"] and drawn["after"] == drawn["all"], "stretches count records that arrive late"
        assert drawn["refused"] == drawn["inRed"] == 1
