"""Sliced codecs read and write the same as whole ones, wherever they pause."""

from __future__ import annotations

import sys
from collections.abc import Generator
from random import Random
from typing import TypeVar

import pytest

from klamm.errors import ProtocolError
from klamm.protocol import chunked, compiler_decode, compiler_encode, runtime
from klamm.protocol.compiler_decode import compile_sliced_decoder
from klamm.protocol.compiler_encode import compile_sliced_encoder
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.protocol.messages.update_metadata import UpdateMetadataPartitionState, UpdateMetadataRequest
from klamm.protocol.schema import plain, plan
from klamm.protocol.wire import Message, decode, decode_in_slices, encode_around, encode_bytes, encode_in_slices
from tests.wire.kio_bridge import from_kio, kio_cases, kio_class, our_class, random_entity

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def run(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The result and how often the work paused."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, pauses
        pauses += 1


@pytest.mark.parametrize("newest", [True, False], ids=["newest", "oldest"])
def test_every_message_pauses_between_any_two_elements(newest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunked, compiler_decode, compiler_encode):
        monkeypatch.setattr(module, "CHUNK", 1)
    monkeypatch.setattr(runtime, "SLICE_BYTES", 8)
    monkeypatch.setattr(runtime, "SLICE_ELEMENTS", 1)
    pauses = 0
    chosen = {case[:2]: case for case in sorted(kio_cases(), key=lambda case: case[2], reverse=not newest)}
    for case in chosen.values():
        cls, version = our_class(case), case[2]
        for seed in range(3):
            message = from_kio(random_entity(kio_class(case), Random(seed)), cls, sys.modules[cls.__module__])
            whole = encode_bytes(message, version)
            parts, encoding = run(compile_sliced_encoder(cls, version)(message, []))
            assert b"".join(parts) == whole
            (read, end), decoding = run(compile_sliced_decoder(cls, version)(whole, 0, []))
            assert read == message and end == len(whole)
            assert b"".join(run(compile_sliced_encoder(cls, version)(read, []))[0]) == whole
            assert encode_bytes(read, version) == whole
            pauses += encoding + decoding
    assert pauses > 1000


def test_a_template_is_the_message_without_its_holes() -> None:
    """For every field of every message: the parts around it, and a field of the same bytes between them."""
    holes_seen = 0
    for case in kio_cases():
        cls, version = our_class(case), case[2]
        names = [slot.name for slot in plain(plan(cls, version))]
        message = from_kio(random_entity(kio_class(case), Random(version)), cls, sys.modules[cls.__module__])
        whole = encode_bytes(message, version)
        pieces = encode_around(message, version, *names)
        assert pieces[:-1] == [b""] * len(names)
        start = 0
        for name in names:
            before, after = encode_around(message, version, name)
            end = len(whole) - len(after)
            assert len(before) == start and whole[:start] == before and whole[end:] == after and start <= end
            start, holes_seen = end, holes_seen + 1
        assert whole[start:] == pieces[-1]
    assert holes_seen > 1000


def test_a_template_needs_fields_of_the_version_in_wire_order() -> None:
    message = ProduceRequest(acks=1, timeout_ms=1, topic_data=())
    for holes in (("transactional_id",), ("timeout_ms", "acks"), ("nothing",)):
        with pytest.raises(ValueError, match="does not have the fields"):
            encode_around(message, 2, *holes)
    with pytest.raises(ValueError, match="has no version 99"):
        encode_around(message, 99, "acks")


def test_large_arrays_of_numbers_are_read_in_slices() -> None:
    state = UpdateMetadataPartitionState(
        topic_name="t",
        partition_index=0,
        controller_epoch=0,
        leader=0,
        leader_epoch=0,
        isr=list(range(100_000)),
        zk_version=0,
        replicas=(),
        offline_replicas=(),
    )
    request = UpdateMetadataRequest(
        controller_id=0, controller_epoch=0, ungrouped_partition_states=[state], live_brokers=()
    )
    frame = encode_bytes(request, 1)
    (read, _), pauses = run(decode_in_slices(UpdateMetadataRequest, 1, frame))
    assert pauses >= len(frame) // (2 * runtime.SLICE_BYTES)
    assert read.ungrouped_partition_states[0].isr == state.isr


def test_a_large_message_pauses_once_per_slice() -> None:
    topics = [MetadataRequestTopic(name=f"topic-{n}") for n in range(50_000)]
    frame = encode_bytes(MetadataRequest(topics=topics), 9)
    (read, end), pauses = run(decode_in_slices(MetadataRequest, 9, frame))
    assert read.topics == topics and end == len(frame)
    assert pauses >= len(frame) // (runtime.SLICE_BYTES + 100)
    parts, pauses = run(encode_in_slices(read, 9))
    assert b"".join(parts) == frame
    assert pauses >= len(topics) // (runtime.SLICE_ELEMENTS + 1)


def test_ten_thousand_tagged_fields_are_read_in_slices() -> None:
    fields = runtime.uvarint(runtime.MAX_TAGGED_FIELDS) + b"\x63\x00" * runtime.MAX_TAGGED_FIELDS
    frame = encode_bytes(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
    assert frame[:4] == b"\x02\x02t\x00"
    (read, end), pauses = run(decode_in_slices(MetadataRequest, 9, frame[:3] + fields + frame[4:]))
    assert read.topics and read.topics[0].name == "t" and end == len(frame) + len(fields) - 1
    assert pauses >= runtime.MAX_TAGGED_FIELDS // runtime.SLICE_TAGGED_FIELDS - 1


def test_records_do_not_count() -> None:
    """A produce of many megabytes is as cheap as one of a kilobyte: it never pauses."""
    data = [PartitionProduceData(index=n, records=bytes(1 << 20)) for n in range(8)]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    frame = bytearray(encode_bytes(request, 9))
    (read, _), pauses = run(decode_in_slices(ProduceRequest, 9, frame))
    assert pauses == 0
    assert [len(p.records or b"") for p in read.topic_data[0].partition_data] == [1 << 20] * 8


def test_bytes_of_many_megabytes_are_not_copied() -> None:
    assignment = SyncGroupRequestAssignment(member_id="m", assignment=bytes(5 << 20))
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[assignment])
    frame = bytearray(encode_bytes(request, 5))
    (read, _), _ = run(decode_in_slices(SyncGroupRequest, 5, frame))
    value: object = read.assignments[0].assignment
    assert isinstance(value, memoryview) and value.obj is frame


def test_the_caps_are_those_of_kafka() -> None:
    assert (runtime.MAX_ELEMENTS, runtime.MAX_TAGGED_FIELDS) == (1_000_000, 10_000)


SLICED = pytest.mark.parametrize("sliced", [False, True], ids=["whole", "sliced"])


def read_by(cls: type[M], version: int, frame: bytes, sliced: bool) -> tuple[M, int]:
    return run(decode_in_slices(cls, version, frame))[0] if sliced else decode(cls, version, frame)


@SLICED
def test_more_than_a_million_elements_are_refused(sliced: bool) -> None:
    count = 1_000_001
    frame = count.to_bytes(4, "big") + bytes(2) * count  # MetadataRequest v1: empty topic names
    with pytest.raises(ProtocolError, match="announces 1000001 elements"):
        read_by(MetadataRequest, 1, frame, sliced)


@SLICED
@pytest.mark.parametrize("count", [1_000_000, 1_000_001])
def test_the_cap_on_elements_is_exact(count: int, sliced: bool) -> None:
    before = bytes((0, 1)) + b"g" + (1).to_bytes(4, "big") + bytes((0, 1)) + b"t"  # OffsetFetchRequest v1
    frame = before + count.to_bytes(4, "big") + bytes(4) * count
    if count > 1_000_000:
        with pytest.raises(ProtocolError, match="announces 1000001 elements"):
            read_by(OffsetFetchRequest, 1, frame, sliced)
        return
    read, end = read_by(OffsetFetchRequest, 1, frame, sliced)
    assert end == len(frame) and read.topics
    assert len(read.topics[0].partition_indexes) == count


@SLICED
@pytest.mark.parametrize("cls", [MetadataRequest, ListOffsetsRequest, ProduceRequest, FetchRequest])
def test_more_than_ten_thousand_tagged_fields_are_refused(cls: type[Message], sliced: bool) -> None:
    version = cls.VERSIONS[-1]
    frame = encode_bytes(_small(cls), version)
    assert frame[-1] == 0
    accepted, refused = (frame[:-1] + runtime.uvarint(count) + b"\x63\x00" * count for count in (10_000, 10_001))
    assert read_by(cls, version, accepted, sliced) == (decode(cls, version, frame)[0], len(accepted))
    with pytest.raises(ProtocolError, match=r"tagged fields announces 10001 elements"):
        read_by(cls, version, refused, sliced)


def _small(cls: type[Message]) -> Message:
    if cls is ProduceRequest:
        return ProduceRequest(acks=1, timeout_ms=1, topic_data=[])
    if cls is FetchRequest:  # It has tagged fields of its own.
        return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[])
    if cls is ListOffsetsRequest:
        partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
        return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])])
    return MetadataRequest(topics=[MetadataRequestTopic(name="t")])
