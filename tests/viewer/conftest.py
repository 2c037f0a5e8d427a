"""Headless Chromium for the viewer's pages. A page that asks another host, or logs an error, fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.source_tree import ROOT

PYODIDE = ROOT / ".cache" / "pyodide" / "node_modules" / "pyodide"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while Playwright runs, the thread has an event loop, and tests cannot start one."""
    program = shutil.which("chromium")
    assert program is not None, "The tests of the viewer need Chromium: apt-get install chromium, or make browser"
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=program, args=options)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose requests stay on the loopback interface and whose console stays silent."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="dark", reduced_motion="reduce")
    opened = context.new_page()
    elsewhere: list[str] = []
    errors: list[str] = []

    def look_at(request: Request) -> None:
        host = urlsplit(request.url).hostname
        if host is not None and host not in ("127.0.0.1", "localhost"):
            elsewhere.append(request.url)

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    context.on("request", look_at)
    opened.on("console", listen)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    yield opened
    context.close()
    assert not elsewhere, f"requests to other hosts: {elsewhere}"
    assert not errors, f"errors in the page: {errors}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers, each in a rack of its own, for all tests of live pages. Each test leaves them running.

    Anyone may write in a transaction.
    """
    settings: dict[Any, Any] = {
        **CALM,
        "klamm.control.log.enable": True,
        "klamm.metrics.port": 0,
        "transaction.partition.verification.enable": False,
        **{broker_id: {"broker.rack": f"rack-{broker_id}"} for broker_id in (1, 2, 3)},
    }
    with LocalCluster(brokers=3, broker_configs=settings, drill=True) as running:
        running.create_topic("orders", partitions=3, replication_factor=3)
        yield running


@pytest.fixture(scope="session")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the browser edition, as `make site` builds it."""
    from docgen.playground import build

    assert PYODIDE.is_dir(), "Pyodide is missing: run make .cache/pyodide/.installed"
    return build(tmp_path_factory.mktemp("site"), PYODIDE)
