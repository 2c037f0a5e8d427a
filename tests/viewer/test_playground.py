"""The browser edition: klamm's controller under Pyodide, in headless Chromium."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from klamm.sim import runner
from klamm.sim.scenarios import SCENARIOS
from tests.support.browser import is_one_row, until
from tests.support.long_form import short_for

READY = "document.body.dataset.ready === '1'"


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def address(playground: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(playground)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
    server.shutdown()
    server.server_close()


def open_page(page: Page, address: str) -> None:
    page.goto(address)
    until(page, READY)


def facts(page: Page) -> dict[str, Any]:
    """Return the content of the page, as its model has it."""
    found = page.evaluate(
        """() => {
            const { run, time, partition } = window.klammViewer;
            return { records: run.records.length, time, partition, terms: run.terms,
              refused: run.messages.filter((it) => it.error !== "NONE").map((it) => it.error),
              coalesced: run.coalesced.map((it) => it.target),
              queues: Object.fromEntries([...run.requestQueues].map(([id, series]) => [id, series.largest])),
              changes: run.changes.map((it) => [it.kind, it.topic, it.leader, it.leader_epoch]) };
        }"""
    )
    assert isinstance(found, dict)
    return found


def test_building_it_leaves_the_logging_of_the_process_alone(playground: Path) -> None:
    """Tests after this one look for log lines."""
    assert (playground / "klamm.zip").is_file()
    assert logging.root.manager.disable == logging.NOTSET


def test_the_first_page_is_a_guided_scenario(page: Page, address: str) -> None:
    open_page(page, address)
    expect(page.locator(".guide h3")).to_contain_text("1. Broker 1 leads orders-0")
    assert all(is_one_row(page, row, width) for row in ("header", ".transport") for width in (1440, 1280))
    for _ in range(4):
        page.get_by_role("button", name="Next").click()
    expect(page.locator(".guide h3")).to_contain_text("New leaders are elected")
    expect(page.locator(".why")).to_contain_text("session of broker 1 ended")
    expect(page.locator(".why")).to_contain_text("UpdateMetadata to broker 3")
    expect(page.locator(".state")).to_contain_text("led by 2, epoch 1")


@pytest.mark.long
def test_a_seed_is_exactly_the_run_of_the_simulator(page: Page, address: str) -> None:
    """The transcript that Pyodide writes has as many lines as here; and the controllers are the same."""
    open_page(page, f"{address}#seed=7&chaos=1")
    world, failure = runner.run_traced(7)
    assert failure is None
    terms = {term["epoch"]: term["broker"] for term in facts(page)["terms"]}
    assert terms == world.checkers.controllers
    expect(page.locator("#status")).to_contain_text(f"{world.steps} steps of the controller")


@pytest.mark.long
def test_a_fault_changes_the_run_and_the_link_repeats_it(page: Page, address: str) -> None:
    open_page(page, f"{address}#seed=1&do=250.create.orders.3&t=700")
    assert all(leader >= 0 for _, _, leader, _ in facts(page)["changes"])
    page.locator(".lane.broker", has_text="Broker 1").get_by_role("button", name="kill").click()
    until(page, "window.klammViewer.run.faults.length === 1")
    until(page, "location.hash.includes('701.kill.1')")
    after = facts(page)
    assert ["election", "orders", 2, 1] in after["changes"]
    page.keyboard.press("Space")
    link = page.evaluate("location.href")
    page.goto("about:blank")
    open_page(page, link)
    assert facts(page)["changes"] == after["changes"]


def test_a_link_into_a_scenario_shows_the_same(page: Page, address: str) -> None:
    """The reader has moved the time and the window. Another link in the same tab is shown without loading again."""
    open_page(page, f"{address}#scenario=death&step=5")
    page.evaluate("window.klammViewer.look({ start: 300, end: 900, time: 456 })")
    until(page, "location.hash.includes('t=456')")
    link = page.evaluate("location.href")
    page.evaluate("window.isLoadedOnce = true; location.hash = 'scenario=zombie&step=2'")
    expect(page.locator(".guide select")).to_have_value("zombie")
    expect(page.locator(".guide h3")).to_contain_text("2. ")
    page.goto(link)  # only the part after the # differs
    expect(page.locator(".guide select")).to_have_value("death")
    expect(page.locator(".guide h3")).to_contain_text("5. ")
    until(page, "window.klammViewer.time === 456 && window.klammViewer.chart.view.start === 300")
    assert page.evaluate("window.isLoadedOnce"), "the page was loaded again"
    page.goto("about:blank")
    open_page(page, link)
    assert page.evaluate("(({ time, chart }) => [time, chart.view.start, chart.view.end])(window.klammViewer)") == [
        456,
        300,
        900,
    ]
    page.keyboard.press("Control+n")
    expect(page.locator(".guide h3")).to_contain_text("5. ")


@pytest.mark.long
def test_the_past_can_be_changed(page: Page, address: str) -> None:
    open_page(page, f"{address}#seed=1&do=250.create.orders.3,701.kill.1&t=500")
    page.get_by_role("button", name="Pause the controller").click()
    until(page, "location.hash.includes('501.pause.c.300')")
    assert "kill" not in page.evaluate("location.hash")
    until(page, "window.klammViewer.run.terms.length === 2")
    assert [term["epoch"] for term in facts(page)["terms"]] == [1, 2]


@pytest.mark.long
def test_keys_move_the_time_and_explain(page: Page, address: str) -> None:
    open_page(page, f"{address}#seed=1&do=250.create.orders.3,701.kill.1&t=900&p=orders-0")
    page.keyboard.press("ArrowLeft")
    before = facts(page)["time"]
    assert before < 900
    page.keyboard.press("ArrowRight")
    assert facts(page)["time"] > before
    page.keyboard.press("w")
    expect(page.locator(".why")).to_contain_text("BrokerChange is processed")
    page.keyboard.press("Escape")
    expect(page.locator(".why")).to_have_count(0)
    click_on_change(page)
    expect(page.locator(".why")).to_contain_text("BrokerChange is processed")


def click_on_change(page: Page) -> None:
    """Click on the diamond of the last leader change of the chosen partition, where the chart has drawn it."""
    found = """() => {
        const { chart, partition } = window.klammViewer;
        const isOfPartition = (it) => `${it.topic}-${it.partition}` === partition;
        const hit = chart.hits.findLast((it) => it.type === "change" && isOfPartition(it.item));
        return hit ? [(hit.x0 + hit.x1) / 2, (hit.y0 + hit.y1) / 2] : null;
    }"""
    until(page, f"({found})() !== null")
    x, y = page.evaluate(found)
    page.locator(".plot canvas").click(position={"x": x, "y": y})


@pytest.mark.parametrize("name", short_for(["zombie"], (scenario.name for scenario in SCENARIOS)))
def test_every_scenario_can_be_followed_to_its_end(page: Page, address: str, name: str) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    open_page(page, f"{address}#scenario={name}")
    for step in scenario.steps[1:]:
        page.keyboard.press("n")
        expect(page.locator(".guide h3")).to_contain_text(step.title)
    shown = facts(page)
    assert shown["time"] > 0
    if name == "zombie":
        assert shown["refused"].count("STALE_CONTROLLER_EPOCH") == 2, "two brokers refuse the former controller"
    if name == "slow":
        assert set(shown["coalesced"]) == {3}, "only the requests to the slow broker are merged"
        longest = {int(broker): size for broker, size in shown["queues"].items()}
        assert longest[3] > max(longest[1], longest[2]) > 0


@pytest.mark.long
def test_a_wrong_address_is_a_sentence(page: Page, address: str) -> None:
    open_page(page, f"{address}#seed=1&do=10.explode.1")
    expect(page.locator("#status")).to_contain_text("there is no action 'explode'")


def test_names_are_text_and_never_markup(page: Page, address: str) -> None:
    """A name from the address goes through the controller, which refuses it, and is shown as text."""
    open_page(page, f"{address}#seed=1&do=250.create.<img src=x onerror=alert(1)>.1,400.create.fine.1&t=900")
    assert page.locator("img").count() == 0
    assert facts(page)["changes"][0][1] == "fine"


@pytest.mark.long
def test_the_trace_is_what_perfetto_reads(page: Page, address: str, tmp_path: Path) -> None:
    open_page(page, f"{address}#scenario=death")
    with page.expect_download() as download:
        page.get_by_role("button", name="Trace").click()
    path = tmp_path / "trace.json"
    download.value.save_as(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"M", "X", "s", "f", "i", "C"}
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"klamm control plane", "ZooKeeper", "Controller", "Broker 1", "Broker 2", "Broker 3"}


@pytest.mark.long
def test_light_and_dark(page: Page, address: str) -> None:
    open_page(page, address)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.locator("#theme").click()
    light = page.evaluate(background)
    page.reload()
    until(page, READY)
    assert dark != light == page.evaluate(background)
