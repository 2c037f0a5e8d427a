"""Waterfalls of traced requests in the terminal, and the filters of `klamm trace`."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from klamm.cli.trace import show
from klamm.request_log import to_json
from klamm.request_log.waterfall import Bar, TraceFilter, bars, drawn, wait_text
from tests.unit.request_log.test_trace_records import RECORD

TRACE: dict[str, Any] = json.loads(to_json(RECORD, 1))


def test_the_bars_follow_each_other_and_a_wait_lies_within_its_phase() -> None:
    found = bars(TRACE)
    assert [bar.name for bar in found] == [
        "request queue",
        "handler",
        "waits",
        "Produce purgatory",
        "response queue",
        "send",
    ]
    phases = [bar for bar in found if bar.depth == 0]
    for bar, following in itertools.pairwise(phases):
        assert bar.start_ms + bar.duration_ms == pytest.approx(following.start_ms)
    wait, phase = found[3], found[2]
    assert wait.depth == 1 and wait.duration_ms <= phase.duration_ms
    assert wait.text == "orders-0, completed by Fetch of broker 3 (correlation id 331)"


def test_how_waits_end() -> None:
    wait = TRACE["waits"][0]
    assert wait_text({**wait, "by": None}) == "orders-0, completed by the broker itself"
    by = {**wait["by"], "broker_id": None, "client_id": "shop"}
    assert wait_text({**wait, "by": by, "key": None}) == "completed by Fetch of client shop (correlation id 331)"
    assert wait_text({**wait, "outcome": "expired", "by": None, "key": None}) == "expired"


def test_a_bar_stays_within_its_width() -> None:
    assert drawn(Bar("x", 0.0, 10.0), 10.0, 40, "#") == "#" * 40
    assert drawn(Bar("x", 5.0, 5.0), 10.0, 40, "#") == " " * 20 + "#" * 20
    assert drawn(Bar("x", 9.999, 0.001), 10.0, 40, "#") == " " * 39 + "#"
    assert drawn(Bar("x", 0.0, 0.0), 0.0, 40, "#") == "#"


def test_a_request_as_a_waterfall(capsys: pytest.CaptureFixture[str]) -> None:
    show({**TRACE, "error": "NOT_LEADER_OR_FOLLOWER", "outcome": "closed"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("Produce v10  6.912 ms  NOT_LEADER_OR_FOLLOWER  closed  orders-0")
    assert "client checkout, correlation id 12, 127.0.0.1:9092-127.0.0.1:51312-7; broker 1" in lines[1]
    assert "data plane, processor 0; queue 0, control queue 0" in lines[1]
    assert len(lines) == 8 and all(len(line) < 150 for line in lines)
    assert "    Produce purgatory        6.498 ms" in lines[5]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("wanted", "is_admitted"),
    [
        (TraceFilter(), True),
        (TraceFilter(apis=("Fetch", "Produce")), True),
        (TraceFilter(apis=("Fetch",)), False),
        (TraceFilter(client_ids=("check*",)), True),
        (TraceFilter(client_ids=("check",)), False),
        (TraceFilter(topics=("orders",)), True),
        (TraceFilter(topics=("sales",)), False),
        (TraceFilter(slower_than_ms=6.9), True),
        (TraceFilter(slower_than_ms=7), False),
        (TraceFilter(brokers=(2,)), False),
    ],
)
def test_filters(wanted: TraceFilter, is_admitted: bool) -> None:
    assert wanted.admits(TRACE) is is_admitted
