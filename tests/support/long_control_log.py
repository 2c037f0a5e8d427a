"""A long control log, for tests and measurements of the viewer."""

from __future__ import annotations

import json
from typing import Final

PARTITIONS: Final = 10_000
CHANGES: Final = 12_000
HOUR_MS: Final = 3_600_000


def long_control_log() -> tuple[bytes, ...]:
    """An hour with 1,000 topics of 10 partitions: every partition changes, and every request is seen."""
    records: list[bytes] = []

    def add(kind: str, at: float, broker: int, **fields: object) -> None:
        common = {"kind": kind, "at_ms": at, "broker_id": broker, "controller_epoch": 1}
        records.append(json.dumps({**common, **fields}).encode())

    add("controller_changed", 0, 1, controller_id=1)
    for number in range(CHANGES):
        at = number * HOUR_MS / CHANGES
        tp = number % PARTITIONS
        topic, partition, leader, epoch = f"topic{tp // 10}", tp % 10, number % 3 + 1, number // PARTITIONS
        listed = [{"topic": topic, "partition": partition, "leader": leader, "leader_epoch": epoch}]
        event = {"event": "AlterPartition", "number": number, "state": 9, "state_name": "IsrChange"}
        add("event_queued", at, 1, cause="request", topics=[topic], about_broker=leader, queue_size=1, **event)
        add("event_started", at + 1, 1, queue_ms=1.0, **event)
        change = {"topic": topic, "partition": partition, "leader": leader, "leader_epoch": epoch, "isr": [1, 2, 3]}
        before = {"previous_leader": leader, "previous_isr": [1, 2], "partition_epoch": number}
        add("isr_change", at + 5, 1, event="AlterPartition", number=number, **change, **before)
        for broker in (1, 2, 3):
            of = {
                "api": "UpdateMetadata",
                "target": broker,
                "broker_epoch": 5,
                "partition_count": 1,
                "partitions": listed,
            }
            add("request_sent", at + 6, 1, send_number=number, correlation_id=number, attempt=1, queue_ms=0.2, **of)
            applied = {"update_count": number, "live_brokers": [1, 2, 3], "partition_count": 1, "partitions": listed}
            add("metadata_applied", at + 8, broker, controller_id=1, correlation_id=number, **applied)
        add("event_done", at + 9, 1, duration_ms=8.0, outcome="done", **event)
    return tuple(records)
