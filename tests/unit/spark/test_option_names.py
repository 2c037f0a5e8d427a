"""Unknown names of options are rejected, with a suggestion."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from klamm.spark.source import option_names
from klamm.spark.source import read_options as options
from klamm.spark.source.option_names import READ, did_you_mean, unknown, warn_of_unknown, with_committed_reads

BASE = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}


class Asked(dict[str, str]):
    """Options that remember what they were asked for."""

    def __init__(self, values: dict[str, str], names: set[str]) -> None:
        super().__init__(values)
        self.names = names

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def test_the_names_are_those_that_the_parser_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    class Recording(options._Options):
        def __init__(self, given: Any) -> None:
            super().__init__(given)
            self._values = Asked(self._values, asked)

    monkeypatch.setattr(options, "_Options", Recording)
    for streaming in (False, True):
        options.parse_read_options(BASE, streaming=streaming)
    assert {name for name in asked if not name.startswith("kafka.")} == {name.lower() for name in READ}


def test_names_in_any_case_and_those_of_kafka_are_known() -> None:
    given = ["MAXOFFSETSPERTRIGGER", "kafka.fetch.min.bytes", "maxOffsetsPerTriger", "nonsense"]
    assert unknown(given, READ) == ["maxOffsetsPerTriger", "nonsense"]
    assert did_you_mean("maxOffsetsPerTriger", READ) == " Did you mean 'maxOffsetsPerTrigger'?"
    assert did_you_mean("nonsense", READ) == ""


def test_a_reader_warns_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(option_names, "_warned", set())
    with caplog.at_level(logging.WARNING, "klamm.spark"):
        warn_of_unknown({**BASE, "failondataloss": "false", "topic": "out", "path": "x"})
        assert not caplog.messages
        for _ in range(2):
            warn_of_unknown({**BASE, "failOnDataLos": "false"})
    assert caplog.messages == [
        "format(\"klamm\") ignores the unknown option 'failOnDataLos'. Did you mean 'failOnDataLoss'?"
    ]


def test_committed_reads_are_a_default_that_any_named_level_replaces() -> None:
    assert with_committed_reads(BASE) == {**BASE, "kafka.isolation.level": "read_committed"}
    named = {**BASE, "Kafka.Isolation.Level": "read_uncommitted"}
    assert with_committed_reads(named) == named
    assert not options.parse_read_options(with_committed_reads(named), streaming=False).read_committed
    assert options.parse_read_options(with_committed_reads(BASE), streaming=False).read_committed
    assert not options.parse_read_options(BASE, streaming=False).read_committed, "the connector's default"
