"""The contents of the pages Topics, Groups and Transactions: questions to the cluster, and bounded answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from klamm.client.client_errors import ClientError
from klamm.client.cluster_client import ClusterClient
from klamm.client.cluster_transactions import Transactions
from klamm.client.connection_pool import ClientConfig
from klamm.client.group_reader import GroupReader, owners
from klamm.client.missing_rights import missing_for_groups, missing_for_topics, sentences
from klamm.client.patience import VIEWER_TRANSACTIONS
from klamm.client.reset_rules import Bounds, ResetTarget, new_offsets
from klamm.client.topic_details import (
    TopicView,
    log_bounds,
    offsets_at,
    replica_sizes,
    topic_settings,
    topic_view,
    topic_views,
)
from klamm.client.transaction_views import OPEN_STATES, OpenTransaction
from klamm.model import TopicPartition

MAX_ROWS: Final = 500
MAX_GROUPS_OF_TOPIC: Final = 100
_MINUTE_MS: Final = 60_000


def topics_page(client: ClusterClient, text: str, with_internal: bool) -> dict[str, Any]:
    """Return the topics whose name contains the text, those that need attention first."""
    views = [each for each in topic_views(client) if text in each.name and (with_internal or not each.is_internal)]
    sizes, problems = replica_sizes(client)
    problems += sentences(client.retry("rights", lambda: missing_for_topics(client.any_broker())))
    rows = [_topic_row(each, sizes) for each in views]
    rows.sort(key=lambda row: (not row["offline"], not row["under_replicated"], row["is_internal"], row["name"]))
    return {"topics": rows[:MAX_ROWS], "count": len(rows), "problems": problems}


def _topic_row(topic: TopicView, sizes: Mapping[TopicPartition, Iterable[Any]]) -> dict[str, Any]:
    replicas = [replica for tp in topic.partition_ids() for replica in sizes.get(tp, ())]
    leaders = {TopicPartition(topic.name, part.index): part.leader for part in topic.partitions}
    return {
        "name": topic.name,
        "is_internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication": max((len(part.replicas) for part in topic.partitions), default=0),
        "offline": topic.offline,
        "under_replicated": topic.under_replicated,
        "bytes": sum(
            replica.size_bytes
            for tp, leader in leaders.items()
            for replica in sizes.get(tp, ())
            if replica.broker_id == leader and not replica.is_future
        ),
        "bytes_on_disks": sum(replica.size_bytes for replica in replicas),
    }


def topic_page(client: ClusterClient, name: str) -> dict[str, Any]:
    """Return the partitions of a topic with their replicas, offsets and sizes, and its settings."""
    topic = topic_view(client, name)
    bounds, problems = log_bounds(client, [topic])
    sizes, more = replica_sizes(client, topic)
    partitions = [
        {
            **asdict(part),
            "first": bound.first if (bound := bounds.get(tp)) else None,
            "end": bound.end if bound else None,
            "copies": [asdict(each) for each in sizes.get(tp, ())],
        }
        for part in topic.partitions[:MAX_ROWS]
        for tp in [TopicPartition(name, part.index)]
    ]
    return {
        **_topic_row(topic, sizes),
        "topic_id": topic.topic_id,
        "records": sum(end - first for first, end in bounds.values()),
        "shown": partitions,
        "settings": [asdict(each) for each in topic_settings(client, name)],
        "problems": list(dict.fromkeys([*problems, *more])),
    }


def replica_offsets(client: ClusterClient, name: str, index: int) -> dict[str, Any]:
    """Return the high watermark of a partition, and how far each replica that answers has come.

    Clients cannot see records above the high watermark, so a leader's log ends there.
    """
    topic = topic_view(client, name)
    part = next((each for each in topic.partitions if each.index == index), None)
    if part is None:
        raise ClientError(f"Topic {name} has no partition {index}.")
    chosen = replace(topic, partitions=(part,))
    tp = TopicPartition(name, index)
    bounds, problems = log_bounds(client, [chosen])
    sizes, more = replica_sizes(client, chosen)
    end = bounds[tp].end if tp in bounds else None
    return {
        **asdict(part),
        "high_watermark": end,
        "log_ends": {
            each.broker_id: None if end is None else max(0, end - each.offset_lag)
            for each in sizes.get(tp, ())
            if not each.is_future
        },
        "now_ms": now_ms(),
        "problems": list(dict.fromkeys([*problems, *more])),
    }


def topic_groups(client: ClusterClient, name: str) -> dict[str, Any]:
    """Return the groups that have offsets of a topic, with their lag."""
    reader = GroupReader(client)
    listed, problems = reader.groups()
    problems += sentences(client.retry("rights", lambda: missing_for_groups(client.any_broker())))
    bounds, more = log_bounds(client, [topic_view(client, name)])
    rows = []
    for group in listed[:MAX_GROUPS_OF_TOPIC]:
        try:
            offsets = {tp: at for tp, at in reader.committed(group.group_id).items() if tp.topic == name}
        except ClientError as error:
            more.append(str(error))
            continue
        if offsets:
            rows.append(
                {
                    "group": group.group_id,
                    "state": group.state,
                    "partitions": len(offsets),
                    "lag": lag_of(offsets, bounds),
                }
            )
    if len(listed) > MAX_GROUPS_OF_TOPIC:
        more.append(f"The cluster has {len(listed)} groups; the first {MAX_GROUPS_OF_TOPIC} were asked.")
    return {"groups": rows, "problems": list(dict.fromkeys([*problems, *more]))}


def lag_of(committed: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]) -> int | None:
    """Return the records that a group has not consumed; None if no end of a log is known."""
    known = [max(0, bounds[tp].end - offset) for tp, offset in committed.items() if tp in bounds]
    return sum(known) if known or not committed else None


def groups_page(client: ClusterClient, text: str) -> dict[str, Any]:
    """Return the groups whose name contains the text, with state, members and lag."""
    reader = GroupReader(client)
    listed, problems = reader.groups()
    problems += sentences(client.retry("rights", lambda: missing_for_groups(client.any_broker())))
    chosen = [group for group in listed if text in group.group_id]
    rows = []
    offsets: dict[str, dict[TopicPartition, int]] = {}
    members: dict[str, int | None] = {}
    for group in chosen[:MAX_GROUPS_OF_TOPIC]:
        try:
            offsets[group.group_id] = reader.committed(group.group_id)
            members[group.group_id] = len(reader.describe(group.group_id).members)
        except ClientError as error:
            problems.append(str(error))
    used = {tp for committed in offsets.values() for tp in committed}
    bounds, more = log_bounds(client, topic_views(client, {tp.topic for tp in used}) if used else [], used)
    for group in chosen[:MAX_ROWS]:
        committed = offsets.get(group.group_id)
        rows.append(
            {
                **asdict(group),
                "members": members.get(group.group_id),
                "topics": None if committed is None else len({tp.topic for tp in committed}),
                "lag": None if committed is None else lag_of(committed, bounds),
            }
        )
    return {"groups": rows, "count": len(chosen), "problems": list(dict.fromkeys([*problems, *more]))}


def group_page(client: ClusterClient, name: str) -> dict[str, Any]:
    """Return the members of a group, their assignments, and offset and lag per partition."""
    reader = GroupReader(client)
    found = reader.describe(name)
    committed = reader.committed(name)
    owned = owners(found.members)
    used = committed.keys() | owned.keys()
    views = topic_views(client, {tp.topic for tp in used}) if used else []
    shown = sorted(used | {tp for view in views for tp in view.partition_ids()})
    bounds, problems = log_bounds(client, views)
    rows = []
    for tp in shown[:MAX_ROWS]:
        at, end = committed.get(tp), bounds[tp].end if tp in bounds else None
        owner = owned.get(tp)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": at,
                "end": end,
                "lag": max(0, end - at) if at is not None and end is not None else None,
                "member": None if owner is None else owner.member_id,
                "client": None if owner is None else owner.client_id,
            }
        )
    return {
        "group": name,
        "state": found.state,
        "protocol": found.protocol_type,
        "assignor": found.assignor,
        "members": [
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host,
                "instance": member.instance_id,
                "assigned": None if member.assignment is None else len(member.assignment),
            }
            for member in found.members[:MAX_ROWS]
        ],
        "partitions": rows,
        "count": len(shown),
        "lag": lag_of(committed, bounds),
        "problems": problems,
    }


def reset_preview(
    client: ClusterClient, group: str, topic: str | None, target: ResetTarget, value: int
) -> dict[str, Any]:
    """Return the offsets that a reset would commit, beside the present ones. Nothing is changed."""
    reader = GroupReader(client)
    found = reader.describe(group)
    committed = reader.committed(group)
    topics = {tp.topic for tp in committed} if topic is None else {topic}
    views = topic_views(client, topics) if topics else []
    if topic is not None and not views:
        raise ClientError(f"There is no topic {topic}.")
    chosen = sorted(committed) if topic is None else [tp for view in views for tp in view.partition_ids()]
    bounds, problems = log_bounds(client, views, chosen)
    at_time: Mapping[TopicPartition, int | None] = {}
    if target is ResetTarget.TIME:
        at_time, more = offsets_at(client, views, value, bounds.keys())
        problems += more
    new = new_offsets(target, value, chosen, committed, bounds, at_time)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "now": committed.get(tp),
            "new": each.offset,
            "is_cut": each.is_cut,
            "first": bounds[tp].first,
            "end": bounds[tp].end,
        }
        for tp, each in new.items()
    ]
    if found.members:
        problems.append(f"Group {group} has members. Stop them before you reset its offsets.")
    if not rows:
        problems.append("There is nothing to reset: the group has no offsets. Choose a topic.")
    if len(rows) > MAX_ROWS:
        raise ClientError(f"A reset of {len(rows)} partitions is too large for this page. Use `klamm group reset`.")
    return {"group": group, "rows": rows, "can_apply": bool(rows) and not found.members, "problems": problems}


def reset_offsets(client: ClusterClient, group: str, offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Commit offsets for a group without members. Raises ClientError."""
    if GroupReader(client).describe(group).members:
        raise ClientError(f"Group {group} has members. Stop them before you reset its offsets.")
    client.commit_offsets(group, offsets)
    return {"group": group, "count": len(offsets)}


class TransactionPages:
    """The listings of transactions. They need connections of their own, so they keep none."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config

    def transactions(self) -> dict[str, Any]:
        """Return the transactional ids, those with an open transaction first, which are described."""
        problems: list[str] = []
        reader = self._reader(problems)
        listed = reader.listings()
        problems += sentences(reader.missing_rights())
        listed.sort(key=lambda each: (each.state not in OPEN_STATES, each.transactional_id))
        rows: list[dict[str, Any]] = []
        for each in listed[:MAX_ROWS]:
            row: dict[str, Any] = {**asdict(each), "is_open": each.state in OPEN_STATES}
            if row["is_open"] and len(rows) < MAX_GROUPS_OF_TOPIC:
                row |= self._described(reader, each.transactional_id, problems)
            rows.append(row)
        return {"transactions": rows, "count": len(listed), "now_ms": now_ms(), "problems": problems}

    def _described(self, reader: Transactions, transactional_id: str, problems: list[str]) -> dict[str, Any]:
        try:
            found = reader.describe(transactional_id)
        except ClientError as error:
            problems.append(str(error))
            return {}
        if found is None:
            return {}
        partitions = [str(tp) for tp in found.partitions]
        return {
            "producer_epoch": found.producer_epoch,
            "timeout_ms": found.timeout_ms,
            "start_time_ms": found.start_time_ms,
            "partitions": partitions[:MAX_GROUPS_OF_TOPIC],
            "partition_count": len(partitions),
        }

    def hanging(self, older_than_min: int) -> dict[str, Any]:
        """Return what is open in the logs without a record for this long, and whether a coordinator will end it."""
        problems: list[str] = []
        reader = self._reader(problems)
        is_open = reader.open_transactions()
        asked_ms = now_ms()
        suspects = [each for each in is_open if asked_ms - each.last_timestamp_ms > older_than_min * _MINUTE_MS]
        found = reader.find_hanging(suspects[:MAX_ROWS])
        return {
            "open": len(is_open),
            "suspects": len(suspects),
            "hanging": [_open_row(each) for each in found],
            "now_ms": asked_ms,
            "problems": problems,
        }

    def _reader(self, problems: list[str]) -> Transactions:
        return Transactions(self._config, VIEWER_TRANSACTIONS, on_problem=problems.append)


def _open_row(each: OpenTransaction) -> dict[str, Any]:
    return {**asdict(each), "topic": each.partition.topic, "partition": each.partition.partition}


def now_ms() -> int:
    return int(time.time() * 1000)
