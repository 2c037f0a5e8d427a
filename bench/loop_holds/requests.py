"""The largest frames that a client can send, for every API: made from the schemas, so that a new API is measured too.

A shape says where the elements are. "wide": in the outermost array, with one element in each array inside. "deep": one
element outside, all others inside it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from bench.frames import batch
from klamm.apis import ALL
from klamm.apis.api_declaration import Api
from klamm.protocol.frames import RequestHeader
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.protocol.runtime import MAX_TAGGED_FIELDS, uvarint
from klamm.protocol.schema import Type, plan
from klamm.protocol.wire import Message
from tests.support.frames import encode_request_frame

TOPIC: Final = "t"
TOPIC_PARTITIONS: Final = 100
GROUP: Final = "g"
MIB: Final = 1 << 20
KNOWN: Final = {
    "group_id": GROUP,
    "acks": 1,
    "timeout_ms": 1000,
    "max_wait_ms": 0,
    "replica_id": -1,
    "session_epoch": -1,
    "timestamp": -1,
    "resource_type": 4,
    "committed_metadata": "",
    "protocol_type": "consumer",
    "protocol_name": "range",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "transactional_id": None,
    "generation_id": 1,
    "num_partitions": 1,
    "replication_factor": 1,
    "max_bytes": MIB,
    "partition_max_bytes": MIB,
    "broker_epoch": -1,
    "controller_epoch": 0,
    "validate_only": True,
}
"""Values that bring a request past the first check of its handler. 100,000 topics are planned, but not created."""
WITHOUT_INNER: Final = frozenset({"configs", "assignments", "replicas", "current_isr", "new_isr"})
"""Arrays that stay empty inside an element: with them the element would be refused early."""
_RECORDS: Final = batch(100, 10)
_NAMES: Final = frozenset({"name", "topic", "topic_name"})


@dataclass(frozen=True, slots=True)
class Case:
    """A frame by its parts; `key` and `version` name the API."""

    name: str
    key: int
    version: int
    body: bytes
    header_tags: bytes = b""

    def frame(self, correlation_id: int) -> bytes:
        raw = struct.pack(">hhih", self.key, self.version, correlation_id, 5) + b"bench" + self.header_tags
        return struct.pack(">i", len(raw) + len(self.body)) + raw + self.body


def case(name: str, request: Message, version: int) -> Case:
    parts = encode_request_frame(RequestHeader(request.KEY, version, 0, None), request)
    whole = b"".join(parts)
    is_flexible = version >= request.FLEXIBLE
    skipped = 4 + 10 + is_flexible
    return Case(name, request.KEY, version, whole[skipped:], b"\0" if is_flexible else b"")


def arrays(t: Type) -> list[str]:
    return [slot.name for slot in t.fields if slot.present and slot.tag is None and slot.type.is_array]


def depth(t: Type) -> int:
    """How many arrays are inside each other, those that stay empty not counted."""
    inner = (
        1 + depth(slot.type.element)
        for slot in t.fields
        if slot.present and slot.type.element is not None and slot.name not in WITHOUT_INNER
    )
    return max(inner, default=0)


class Filler:
    """Makes a request with `count` elements. `array` names the array of the request that is filled."""

    def __init__(self, count: int, shape: str, array: str, topic: str | None) -> None:
        self._count = count
        self._shape = shape
        self._array = array
        self._topic = topic

    def message(self, cls: type[Message], version: int) -> Message:
        message: Any = self._struct(plan(cls, version), 0, 0)
        return message  # type: ignore[no-any-return]

    def _struct(self, t: Type, number: int, level: int) -> Any:
        assert t.struct is not None
        values = {}
        for slot in t.fields:
            if not slot.present or slot.tag is not None:
                values[slot.name] = slot.default
            else:
                values[slot.name] = self._value(slot.type, slot.name, number, level)
        return t.struct(**values)

    def _value(self, t: Type, name: str, number: int, level: int) -> Any:
        if t.element is not None:
            return self._elements(t.element, name, level)
        if t.struct is not None:
            return self._struct(t, number, level)
        return self._primitive(t, name, number)

    def _elements(self, element: Type, name: str, level: int) -> list[Any]:
        if level == 0:
            count = 0 if name != self._array else self._count if self._shape == "wide" else 1
        elif name in WITHOUT_INNER:
            count = 0
        else:
            count = self._count if self._shape == "deep" and level == 1 else 1
        return [self._value(element, name + "[]", number, level + 1) for number in range(count)]

    def _primitive(self, t: Type, name: str, number: int) -> Any:
        assert t.kind is not None
        if name in KNOWN and (KNOWN[name] is not None or t.nullable):
            return KNOWN[name]
        match t.kind.name:
            case "string":
                is_topic = name in _NAMES and self._topic is not None
                return self._topic if is_topic else f"n{number}"
            case "records":
                return _RECORDS
            case "bytes":
                return b""
            case "uuid":
                return UUID(int=number + 1)
            case "bool":
                return False
            case _:
                return number % 100 if t.kind.name in ("int8", "int16") else number


Chosen = Callable[[str], object]
"""Whether a case of this name is wanted: others are not made."""


def from_schemas(count: int, chosen: Chosen) -> Iterator[Case]:
    """Every array of every API, in the newest version that has it."""
    for api in ALL:
        seen: set[str] = set()
        for version in range(api.versions[1], api.versions[0] - 1, -1):
            for array in arrays(plan(api.request, version)):
                if array not in seen:
                    seen.add(array)
                    yield from _of_array(api, version, array, count, chosen)


def _of_array(api: Api[Any, Any], version: int, array: str, count: int, chosen: Chosen) -> Iterator[Case]:
    inner = next(slot.type.element for slot in plan(api.request, version).fields if slot.name == array)
    assert inner is not None
    for shape in ("wide", "deep") if depth(inner) else ("wide",):
        for topic in (None, TOPIC) if shape == "deep" else (None,):
            known = "" if topic is None else ", known topic"
            name = f"{api.name} v{version} {array}, {shape}{known}"
            if chosen(name):
                yield case(name, Filler(count, shape, array, topic).message(api.request, version), version)


def tagged(count: int) -> Iterator[Case]:
    """Headers and elements with as many tagged fields as are allowed."""
    fields = uvarint(MAX_TAGGED_FIELDS) + b"\x80\x08\x00" * MAX_TAGGED_FIELDS
    whole = case("", MetadataRequest(topics=[]), 12)
    yield Case("tagged fields of the header", whole.key, 12, whole.body, fields)
    topic = bytes(16) + b"\x02x" + fields
    topics = max(1, count // 1000)
    yield Case("tagged fields of 100 elements", whole.key, 12, uvarint(topics + 1) + topic * topics + bytes(3), b"\0")


def join(group_id: str, size_bytes: int) -> Case:
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(size_bytes))],
    )
    return case(f"JoinGroup of {size_bytes >> 20} MiB", request, 3)


def fetch(size_bytes: int) -> Case:
    """A consumer's Fetch of one partition, from the beginning of its log."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size_bytes)
    topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size_bytes, topics=topics)
    return case(f"Fetch of {size_bytes >> 20} MiB", request, 11)


def one_mib() -> Case:
    """A batch for `fetch` to read."""
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch(1_000 << 10))])
    return case("", ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]), 9)


def produce(name: str, record_bytes: int) -> Case:
    """A batch of a MiB for each of 90 partitions: about as many bytes as a frame may have."""
    records = batch(1_000 << 10, record_bytes)
    rows = [PartitionProduceData(index=partition, records=records) for partition in range(90)]
    data = TopicProduceData(name=TOPIC, partition_data=rows)
    return case(name, ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]), 9)


def sync(name: str, group_id: str, count: int, size_bytes: int) -> Callable[[str], Case]:
    """A function from a member id of the group to the request with its assignment and `count` others."""

    def of(member_id: str) -> Case:
        assignments = [SyncGroupRequestAssignment(member_id=f"m{n}", assignment=bytes(7)) for n in range(count)]
        assignments.append(SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(size_bytes)))
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=1,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        return case(name, request, 5)

    return of


PRODUCES: Final = (
    ("Produce of 90 MiB in 90 partitions", 10_000),
    ("Produce of 90 MiB in 90 partitions, checked in the thread", 50),
)
SYNCS: Final = (
    ("SyncGroup of 7 MiB", 0, 7 * MIB),
    ("SyncGroup of 99 MiB", 0, 99 * MIB),
    ("SyncGroup of 100,000 assignments", 100_000, 0),
    ("SyncGroup of 999,999 assignments", 999_998, 0),
)
