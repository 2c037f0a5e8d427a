"""Makes the screenshots of the documentation again: `python -m docgen.screenshots [NAME...]` writes docs/img.

It starts a cluster of three with traffic and a fault drill, opens the viewer in headless Chromium, and takes a picture
of each tab. Those of the browser edition need Pyodide, which `make site` installs. Look at the pictures before you
commit them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer
from playwright.sync_api import Browser, Page, expect, sync_playwright

from docgen.pages import ROOT
from docgen.playground import build
from klamm.cli.dashboard import live_source
from klamm.dashboard.fault_drill import FaultDrill
from klamm.dashboard.serve import DashboardServer
from klamm.spark.pipeline.state import CheckpointLock, RunFile
from klamm.testing import LocalCluster

IMAGES: Final = ROOT / "docs" / "img"
PYODIDE: Final = ROOT / ".cache" / "pyodide" / "node_modules" / "pyodide"
MAX_BYTES: Final = 200_000
WAIT_S: Final = 120.0
SETTINGS: Final = {"klamm.control.log.enable": True, "klamm.metrics.port": 0, "klamm.request.trace.sample": 5}
CITIES: Final = ("Bern", "Graz", "Linz", "Wien")


class Studio:
    """Opens pages of one look and takes their pictures. `wanted` limits the pictures; empty takes all."""

    def __init__(self, browser: Browser, wanted: set[str]) -> None:
        self._browser = browser
        self._wanted = wanted

    def wants(self, *names: str) -> bool:
        return not self._wanted or not self._wanted.isdisjoint(names)

    @contextmanager
    def page(self, address: str, scheme: str, height: int) -> Iterator[Page]:
        colours: Any = scheme
        size: Any = {"width": 1440 if height > 800 else 1280, "height": height}
        context = self._browser.new_context(viewport=size, color_scheme=colours, reduced_motion="reduce")
        page = context.new_page()
        page.set_default_timeout(WAIT_S * 1000)
        expect.set_options(timeout=WAIT_S * 1000)
        page.goto(address)
        yield page
        page.goto("about:blank")
        context.close()

    def take(self, page: Page, name: str) -> None:
        if not self.wants(name):
            return
        path = IMAGES / f"viewer-{name}.png"
        page.screenshot(path=path)
        size = path.stat().st_size
        if size > MAX_BYTES:
            sys.exit(f"{path} has {size} bytes; the limit is {MAX_BYTES}.")
        print(f"{path.relative_to(ROOT)}  {size >> 10} KiB", flush=True)


def until(page: Page, expression: str, argument: Any = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not page.evaluate(expression, argument):
        if time.monotonic() > deadline:
            sys.exit(f"{expression}: not within {WAIT_S:g} s")
        page.wait_for_timeout(50)


# --- a live cluster --------------------------------------------------------------------------------------------------


class Traffic:
    """A producer, a group that is behind, and an open transaction, in a thread until `close`."""

    def __init__(self, servers: str) -> None:
        self._end = threading.Event()
        quiet = {"bootstrap.servers": servers, "log_level": 0}
        self._producer = Producer({**quiet, "client.id": "shop", "acks": "all"})
        member = {"group.id": "billing", "client.id": "billing-1", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**quiet, **member})
        self._consumer.subscribe(["orders"])
        self._open = Producer({**quiet, "transactional.id": "settlement-1"})
        self._open.init_transactions(WAIT_S)
        self._open.begin_transaction()
        self._open.produce("payments", b"open")
        self._open.flush(WAIT_S)
        self._sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        for _ in range(500):
            self._send()
        self._producer.flush(WAIT_S)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.05):
            for _ in range(4):
                self._send()
            self._producer.poll(0)
            self._consumer.poll(0)

    def _send(self) -> None:
        self._sent += 1
        order = {"order": self._sent, "city": CITIES[self._sent % 4], "amount": round(self._sent % 97 * 1.37, 2)}
        headers: Any = [("trace", f"{self._sent:08x}".encode())]
        self._producer.produce("orders", json.dumps(order), key=f"customer-{self._sent % 23}", headers=headers)

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._producer.flush(WAIT_S)
        self._consumer.close()
        self._open.abort_transaction(WAIT_S)


@contextmanager
def pipelines(directory: Path) -> Iterator[Path]:
    """Yield a state directory with two runs as `klamm pipeline run` publishes them. Their checkpoints are relative."""
    with ExitStack() as stack:
        stack.enter_context(chdir(directory))
        for name, queries in (("revenue", ("daily", "by_city")), ("fraud", ("suspects",))):
            checkpoint = f"checkpoints/{name}"
            stack.enter_context(CheckpointLock(checkpoint, name, 0))
            head = {"name": name, "file": f"{name}.yaml", "checkpoint": checkpoint, "pid": 4200, "started_ms": 0}
            file = RunFile(name, checkpoint, directory)
            file.write({**head, "queries": {query: _query(query) for query in queries}})
        yield directory


def _query(name: str) -> dict[str, Any]:
    return {
        "state": "running",
        "restarts": 0,
        "failure": None,
        "batch": 40 + len(name),
        "batch_at": "now",
        "input_rows": 90,
        "input_rows_per_second": 80.0,
        "rows_per_second": 900.0 + len(name),
        "batch_ms": 350 + len(name),
        "lag": 12 * len(name),
        "state_rows": 77 * len(name),
        "state_bytes": 2_000_000,
        "watermark": "2026-11-17T10:00:00.000Z",
    }


def take_live(studio: Studio) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster(brokers=3, broker_configs=SETTINGS, drill=True))
        for name, partitions in (("orders", 6), ("payments", 3), ("invoices", 2)):
            cluster.create_topic(name, partitions=partitions, replication_factor=3)
        traffic = Traffic(cluster.bootstrap_servers)
        stack.callback(traffic.close)
        state = stack.enter_context(pipelines(directory))
        drill = FaultDrill(cluster)
        stack.callback(drill.close)
        source = live_source(cluster.bootstrap_servers, allows_changes=True, pipelines=state, drill=drill)
        server = stack.enter_context(DashboardServer(source))
        for name, (scheme, height, prepare) in TABS.items():
            if studio.wants(f"{name}-{scheme}"):
                fields = {"records": "topics&topic=orders", "group": "groups&group=billing"}.get(name, name)
                with studio.page(f"{server.address}#tab={fields}", scheme, height) as page:
                    prepare(page)
                    studio.take(page, f"{name}-{scheme}")
        if studio.wants("drill-dark", "cluster-dark"):
            with studio.page(server.address, "dark", 900) as page:
                _drill(page, studio, cluster)


def _requests(page: Page) -> None:
    page.get_by_label("Filter traces").fill("produce")
    produced = page.locator("#slow-requests details", has_text="Produce v").first
    produced.locator("summary").click()
    expect(produced).to_contain_text("Produce purgatory")
    page.wait_for_timeout(4_000)  # two readings, so that the rates are known
    produced.scroll_into_view_if_needed()


def _records(page: Page) -> None:
    page.locator("#topics table.list tbody tr").nth(2).click()
    expect(page.locator(".record")).to_contain_text("trace")


def _group(page: Page) -> None:
    expect(page.locator("#groups .tile", has_text="state")).to_contain_text("Stable")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".reset")).to_contain_text("has members")


def _transactions(page: Page) -> None:
    expect(page.locator("#transactions tr", has_text="settlement-1")).to_contain_text("Ongoing")


def _pipelines(page: Page) -> None:
    expect(page.locator("#pipelines .card")).to_have_count(2)


TABS: Final[dict[str, tuple[str, int, Callable[[Page], None]]]] = {
    "requests": ("dark", 720, _requests),
    "records": ("dark", 720, _records),
    "group": ("light", 720, _group),
    "transactions": ("light", 460, _transactions),
    "pipelines": ("dark", 430, _pipelines),
}


def _drill(page: Page, studio: Studio, cluster: LocalCluster) -> None:
    """Pause a leader and end its session. Another broker leads; the Cluster tab shows which partitions suffer."""
    until(page, "Boolean(window.klammViewer?.run?.truth.has('orders-0'))")
    controller = cluster.controller_id
    led = {number: cluster.leader("orders", number) for number in range(6)}
    number, leader = next((number, at) for number, at in led.items() if at is not None and at != controller)
    partition = f"orders-{number}"
    page.locator("#viewer").get_by_label("Partition").select_option(partition)
    has_offsets = "([at, name]) => window.klammViewer.run.replicas.get(`${at}/${name}`)?.last.highWatermark > 0"
    until(page, has_offsets, [leader, partition])
    for fault in ("pause", "expire"):
        done = int(page.evaluate("document.body.dataset.drill ?? 0"))
        page.locator(f'[data-fault="{fault}-{leader}"]').click()
        until(page, "(count) => Number(document.body.dataset.drill) > count", done)
    moved = """([name, leader]) => {
        const { run } = window.klammViewer;
        const last = run.truth.get(name).last;
        const know = (broker) => run.knownOf(broker, name)?.last.epoch === last.epoch;
        return last.leader >= 0 && last.leader !== leader && run.sortedBrokers().filter(know).length >= 2;
    }"""
    until(page, moved, [partition, leader])
    page.keyboard.press("w")
    expect(page.locator(".why")).to_contain_text("UpdateMetadata to broker")
    last_change = "window.klammViewer.run.changes.findLast((it) => `${it.topic}-${it.partition}` === name)"
    around = f"""(name) => {{
        const viewer = window.klammViewer;
        const change = {last_change};
        viewer.look({{ start: change.at_ms - 1_200, end: change.at_ms + 500, time: change.at_ms + 400 }});
    }}"""
    until(page, f"(name) => window.klammViewer.run.end > {last_change}.at_ms + 500", partition)
    page.evaluate(around, partition)
    page.wait_for_timeout(500)
    studio.take(page, "drill-dark")
    page.get_by_role("tab", name="Cluster").click()
    expect(page.locator("#cluster")).to_contain_text("under-replicated")
    page.wait_for_timeout(4_000)  # two readings, so that the rates are known
    studio.take(page, "cluster-dark")
    cluster.resume(leader)


# --- the browser edition ---------------------------------------------------------------------------------------------


PLAYGROUND: Final = {
    "death-dark": ("scenario=death&step=7", 860),
    "zombie-light": ("scenario=zombie&step=5", 760),
    "why-light": ("seed=1&do=250.create.orders.3,700.kill.1&t=855&p=orders-0&view=690-870", 860),
}
"""The address of each picture, and its height."""


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


def take_playground(studio: Studio) -> None:
    with tempfile.TemporaryDirectory() as site:
        folder = build(Path(site), PYODIDE)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/index.html"
        for name, (fields, height) in PLAYGROUND.items():
            if studio.wants(name):
                with studio.page(f"{address}#{fields}", name.rpartition("-")[2], height) as page:
                    until(page, "document.body.dataset.ready === '1'")
                    if name != "zombie-light":  # the chain behind the election
                        page.keyboard.press("w")
                        expect(page.locator(".why")).to_contain_text("UpdateMetadata")
                    page.wait_for_timeout(500)
                    studio.take(page, name)
        server.shutdown()


def main(wanted: set[str]) -> None:
    program = shutil.which("chromium")
    if program is None:
        sys.exit("The screenshots need Chromium: apt-get install chromium, or make browser")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        studio = Studio(browser, wanted)
        live = [f"{name}-{scheme}" for name, (scheme, *_) in TABS.items()]
        if studio.wants(*live, "drill-dark", "cluster-dark"):
            take_live(studio)
        if studio.wants(*PLAYGROUND):
            take_playground(studio)
        browser.close()


if __name__ == "__main__":
    main(set(sys.argv[1:]))
