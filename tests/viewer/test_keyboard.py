"""Pages that are built again every few seconds do not disturb a reader with a keyboard, or with a slow hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, Response, expect

from klamm.cli.dashboard import live_source
from klamm.dashboard.fault_drill import FaultDrill
from klamm.dashboard.serve import DashboardServer
from klamm.testing import LocalCluster
from tests.support.browser import until
from tests.support.viewer_tabs import GROUP, commit_as_group


@pytest.fixture(scope="module")
def server(cluster: LocalCluster) -> Iterator[DashboardServer]:
    drill = FaultDrill(cluster)
    try:
        with DashboardServer(live_source(cluster.bootstrap_servers, drill=drill)) as running:
            yield running
    finally:
        drill.close()


@contextmanager
def shown(page: Page, address: str) -> Iterator[None]:
    page.goto(address)
    yield
    page.goto("about:blank")  # before the server ends, which the page would report as an error


def answers(page: Page, path: str, count: int) -> None:
    """Wait until the page has shown this many answers: it asks again only after it has shown one."""
    for _ in range(count + 1):
        with page.expect_response(lambda response: is_answer(response, path)):
            pass


def is_answer(response: Response, path: str) -> bool:
    return path in response.url and response.ok


def keeps_focus(page: Page, element: Locator, path: str) -> None:
    element.focus()
    answers(page, path, 2)
    expect(element).to_be_focused()


def test_the_focus_stays_while_a_page_is_built_again(page: Page, server: DashboardServer) -> None:
    with shown(page, f"{server.address}#tab=requests"):
        words = page.get_by_label("Filter traces")
        expect(page.locator("#requests table").first).to_contain_text("%")
        keeps_focus(page, words, "api/status")
        page.keyboard.press("1")
        expect(words).to_have_value("1")
    with shown(page, server.address):
        keeps_focus(page, page.locator('[data-fault="kill-1"]'), "api/drill")


def test_a_click_outlasts_an_answer(page: Page, cluster: LocalCluster, server: DashboardServer) -> None:
    """Between press and release an answer arrives. It must not replace the row."""
    commit_as_group(cluster, "orders")
    with shown(page, f"{server.address}#tab=groups"):
        row = page.locator("#groups tr.link", has_text=GROUP)
        expect(row).to_contain_text("Empty")
        row.hover()
        page.mouse.down()
        with page.expect_response(lambda response: is_answer(response, "api/cluster/groups")) as answer:
            pass
        answer.value.finished()
        page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
        page.mouse.up()
        expect(page.locator("#groups h1")).to_have_text(GROUP)


def test_the_keys_are_shown(page: Page, server: DashboardServer) -> None:
    with shown(page, server.address):
        until(page, "Boolean(window.klammViewer?.run?.truth.has('orders-0'))")
        keys = page.get_by_role("dialog", name="Keys")
        page.keyboard.press("?")
        expect(keys).to_be_visible()
        for text in ("play or pause", "explain the last change", "Pipelines", "back to the list"):
            expect(keys).to_contain_text(text)
        page.keyboard.press("4")
        expect(page.locator("#viewer")).to_be_visible()
        page.keyboard.press("Escape")
        expect(keys).to_be_hidden()
        page.keyboard.press("4")
        page.get_by_label("Name", exact=True).press("?")
        expect(keys).to_be_hidden()
        page.locator("#keys").click()
        expect(keys).to_be_visible()
        keys.get_by_role("button", name="Close").click()
        expect(keys).to_be_hidden()
