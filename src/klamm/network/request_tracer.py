"""RequestTracer: chooses the requests to trace, and makes the record of each when its response has left.

While it is off, a request costs the tests of an attribute. While it is on, a request that is not traced costs one call
more. While a traced request waits, the tracer marks each handled request, so that the wait can name its cause. At other
times it does not, because a mark costs more than the rest of tracing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, Protocol
from uuid import UUID

from klamm.clock import Clock
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import REQUEST_LOG_TOPIC
from klamm.network.request_names import named_partitions
from klamm.protocol.wire import Message
from klamm.request_log.handling import HANDLED, HandledRequest, RequestWaits, WaitTrace, cut
from klamm.request_log.trace_records import MAX_LISTED, Named, RequestRecord

RING_RECORDS: Final = 1_000
"""Records that stay in memory for the viewer: about a megabyte."""
_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_OWN: Final = f"{REQUEST_LOG_TOPIC}-"


@lazy_dataclass(frozen=True, slots=True)
class TraceSettings:
    """`sample` 0 is off, N one request in N. An empty filter admits everything; a name may end with `*`."""

    sample: int = 0
    apis: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    slower_than_ms: float = 0.0


class TracedApi(Protocol):
    """The API of a request."""

    @property
    def name(self) -> str: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def dispatch(self) -> Callable[[Any, Any], Any]: ...
    @property
    def read_error_codes(self) -> Callable[[Any], list[int] | None]: ...


class TracedChannel(Protocol):
    """The connection of a request."""

    @property
    def principal(self) -> str: ...
    @property
    def connection_id(self) -> str: ...
    @property
    def listener_name(self) -> str: ...
    @property
    def processor_id(self) -> int: ...


class TracedRequest(HandledRequest, Protocol):
    """`Request`, as far as it is recorded."""

    api_version: int
    received_at: float
    remote_done_at: float
    size_bytes: int
    response_size_bytes: int
    is_dropped: bool
    closes_connection: bool
    trace: RequestTrace | None

    @property
    def api(self) -> TracedApi: ...
    @property
    def channel(self) -> TracedChannel: ...
    def has_ended(self) -> bool: ...


class _Names:
    """Names and prefixes."""

    def __init__(self, names: Iterable[str]) -> None:
        self._exact = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))

    def __bool__(self) -> bool:
        return bool(self._exact or self._prefixes)

    def __contains__(self, name: str) -> bool:
        return name in self._exact or name.startswith(self._prefixes)


class RequestTracer:
    """Owner: the broker loop. `records` is a ring of the last records."""

    def __init__(self, clock: Clock) -> None:
        self.is_on = False
        self.left = 0
        """Requests until `begin` is due."""
        self.waiting = 0
        """Traced requests that have begun to wait and whose response has not left."""
        self.records: deque[RequestRecord] = deque(maxlen=RING_RECORDS)
        self.recorded = 0
        self.on_record: Callable[[RequestRecord], None] | None = None
        """Receives each record as well; set while the topic is written."""
        self.topic_name: Callable[[UUID], str | None] = lambda topic_id: None
        self._now_ms = clock.now_ms
        self.monotonic: Final = clock.monotonic
        self._settings = TraceSettings()
        self._apis: _Names | None = None
        self._client_ids, self._topics = _Names(()), _Names(())
        self._left_of_apis = 0
        self._state = 0

    @property
    def settings(self) -> TraceSettings:
        return self._settings

    def apply(self, settings: TraceSettings) -> None:
        """Use other settings from the next request on."""
        self._settings = settings
        self._apis = _Names(settings.apis) if settings.apis else None
        self._client_ids, self._topics = _Names(settings.client_ids), _Names(settings.topics)
        self.left = self._left_of_apis = 1
        self.is_on = settings.sample > 0

    # The way of a request.

    def is_due(self) -> bool:
        """Count a request while the tracer is on. Return whether it is the turn of this one: `begin` comes next."""
        self.left -= 1
        return self.left <= 0

    def begin(self, request: TracedRequest, queue_size: int, control_queue_size: int) -> None:
        """Trace this request; if APIs are chosen, only if it is of one of them and it is its turn among those."""
        if self._apis is None:
            self.left = self._gap()
        else:
            self.left = 1
            if request.api.name not in self._apis:
                return
            self._left_of_apis -= 1
            if self._left_of_apis > 0:
                return
            self._left_of_apis = self._gap()
        request.trace = RequestTrace(self, self._now_ms(), queue_size, control_queue_size)

    def _gap(self) -> int:
        """Return the distance to the next traced request, N on average.

        A fixed distance would see only one of two requests that alternate.
        """
        sample = self._settings.sample
        if sample <= 1:
            return 1
        self._state = (self._state + _STEP) & _MASK
        return 1 + (self._state * (2 * sample - 1) >> 64)

    def dispatch(self, request: TracedRequest, message: Any) -> Any:
        """Call the handler. Everything that it starts can look up the request.

        This is used for traced requests, and for all requests while a traced one waits.
        """
        if request.trace is not None:
            request.trace.note_request(message)
        token = HANDLED.set(request)
        try:
            result = request.api.dispatch(request, message)
        finally:
            HANDLED.reset(token)
        if request.trace is not None and isinstance(result, Message):
            request.trace.note_errors(request.api.read_error_codes(result))
        return result

    def within(self, request: TracedRequest, steps: Generator[None, None, Any]) -> Generator[None, None, Any]:
        """Take the steps of the handler. A step is marked if it begins while a traced request waits."""
        try:
            while True:
                token = HANDLED.set(request if self.waiting or request.trace is not None else None)
                try:
                    next(steps)
                except StopIteration as done:
                    return done.value
                finally:
                    HANDLED.reset(token)
                yield
        finally:
            steps.close()

    def note_waiting(self) -> None:
        """Count a traced request that begins to wait for the first time. `finish` takes it out."""
        self.waiting += 1

    # The end.

    def is_wanted_topic(self, topic: str) -> bool:
        return topic in self._topics

    def finish(self, trace: RequestTrace, request: TracedRequest, row: tuple[float, ...]) -> None:
        """Keep the record if the filters admit it. `row` is that of the request's metrics."""
        request.trace = None
        self.waiting -= bool(trace.waits)
        if row[7] < self._settings.slower_than_ms or trace.is_of_the_log:
            return
        if self._client_ids and (request.client_id or "") not in self._client_ids:
            return
        if self._topics and not trace.has_wanted_topic:
            return
        self.recorded += 1
        record = trace.record(request, row, self.recorded)
        self.records.append(record)
        if self.on_record is not None:
            self.on_record(record)


class RequestTrace(RequestWaits):
    """A request that is traced, until its response has left."""

    __slots__ = (
        "_at_ms",
        "_control_queue_size",
        "_errors",
        "_own_count",
        "_partition_count",
        "_partitions",
        "_queue_size",
        "_tracer",
        "has_wanted_topic",
    )

    def __init__(self, tracer: RequestTracer, at_ms: int, queue_size: int, control_queue_size: int) -> None:
        super().__init__(tracer.monotonic)
        self._tracer = tracer
        self._at_ms = at_ms
        self._queue_size = queue_size
        self._control_queue_size = control_queue_size
        self._partitions: list[Named] = []
        self._partition_count = 0
        self._own_count = 0
        self._errors: dict[int, int] = {}
        self.has_wanted_topic = False

    def begin_wait(self, purgatory: str) -> WaitTrace:
        if not self.waits:
            self._tracer.note_waiting()
        return super().begin_wait(purgatory)

    def note_request(self, message: Any) -> None:
        self.note_partitions(named_partitions(message))

    def note_partitions(self, partitions: Iterable[tuple[str | UUID, int]]) -> None:
        """Add partitions that the request is about: named in it, or remembered in its fetch session."""
        for topic, number in partitions:
            name = self._tracer.topic_name(topic) or str(topic) if isinstance(topic, UUID) else topic
            self._partition_count += 1
            self._own_count += name == REQUEST_LOG_TOPIC
            self.has_wanted_topic = self.has_wanted_topic or self._tracer.is_wanted_topic(name)
            if len(self._partitions) < MAX_LISTED:
                self._partitions.append(Named(cut(name) or "", number))

    def set_partitions(self, partitions: Iterable[tuple[str | UUID, int]]) -> None:
        """Forget the partitions that were noted: the handler knows more than the request says."""
        self._partitions.clear()
        self._partition_count = self._own_count = 0
        self.has_wanted_topic = False
        self.note_partitions(partitions)

    def note_errors(self, codes: Iterable[int] | None) -> None:
        """Count the error codes of the response; None stands for a response that is too large to look at."""
        errors = self._errors
        for code in codes if codes is not None else ():
            if code and (code in errors or len(errors) < MAX_LISTED):
                errors[code] = errors.get(code, 0) + 1

    @property
    def is_of_the_log(self) -> bool:
        """Whether the request concerns the request log only. Traces of such requests would cause further traces."""
        if 0 < self._partition_count == self._own_count:
            return True
        return any(wait.purgatory == "Fetch" and (wait.key or "").startswith(_OWN) for wait in self.waits)

    def end(self, request: TracedRequest, row: tuple[float, ...]) -> None:
        self._tracer.finish(self, request, row)

    def record(self, request: TracedRequest, row: tuple[float, ...], sequence: int) -> RequestRecord:
        received_at, channel = request.received_at, request.channel
        queue_ms, local_ms, remote_ms, throttle_ms, order_ms, response_queue_ms, send_ms, total_ms, _ = row
        errors = tuple((_name(code), count) for code, count in self._errors.items())
        return RequestRecord(
            sequence=sequence,
            at_ms=self._at_ms,
            api=request.api.name,
            api_version=request.api_version,
            correlation_id=request.correlation_id,
            client_id=cut(request.client_id),
            principal=cut(channel.principal) or "",
            connection_id=channel.connection_id,
            listener=channel.listener_name,
            plane="control" if request.api.is_control else "data",
            processor=channel.processor_id,
            queue_size=self._queue_size,
            control_queue_size=self._control_queue_size,
            request_bytes=request.size_bytes,
            response_bytes=request.response_size_bytes,
            partition_count=self._partition_count,
            partitions=tuple(self._partitions),
            error=errors[0][0] if errors else ErrorCode.NONE.name,
            errors=errors,
            outcome=_outcome(request),
            total_ms=total_ms,
            request_queue_ms=queue_ms,
            local_ms=local_ms,
            remote_ms=remote_ms,
            response_order_ms=order_ms,
            response_queue_ms=response_queue_ms,
            send_ms=send_ms,
            throttle_ms=throttle_ms,
            waits=tuple(wait.frozen(received_at, request.remote_done_at) for wait in self.waits),
        )


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _outcome(request: TracedRequest) -> str:
    if request.is_dropped:
        return "dropped"
    if request.closes_connection:
        return "closed"
    if request.response_size_bytes:
        return "answered"
    return "connection ended" if request.has_ended() else "no response"
