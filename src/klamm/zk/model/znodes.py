"""The contents of the znodes of `klamm.zk.model.paths`: one encode/decode pair per kind, in Kafka's JSON.

Decoders accept what Kafka's decoders accept (older versions, unknown keys, missing optional keys). Otherwise they raise
`ZnodeFormatError`, which names the znode: a controller must neither guess nor stall.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, TypeVar
from uuid import UUID

from klamm.errors import shown
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
    decode_topic_id,
    encode_topic_id,
)
from klamm.zk.model import paths

NO_KRAFT_EPOCH: Final = -1
LOG_DIR_FAILURE: Final = 1
_INT32_MAX: Final = 0x7FFFFFFF
_SHOWN_BYTES: Final = 200
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
T = TypeVar("T")


class ZnodeFormatError(ValueError):
    """A znode holds something that no version of Kafka writes there."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"znode {path}: {reason}")


def to_json(value: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode()


def from_json(path: str, data: bytes | None) -> dict[str, Any]:
    data = data or b""
    try:
        value = json.loads(data)
        if b"\\u" in data:  # An escape may be half of a surrogate pair, which no message can contain.
            _ENCODER.encode(value).encode()
    except (ValueError, RecursionError) as error:  # RecursionError: arrays that are nested a thousand times
        raise ZnodeFormatError(path, f"{shown(data)} is not JSON") from error
    if not isinstance(value, dict):
        raise ZnodeFormatError(path, f"{shown(data)} is not a JSON object")
    return value


def parse(path: str, build: Callable[[], T]) -> T:
    """Run a decoder. A missing key or a value of another type raises ZnodeFormatError, which names the znode."""
    try:
        return build()
    except KeyError as error:
        raise ZnodeFormatError(path, f"the key {error} is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:  # int() of 1e999 overflows
        if isinstance(error, ZnodeFormatError):
            raise
        raise ZnodeFormatError(path, str(error)[:_SHOWN_BYTES]) from error


def int32(value: Any, lowest: int = 0) -> int:
    """Return a number that fits into the protocol's messages. `parse` turns its errors into ZnodeFormatError."""
    number = int(value)
    if not lowest <= number <= _INT32_MAX:
        raise ValueError(f"{value!r} is not a number from {lowest} to {_INT32_MAX}")
    return number


# --- controller ------------------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class ControllerZnode:
    broker_id: int
    kraft_epoch: int = NO_KRAFT_EPOCH
    """Positive while a KRaft controller owns the cluster: configs must not be written then."""


def encode_controller(broker_id: int, timestamp_ms: int, *, version: int = 2) -> bytes:
    """Version 2 is written by Kafka 3.4 and later, version 1 by earlier releases."""
    value: dict[str, Any] = {"version": version, "brokerid": broker_id, "timestamp": str(timestamp_ms)}
    if version >= 2:
        value["kraftControllerEpoch"] = NO_KRAFT_EPOCH
    return to_json(value)


def decode_controller(data: bytes | None) -> ControllerZnode:
    value = from_json(paths.CONTROLLER, data)
    return parse(
        paths.CONTROLLER,
        lambda: ControllerZnode(int32(value["brokerid"], -1), int(value.get("kraftControllerEpoch", NO_KRAFT_EPOCH))),
    )


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes | None) -> int:
    text = (data or b"").decode(errors="replace")
    try:
        epoch = int(text)
    except ValueError as error:
        raise ZnodeFormatError(paths.CONTROLLER_EPOCH, f"{shown(text)} is not a number") from error
    if not 0 <= epoch < _INT32_MAX:  # the next epoch must fit into the controller's requests
        raise ZnodeFormatError(paths.CONTROLLER_EPOCH, f"{text[:40]} is not a number from 0 to {_INT32_MAX - 1}")
    return epoch


# --- topics and partitions -------------------------------------------------------------------------------------------

_FORMER_ISR: Final = "klamm_former_isr"
_TOPIC_KEYS: Final = frozenset({"version", "partitions", "adding_replicas", "removing_replicas", "topic_id"})


@lazy_dataclass(frozen=True, slots=True)
class TopicZnode:
    """A topic's assignment by partition. `extra` keeps unknown keys, so that a rewrite does not lose them."""

    assignment: Mapping[int, ReplicaAssignment]
    topic_id: UUID | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING, hash=False)


def encode_topic(topic: TopicZnode) -> bytes:
    """Encode version 3 if the topic has an id, else 2.

    The two lists contain only partitions that are being reassigned.
    """
    ordered = sorted(topic.assignment.items())
    value: dict[str, Any] = {
        **topic.extra,
        "version": 2 if topic.topic_id is None else 3,
        "partitions": {str(p): list(a.replicas) for p, a in ordered},
        "adding_replicas": {str(p): list(a.adding_replicas) for p, a in ordered if a.adding_replicas},
        "removing_replicas": {str(p): list(a.removing_replicas) for p, a in ordered if a.removing_replicas},
    }
    if topic.topic_id is not None:
        value["topic_id"] = encode_topic_id(topic.topic_id)
    return to_json(value)


def decode_topic(topic: str, data: bytes | None) -> TopicZnode:
    """Decode versions 1 (partitions only) to 3 (with an id), with the partitions in order."""
    path = paths.topic_path(topic)
    value = from_json(path, data)

    def build() -> TopicZnode:
        adding, removing = value.get("adding_replicas") or {}, value.get("removing_replicas") or {}
        ordered = sorted(value["partitions"].items(), key=lambda item: int(item[0]))
        if not adding and not removing:  # as mostly
            assignment = _unmoved(ordered)
        else:
            assignment = {
                int32(p): ReplicaAssignment(_replicas(replicas), _ids(adding.get(p, ())), _ids(removing.get(p, ())))
                for p, replicas in ordered
            }
        topic_id = value.get("topic_id")
        extra = {key: kept for key, kept in value.items() if key not in _TOPIC_KEYS}
        return TopicZnode(
            MappingProxyType(assignment),
            None if topic_id is None else decode_topic_id(topic_id),
            MappingProxyType(extra) if extra else _NOTHING,
        )

    return parse(path, build)


def _unmoved(ordered: Iterable[tuple[str, Iterable[int]]]) -> dict[int, ReplicaAssignment]:
    """Decode assignments without a move. Many partitions have equal ones, which share a value."""
    known: dict[tuple[int, ...], ReplicaAssignment] = {}
    assignment = {}
    for partition, listed in ordered:
        replicas = tuple(listed)
        found = known.get(replicas)
        if found is None:
            found = known[replicas] = ReplicaAssignment(_replicas(replicas))
        assignment[int32(partition)] = found
    return assignment


def _replicas(values: Iterable[int]) -> tuple[int, ...]:
    """Brokers delete logs that are assigned to others, so a list that nobody writes must not count as an assignment."""
    ids = _ids(values)
    if not ids or len(set(ids)) != len(ids):
        raise ValueError("a partition has no replicas" if not ids else "a partition has a replica twice")
    return ids


def _ids(values: Iterable[int]) -> tuple[int, ...]:
    ids = tuple(map(int, values))
    if ids and not (min(ids) >= 0 and max(ids) <= _INT32_MAX):
        raise ValueError("a broker id is not a number from 0 to 2147483647")
    return ids


def encode_partition_state(state: LeaderIsrAndControllerEpoch) -> bytes:
    """The recovery state is written only while recovering, because Kafka before 3.2 does not know it.

    No Kafka knows `klamm_former_isr`: its decoder reads the keys that it knows and ignores the others.
    """
    it = state.leader_and_isr
    recovery = it.leader_recovery_state
    tail = f',"leader_recovery_state":{int(recovery)}' if recovery != LeaderRecoveryState.RECOVERED else ""
    if state.former_isr is not None:
        tail += f',"{_FORMER_ISR}":[{",".join(map(str, state.former_isr))}]'
    return (
        f'{{"controller_epoch":{state.controller_epoch},"leader":{it.leader},"version":1,'
        f'"leader_epoch":{it.leader_epoch},"isr":[{",".join(map(str, it.isr))}]{tail}}}'
    ).encode()


def decode_partition_state(
    topic_partition: TopicPartition, data: bytes | None, version: int
) -> LeaderIsrAndControllerEpoch:
    """Decode a partition's state; `version`, the znode's data version, becomes the partition epoch."""
    path = paths.partition_state_path(*topic_partition)
    value = from_json(path, data)

    def build() -> LeaderIsrAndControllerEpoch:
        recovery = value.get("leader_recovery_state", 0)
        known = LeaderRecoveryState.RECOVERED if recovery == 0 else LeaderRecoveryState(int(recovery))
        leader = int32(value["leader"], LEADER_DURING_DELETE)
        leader_epoch = int32(value["leader_epoch"], EPOCH_DURING_DELETE)
        state = LeaderAndIsr(leader, leader_epoch, _ids(value["isr"]), version, known)
        former = value.get(_FORMER_ISR)
        former_isr = None if former is None else _ids(former)
        return LeaderIsrAndControllerEpoch(state, int32(value["controller_epoch"], -1), former_isr)

    return parse(path, build)


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """ISR change notifications and preferred replica elections."""
    return to_json({"version": 1, "partitions": [{"topic": t, "partition": p} for t, p in sorted(set(partitions))]})


def decode_partitions(path: str, data: bytes | None) -> tuple[TopicPartition, ...]:
    value = from_json(path, data)
    return parse(
        path, lambda: tuple(TopicPartition(str(p["topic"]), int32(p["partition"])) for p in value["partitions"])
    )


def encode_reassignment(targets: Mapping[TopicPartition, Iterable[int]]) -> bytes:
    rows = [{"topic": tp.topic, "partition": tp.partition, "replicas": list(r)} for tp, r in sorted(targets.items())]
    return to_json({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes | None) -> dict[TopicPartition, tuple[int, ...]]:
    value = from_json(paths.REASSIGN_PARTITIONS, data)
    return parse(
        paths.REASSIGN_PARTITIONS,
        lambda: {
            TopicPartition(str(p["topic"]), int32(p["partition"])): _ids(p["replicas"]) for p in value["partitions"]
        },
    )


# --- cluster, configs, blocks, features ------------------------------------------------------------------------------


def encode_cluster_id(cluster_id: str) -> bytes:
    return to_json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes | None) -> str:
    value = from_json(paths.CLUSTER_ID, data)
    return parse(paths.CLUSTER_ID, lambda: str(value["id"]))


def encode_config(config: Mapping[str, str]) -> bytes:
    return to_json({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(path: str, data: bytes | None) -> dict[str, str]:
    """Decode settings. An empty znode, or one without the key `config`, has none."""
    if not data:
        return {}
    value = from_json(path, data)
    return parse(path, lambda: {str(k): str(v) for k, v in (value.get("config") or {}).items()})


def encode_config_change(entity_path: str) -> bytes:
    return to_json({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes | None) -> str:
    """Return the path of the changed entity below /config, such as `topics/orders`.

    Only versions 1 and 2 are accepted.
    """
    value = from_json(path, data)

    def build() -> str:
        if value["version"] == 2:
            return str(value["entity_path"])
        if value["version"] == 1 and value["entity_type"] in ("topics", "clients"):
            return f"{value['entity_type']}/{value['entity_name']}"
        raise ZnodeFormatError(path, f"{shown(data or b'')} is neither version 1 nor 2 of a config change")

    return parse(path, build)


def encode_log_dir_event(broker_id: int) -> bytes:
    return to_json({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILURE})


def decode_log_dir_event(path: str, data: bytes | None) -> int:
    """Return the broker that lost a log directory."""
    value = from_json(path, data)
    return parse(path, lambda: int32(value["broker"]))


@lazy_dataclass(frozen=True, slots=True)
class LostRecords:
    """Acknowledged records that no replica has: offsets `start_offset` to `end_offset`, without the latter.

    `broker_id` is the leader that noticed it.
    """

    topic_partition: TopicPartition
    topic_id: UUID
    start_offset: int
    end_offset: int
    broker_id: int


def encode_lost_records(lost: LostRecords) -> bytes:
    return to_json(
        {
            "version": 1,
            "topic": lost.topic_partition.topic,
            "topic_id": encode_topic_id(lost.topic_id),
            "partition": lost.topic_partition.partition,
            "start_offset": lost.start_offset,
            "end_offset": lost.end_offset,
            "broker": lost.broker_id,
        }
    )


def decode_lost_records(path: str, data: bytes | None) -> LostRecords:
    value = from_json(path, data)

    def build() -> LostRecords:
        tp = TopicPartition(str(value["topic"]), int32(value["partition"]))
        topic_id = decode_topic_id(value["topic_id"])
        return LostRecords(tp, topic_id, int(value["start_offset"]), int(value["end_offset"]), int32(value["broker"]))

    return parse(path, build)


@lazy_dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids `block_start` to `block_end`, both included, allocated to one broker."""

    broker_id: int
    block_start: int
    block_end: int


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    return to_json(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.block_start),
            "block_end": str(block.block_end),
        }
    )


def decode_producer_id_block(
    data: bytes | None, version: int = 0, *, czxid: int = 0, epoch_czxid: int | None = None
) -> ProducerIdBlock | None:
    """Return the last block; None if no block was allocated yet, because the znode is created empty.

    `version` is that of the znode. One that was emptied later is invalid: ids would be allocated twice. So is an empty
    one that is younger than `/controller_epoch`, which the first controller of the cluster created (`epoch_czxid`):
    brokers create the znode before they compete for that role, and again if it was deleted.
    """
    if not data:
        problem = f"it was emptied (version {version})" if version > 0 else ""
        if epoch_czxid is not None and czxid > epoch_czxid:
            problem = "it was deleted and created again"
        if problem:
            raise ZnodeFormatError(paths.PRODUCER_ID_BLOCK, f"{problem}, and ids could be given twice")
        return None
    value = from_json(paths.PRODUCER_ID_BLOCK, data)
    return parse(
        paths.PRODUCER_ID_BLOCK,
        lambda: ProducerIdBlock(int(value["broker"]), int(value["block_start"]), int(value["block_end"])),
    )


@lazy_dataclass(frozen=True, slots=True)
class FeatureZnode:
    """Finalized features by name: lowest (None in version 2) and highest version level."""

    enabled: bool
    features: Mapping[str, tuple[int | None, int]] = field(default_factory=lambda: _NOTHING, hash=False)
    version: int = 2


def encode_feature(feature: FeatureZnode) -> bytes:
    levels: dict[str, dict[str, int]] = {}
    for name, (lowest, highest) in sorted(feature.features.items()):
        levels[name] = {"max_version_level": highest}
        if feature.version == 1:
            levels[name]["min_version_level"] = 1 if lowest is None else lowest
    return to_json({"version": feature.version, "status": int(feature.enabled), "features": levels})


def decode_feature(data: bytes | None) -> FeatureZnode:
    value = from_json(paths.FEATURE, data)

    def build() -> FeatureZnode:
        if value["version"] not in (1, 2) or value["status"] not in (0, 1):
            raise ZnodeFormatError(
                paths.FEATURE, f"{shown(data or b'')}: version 1 or 2 and status 0 or 1 are expected"
            )
        features = {
            str(name): (
                None if v.get("min_version_level") is None else int(v["min_version_level"]),
                int(v["max_version_level"]),
            )
            for name, v in value["features"].items()
        }
        return FeatureZnode(bool(value["status"]), MappingProxyType(features), int(value["version"]))

    return parse(paths.FEATURE, build)
