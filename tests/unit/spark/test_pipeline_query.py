"""What the supervisor is told of a streaming query, from what Spark says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from klamm.spark.pipeline.runner import SparkQuery


@dataclass
class FakeQuery:
    status: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None

    def exception(self) -> Exception | None:
        return self.error


def query(**given: Any) -> SparkQuery:
    return SparkQuery(cast(Any, FakeQuery(**given)), "orders.yaml", "lake")


@pytest.mark.parametrize(
    ("is_active", "message", "expected"),
    [
        (False, "Waiting for data to arrive", False),
        (True, "Getting offsets from org.apache.spark.sql.execution.python.streaming.PythonMicroBatchStream@1", False),
        (True, "Processing new data", True),
        (True, "No new data but cleaning up state", True),
    ],
)
def test_a_query_that_waits_for_records_is_in_no_batch(is_active: bool, message: str, expected: bool) -> None:
    assert query(status={"isTriggerActive": is_active, "message": message}).is_in_batch() is expected


@pytest.mark.parametrize(
    ("text", "permanent"),
    [
        ("Traceback (most recent call last):\n  ...\nklamm.spark.fetch.DataLossError: orders-0: the offsets ...", True),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] ...", True),
        ("org.apache.spark.sql.AnalysisException: ...", True),
        ("Traceback (most recent call last):\n  ...\nBrokenPipeError: [Errno 32] Broken pipe", False),
    ],
)
def test_what_comes_again_at_every_start_is_permanent(text: str, permanent: bool) -> None:
    failure = query(error=RuntimeError(text)).failure()
    assert failure is not None and failure.permanent is permanent
