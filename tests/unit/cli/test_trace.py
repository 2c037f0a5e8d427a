"""Waterfalls of traced requests in the terminal, and the filters of `klamm trace`."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.output import Failure
from klamm.cli.trace import _ended_by_signals, api_name, check_names, show
from klamm.cli.trace_switch import switched_on
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from klamm.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.metadata import MetadataResponseBroker
from klamm.protocol.wire import Message
from klamm.request_log import to_json
from klamm.request_log.waterfall import Bar, TraceFilter, bars, drawn, wait_text
from tests.support.scripted_broker import scripted_broker, view
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


def test_names_of_apis() -> None:
    assert [api_name(given) for given in ("Produce", "leaderandisr", "describe*")] == [
        "Produce",
        "LeaderAndIsr",
        "Describe*",
    ]
    for unknown in ("Foo", "Foo*", ""):
        with pytest.raises(Failure, match=r"There is no API .*There are: AddOffsetsToTxn, .*Produce, "):
            api_name(unknown)


def test_brokers_and_topics_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Broker 3 is dead, and has replicas: traces of its past may be asked for."""
    metadata = view({1: ("h", 1), 2: ("h", 2)}, 1, {"orders": (1, 3)})
    check_names(metadata, TraceFilter(brokers=(1, 2, 3), topics=("orders", "ord*")))
    assert capsys.readouterr().err == ""
    with pytest.raises(Failure, match=r"There is no broker 77\. There are: 1, 2, 3\."):
        check_names(metadata, TraceFilter(brokers=(1, 77)))
    check_names(metadata, TraceFilter(topics=("oders", "x*")))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("No topic is called oders now")


def test_the_command_refuses_an_unknown_api_and_broker() -> None:
    with scripted_broker(lambda request: view({1: ("127.0.0.1", 1)}, 1, {"orders": (1,)})) as (host, port):
        for words, reported in (("--api Foo", "There is no API Foo."), ("--broker 77", "There is no broker 77.")):
            done = CliRunner().invoke(app, ["trace", *words.split(), "-b", f"{host}:{port}"])
            assert isinstance(done.exception, Failure) and str(done.exception).startswith(reported)


class TracedBroker:
    """A broker that keeps its dynamic settings. It sends a signal to this process while it changes them back."""

    def __init__(self, signals: list[int]) -> None:
        self.settings: dict[str, str] = {}
        self.changes = 0
        self._signals = signals

    def __call__(self, request: Message) -> Message | None:
        if isinstance(request, DescribeConfigsRequest):
            configs = [
                DescribeConfigsResourceResult(
                    name=name, value=value, read_only=False, config_source=2, is_sensitive=False
                )
                for name, value in self.settings.items()
            ]
            result = DescribeConfigsResult(
                error_code=0, error_message=None, resource_type=4, resource_name="1", configs=configs
            )
            return DescribeConfigsResponse(results=[result])
        assert isinstance(request, IncrementalAlterConfigsRequest)
        self.changes += 1
        if self.changes == 2 and self._signals:
            os.kill(os.getpid(), self._signals.pop(0))
        for config in request.resources[0].configs:
            self.settings.pop(config.name, None)
            if config.value is not None:
                self.settings[config.name] = config.value
        answer = AlterConfigsResourceResponse(error_code=0, error_message=None, resource_type=4, resource_name="1")
        return IncrementalAlterConfigsResponse(responses=[answer])


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_ended_by_signal", [True, False])
def test_a_second_signal_leaves_no_broker_that_traces(second: int, is_ended_by_signal: bool) -> None:
    """Ctrl-C twice: the second one arrives while the first broker is asked to restore its settings."""
    brokers = {1: TracedBroker([second]), 2: TracedBroker([])}
    with ExitStack() as stack:
        nodes = []
        for broker_id, broker in brokers.items():
            host, port = stack.enter_context(scripted_broker(broker))
            nodes.append(MetadataResponseBroker(node_id=broker_id, host=host, port=port))
        with _ended_by_signals(), switched_on(nodes, 1, TraceFilter()):
            assert all(broker.settings["klamm.request.trace.sample"] == "1" for broker in brokers.values())
            if is_ended_by_signal:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)  # the signal ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert [broker.changes for broker in brokers.values()] == [2, 2]
    assert [broker.settings for broker in brokers.values()] == [{}, {}]


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore the handlers that `switched_on` leaves behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_a_second_command_is_refused_and_changes_nothing() -> None:
    """It would restore the settings of the first command after that one has restored the original ones."""
    brokers = {1: TracedBroker([]), 2: TracedBroker([])}
    with ExitStack() as stack:
        nodes = []
        for broker_id, broker in brokers.items():
            host, port = stack.enter_context(scripted_broker(broker))
            nodes.append(MetadataResponseBroker(node_id=broker_id, host=host, port=port))
        with switched_on(nodes[1:], 5, TraceFilter(apis=("Fetch",))):
            first = dict(brokers[2].settings)
            with pytest.raises(Failure, match=r"Broker 2 traces .*\(sample=5, apis=Fetch, .*leave out --on"):
                stack.enter_context(switched_on(nodes, 1, TraceFilter()))
            assert [broker.settings for broker in brokers.values()] == [{}, first]
        assert [broker.settings for broker in brokers.values()] == [{}, {}]


@pytest.mark.usefixtures("signals")
def test_settings_of_people_are_overridden_and_restored() -> None:
    broker = TracedBroker([])
    broker.settings = {"klamm.request.trace.sample": "100", "klamm.request.trace.topic.enable": "true"}
    earlier = dict(broker.settings)
    with scripted_broker(broker) as (host, port):
        with switched_on([MetadataResponseBroker(node_id=1, host=host, port=port)], 1, TraceFilter()):
            assert broker.settings["klamm.request.trace.sample"] == "1"
        assert broker.settings == earlier


def test_a_signal_while_a_text_is_compiled_ends_the_command_with_0() -> None:
    """The codecs of messages are texts that Python compiles at their first use."""
    script = (
        "import os, signal\n"
        "from klamm.cli.trace import _ended_by_signals\n"
        "with _ended_by_signals():\n"
        "    exec('os.kill(os.getpid(), signal.SIGTERM); signal.pause()')\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
