"""Tasks that nothing waits for."""

from __future__ import annotations

import asyncio
import re

import pytest

from klamm.errors import KlammError
from klamm.server.background_tasks import BackgroundTasks


@pytest.mark.parametrize(
    ("failure", "has_traceback"), [(KlammError("The controller did not answer."), False), (KeyError("a bug"), True)]
)
def test_a_failure_is_logged_and_a_bug_with_its_traceback(
    failure: Exception, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise failure

    async def scenario() -> None:
        tasks = BackgroundTasks()
        tasks.spawn(fail())
        await asyncio.sleep(0)
        await tasks.stop()

    asyncio.run(scenario())
    assert re.search(r"background task \S*\.fail failed", caplog.text)
    assert ("Traceback" in caplog.text) is has_traceback
