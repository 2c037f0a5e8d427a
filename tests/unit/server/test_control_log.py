"""The control log's writer on a broker without a network: it creates the topic, writes, and never records itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.control_log.records import ControllerChanged
from klamm.controller.events import CreateTopics
from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.log.results import ReadResult
from klamm.metrics import Gauge
from klamm.model import CONTROL_LOG_TOPIC, TopicPartition
from klamm.protocol.record_batch import Record, batches, build_batch_in_steps, records
from klamm.server import log_topic
from klamm.server.control_log import ControlLogWriter
from tests.support.one_broker import OneBroker

TP = TopicPartition(CONTROL_LOG_TOPIC, 0)


class Recording:
    """A broker with a control log of at most 50 records a loop."""

    def __init__(self, tmp_path: Path) -> None:
        settings = {"klamm.control.log.buffer.records": "50", "klamm.control.log.replication.factor": "1"}
        self.one = OneBroker(tmp_path, settings)
        self.writer = ControlLogWriter(self.one.broker.config, self.one.clock)
        self.one.give(control_log=self.writer.of_broker_loop)
        self.writer.start(self.one.broker)

    def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        self.one.loop.run_until_complete(asyncio.wait_for(wait(), 60))

    def stop(self) -> None:
        self.one.loop.run_until_complete(self.writer.stop())

    def buffered(self) -> object:
        gauge = self.one.broker.metrics.find("klamm.server", "ControlLog", "BufferedRecordCount")
        assert isinstance(gauge, Gauge)
        return gauge.value

    def written(self) -> list[dict[str, Any]]:
        log = self.one.broker.replicas.leader_log(TP)
        if isinstance(log, ErrorCode):
            return []
        read = log.read(0, 10_000_000, max_offset=log.log_end_offset)
        assert isinstance(read, ReadResult)
        return [json.loads(bytes(r.value or b"")) for batch in batches(read.records) for r in records(batch)]


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Recording]:
    recording = Recording(tmp_path)
    yield recording
    recording.stop()
    recording.one.close()


def test_records_are_written_to_the_topic_and_the_writing_is_not_recorded(it: Recording) -> None:
    it.one.lead(CONTROL_LOG_TOPIC)
    it.one.lead("orders", 2)
    it.until(lambda: len(it.written()) >= 5)
    written = it.written()
    assert [(r["kind"], r.get("topic")) for r in written] == [
        ("role_changed", CONTROL_LOG_TOPIC),
        ("metadata_applied", None),
        ("role_changed", "orders"),
        ("role_changed", "orders"),
        ("metadata_applied", None),
    ]
    assert [r["sequence"] for r in written] == [1, 2, 3, 4, 5]
    assert [r["correlation_id"] for r in written] == [it.one.last_context.correlation_id] * 5
    assert [r["update_count"] for r in written if r["kind"] == "metadata_applied"] == [1, 2]
    it.writer.of_control_loop.record(ControllerChanged(1, 1))
    it.until(lambda: len(it.written()) >= 6)
    it.stop()
    assert len(it.written()) == 6 and it.buffered() == 0, "the writing of records was no cause of records"


def test_the_topic_is_created_when_there_is_something_to_write(it: Recording) -> None:
    it.one.spin()
    assert it.one.controller.submitted == []
    it.one.lead("orders")
    it.until(lambda: bool(it.one.controller.submitted))
    event = it.one.controller.submitted[0]
    assert isinstance(event, CreateTopics)
    (topic,) = event.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (CONTROL_LOG_TOPIC, 1, 1)
    assert dict(topic.configs)["retention.ms"] == "86400000"


def test_a_broker_that_is_not_the_controller_leaves_the_creation_to_it(it: Recording) -> None:
    it.one.controller.is_active = False
    it.one.lead("orders")
    it.until(lambda: it.buffered() == 0)
    assert it.one.controller.submitted == []
    it.one.lead(CONTROL_LOG_TOPIC)
    it.until(lambda: len(it.written()) == 4)


def test_failed_requests_are_recorded_less_and_less_often(it: Recording) -> None:
    for number in range(9):
        api: Any = SimpleNamespace(name="DescribeConfigs")
        request: Any = SimpleNamespace(
            api=api, api_version=4, correlation_id=number, client_id="c" * 1000, connection_id="here"
        )
        it.writer.on_failed_request(request, "KeyError('orders')")
    it.one.lead(CONTROL_LOG_TOPIC)
    it.until(lambda: bool(it.written()))
    failed = [r for r in it.written() if r["kind"] == "request_failed"]
    assert [(r["correlation_id"], r["failure_count"]) for r in failed] == [(0, 1), (1, 2), (3, 4), (7, 8)]
    assert failed[0]["error"] == "KeyError('orders')" and len(failed[0]["client_id"]) < 1000


def test_while_nothing_can_be_written_the_oldest_are_dropped_and_counted(it: Recording) -> None:
    record = it.writer.of_control_loop.record
    for epoch in range(1000):
        record(ControllerChanged(epoch, 1))
    assert it.writer.dropped == 950
    gauge = it.one.broker.metrics.find("klamm.server", "ControlLog", "DroppedRecordCount")
    assert isinstance(gauge, Gauge) and gauge.value == 950
    it.one.lead(CONTROL_LOG_TOPIC)
    it.until(lambda: len([r for r in it.written() if r["kind"] == "controller_changed"]) == 50)
    assert [r["sequence"] for r in it.written() if r["loop"] == "control"] == list(range(951, 1001))


def test_a_compacted_topic_refuses_records_without_a_key_of_its_leader_too(it: Recording) -> None:
    """The records of other brokers come as Produce requests and are checked like those of every client."""
    it.one.topic_configs[CONTROL_LOG_TOPIC] = LogConfig.from_properties({"cleanup.policy": "compact"})
    it.one.lead(CONTROL_LOG_TOPIC)
    it.writer.of_control_loop.record(ControllerChanged(1, 1))
    it.until(lambda: it.writer.dropped > 0 and it.buffered() == 0)
    it.stop()
    assert {"controller_changed", "metadata_applied"}.isdisjoint(record["kind"] for record in it.written())


def test_a_log_that_is_off_records_nothing(tmp_path: Path) -> None:
    one = OneBroker(tmp_path, {"klamm.control.log.enable": "false"})
    writer = ControlLogWriter(one.broker.config, one.clock)
    writer.start(one.broker)
    assert not writer.of_broker_loop.is_enabled and not writer.of_control_loop.is_enabled
    assert one.broker.replicas.role_listeners == []
    one.loop.run_until_complete(writer.stop())
    one.close()


def test_a_stop_in_the_middle_of_encoding_loses_nothing(it: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    it.one.lead(CONTROL_LOG_TOPIC)
    it.until(lambda: len(it.written()) == 2)
    monkeypatch.setattr(log_topic, "SLICE_RECORDS", 1)
    begun = asyncio.Event()

    def noted(rows: Sequence[Record], records_per_step: int) -> Generator[None, None, bytes]:
        begun.set()
        return build_batch_in_steps(rows, records_per_step)

    monkeypatch.setattr(log_topic, "build_batch_in_steps", noted)
    it.one.lead("orders", 10)
    it.until(begun.is_set)
    it.stop()
    assert sum(record["kind"] == "role_changed" for record in it.written()) == 11
