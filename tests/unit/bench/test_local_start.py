"""The bench of the internal topics: the sides take turns, and only one of them asks for the topics."""

from __future__ import annotations

import pytest

from bench import local_start
from klamm.local.internal_topics import InternalTopics


def test_one_side_does_not_ask_for_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    monkeypatch.setattr(InternalTopics, "request", lambda self: asked.append(None))
    sides: list[bool] = []

    def start() -> local_start.Taken:
        before = len(asked)
        InternalTopics.request(InternalTopics.__new__(InternalTopics))
        sides.append(len(asked) > before)
        return {("row", "ms"): 100.0 + 10 * sides[-1]}

    found = local_start.alternate(2, start)
    assert sides == [True, False, True, True, False], "the first one warms up"
    assert {side: len(starts) for side, starts in found.items()} == {True: 2, False: 2}
    assert "| row, ms | 110  | 100     | 1.100 | +10 to +10 |" in local_start.text(found, 0.1)
