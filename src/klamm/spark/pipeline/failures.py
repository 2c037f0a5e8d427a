"""Reduces Spark's long error of an ended query to one sentence, and decides whether a restart would fail again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from klamm.spark.pipeline.pipeline_model import Sink
from klamm.spark.pipeline.supervise import Failure

_STATE_CHANGED: Final = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_OPERATION_OUT_OF_ORDER",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH",
    "STATEFUL_PROCESSOR_",
    "sources in the checkpoint offsets",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
)
_FINAL: Final = ("CheckpointError: ", "OptionError: ", "TakenOverError: ", "TornBatchError: ")
"""Errors that the next run would meet again, or that mean that another run writes."""
_PLAN: Final = "\n=== Streaming Query ==="
_TRACEBACK: Final = "Traceback (most recent call last)"
_FRAME: Final = re.compile(r'\s+File "([^"]+)", line (\d+)')
_OBJECT: Final = re.compile(r"@[0-9a-f]+\b")
_OFFSETS: Final = re.compile(r"^Current (?:Committed|Available) Offsets: .*$", re.M)
_BATCH_ERROR: Final = re.compile(r"SQLSTATE: 22\w{3}")
"""SQL's error class for data: division by zero, text that is not a number."""
_MISTAKES: Final = frozenset(
    {
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "DecimalException",
        "ImportError",
        "IndexError",
        "KeyError",
        "LookupError",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "OverflowError",
        "PermanentWriteError",
        "RecursionError",
        "TypeError",
        "UnboundLocalError",
        "UnicodeDecodeError",
        "UnicodeEncodeError",
        "ValueError",
        "ZeroDivisionError",
    }
)
"""Errors of code or data. Unavailable brokers and disks raise others, and may come back."""

_OUTSIDE: Final = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "FileNotFoundError",
        "InterruptedError",
        "MemoryError",
        "OSError",
        "PermissionError",
        "TimeoutError",
        "gaierror",
    }
)


def spark_sentence(error: BaseException, file: str = "") -> str:
    """Return Spark's error without stack and plan: the Python root exception, or condition and text.

    `file` is the pipeline's: an exception that passed through it is reported with its line.
    """
    text = str(error).strip() or type(error).__name__
    text = text.split(_PLAN)[0]
    if (found := python_exception(text, file)) is not None:
        return found
    text = text.split("\n\nJVM stacktrace:")[0].split("\nDriver stacktrace:")[0].split("\n== SQL ")[0]
    return text.split("; line ")[0].split(";\n")[0].strip()


def python_exception(text: str, file: str = "") -> str | None:
    """Return the exception of the last traceback in `text`, the root cause of the others."""
    found = None
    for block in text.split(_TRACEBACK)[1:]:
        lines = iter(block.splitlines()[1:])
        place = ""
        for line in lines:
            if (frame := _FRAME.match(line)) is not None and file and _is_same(frame[1], file):
                place = f"{os.path.basename(file)} line {frame[2]}: "
            if line.strip() and not line[0].isspace():
                found = place + _exception(line, lines)
                break
    return found


def _exception(line: str, following: Iterator[str]) -> str:
    """`DataLossError: text` of `klamm.spark.source.range_fetch.DataLossError: text`."""
    kind, colon, message = line.partition(":")
    kind = kind.rpartition(".")[2]
    if kind == "Py4JJavaError":
        # The JVM's error is in the next line: `: java.io.IOException: No space left on device`.
        return next(following, line).lstrip(": ").strip()
    return f"{kind}{colon}{message}".strip()


def _is_same(path: str, file: str) -> bool:
    """On an executor the file has the path that the driver compiled it with."""
    return path == file or os.path.basename(path) == os.path.basename(file)


def failure_of(error: BaseException, file: str, sink: str) -> Failure:
    """Return the supervisor's view of a query that ended with `error`."""
    text = str(error)
    reason = spark_sentence(error, file)
    reset = f"`klamm pipeline reset {file} --sink {sink}`"
    if any(sign in text for sign in _STATE_CHANGED):
        advice = f"undo the change, or start over with {reset}"
        return Failure(f"the query cannot continue from its checkpoint; {advice}: {reason}", True)
    if "DataLossError: " in text:
        # Deleted records do not come back, and a fresh start may not notice the loss.
        return Failure(f"{reason} That is an option of the source; {reset} starts over with what there is.", True)
    if any(sign in text for sign in _FINAL):
        return Failure(reason, True)
    return Failure(reason, "AnalysisException" in text, _batch(text) if _is_mistake(text, reason, file) else "")


def start_advice(error: BaseException, sink: Sink) -> str:
    """Return the remedy for a query that Spark refuses to start, if known."""
    if "STREAMING_OUTPUT_MODE" not in (text := str(error)) and "output mode" not in text:
        return ""
    if "Sorting is not supported" in text:
        return " Leave out ORDER BY: the rows of a stream come in the order of the batches."
    watermark = "give the source a watermark and group by a window of its column"
    if sink.table is not None:
        return f" A table accepts finished rows only: {watermark}."
    return f" Set `mode: update` or `mode: complete`, or {watermark}."


def is_data_error(error: BaseException) -> bool:
    """Whether a batch query failed because of its data or code."""
    return _is_mistake(str(error), spark_sentence(error), "")


def _is_mistake(text: str, reason: str, file: str) -> bool:
    """Whether it looks like an error of code or data, which the same batch would cause again.

    So does every exception that passed through the pipeline's own code, unless the cause is external.
    """
    place = f"{os.path.basename(file)} line "
    kind = reason.removeprefix(place).lstrip("0123456789").removeprefix(": ").partition(":")[0]
    is_own = bool(file) and reason.startswith(place) and kind not in _OUTSIDE
    return is_own or kind in _MISTAKES or _BATCH_ERROR.search(text.split(_PLAN)[0]) is not None


def _batch(text: str) -> str:
    """Return the offset range of the batch as reported by Spark; empty if it reports none."""
    return "\n".join(_OBJECT.sub("", line) for line in _OFFSETS.findall(text))
