"""Records as JSON: one flat object with stable names in snake case per record of the topic."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from typing import Any, Final

from klamm.control_log.buffer import Entry
from klamm.control_log.records import ControlRecord, LeadershipChange
from klamm.model import NO_LEADER, TopicPartition

_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode


def to_json(entry: Entry, broker_id: int, loop_name: str) -> bytes:
    record = entry.record
    fields = {
        "kind": record.KIND,
        "at_ms": entry.at_ms,
        "monotonic_ms": round(entry.monotonic_s * 1000, 3),
        "broker_id": broker_id,
        "loop": loop_name,
        "sequence": entry.sequence,
    }
    fields.update(_leadership(record) if isinstance(record, LeadershipChange) else _fields(record))
    return _ENCODE(fields).encode()


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _fields(record: ControlRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    kind: Any = type(record)
    for name in _names(kind):
        value = getattr(record, name)
        if hasattr(value, "_asdict"):  # a request or a topic-partition: its parts become fields
            fields.update({part: _plain(item) for part, item in value._asdict().items()})
        else:
            fields[name] = _plain(value)
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, tuple):
        return [item._asdict() if hasattr(item, "_asdict") else item for item in value]
    return value


def _leadership(record: LeadershipChange) -> dict[str, Any]:
    before, after = record.before, record.after
    fields: dict[str, Any] = {
        "controller_epoch": record.controller_epoch,
        "event": record.event,
        "number": record.number,
        "topic": record.partition.topic,
        "partition": record.partition.partition,
        "leader": after.leader,
        "leader_epoch": after.leader_epoch,
        "isr": list(after.isr),
        "partition_epoch": after.partition_epoch,
        "previous_leader": NO_LEADER if before is None else before.leader,
        "previous_isr": [] if before is None else list(before.isr),
        "state": record.state,
        "state_name": record.state_name,
    }
    if record.strategy:
        fields["strategy"] = record.strategy
        fields["unclean"] = before is not None and after.leader != NO_LEADER and after.leader not in before.isr
    return fields


def key_of(entry: Entry) -> bytes | None:
    """Return the partition of a record, so that tools can group by it; None if it concerns several."""
    partition = getattr(entry.record, "partition", None)
    return str(partition).encode() if isinstance(partition, TopicPartition) else None
