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
