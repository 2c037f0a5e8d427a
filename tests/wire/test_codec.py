"""The wire DSL itself: versions of a field, null, tags, bounds, and the errors for values that do not fit."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from typing import Any, cast
from uuid import UUID

import pytest

from klamm.errors import ErrorCode, ProtocolError
from klamm.model import ZERO_UUID
from klamm.protocol.messages import BY_KEY, MODULES, request_class
from klamm.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from klamm.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.runtime import MEMORY_BUDGET, uvarint
from klamm.protocol.schema import Type, misfits
from klamm.protocol.wire import (
    Array,
    Bool,
    Float64,
    Int8,
    Int32,
    Message,
    NullableArray,
    NullableBytes,
    NullableString,
    String,
    Struct,
    UInt32,
    Uuid,
    decode,
    encode,
    encode_bytes,
    encode_in_slices,
    message,
    since,
)
from tests.wire.samples import layout


@message
class Point(Struct):
    x: Int8
    y: Int8 = 5


@message
class Mark(Struct):
    x: Int8 = 0
    y: Int8 = 5


@message
class Everything(Message):
    """A message with each construct that the real ones use, and a nullable struct, which they do not."""

    KEY = 999
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    old: Int32 = since(0, until=0, default=-1)
    name: NullableString = since(0, nullable=1)
    point: Point | None
    flags: Array[Bool] = ()
    ids: NullableArray[Uuid] = ()
    ratio: Float64 = 0.5
    mask: UInt32 = 0
    payload: NullableBytes = None
    tagged_int: Int32 = since(2, tag=0, default=-7)
    tagged_mark: Mark | None = since(2, tag=1, default=None)
    tagged_names: Array[String] = since(3, tag=2, default=())
    tagged_null: NullableString = since(3, tag=3, default="unset")


FULL = Everything(
    old=3,
    name="n",
    point=Point(x=1, y=2),
    flags=[True, False],
    ids=[UUID(int=1), ZERO_UUID],
    ratio=-2.25,
    mask=2**32 - 1,
    payload=b"p",
    tagged_int=9,
    tagged_mark=Mark(x=-1),
    tagged_names=["a", ""],
    tagged_null=None,
)


@pytest.mark.parametrize("version", Everything.VERSIONS)
def test_every_construct_survives(version: int) -> None:
    got, end = decode(Everything, version, encode_bytes(FULL, version))
    assert end == len(encode_bytes(FULL, version))
    gone = {"old"} if version > 0 else set()
    gone |= {"tagged_int", "tagged_mark"} if version < 2 else set()
    gone |= {"tagged_names", "tagged_null"} if version < 3 else set()
    defaults: dict[str, Any] = {f.name: f.default for f in fields(Everything) if f.name in gone}
    expected = replace(FULL, **defaults)
    assert got == expected


def test_bytes_of_version_0() -> None:
    raw = encode_bytes(Everything(old=3, name="n", point=Point(x=1), payload=b"p"), 0)
    assert raw.hex(" ") == (
        bytes.fromhex(
            "00000003"  # old
            "0001 6e"  # name
            "01 01 05"  # point
            "00000000"  # flags
            "00000000"  # ids
            "3fe0000000000000"  # ratio
            "00000000"  # mask
            "00000001 70"  # payload
        ).hex(" ")
    )


def test_bytes_of_version_3() -> None:
    msg = Everything(name=None, point=None, ids=None, tagged_int=1, tagged_mark=Mark(x=1), tagged_null=None)
    assert encode_bytes(msg, 3) == bytes.fromhex(
        "00"  # name
        "ff"  # point
        "01"  # flags
        "00"  # ids
        "3fe0000000000000"  # ratio
        "00000000"  # mask
        "00"  # payload
        "03"  # three tagged fields
        "00 04 00000001"  # tagged_int
        "01 03 01 05 00"  # tagged_mark
        "03 01 00"  # tagged_null
    )


def test_tagged_fields_at_their_defaults_are_not_written() -> None:
    plain = Everything(name="", point=None)
    assert encode_bytes(plain, 3).endswith(b"\x00\x00")
    explicit = Everything(name="", point=None, tagged_int=-7, tagged_names=[], tagged_null="unset")
    assert encode_bytes(explicit, 3) == encode_bytes(plain, 3)


def test_a_tagged_struct_equal_to_its_defaults_is_not_written() -> None:
    def response(epoch: EpochEndOffset | None) -> bytes:
        part = PartitionData(partition_index=0, error_code=0, high_watermark=1, records=b"", diverging_epoch=epoch)
        topic = FetchableTopicResponse(topic="t", partitions=[part])
        return encode_bytes(FetchResponse(responses=[topic]), 12)

    assert response(EpochEndOffset()) == response(None)
    assert len(response(EpochEndOffset(epoch=1))) == len(response(None)) + 15


def test_null_is_refused_where_a_version_does_not_allow_it() -> None:
    with pytest.raises(ValueError, match="name is None"):
        encode(Everything(name=None, point=None), 0)
    good = encode_bytes(Everything(name="", point=None), 0)
    with pytest.raises(ProtocolError, match=r"Everything\.name is null"):
        decode(Everything, 0, good[:4] + b"\xff\xff" + good[6:])
    assert decode(Everything, 1, encode_bytes(Everything(name=None, point=None), 1))[0].name is None


def test_unknown_tags_are_skipped_and_known_ones_read() -> None:
    raw = encode_bytes(Everything(name="", point=None), 3)
    known_and_not = raw[:-1] + b"\x03" + b"\x00\x04\x00\x00\x00\x08" + b"\x09\x02zz" + b"\xe8\x07\x00"
    got, end = decode(Everything, 3, known_and_not)
    assert (got.tagged_int, end) == (8, len(known_and_not))


@pytest.mark.parametrize("section", ["01 00 03 000000", "01 00 05 0000000000", "01 09 05 00", "ff", "7f 00", "01 00"])
def test_malformed_tagged_sections(section: str) -> None:
    raw = encode_bytes(Everything(name="", point=None), 3)[:-1] + bytes.fromhex(section)
    with pytest.raises(ProtocolError):
        decode(Everything, 3, raw)


def test_error_codes_are_plain_numbers_on_the_wire() -> None:
    raw = encode_bytes(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert raw == b"\x00\x1b"
    assert decode(HeartbeatResponse, 0, raw)[0].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_field_that_a_version_lacks_reads_as_its_default() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id="i")
    assert decode(HeartbeatRequest, 2, encode_bytes(request, 2))[0] == replace(request, group_instance_id=None)
    fetch = FetchRequest(max_wait_ms=1, min_bytes=2, topics=(), rack_id="r")
    assert decode(FetchRequest, 10, encode_bytes(fetch, 10))[0].rack_id == ""


WIDE = CreatableTopic(name="t", num_partitions=1, replication_factor=2**15, assignments=(), configs=())


@pytest.mark.parametrize(
    ("bad", "version", "says"),
    [
        (HeartbeatRequest(group_id="g", generation_id=2**31, member_id="m"), 0, "generation_id is 2147483648"),
        (HeartbeatRequest(group_id="x" * 32768, generation_id=1, member_id="m"), 0, "group_id is a string of more"),
        (HeartbeatRequest(group_id="x" * 32768, generation_id=1, member_id="m"), 4, "group_id is a string of more"),
        (HeartbeatRequest(group_id=None, generation_id=1, member_id="m"), 4, "group_id is None"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id=b"g", generation_id=1, member_id="m"), 4, "group_id is b'g'"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id="g", generation_id="1", member_id="m"), 4, "generation_id is '1'"),  # type: ignore[arg-type]
        (LeaveGroupRequest(group_id="g", members=None), 3, "members is None"),  # type: ignore[arg-type]
        (MetadataRequest(topics=None), 0, "topics is None"),
        (CreateTopicsRequest(topics=[WIDE]), 5, r"topics\[0\]\.replication_factor is 32768"),
        (HeartbeatRequest(group_id="\udc80", generation_id=1, member_id="m"), 0, "surrogate"),
    ],
)
def test_values_that_do_not_fit_are_our_mistake(bad: Message, version: int, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        encode(bad, version)
    assert not isinstance(caught.value, ProtocolError)
    assert type(bad).__name__ in str(caught.value)


def test_unknown_versions() -> None:
    with pytest.raises(ProtocolError, match="HeartbeatRequest has no version 99"):
        decode(HeartbeatRequest, 99, b"")
    with pytest.raises(ValueError, match="HeartbeatResponse has no version -1"):
        encode(HeartbeatResponse(error_code=0), -1)


def test_construction_names_missing_and_unknown_fields() -> None:
    with pytest.raises(TypeError, match="member_id"):
        HeartbeatRequest(group_id="g", generation_id=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        HeartbeatResponse(error_code=0, colour=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        HeartbeatResponse(error_code=0).colour = 1  # type: ignore[attr-defined]


def test_repr_and_equality() -> None:
    assert repr(Point(x=1)) == "Point(x=1, y=5)"
    assert Point(x=1) == Point(x=1, y=5) != Point(x=2)
    assert Point(x=1) != (1, 5)


def peak_of_refusal(cls: type[Message], version: int, raw: bytes, says: str) -> int:
    """The most memory that was held while a message was refused."""
    with pytest.raises(ProtocolError):
        decode(cls, version, b"")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=says):
            decode(cls, version, raw)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [0, 4, 5, 7])
def test_counts_are_paid_for_before_anything_is_built(version: int) -> None:
    count = struct.pack(">i", 2**31 - 1) if version < 5 else uvarint(2**31)
    assert peak_of_refusal(CreateTopicsRequest, version, count + bytes(1000), "bytes announced") < 100_000


def test_small_elements_cannot_fill_the_memory() -> None:
    """An int32 array of 40 MB would become ten times as much: the budget of a message stops it before it is built."""
    count = 10_000_000
    forgotten = struct.pack(">ih1si", 1, 1, b"t", count) + bytes(4 * count)
    raw = struct.pack(">iiiibiii", -1, 0, 0, 0, 0, 0, 0, 0) + forgotten
    assert peak_of_refusal(FetchRequest, 7, raw, "more than one message may carry") < 100_000


def test_an_update_metadata_of_200_000_partitions_passes() -> None:
    partitions = [
        UpdateMetadataPartitionState(
            partition_index=n,
            controller_epoch=300_000,
            leader=1001,
            leader_epoch=70_000,
            isr=[1001, 1002, 1003],
            zk_version=70_000,
            replicas=[1001, 1002, 1003],
        )
        for n in range(1000)
    ]
    topics = [UpdateMetadataTopicState(topic_name=f"topic-{n}", partition_states=partitions) for n in range(200)]
    request = UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=topics, live_brokers=())
    raw = encode_bytes(request, 7)
    got, end = decode(UpdateMetadataRequest, 7, raw)
    assert end == len(raw)
    assert sum(len(topic.partition_states) for topic in got.topic_states) == 200_000


def structs_of(t: Type) -> Iterator[Type]:
    """A struct and all that are nested in it."""
    yield t
    for slot in t.fields:
        inner = slot.type.element or slot.type
        if inner.struct is not None:
            yield from structs_of(inner)


def test_defaults_fit_their_types() -> None:
    """Null stands only where the type can be null in some version; the rest can be written."""
    latest = [layout(cls, cls.VERSIONS[-1]) for pair in BY_KEY.values() for cls in pair]
    for t in (inner for root in latest for inner in structs_of(root)):
        defaults = {f.name: f.default for f in fields(cast(Any, t.struct)) if f.default is not MISSING}
        for slot in t.fields:
            if slot.name in defaults and not (slot.type.struct is not None and defaults[slot.name] is None):
                assert not list(misfits(slot.type, defaults[slot.name], slot.name)), (t.struct, slot.name)


def test_the_table_of_messages() -> None:
    assert list(BY_KEY) == list(MODULES)
    for key, (request, response) in BY_KEY.items():
        assert request_class(key) is request
        assert request.KEY == response.KEY == key
        assert request.VERSIONS == response.VERSIONS
        assert request.FLEXIBLE == response.FLEXIBLE
        assert request.__name__ == MODULES[key][1] + "Request"


def test_aborted_transactions_may_be_null_and_records_in_pieces() -> None:
    pieces = (b"a" * 10, memoryview(b"b" * 5000), b"c")
    part = PartitionData(partition_index=0, error_code=0, high_watermark=1, records=pieces, aborted_transactions=None)
    topic = FetchableTopicResponse(topic="t", partitions=[part, replace(part, records=None)])
    parts = encode(FetchResponse(responses=[topic]), 11)
    assert any(p is pieces[1] for p in parts)
    got, _ = decode(FetchResponse, 11, b"".join(parts))
    assert got.responses[0].partitions[0].records == b"".join(pieces)
    assert got.responses[0].partitions[1].records is None
    assert got.responses[0].partitions[0].aborted_transactions is None
    assert AbortedTransaction(producer_id=1, first_offset=2).first_offset == 2


def test_memory_budget_is_fixed() -> None:
    assert MEMORY_BUDGET == 256 * 1024 * 1024


@pytest.mark.parametrize("version", [1, 4, 5, 7])
@pytest.mark.parametrize("text", ["x" * 40_000, "é" * 20_000, "x" + "é" * 20_000, "\U0001f600" * 10_000])
def test_a_sentence_that_quotes_a_long_name_is_cut(version: int, text: str) -> None:
    """Errors quote names of 32 KiB. Before, the answer could not be sent at all."""
    row = CreatableTopicResult(name="t", error_code=17, error_message=text)
    response = CreateTopicsResponse(topics=[row])
    plain = encode_bytes(response, version)
    found = decode(CreateTopicsResponse, version, plain)[0].topics[0].error_message
    assert found is not None and found.endswith("...") and text.startswith(found[:-3])
    assert 32_760 <= len(found.encode()) <= 32_767
    steps = encode_in_slices(response, version)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert b"".join(end.value) == plain
            break
