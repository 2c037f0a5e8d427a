"""RequestMetrics: how often each API is called, how it fails, and where its time goes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.metrics import Meter, MetricsRegistry, SampleTable
from klamm.protocol.schema import Type, plan
from klamm.protocol.wire import Message

_GROUP: Final = "kafka.network"
_TYPE: Final = "RequestMetrics"

MAX_CODES: Final = 256
"""A response with more partitions (or topics, groups, members) is counted and encoded in slices."""
COLUMNS: Final = (
    "RequestQueueTimeMs",
    "LocalTimeMs",
    "RemoteTimeMs",
    "ThrottleTimeMs",
    "ResponseOrderTimeMs",
    "ResponseQueueTimeMs",
    "ResponseSendTimeMs",
    "TotalTimeMs",
    "RequestBytes",
)
"""The histograms of an API, in the order of a row of its table.

ResponseOrderTimeMs, which Kafka does not have, is the wait for the responses to earlier requests of the connection.
"""


class RequestMetrics:
    """The metrics of one API name. `record` takes a row of `COLUMNS`."""

    def __init__(self, registry: MetricsRegistry, name: str) -> None:
        self.name = name
        self._registry = registry
        self._errors: dict[int, Meter] = {}
        self._requests: dict[int, Meter] = {}
        self.table = SampleTable()
        for index, column in enumerate(COLUMNS):
            registry.register(_GROUP, _TYPE, column, {"request": name}, self.table.column(index))

    def requests(self, version: int) -> Meter:
        meter = self._requests.get(version)
        if meter is None:
            tags = {"request": self.name, "version": str(version)}
            meter = self._requests[version] = self._registry.meter(_GROUP, _TYPE, "RequestsPerSec", tags)
        return meter

    def record(self, version: int, row: tuple[float, ...]) -> None:
        self.table.append(row)
        self.requests(version).count += 1

    def count_errors(self, codes: Iterable[int]) -> None:
        errors = self._errors
        for code in codes:
            meter = errors.get(code)
            if meter is None:
                meter = errors[int(code)] = self._error_meter(code)
            meter.count += 1

    def _error_meter(self, code: int) -> Meter:
        try:
            name = ErrorCode(code).name
        except ValueError:
            name = ErrorCode.UNKNOWN_SERVER_ERROR.name
        return self._registry.meter(_GROUP, _TYPE, "ErrorsPerSec", {"request": self.name, "error": name})


def error_code_reader(response: type[Message]) -> Callable[[Any], list[int] | None]:
    """Return a function that lists the `error_code`s of a response. It is compiled from the schema.

    It returns None as soon as it meets an array of more than `MAX_CODES` elements.
    """
    lines = ["def error_codes(v0):", "    codes = []"]
    lines += _reader_lines(plan(response, response.VERSIONS[-1]), 0, f"if len(a) > {MAX_CODES}: return None")
    lines.append("    return codes")
    env: dict[str, Any] = {}
    exec("\n".join(lines), env)
    reader: Callable[[Any], list[int] | None] = env["error_codes"]
    return reader


def sliced_error_counter(response: type[Message]) -> Callable[[Any, RequestMetrics], Generator[None, None, None]]:
    """Return a generator function that counts the `error_code`s of a response of any size."""
    count = "metrics.count_errors(codes); codes.clear()"
    lines = ["def count_errors(v0, metrics):", "    codes = []"]
    lines += _reader_lines(plan(response, response.VERSIONS[-1]), 0, "pass", f"if len(codes) > 5000: {count}; yield")
    lines.append(f"    {count}; yield")
    env: dict[str, Any] = {}
    exec("\n".join(lines), env)
    counter: Callable[[Any, RequestMetrics], Generator[None, None, None]] = env["count_errors"]
    return counter


def _reader_lines(struct: Type, depth: int, at_array: str, at_element: str = "") -> list[str]:
    """Return the statements that append the codes of the struct in `v<depth>`; none if it has no codes."""
    lines, indent = [], "    " * (depth + 1)
    for slot in struct.fields:
        if slot.name == "error_code":
            lines.append(f"{indent}codes.append(v{depth}.error_code)")
        elif slot.type.is_array and slot.type.element is not None and slot.type.element.struct is not None:
            inner = _reader_lines(slot.type.element, depth + 1, at_array, at_element)
            if inner:
                lines.append(f"{indent}a = v{depth}.{slot.name} or ()")
                lines.append(f"{indent}{at_array}")
                lines.append(f"{indent}for v{depth + 1} in a:")
                if at_element:
                    lines.append(f"{indent}    {at_element}")
                lines += inner
    return lines
