"""The APIs that a broker serves, resolved once per version so that a request costs one lookup."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from klamm.metrics import Meter, MetricsRegistry
from klamm.network.request_context import ApiSpec, Dispatched, Plane, RequestContext
from klamm.network.request_metrics import (
    RequestMetrics,
    error_code_reader,
    sliced_error_counter,
    small_error_code_reader,
)
from klamm.protocol.frames import RESPONSE_HEADERS, request_header_version, response_header_version
from klamm.protocol.wire import Message

ENCODED_WHOLE: Final = frozenset({0, 1, 8, 12})
"""Frequent APIs (Produce, Fetch, OffsetCommit, Heartbeat) whose response size follows from the number of error codes.

Their responses are encoded in slices above `MAX_CODES` partitions, all others above `MAX_WHOLE_ELEMENTS` elements.
"""


class ApiTableEntry:
    """A declared API at one version: the values that the hot path needs, looked up in advance. It declares nothing."""

    __slots__ = (
        "_count_errors",
        "_spec",
        "dispatch",
        "has_client_id",
        "is_control",
        "is_read",
        "is_request_flexible",
        "key",
        "metric_name",
        "metrics",
        "name",
        "pack_response_header",
        "read_error_codes",
        "read_small_error_codes",
        "request",
        "requests",
        "response_header_bytes",
        "response_header_version",
        "version",
    )

    def __init__(self, spec: ApiSpec, version: int, metrics: RequestMetrics) -> None:
        self._spec = spec
        self.key = spec.key
        self.name = spec.name
        self.version = version
        self.request: type[Message] = spec.request
        self.is_control = spec.plane is Plane.CONTROL
        self.is_read = spec.is_read
        self.is_request_flexible = version >= spec.request.FLEXIBLE
        self.has_client_id = request_header_version(spec.key, version) > 0
        self.response_header_version = response_header_version(spec.key, version)
        self.response_header_bytes = 4 + self.response_header_version
        """Bytes of the header, without the size before it."""
        self.pack_response_header: Callable[[int, int], bytes] = RESPONSE_HEADERS[self.response_header_version].pack
        self.dispatch: Callable[[RequestContext, Any], Dispatched] = spec.dispatch
        self.metric_name = spec.metric_name
        self.metrics = metrics
        self.requests: Meter | None = None
        self.read_error_codes: Callable[[Any], list[int] | None] = self._first_error_codes
        """Return the error codes of a response, or None if it is so large that they must be counted in slices."""
        self.read_small_error_codes: Callable[[Any], list[int] | None] = self._first_small_error_codes
        """The same, but None for every response that must be encoded in slices."""
        self._count_errors: Callable[[Any, RequestMetrics], Generator[None, None, None]] | None = None

    def _first_error_codes(self, response: Message) -> list[int] | None:
        """Compile the reader at the first response, so that a start compiles none."""
        self.read_error_codes = error_code_reader(self._spec.response)
        return self.read_error_codes(response)

    def _first_small_error_codes(self, response: Message) -> list[int] | None:
        response_class = self._spec.response
        if self.key in ENCODED_WHOLE:
            self.read_small_error_codes = error_code_reader(response_class)
        else:
            self.read_small_error_codes = small_error_code_reader(response_class, self.version)
        return self.read_small_error_codes(response)

    def count_errors_in_slices(self, response: Message) -> Generator[None, None, None]:
        if self._count_errors is None:
            self._count_errors = sliced_error_counter(self._spec.response)
        return self._count_errors(response, self.metrics)

    def first_request(self) -> Meter:
        """Create the meter at the first request of this version, so that unused versions have none."""
        self.requests = self.metrics.requests(self.version)
        return self.requests


class ApiTable:
    """Finds an `ApiTableEntry` by key and version."""

    def __init__(self, specs: Iterable[ApiSpec], registry: MetricsRegistry) -> None:
        self._registry = registry
        self._metrics: dict[str, RequestMetrics] = {}
        self._ranges: dict[int, tuple[int, int]] = {}
        self.by_code: dict[int, ApiTableEntry] = {}
        for spec in specs:
            self._add(spec)

    def _add(self, spec: ApiSpec) -> None:
        if spec.key in self._ranges:
            raise ValueError(f"API key {spec.key} is declared twice")
        low, high = spec.versions
        self._ranges[spec.key] = (low, high)
        metrics = self.metrics(spec.name)
        for version in range(low, high + 1):
            self.by_code[code_of(spec.key, version)] = ApiTableEntry(spec, version, metrics)

    def metrics(self, name: str) -> RequestMetrics:
        """Return the metrics of an API name, or of one half of a split API. They are created on first use."""
        metrics = self._metrics.get(name)
        if metrics is None:
            metrics = self._metrics[name] = RequestMetrics(self._registry, name)
        return metrics

    def versions(self, key: int) -> tuple[int, int] | None:
        """Return the first and the last served version of a key, or None if the key is not served."""
        return self._ranges.get(key)


def code_of(key: int, version: int) -> int:
    """Return key and version as one number, as in the first four bytes of a request."""
    return key << 16 | version
