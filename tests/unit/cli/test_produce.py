"""`klamm produce` when the producer fails or nothing is confirmed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from klamm.cli import produce
from klamm.cli.client import Refusals
from klamm.cli.output import Failure
from klamm.cli.progress_line import ProgressLine


class FatalProducer:
    """Behaves like confluent-kafka after a fatal error: a SystemError whose cause is the error."""

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        on_delivery(None, None)

    def poll(self, _: float) -> int:
        raise SystemError("returned a result with an exception set") from KafkaException(
            KafkaError(KafkaError._FATAL, "Producer fenced by newer epoch", fatal=True)
        )

    def purge(self, **_: bool) -> None:
        pass


class RefusedProducer:
    """Accepts records, and learns while it waits that it may not write: librdkafka keeps them for five minutes."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._waiting = 0

    def produce(self, *_: Any, **__: Any) -> None:
        self._waiting += 1

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        self._refusals.note(KafkaError(KafkaError._FATAL, "Failed to acquire idempotence PID", fatal=True))
        return self._waiting

    def purge(self, **_: bool) -> None:
        self._waiting = 0


class SilentProducer:
    """Confirms its records at the third flush."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._flushes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        self._waiting.append(on_delivery)

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        self._flushes += 1
        if self._flushes > 2:
            while self._waiting:
                self._waiting.pop()(None, None)
        return len(self._waiting)


def target() -> produce._Target:
    """At an address where nobody listens."""
    return produce._Target("127.0.0.1:1", "orders", None, needs_controller=True)


def test_a_fatal_error_of_the_producer_is_one_sentence() -> None:
    sender = produce._Sender(FatalProducer(), target(), [], 1000, ProgressLine())
    with pytest.raises(Failure) as raised:
        sender.send(1, None, b"v")
    assert str(raised.value) == (
        "The producer failed and cannot continue: Producer fenced by newer epoch. 1 record went to orders. "
        "Records without confirmation may be missing."
    )


def test_records_do_not_wait_for_a_producer_that_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Refusals()
    monkeypatch.setattr(produce, "refusals", refusals)
    producer = RefusedProducer(refusals)
    sender = produce._Sender(producer, target(), [], 1000, ProgressLine())
    sender.send(1, None, b"v")
    with pytest.raises(Failure) as raised:
        sender.finish()
    assert str(raised.value) == (
        "The producer failed and cannot continue: Failed to acquire idempotence PID. 0 records went to orders. "
        "Records without confirmation may be missing."
    )
    assert not producer.flush(0)
    assert sender.account() == ""


def test_a_long_wait_reports_the_missing_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(produce, "_SILENT_S", 0.0)
    sender = produce._Sender(SilentProducer(), target(), [], 1000, ProgressLine())
    sender.send(1, None, b"v")
    sender.finish()
    reported = capsys.readouterr().err
    assert reported.startswith("Waiting for the confirmation of 1 record: No broker answers at 127.0.0.1:1.")
    assert reported.endswith("1 record to orders.\n")
