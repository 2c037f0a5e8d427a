"""The resources of a broker from its metrics: memory, disks, and how idle its loops and handlers are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CPU_MS: Final = "klamm_server_process_cpums_total"
_MEMORY: Final = "klamm_server_process_residentbytes"
_DISK_TOTAL: Final = "klamm_log_logmanager_disktotalbytes"
_DISK_USABLE: Final = "klamm_log_logmanager_diskusablebytes"
_OFFLINE: Final = "kafka_log_logmanager_offlinelogdirectorycount"
_LOOP_IDLE: Final = "klamm_server_eventloop_idlepercent"
_LOOP_LAG: Final = "klamm_server_eventloop_lagmsmax"
_HANDLER_IDLE: Final = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
_NETWORK_IDLE: Final = "kafka_network_socketserver_networkprocessoravgidlepercent"
_QUEUE_MAX: Final = "klamm_network_requestchannel_requestqueuesizemax"
_CONTROL_QUEUE: Final = "kafka_network_requestchannel_controlplanerequestqueuesize"
NAMES: Final = (
    *(CPU_MS, _MEMORY, _DISK_TOTAL, _DISK_USABLE, _OFFLINE, _LOOP_IDLE, _LOOP_LAG),
    *(_HANDLER_IDLE, _NETWORK_IDLE, _QUEUE_MAX, _CONTROL_QUEUE),
)
_TAGGED: Final = re.compile(r'(?P<name>\w+)\{\w+="(?P<value>(?:[^"\\]|\\.)*)"\}')


@dataclass(frozen=True, slots=True)
class BrokerResources:
    """Unknown values are None. Shares are from 0 to 1.

    The disk is that of the log directory with the smallest usable share. `loop_idle` and `loop_lag_max_ms` have the
    loops `broker` and `control`; the largest lag and the longest queue are those of the last minute.
    """

    memory_bytes: int | None = None
    disk_total: int | None = None
    disk_usable: int | None = None
    offline_dirs: int | None = None
    handler_idle: float | None = None
    network_idle: float | None = None
    queue_max: int | None = None
    control_queue: int | None = None
    loop_idle: Mapping[str, float] = field(default_factory=dict)
    loop_lag_max_ms: Mapping[str, float] = field(default_factory=dict)


def resources(metrics: Mapping[str, float]) -> BrokerResources:
    """Read one reading of a broker's metrics, by name and tags."""
    total, usable = fullest_disk(by_tag(metrics, _DISK_TOTAL), by_tag(metrics, _DISK_USABLE))
    return BrokerResources(
        memory_bytes=_whole(metrics.get(_MEMORY)),
        disk_total=total,
        disk_usable=usable,
        offline_dirs=_whole(metrics.get(_OFFLINE)),
        handler_idle=metrics.get(_HANDLER_IDLE),
        network_idle=metrics.get(_NETWORK_IDLE),
        queue_max=_whole(metrics.get(_QUEUE_MAX)),
        control_queue=_whole(metrics.get(_CONTROL_QUEUE)),
        loop_idle=by_tag(metrics, _LOOP_IDLE),
        loop_lag_max_ms=by_tag(metrics, _LOOP_LAG),
    )


def by_tag(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """Return the values of a metric with one tag, by the tag's value."""
    matches = ((_TAGGED.fullmatch(sample), value) for sample, value in metrics.items() if sample.startswith(name))
    return {found["value"]: value for found, value in matches if found is not None and found["name"] == name}


def fullest_disk(totals: Mapping[str, float], usable: Mapping[str, float]) -> tuple[int | None, int | None]:
    """Return (total, usable) bytes of the directory that has the smallest usable share. -1 means unknown."""
    known = [(total, usable[path]) for path, total in totals.items() if total > 0 and usable.get(path, -1) >= 0]
    total, free = min(known, key=lambda pair: pair[1] / pair[0], default=(None, None))
    return _whole(total), _whole(free)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
