"""The note of a failed log directory outlives a lost connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.server import log_dir_notes
from klamm.zk.model.ops import ConnectionLoss, Create, SessionExpired


class Zk:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.created: list[Create] = []

    async def create(self, op: Create) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.created.append(op)


def test_a_lost_connection_does_not_lose_the_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dir_notes, "RETRY_S", 0)
    zk: Any = Zk(ConnectionLoss(), ConnectionLoss())
    asyncio.run(log_dir_notes.leave_note(zk, 3))
    (note,) = zk.created
    assert note.sequential and b'"broker":3' in note.data


def test_a_session_that_is_over_ends_it() -> None:
    zk: Any = Zk(SessionExpired())
    with pytest.raises(SessionExpired):
        asyncio.run(log_dir_notes.leave_note(zk, 3))
    assert not zk.created
