"""Records of requests as JSON: one object with stable names in snake case per record of the topic."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from klamm.request_log.trace_records import RequestRecord, Wait

_STRUCTURED: Final = frozenset({"partitions", "errors", "waits"})


def to_json(record: RequestRecord, broker_id: int) -> bytes:
    fields: dict[str, Any] = {"kind": "request", "broker_id": broker_id}
    for field in dataclasses.fields(record):
        if field.name not in _STRUCTURED:
            value = getattr(record, field.name)
            fields[field.name] = round(value, 3) if isinstance(value, float) else value
    first = record.partitions[0] if record.partitions else None
    fields["topic"] = None if first is None else first.topic
    fields["partition"] = None if first is None or first.partition < 0 else first.partition
    fields["partitions"] = [named._asdict() for named in record.partitions]
    fields["errors"] = [{"error": name, "count": count} for name, count in record.errors]
    fields["waits"] = [_wait(wait) for wait in record.waits]
    return json.dumps(fields, separators=(",", ":")).encode()


def _wait(wait: Wait) -> dict[str, Any]:
    fields = wait._asdict()
    fields["start_ms"], fields["duration_ms"] = round(wait.start_ms, 3), round(wait.duration_ms, 3)
    fields["by"] = None if wait.by is None else wait.by._asdict()
    return fields


def key_of(record: RequestRecord) -> bytes:
    """Return the API, so that tools can group by it."""
    return record.api.encode()
