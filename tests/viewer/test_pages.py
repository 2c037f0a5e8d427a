"""The pages Topics, Groups, Transactions and Pipelines, and the fault drill, against a live cluster of three."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from playwright.sync_api import Page, expect

from klamm.cli.broker_requests import cli_client_config
from klamm.cli.dashboard import live_source
from klamm.client.cluster_client import ClusterClient
from klamm.client.group_reader import GroupReader
from klamm.client.record_browser import PageQuery, Start, browse
from klamm.dashboard.fault_drill import SLOW_DISK_S, FaultDrill
from klamm.dashboard.serve import DashboardServer
from klamm.local.broker_sessions import expire_session
from klamm.model import TopicPartition
from klamm.spark.pipeline.state import CheckpointLock, RunFile
from klamm.testing import LocalCluster
from tests.support.browser import until
from tests.support.calm import WAIT_S
from tests.support.hanging_transaction import write_hanging_batch
from tests.support.viewer_tabs import commit_as_group, tabs_answer

SCRIPT = "<script>window.hit = 1</script>"
IMAGE = "<img src=x onerror='window.hit = 1'>"
QUOTES = "\"'`&lt;</pre></td><b>"
TURNED = "safe\u202egnp.exe"


def send(cluster: LocalCluster, topic: str, rows: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for row in rows:
        producer.produce(topic, **row)
    assert producer.flush(WAIT_S) == 0


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    """120 records in two partitions, with JSON values."""
    name = "sales"
    cluster.create_topic(name, partitions=2, replication_factor=3, config={"retention.ms": 86_400_000})
    now = int(time.time() * 1000)
    rows = [
        {
            "value": json.dumps({"sale": number, "city": f"town{number % 5}"}),
            "key": f"k{number}",
            "partition": number % 2,
            "timestamp": now - 600_000 + number * 1000,
            "headers": [("trace", f"t{number}")],
        }
        for number in range(120)
    ]
    send(cluster, name, rows)
    return name


@pytest.fixture(scope="module")
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def server(cluster: LocalCluster, state_directory: Path) -> Iterator[DashboardServer]:
    source = live_source(cluster.bootstrap_servers, allows_changes=True, pipelines=state_directory)
    with DashboardServer(source) as running:
        yield running


@contextmanager
def shown(page: Page, address: str) -> Iterator[Page]:
    """Leave the page before the server ends: the page would report that as an error."""
    page.goto("about:blank")
    page.goto(address)
    yield page
    page.goto("about:blank")


def test_topics_and_partitions(page: Page, server: DashboardServer, topic: str) -> None:
    with shown(page, f"{server.address}#tab=topics"):
        row = page.locator("#topics tr.link", has_text=topic)
        expect(row).to_contain_text("in sync")
        page.get_by_label("Name", exact=True).fill("sal")
        expect(page.locator("#topics tr.link")).to_have_count(1)
        row.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#topics h1")).to_have_text(topic)
        page.get_by_role("tab", name="Partitions").click()
        expect(page.locator("#topics tbody tr")).to_have_count(2)
        expect(page.locator("#topics tbody tr").first).to_contain_text("60")
        page.get_by_role("tab", name="Settings").click()
        expect(page.locator("#topics tr.own")).to_contain_text("86400000")
        page.go_back()
        expect(page.get_by_role("tab", name="Partitions")).to_have_attribute("aria-selected", "true")
        page.keyboard.press("Escape")
        expect(page.locator("#topics h1")).to_have_text("Topics")


def local_time(cluster: LocalCluster, topic: str, partition: int, offset: int) -> str:
    """Return the second of a record's time, as the page's field for a time has it."""
    with ClusterClient(cli_client_config(cluster.bootstrap_servers)) as client:
        (found,) = browse(client, PageQuery(topic, Start.OFFSET, offset, partition=partition, limit=1)).records
    return datetime.fromtimestamp(found.record.timestamp // 1000).strftime("%Y-%m-%dT%H:%M:%S")


def test_records_are_browsed(page: Page, server: DashboardServer, cluster: LocalCluster, topic: str) -> None:
    """By newest, offset, time, page and text; the address holds all of it."""
    rows = page.locator("#topics table.list tbody tr")
    with shown(page, f"{server.address}#tab=topics&topic={topic}"):
        expect(rows).to_have_count(50)
        expect(rows.first).to_contain_text('"sale": 119')
        page.get_by_role("button", name="Older").click()
        expect(rows.first).to_contain_text('"sale": 69')
        page.get_by_label("Where to start").select_option("offset")
        page.get_by_label("Offset", exact=True).fill("55")
        page.get_by_label("Offset", exact=True).press("Enter")
        page.locator("#topics").get_by_label("Partition").select_option("1")
        expect(rows).to_have_count(5)
        expect(rows.first).to_contain_text('"sale": 111')
        rows.first.click()
        expect(page.locator(".record pre").nth(1)).to_contain_text('  "city": "town1"')
        expect(page.locator(".record")).to_contain_text("trace")
        until(page, "location.hash.includes('rec=1-55')")
        page.reload()
        expect(page.locator(".record h3")).to_have_text("Partition 1, offset 55")
        expect(rows).to_have_count(5)
        page.get_by_label("Where to start").select_option("time")
        page.locator("#topics").get_by_label("Time", exact=True).fill(local_time(cluster, topic, 1, 57))
        expect(rows.first).to_contain_text('"sale": 115')
        expect(rows).to_have_count(3)
        until(page, "location.hash.includes('start=time') && !location.hash.includes('value=55')")  # the former offset
        page.reload()
        expect(rows).to_have_count(3)
        page.get_by_label("Where to start").select_option("offset")
        page.get_by_label("Offset", exact=True).fill("55")
        page.get_by_label("Offset", exact=True).press("Enter")
        expect(rows).to_have_count(5)
        search = page.get_by_label("Search", exact=True)
        search.fill("TOWN3")
        search.press("Enter")
        expect(rows).to_have_count(1)
        page.get_by_label("Where to start").select_option("newest")
        page.locator("#topics").get_by_label("Partition").select_option("")
        expect(rows).to_have_count(24)
        expect(page.locator("#topics")).to_contain_text("120 records were searched")


def test_json_in_lines_has_the_digits_of_the_record(page: Page, server: DashboardServer, cluster: LocalCluster) -> None:
    """A number of JavaScript has 53 bits; a record's identifier may have more."""
    name = cluster.unique_topic_name("numbers")
    cluster.create_topic(name, replication_factor=3)  # other tests kill brokers and expect that no page has a problem
    value = '{"id": 9007199254740993, "price": 1.10, "none": [], "id": {"text": "a, {b}: [c]"}}'
    send(cluster, name, [{"value": value, "partition": 0}])
    with shown(page, f"{server.address}#tab=topics&topic={name}&rec=0-0"):
        lines = ["{", '  "id": 9007199254740993,', '  "price": 1.10,', '  "none": [],', '  "id": {']
        lines += ['    "text": "a, {b}: [c]"', "  }", "}"]
        expect(page.locator(".record pre")).to_have_text("\n".join(lines))
        expect(page.locator(".record")).to_contain_text("JSON")


def test_a_narrow_window_shows_the_open_tab(page: Page, server: DashboardServer) -> None:
    page.set_viewport_size({"width": 420, "height": 860})
    within = """() => {
        const [row, tab] = [document.getElementById("tabs"), document.querySelector("#tabs [aria-selected=true]")];
        return tab.getBoundingClientRect().right <= Math.min(innerWidth, row.getBoundingClientRect().right) + 1;
    }"""
    with shown(page, f"{server.address}#tab=pipelines"):
        expect(page.locator("#pipelines")).to_contain_text("Pipelines")
        assert page.evaluate(within)
        page.get_by_role("tab", name="Cluster").click()
        expect(page.locator("#cluster")).to_contain_text("broker")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.long
def test_a_tail_shows_records_as_they_arrive(
    page: Page, server: DashboardServer, cluster: LocalCluster, topic: str
) -> None:
    rows = page.locator("#topics table.list tbody tr")
    with shown(page, f"{server.address}#tab=topics&topic={topic}&live=1&find=arrives"):
        until(page, "document.querySelector('.records')?.dataset.live === '1'")
        send(cluster, topic, [{"value": "arrives 1", "partition": 0}, {"value": "unseen", "partition": 0}])
        expect(rows).to_have_count(1)
        send(cluster, topic, [{"value": "arrives 2", "partition": 1}])
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("arrives 2")
        tail = page.get_by_role("button", name="Tail")
        page.keyboard.press("t")
        expect(tail).to_have_attribute("aria-pressed", "false")
        send(cluster, topic, [{"value": "arrives 3", "partition": 1}])
        page.keyboard.press("r")
        expect(rows).to_have_count(3)
        page.keyboard.press("t")
        expect(tail).to_have_attribute("aria-pressed", "true")


@pytest.mark.long
def test_keys_and_theme(page: Page, server: DashboardServer) -> None:
    """The digits open the tabs, l follows the control plane again; the chosen theme holds on every tab and stays."""
    background = "getComputedStyle(document.body).backgroundColor"
    with shown(page, server.address):
        until(page, "Boolean(window.klammViewer?.run?.truth.has('orders-0'))")
        page.keyboard.press("Home")
        expect(page.locator("#live")).to_have_attribute("aria-pressed", "false")
        page.keyboard.press("l")
        expect(page.locator("#live")).to_have_attribute("aria-pressed", "true")
        dark = page.evaluate(background)
        page.locator("#theme").click()
        light = page.evaluate(background)
        assert dark != light
        tabs = ("cluster", "control", "requests", "topics", "groups", "transactions", "pipelines")
        for number, name in enumerate(tabs, 1):
            page.keyboard.press(str(number))
            expect(page.locator("#viewer" if name == "control" else f"#{name}")).to_be_visible()
            until(page, "(name) => location.hash.includes(`tab=${name}`)", name)
            assert page.evaluate(background) == light
        page.reload()
        expect(page.locator("#pipelines")).to_be_visible()
        assert page.evaluate(background) == light


def test_a_record_is_produced(page: Page, server: DashboardServer, topic: str) -> None:
    with shown(page, f"{server.address}#tab=topics&topic={topic}&show=produce"):
        page.get_by_role("textbox", name="Key", exact=True).fill("new key")
        page.get_by_role("textbox", name="Value", exact=True).fill('{"made": "here"}')
        page.get_by_role("button", name="Add a header").click()
        page.get_by_label("Header name").fill("from")
        page.get_by_label("Header value").fill("the page")
        page.get_by_role("button", name="Produce", exact=True).click()
        expect(page.locator("#topics .good")).to_contain_text("Written to partition")
        page.get_by_role("tab", name="Records").click()
        row = page.locator("#topics table.list tbody tr").first
        expect(row).to_contain_text("new key")
        row.click()
        expect(page.locator(".record")).to_contain_text("the page")


def test_hostile_contents_stay_text(page: Page, server: DashboardServer, cluster: LocalCluster) -> None:
    """Records, headers, groups, client ids and the address may hold anything. None of it becomes markup."""
    cluster.create_topic("hostile", replication_factor=3)
    rows: list[dict[str, Any]] = [
        {"value": SCRIPT, "key": IMAGE, "headers": [(QUOTES, IMAGE.encode()), ("raw", b"\xff\xfe")]},
        {"value": b"\xff\xc0\x80" + SCRIPT.encode(), "key": b"\x80"},
        {"value": TURNED, "key": QUOTES},
        {"value": json.dumps({IMAGE: SCRIPT}), "key": "json"},
        {"value": "x" * 300_000, "key": "long"},
    ]
    send(cluster, "hostile", rows)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": IMAGE, "client.id": SCRIPT}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["hostile"])
    try:
        cluster.wait_for(lambda: consumer.poll(0.2), what="A record for the consumer")
        consumer.commit(asynchronous=False)
        with shown(page, f"{server.address}#tab=topics&topic=hostile"):
            list_ = page.locator("#topics table.list")
            expect(list_).to_contain_text(SCRIPT)
            expect(list_).to_contain_text(IMAGE)
            expect(list_).to_contain_text("safe\\u202egnp.exe")
            expect(list_).to_contain_text("0xffc080")
            for number in range(len(rows)):
                page.locator(f'#topics tr[data-key="0-{number}"]').click()
                expect(page.locator(".record h3")).to_have_text(f"Partition 0, offset {number}")
            expect(page.locator(".record")).to_contain_text("Cut: the page shows the beginning")
            page.get_by_role("tab", name="Groups", exact=True).first.click()
            page.locator("#groups tr.link", has_text=IMAGE).click()
            expect(page.locator("#groups h1")).to_have_text(IMAGE)
            expect(page.locator("#groups")).to_contain_text(SCRIPT)
            until(page, "location.hash.includes('group=')")
            page.reload()
            expect(page.locator("#groups h1")).to_have_text(IMAGE)
            page.goto("about:blank")
            page.goto(f"{server.address}#tab=topics&topic=<img src=x onerror='window.hit=1'>")
            expect(page.locator("#topics")).to_contain_text("There is no topic")
            assert page.evaluate("window.hit") is None
            assert page.evaluate("document.querySelectorAll('section img, section script').length") == 0
    finally:
        consumer.close()


@pytest.mark.long
def test_a_group_is_reset_to_what_the_preview_shows(
    page: Page, server: DashboardServer, cluster: LocalCluster, topic: str
) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "billing", "client.id": "billing-1"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    taken = 0
    while taken < 20:
        taken += consumer.poll(WAIT_S) is not None
    consumer.commit(asynchronous=False)
    with shown(page, f"{server.address}#tab=groups&group=billing"):
        expect(page.locator("#groups")).to_contain_text("billing-1")
        expect(page.locator("#groups .tile", has_text="state")).to_contain_text("Stable")
        page.get_by_role("button", name="Preview").click()
        expect(page.locator(".reset")).to_contain_text("has members")
        expect(page.get_by_role("button", name="Apply")).to_be_disabled()
        consumer.close()
        expect(page.locator("#groups .tile", has_text="state")).to_contain_text("Empty")
        page.get_by_label("New position").select_option("offset")
        page.get_by_label("Value of the new position").fill("7")
        page.get_by_label("Topic", exact=True).select_option(topic)
        page.get_by_role("button", name="Preview").click()
        expect(page.locator(".reset tbody tr")).to_have_count(2)
        page.get_by_role("button", name="Apply").click()
        expect(page.locator(".reset")).to_contain_text("Committed 2 offsets")
    with ClusterClient(cli_client_config(cluster.bootstrap_servers)) as client:
        assert GroupReader(client).committed("billing") == {TopicPartition(topic, n): 7 for n in (0, 1)}
        ends = [bound.end for bound in browse(client, PageQuery(topic)).bounds.values()]
    with shown(page, f"{server.address}#tab=topics&topic={topic}"):
        page.locator("#topics").get_by_role("tab", name="Groups").click()
        row = page.locator("#topics tr.link", has_text="billing")
        expect(row.locator("td")).to_have_text(["billing", "Empty", "2", str(sum(ends) - 14)])
        row.click()
        expect(page.locator("#groups h1")).to_have_text("billing")


@pytest.mark.long
def test_transactions_that_are_open_or_hang(page: Page, server: DashboardServer, cluster: LocalCluster) -> None:
    cluster.create_topic("ledger", replication_factor=3)
    cluster.create_topic("stuck", replication_factor=3)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "settle-1"}
    producer = Producer({**settings, "transaction.timeout.ms": 600_000})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("ledger", "open")
    producer.flush(WAIT_S)
    write_hanging_batch(cluster.bootstrap_servers, "stuck", 0, timestamp_ms=int(time.time() * 1000) - 3_600_000)
    with shown(page, f"{server.address}#tab=transactions"):
        row = page.locator("#transactions tr", has_text="settle-1")
        expect(row).to_contain_text("Ongoing")
        expect(row).to_contain_text("ledger-0")
        hanging = page.locator("#transactions tr.link")
        expect(hanging).to_have_count(1)
        expect(hanging).to_contain_text("stuck")
        page.get_by_label("Without a record for").select_option("60")
        until(page, "location.hash.includes('age=60')")
        producer.commit_transaction(WAIT_S)
        expect(page.locator("#transactions")).to_contain_text("No transaction is open.")
        page.get_by_label("Without a record for").select_option("1")
        hanging.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#topics h1")).to_have_text("stuck")


@pytest.mark.long
def test_pipelines(page: Page, server: DashboardServer, state_directory: Path, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    file = RunFile("revenue", checkpoint, state_directory)
    query: dict[str, Any] = {"state": "running", "restarts": 2, "failure": None, "batch_at": "now", "input_rows": 90}
    query |= {"input_rows_per_second": 450.5, "rows_per_second": 900.0, "batch_ms": 350, "lag": 1234, "state_rows": 77}
    query |= {"state_bytes": 2_000_000, "watermark": "2026-11-17T10:00:00.000Z"}
    head = {"name": "revenue", "file": "revenue.yaml", "checkpoint": checkpoint, "pid": 42, "started_ms": 0}
    with CheckpointLock(checkpoint, "revenue", 0), shown(page, f"{server.address}#tab=pipelines"):
        for batch in range(2):
            file.write({**head, "queries": {"daily": {**query, "batch": batch}}})
            expect(page.locator("#pipelines .card td").nth(2)).to_have_text(str(batch))
        for text in ("revenue", "process 42", "running", "900", "350 ms", "1,234", "2.0 MB", "2026-11-17T10:00"):
            expect(page.locator("#pipelines .card")).to_contain_text(text)
        failure = {**query, "state": "failed", "failure": f"Topic {SCRIPT} was deleted.", "batch": 2}
        file.write({**head, "queries": {"daily": failure}})
        expect(page.locator("#pipelines .problem")).to_contain_text(SCRIPT)


def test_without_allow_changes_the_page_only_shows(page: Page, cluster: LocalCluster, topic: str) -> None:
    with DashboardServer(live_source(cluster.bootstrap_servers)) as server:
        with shown(page, f"{server.address}#tab=topics&topic={topic}"):
            expect(page.locator("#topics table.list tbody tr").first).to_be_visible()
            expect(page.get_by_role("tab", name="Produce")).to_have_count(0)
            expect(page.locator("[data-fault]")).to_have_count(0)
        with shown(page, f"{server.address}#tab=groups&group=billing"):
            page.get_by_role("button", name="Preview").click()
            expect(page.get_by_role("button", name="Apply")).to_be_disabled()
            expect(page.locator(".reset")).to_contain_text("--allow-changes")


def produce_time_s(cluster: LocalCluster, topic: str, leader: int) -> float:
    """Return how long a record takes to a partition of this leader, without the time to connect."""
    partition = next(number for number in range(3) if cluster.leader(topic, number) == leader)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "1", "linger.ms": 0})
    for _ in range(2):
        began = time.monotonic()
        producer.produce(topic, "slow", partition=partition)
        assert producer.flush(WAIT_S) == 0
    return time.monotonic() - began


def sessions_are_open(page: Page, cluster: LocalCluster) -> None:
    """In ZooKeeper, which has every broker's registration and takes a change of the controller, and in the page."""
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start()
    try:
        owners = [zookeeper.exists(f"/brokers/ids/{broker}").ephemeralOwner for broker in cluster.broker_ids]
    finally:
        zookeeper.stop()
        zookeeper.close()
    assert len(set(owners)) == 3 and all(owners)
    cluster.create_topic(cluster.unique_topic_name("restarted"), replication_factor=3)
    until(page, "[1, 2, 3].every((id) => window.klammViewer.run.sessions.get(id)?.last.isOpen)")
    page.get_by_role("tab", name="Cluster", exact=True).click()
    expect(page.locator("#cluster .tile", has_text="ZooKeeper").locator("b")).to_have_text("answers")
    page.get_by_role("tab", name="Control plane").click()


def a_kill_is_explained(page: Page, cluster: LocalCluster, topic: str, press: Callable[[str, int | str], None]) -> None:
    """Kill a leader that is not the controller: another one leads, and the chain begins with the fault."""
    places = {number: cluster.leader(topic, number) for number in range(3)}
    partition, victim = next(it for it in places.items() if it[1] != cluster.controller_id)
    name = f"{topic}-{partition}"
    until(page, "(name) => window.klammViewer.run.truth.has(name)", name)
    page.locator("#viewer").get_by_label("Partition").select_option(name)
    press("pause", victim)
    press("kill", victim)
    expect(page.locator(".faults b")).to_have_text("stopped")
    expire_session(cluster.zookeeper_connect, [cluster.data_dir / f"broker-{victim}"], WAIT_S)
    leads = "([name, id]) => { const { leader } = window.klammViewer.run.truth.get(name).last;"
    until(page, f"{leads} return leader >= 0 && leader !== id; }}", [name, victim])
    assert cluster.leader(topic, partition) != victim

    def begins_with_the_fault() -> bool:
        page.keyboard.press("w")  # again, because records of other brokers may arrive later
        steps = page.locator(".why li").all_inner_texts()
        wanted = (f"broker {victim}: killed", f"session of broker {victim} ended")
        return len(steps) > 2 and all(text in step for text, step in zip(wanted, steps, strict=False))

    cluster.wait_for(begins_with_the_fault, what="A chain that begins with the fault")
    press("start", victim)
    expect(page.locator(".faults b")).to_have_count(0)


@pytest.mark.long
def test_a_fault_drill_and_every_page_meanwhile(page: Page, cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    """Pause, kill, cut and slow by the buttons; the lanes show the new leader, and every page answers."""
    commit_as_group(cluster, "orders")
    drill = FaultDrill(cluster)
    source = live_source(cluster.bootstrap_servers, pipelines=tmp_path, drill=drill)

    def press(fault: str, broker_id: int | str) -> None:
        done = int(page.evaluate("document.body.dataset.drill ?? 0"))
        page.locator(f'[data-fault="{fault}-{broker_id}"]').click()
        until(page, "(count) => Number(document.body.dataset.drill) > count", done)

    leads = "(leader) => window.klammViewer.run?.truth.get('orders-0')?.last.leader === leader"
    moved = "(leader) => { const at = window.klammViewer.run.truth.get('orders-0').last.leader;"
    moved += " return at >= 0 && at !== leader; }"
    try:
        with DashboardServer(source) as server, shown(page, server.address):
            leader = cluster.leader("orders", 0)
            until(page, leads, leader)
            page.locator("#viewer").get_by_label("Partition").select_option("orders-0")
            press("cut", leader)
            expect(page.locator(".faults b")).to_have_text("cut off")
            press("expire", leader)
            until(page, moved, leader)
            expect(page.locator(".drill")).to_contain_text(f"broker {leader}: cut off from the network")
            tabs_answer(page, [("Cluster", "missing"), ("Requests", "Fetch")])
            page.goto(f"{server.address}#tab=topics&topic={topic}")
            expect(page.locator("#topics table.list tbody tr").first).to_be_visible()
            page.get_by_role("tab", name="Control plane").click()
            press("heal", leader)
            cluster.wait_for(lambda: len(cluster.isr("orders", 0)) == 3, what="All replicas in sync again")
            drilled = cluster.unique_topic_name("drilled")
            cluster.create_topic(drilled, partitions=3, replication_factor=3)  # every broker leads one of them
            press("slow", leader)
            expect(page.locator(".faults b")).to_have_text("slow disk")
            assert produce_time_s(cluster, drilled, leader) >= SLOW_DISK_S
            press("fast", leader)
            press("restart", "zk")
            sessions_are_open(page, cluster)
            a_kill_is_explained(page, cluster, drilled, press)
            faults = ["cut", "expire", "restart", "slow", "restart", "restart", "pause", "kill", "restart"]
            seen = "(wanted) => window.klammViewer.run.faults.map((it) => it.name).join() === wanted"
            until(page, seen, ",".join(faults))
    finally:
        drill.close()
