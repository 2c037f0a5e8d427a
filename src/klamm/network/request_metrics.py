"""RequestMetrics: how often each API is called, how it fails, and where its time goes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.metrics import Meter, MetricsRegistry, SampleTable
from klamm.protocol.schema import Type, plan
from klamm.protocol.wire import Message

_GROUP: Final = "kafka.network"
_TYPE: Final = "RequestMetrics"

ELEMENTS: Final = 500
"""Elements of a large response whose errors are counted per step: some tenths of a millisecond."""
MAX_CODES: Final = 256
"""A response with more partitions (or topics, groups, members) is counted and encoded in slices."""
MAX_WHOLE_ELEMENTS: Final = 64
"""A response with at most this many elements in all its arrays is encoded whole: the worst takes two milliseconds."""
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
"""The histograms of an API.

ResponseOrderTimeMs, which Kafka does not have, is the wait for the responses to earlier requests of the connection.
"""
Stamps = Sequence[float]
"""A row of an API's table: when a request was received, taken, handled, complete, in its turn, flushed and sent, in
seconds, then its throttle time in milliseconds and its size in bytes. The columns are computed when they are read.
"""
_COMPUTED: Final[tuple[Callable[[Stamps], float], ...]] = (
    lambda stamps: (stamps[1] - stamps[0]) * 1000,
    lambda stamps: (stamps[2] - stamps[1]) * 1000,
    lambda stamps: (stamps[3] - stamps[2]) * 1000,
    lambda stamps: stamps[7],
    lambda stamps: (stamps[4] - stamps[3]) * 1000,
    lambda stamps: (stamps[5] - stamps[4]) * 1000,
    lambda stamps: (stamps[6] - stamps[5]) * 1000,
    lambda stamps: (stamps[6] - stamps[0]) * 1000,
    lambda stamps: stamps[8],
)


def columns_of(stamps: Stamps) -> tuple[float, ...]:
    """Return the values of one request in the order of `COLUMNS`."""
    return tuple(column(stamps) for column in _COMPUTED)


class RequestMetrics:
    """The metrics of one API name."""

    def __init__(self, registry: MetricsRegistry, name: str) -> None:
        self.name = name
        self._registry = registry
        self._errors: dict[int, Meter] = {}
        self._requests: dict[int, Meter] = {}
        self.table = SampleTable()
        for column, value in zip(COLUMNS, _COMPUTED, strict=True):
            registry.register(_GROUP, _TYPE, column, {"request": name}, self.table.computed_column(value))

    def requests(self, version: int) -> Meter:
        meter = self._requests.get(version)
        if meter is None:
            tags = {"request": self.name, "version": str(version)}
            meter = self._requests[version] = self._registry.meter(_GROUP, _TYPE, "RequestsPerSec", tags)
        return meter

    def record(self, version: int, stamps: Stamps) -> None:
        self.table.append(stamps)
        meter = self.requests(version)
        meter.count += 1

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


def small_error_code_reader(response: type[Message], version: int) -> Callable[[Any], list[int] | None]:
    """Return a function like `error_code_reader`'s for responses that may be large although they have few error codes.

    It returns None if all arrays of the response together have more than `MAX_WHOLE_ELEMENTS` elements.
    """
    lines = ["def error_codes(v0):", "    codes = []; n = 0"]
    lines += _small_reader_lines(plan(response, version), 0)
    lines.append("    return codes")
    env: dict[str, Any] = {}
    exec("\n".join(lines), env)
    reader: Callable[[Any], list[int] | None] = env["error_codes"]
    return reader


def sliced_error_counter(response: type[Message]) -> Callable[[Any, RequestMetrics], Generator[None, None, None]]:
    """Return a generator function that counts the `error_code`s of a response of any size."""
    count = "metrics.count_errors(codes); codes.clear()"
    lines = ["def count_errors(v0, metrics):", "    codes = []; n = 0"]
    pause = ("n += 1", f"if n > {ELEMENTS}: {count}; n = 0; yield")
    lines += _reader_lines(plan(response, response.VERSIONS[-1]), 0, "pass", pause)
    lines.append(f"    {count}; yield")
    env: dict[str, Any] = {}
    exec("\n".join(lines), env)
    counter: Callable[[Any, RequestMetrics], Generator[None, None, None]] = env["count_errors"]
    return counter


def _reader_lines(struct: Type, depth: int, at_array: str, at_element: tuple[str, ...] = ()) -> list[str]:
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
                lines += [f"{indent}    {line}" for line in at_element]
                lines += inner
    return lines


def _small_reader_lines(struct: Type, depth: int) -> list[str]:
    """Return the statements that append the codes of the struct in `v<depth>` and count the elements of its arrays."""
    lines, indent = [], "    " * (depth + 1)
    for slot in struct.fields:
        if slot.name == "error_code":
            lines.append(f"{indent}codes.append(v{depth}.error_code)")
        elif not slot.present:
            continue
        elif slot.type.is_array and slot.type.element is not None:
            lines.append(f"{indent}a = v{depth}.{slot.name}")
            lines.append(f"{indent}if a:")
            lines.append(f"{indent}    n += len(a)")
            lines.append(f"{indent}    if n > {MAX_WHOLE_ELEMENTS}: return None")
            inner = _small_reader_lines(slot.type.element, depth + 1) if slot.type.element.struct is not None else []
            if inner:
                lines += [f"{indent}    for v{depth + 1} in a:", *(f"    {line}" for line in inner)]
        elif slot.type.struct is not None and _has_arrays(slot.type):
            lines.append(f"{indent}return None")
    return lines


def _has_arrays(struct: Type) -> bool:
    return any(
        slot.type.is_array or (slot.type.struct is not None and _has_arrays(slot.type)) for slot in struct.fields
    )
