"""The scrubber below the chart: a click and a drag choose the time, and the window follows it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from klamm.cli.dashboard import new_source
from klamm.dashboard.serve import DashboardServer
from klamm.sim.scripted import ScriptedRun, plan_of
from tests.support.browser import until


def test_a_click_and_a_drag_choose_the_time(page: Page) -> None:
    run = ScriptedRun(plan_of({"end_ms": 1_500, "actions": ["250.create.orders.1", "700.kill.1"]}))
    run.run()
    records = tuple(line.encode() for line in run.recording.lines)
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(server.address)
        until(page, f"document.body.dataset.records === '{len(records)}'")
        page.evaluate("window.klammViewer.look({ start: 0, end: 300, time: 100 })")
        scrubber = page.locator(".overview")
        box = scrubber.bounding_box()
        assert box is not None
        start, end = page.evaluate("[window.klammViewer.bounds.start, window.klammViewer.bounds.end]")

        def shown() -> tuple[float, float, float]:
            script = "(({ time, chart }) => [time, chart.view.start, chart.view.end])(window.klammViewer)"
            time, first, last = page.evaluate(script)
            return time, first, last

        def x(share: float) -> float:
            return box["x"] + box["width"] * share

        def is_at(share: float) -> None:
            time, first, last = shown()
            assert time == pytest.approx(start + share * (end - start), abs=2 * (end - start) / box["width"])
            assert first <= time <= last
            assert last - first == pytest.approx(300), "the length of the window stays"

        y = box["y"] + box["height"] / 2
        page.mouse.click(x(0.6), y)
        is_at(0.6)
        page.mouse.move(x(0.8), y)
        is_at(0.6)  # the button is up
        page.mouse.move(x(0.3), y)
        page.mouse.down()
        is_at(0.3)
        page.mouse.move(x(0.5), y, steps=4)
        is_at(0.5)
        page.mouse.move(x(0.2), y - 200, steps=4)
        is_at(0.2)  # the drag continues beyond the strip
        page.mouse.move(box["x"] - 5, y)
        is_at(0.0)
        page.mouse.up()
        page.mouse.move(x(0.9), y)
        is_at(0.0)
        until(page, "new URLSearchParams(location.hash.slice(1)).get('t') === '0'")
        expect(scrubber).to_have_attribute("aria-valuetext", "0 ms")


def test_another_link_in_the_same_tab_is_shown(page: Page) -> None:
    """Only the part after the # differs, so the browser does not load the page again."""
    run = ScriptedRun(plan_of({"end_ms": 1_500, "actions": ["250.create.orders.2", "700.kill.1"]}))
    run.run()
    records = tuple(line.encode() for line in run.recording.lines)
    with DashboardServer(new_source(title="kept", records=records)) as server:
        page.goto(f"{server.address}#t=500&view=400-800&p=orders-0")
        until(page, f"document.body.dataset.records === '{len(records)}'")
        page.keyboard.press("w")
        expect(page.locator(".why")).to_be_visible()
        until(page, "location.hash.includes('sel=')")
        page.evaluate("location.hash = 't=900&view=600-1000&p=orders-1'")
        until(page, "window.klammViewer.time === 900 && window.klammViewer.partition === 'orders-1'")
        assert page.evaluate("(({ chart }) => [chart.view.start, chart.view.end])(window.klammViewer)") == [600, 1000]
        expect(page.get_by_label("Partition")).to_have_value("orders-1")
        expect(page.locator(".why")).to_have_count(0)
        page.go_back()
        until(page, "window.klammViewer.time === 500 && window.klammViewer.partition === 'orders-0'")
        expect(page.locator(".why")).to_be_visible()
