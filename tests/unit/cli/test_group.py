"""`klamm group` when brokers are away."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.cli import group, output


class Admin:
    """Reports the end of one partition; of the other, whose leader is away, librdkafka makes -1001."""

    def list_offsets(self, wanted: dict[Any, Any]) -> dict[Any, Future[Any]]:
        found: dict[Any, Future[Any]] = {}
        for tp in wanted:
            found[tp] = Future()
            found[tp].set_result(SimpleNamespace(offset=-1001 if tp.partition else 7))
        return found


def test_an_unknown_end_is_a_dash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    partitions = [("orders", 0), ("orders", 1)]
    monkeypatch.setattr(group, "_committed", lambda admin, name: dict.fromkeys(partitions, 0))
    monkeypatch.setattr(group, "_all_partitions", lambda admin, servers, used: partitions)
    described = SimpleNamespace(members=[], state=SimpleNamespace(name="EMPTY"))
    output.table(group.COLUMNS, group._rows(cast(Any, Admin()), "a:1", "g", described, is_named=True))
    rows = [line.split()[1:6] for line in capsys.readouterr().out.splitlines()[1:3]]
    assert rows == [["orders", "0", "0", "7", "7"], ["orders", "1", "0", "-", "-"]]


def test_a_partition_without_a_leader_is_not_reset() -> None:
    partitions = [("orders", 0), ("orders", 1)]
    for target in ((True, False, None, None, None), (False, True, None, None, None), (False, False, 3, None, None)):
        goals = group._goals(cast(Any, Admin()), partitions, {}, target)
        assert list(goals) == [("orders", 0)]
