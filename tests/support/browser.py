"""Waiting for a page. Playwright's own `wait_for_function` needs eval, which the viewer's security policy forbids."""

from __future__ import annotations

import time
from typing import Any

from playwright.sync_api import Page

WAIT_S = 90.0


def until(page: Page, expression: str, argument: Any = None) -> None:
    """Wait until an expression, or a function of the argument, holds in the page."""
    deadline = time.monotonic() + WAIT_S
    while not page.evaluate(expression, argument):
        assert time.monotonic() < deadline, f"{expression}: not within {WAIT_S:g} s in {page.url}"
        page.wait_for_timeout(50)


def is_one_row(page: Page, toolbar: str, width: int) -> bool:
    """Whether all parts of a toolbar are beside each other, within the window, at this width of the window."""
    height = (page.viewport_size or {"height": 900})["height"]
    page.set_viewport_size({"width": width, "height": height})
    fits = """(toolbar) => {
        const row = document.querySelector(toolbar);
        const boxes = [...row.children].map((it) => it.getBoundingClientRect()).filter((it) => it.width && it.height);
        const isBeside = Math.max(...boxes.map((it) => it.top)) < Math.min(...boxes.map((it) => it.bottom));
        return isBeside && Math.max(...boxes.map((it) => it.right)) <= innerWidth;
    }"""
    return bool(page.evaluate(fits, toolbar))
