"""A trace as a waterfall: its phases and waits, each with its start and its duration. For records as JSON objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from klamm.lazy_dataclass import lazy_dataclass

Record = Mapping[str, Any]
_PHASES: Final = (
    ("request_queue_ms", "request queue"),
    ("local_ms", "handler"),
    ("remote_ms", "waits"),
    ("response_order_ms", "earlier responses"),
    ("response_queue_ms", "response queue"),
    ("send_ms", "send"),
)
_LEAST_MS: Final = 0.0005


class Bar(NamedTuple):
    """A phase, or a wait within one (`depth` 1). `text` says what ended a wait."""

    name: str
    start_ms: float
    duration_ms: float
    depth: int = 0
    text: str = ""


def bars(record: Record) -> list[Bar]:
    """Return the phases that took time, in their order, and the waits below the phase in which they happened."""
    found: list[Bar] = []
    start_ms = 0.0
    for field, name in _PHASES:
        duration_ms = float(record[field])
        if duration_ms >= _LEAST_MS:
            found.append(Bar(name, start_ms, duration_ms))
        if field == "remote_ms":
            found += [
                Bar(f"{it['purgatory']} purgatory", it["start_ms"], it["duration_ms"], 1, wait_text(it))
                for it in record["waits"]
            ]
        start_ms += duration_ms
    return found


def wait_text(wait: Record) -> str:
    """Return a sentence part: `orders-0, completed by Fetch of broker 3 (correlation id 331)`."""
    if wait["outcome"] != "completed":
        return str(wait["outcome"])
    key = f"{wait['key']}, " if wait["key"] else ""
    by = wait["by"]
    if by is None:
        return f"{key}completed by the broker itself"
    sender = f"client {by['client_id']}" if by["broker_id"] is None else f"broker {by['broker_id']}"
    return f"{key}completed by {by['api']} of {sender} (correlation id {by['correlation_id']})"


def drawn(bar: Bar, total_ms: float, width: int, block: str) -> str:
    """Return the bar as text of at most `width` characters."""
    scale = width / total_ms if total_ms > 0 else 0.0
    start = min(width - 1, int(bar.start_ms * scale))
    length = max(1, min(width - start, round(bar.duration_ms * scale)))
    return " " * start + block * length


@lazy_dataclass(frozen=True, slots=True)
class TraceFilter:
    """An empty filter admits everything; a name may end with `*`."""

    apis: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    slower_than_ms: float = 0.0
    brokers: tuple[int, ...] = ()

    def admits(self, record: Record) -> bool:
        return (
            record["total_ms"] >= self.slower_than_ms
            and (not self.brokers or record["broker_id"] in self.brokers)
            and _has(self.apis, [record["api"]])
            and _has(self.client_ids, [record["client_id"] or ""])
            and _has(self.topics, [named["topic"] for named in record["partitions"]])
        )


def _has(wanted: Sequence[str], names: Iterable[str]) -> bool:
    if not wanted:
        return True
    return any(name.startswith(it[:-1]) if it.endswith("*") else name == it for name in names for it in wanted)
