"""The supervisor's view of a streaming query, derived from Spark's error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from klamm.spark.pipeline.pipeline_runner import SparkQuery


@dataclass
class FakeQuery:
    status: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None

    def exception(self) -> Exception | None:
        return self.error


def query(**given: Any) -> SparkQuery:
    return SparkQuery(cast(Any, FakeQuery(**given)), "pipelines/orders.py", "lake")


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
        (
            "Traceback (most recent call last):\n  ...\nklamm.spark.source.range_fetch.DataLossError: orders-0",
            True,
        ),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] ...", True),
        ("org.apache.spark.sql.AnalysisException: ...", True),
        ("Traceback (most recent call last):\n  ...\nBrokenPipeError: [Errno 32] Broken pipe", False),
    ],
)
def test_a_failure_at_every_start_is_permanent(text: str, permanent: bool) -> None:
    failure = query(error=RuntimeError(text)).failure()
    assert failure is not None and failure.permanent is permanent


def reported_by_spark(
    exception: str, frame: str = "/opt/klamm/spark/fetch.py", offset: int = 7, run: str = "1a2b"
) -> str:
    """The text of a StreamingQueryException: the task's error, then the query, then the JVM's stack."""
    stream = f"org.apache.spark.sql.execution.python.streaming.PythonMicroBatchStream@{run}"
    return f"""[STREAM_FAILED] Query [id = 1, runId = {run}] terminated with exception: Job aborted due to stage \
failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 5) (localhost \
executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 2, in main
    process()
  File "{frame}", line 63, in handleInputRows
    if row["amount"] <= SMALL:
       ^^^^^^^^^^^^^^^^^^^^^^
{exception}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)

Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Identifier: orders.lake [id = 1, runId = {run}]
Current Committed Offsets: {{{stream}: {{"orders":{{"0":{offset}}}}}}}
Current Available Offsets: {{{stream}: {{"orders":{{"0":{offset + 1}}}}}}}

Current State: ACTIVE
Thread State: RUNNABLE

Logical Plan:
~WriteToMicroBatchDataSource KlammTable, 1
+- ~StreamingDataSourceV2ScanRelation[key#1, value#2] klamm

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] ...
"""


def test_the_reason_is_the_python_exception_and_not_a_line_of_the_plan() -> None:
    text = reported_by_spark(
        "klamm.spark.source.range_fetch.DataLossError: mdel-0: gone. Set failOnDataLoss=false to continue."
    )
    failure = query(error=RuntimeError(text)).failure()
    assert failure is not None and failure.permanent
    assert failure.reason.startswith("DataLossError: mdel-0: gone. Set failOnDataLoss=false to continue. ")
    assert "`klamm pipeline reset pipelines/orders.py --sink lake`" in failure.reason


def test_the_reason_has_the_line_of_the_pipelines_own_file() -> None:
    mistake = "TypeError: '<=' not supported between instances of 'NoneType' and 'float'"
    failure = query(error=RuntimeError(reported_by_spark(mistake, "/executor/pipelines/orders.py"))).failure()
    assert failure is not None and failure.reason == f"orders.py line 63: {mistake}"


def test_a_mistake_names_its_batch_and_trouble_outside_does_not() -> None:
    def batch(exception: str, **given: Any) -> str:
        failure = query(error=RuntimeError(reported_by_spark(exception, **given))).failure()
        assert failure is not None
        return failure.batch

    first = batch("TypeError: no", frame="/x/orders.py", run="1a")
    assert first and first == batch("TypeError: no", frame="/x/orders.py", run="2b")
    assert first != batch("TypeError: no", frame="/x/orders.py", offset=8)
    assert batch("pyspark.errors.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012")
    assert batch("klamm.spark.sink.writer_errors.PermanentWriteError: t-9: Unknown partition.")
    assert not batch("klamm.client.client_errors.ClientError: no broker answers")
    assert not batch("ConnectionResetError: [Errno 104] Connection reset by peer")


def test_errors_of_the_jvm_through_a_python_function() -> None:
    text = reported_by_spark(
        "py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.\n: java.io.IOException: full"
    )
    failure = query(error=RuntimeError(text)).failure()
    assert failure is not None and failure.reason == "java.io.IOException: full"


def test_a_condition_without_python_is_reported_without_a_stack() -> None:
    reported = "[STREAM_FAILED] Query [id = 1] terminated with exception: no disk SQLSTATE: XXKST"
    text = f"{reported}\n=== Streaming Query ===\n+- ~X"
    failure = query(error=RuntimeError(text)).failure()
    assert failure is not None and failure.reason == reported
