"""A fetch session skips only partitions that have nothing new for its reader.

A session keeps the partitions that may have news and skips all others (`replica/fetch_session.py`). This checker is the
full walk: it compares every skipped partition with the state that the reader was sent last.
"""

from __future__ import annotations

from typing import Any, cast

from klamm.broker import Broker
from klamm.model import NO_EPOCH
from klamm.replica.fetch_session import SessionPartition
from klamm.replica.partition import Partition
from klamm.replica.partition_reader import Isolation
from klamm.sim.checkers import require


def check_sessions(broker: Broker) -> None:
    """Check the sessions of all readers of a broker, between two steps of its loop."""
    for session in broker.fetch_sessions:
        for partition in session.partitions.values():
            if partition not in session.changed:
                isolation, replica_id, _, client, *_ = cast("tuple[Any, ...]", session.reader)
                hosted = broker.replicas.hosted(partition.tp)
                news = _news(partition, hosted, isolation, needs_leader=replica_id != -2 and client is None)
                reader = f"broker {replica_id}" if replica_id >= 0 else "a consumer"
                require(not news, f"broker {broker.id}: a fetch session of {reader} skips {partition.tp}: {news}")


def _news(partition: SessionPartition, hosted: Partition | None, isolation: Isolation, *, needs_leader: bool) -> str:
    """Return the change that the reader would see in the next answer; "" if there is none."""
    if hosted is None or hosted.log is None:
        return "it is no longer hosted"
    log, fetch = hosted.log, partition.fetch
    if log.disk.is_failed:
        return ""
    if needs_leader and hosted.leader != hosted.broker_id:
        return f"broker {hosted.leader} leads it"
    if fetch.current_leader_epoch not in (NO_EPOCH, hosted.leader_epoch):
        return f"its leader epoch is {hosted.leader_epoch}, not {fetch.current_leader_epoch}"
    ends = {
        Isolation.LOG_END: log.log_end_offset,
        Isolation.HIGH_WATERMARK: log.high_watermark,
        Isolation.TXN_COMMITTED: log.last_stable_offset,
    }
    if not ends[isolation] <= fetch.fetch_offset <= log.log_end_offset:
        return f"the reader is at {fetch.fetch_offset}, it may read up to {ends[isolation]} of {log.log_end_offset}"
    if partition.high_watermark != log.high_watermark:
        return f"the high watermark is {log.high_watermark}, {partition.high_watermark} was sent"
    if partition.log_start_offset != log.log_start_offset:
        return f"the log starts at {log.log_start_offset}, {partition.log_start_offset} was sent"
    return ""
