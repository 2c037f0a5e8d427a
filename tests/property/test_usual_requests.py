"""The short ways of usual requests answer the same as the general ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from klamm.apis import ALL, list_offsets, offset_for_leader_epoch, produce
from klamm.apis.api_declaration import Api, at_once
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import ZERO_UUID, TopicPartition
from klamm.network.api_table import ApiTable, ApiTableEntry, code_of
from klamm.network.request_decoder import RequestDecoder
from klamm.network.request_metrics import MAX_WHOLE_ELEMENTS, error_code_reader, small_error_code_reader
from klamm.protocol.frames import RequestHeader, decode_request_header, encode_request_header
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from klamm.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import ATTRIBUTES_POSITION, TRANSACTIONAL_BIT
from klamm.protocol.schema import Type, plan
from klamm.protocol.wire import encode_bytes
from tests.support.messages import build
from tests.support.one_broker import ManualClock, OneBroker, batch
from tests.unit.network.harness import heartbeat_api


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.update_metadata({})
    yield broker
    broker.close()


def _random_topics(rng: Random) -> list[tuple[str, list[int]]]:
    names = rng.choices(("t", "u", "unknown"), k=rng.choice((0, 1, 1, 2, 3)))
    return [(name, rng.choices(range(4), k=rng.choice((0, 1, 1, 2, 5)))) for name in names]


def test_few_partitions_of_list_offsets_are_answered_as_in_slices(one: OneBroker) -> None:
    for topic in ("t", "u"):
        one.lead(topic, 3)
    one.ask(produce.API, _produce("t", 1, batch(b"a", b"b"), 1), 9)
    rng = Random(11)
    for _ in range(400):
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=index,
                        timestamp=rng.choice((-1, -2, -3, -4, -5, 0, 1 << 50)),
                        current_leader_epoch=rng.choice((-1, 0, 1)),
                    )
                    for index in partitions
                ],
            )
            for name, partitions in _random_topics(rng)
        ]
        request = ListOffsetsRequest(
            replica_id=rng.choice((-1, -2, 1)), isolation_level=rng.choice((0, 1)), topics=topics
        )
        context = one.context(request.KEY, rng.randint(0, 9))
        short = _whole(list_offsets.handle(one.broker, context, request))
        assert short == at_once(list_offsets._answer(one.broker, context, request))


def test_few_partitions_of_offset_for_leader_epoch_are_answered_as_in_slices(one: OneBroker) -> None:
    for topic in ("t", "u"):
        one.lead(topic, 3)
    rng = Random(12)
    for _ in range(200):
        topics = [
            OffsetForLeaderTopic(
                topic=name,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=index,
                        current_leader_epoch=rng.choice((-1, 0, 1)),
                        leader_epoch=rng.choice((-1, 0, 1)),
                    )
                    for index in partitions
                ],
            )
            for name, partitions in _random_topics(rng)
        ]
        request = OffsetForLeaderEpochRequest(replica_id=rng.choice((-1, -2, 1)), topics=topics)
        context = one.context(request.KEY, rng.randint(0, 4))
        short = _whole(offset_for_leader_epoch.handle(one.broker, context, request))
        assert short == at_once(offset_for_leader_epoch._answer(one.broker, context, request))


def _produce(topic: str, index: int, records: bytes | None, acks: int, **fields: Any) -> ProduceRequest:
    data = PartitionProduceData(index=index, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])], **fields
    )


def _with_flag(records: bytes, flag: int) -> bytes:
    changed = bytearray(records)
    changed[ATTRIBUTES_POSITION + 1] |= flag
    return bytes(changed)


BATCHES = (
    None,
    b"",
    b"short",
    batch(b"a"),
    batch(b"a", b"b", b"c"),
    batch(b"damaged")[:-1] + b"!",
    batch(b"a") + batch(b"b"),
    _with_flag(batch(b"t"), TRANSACTIONAL_BIT),
)
GENERAL: Api[ProduceRequest, ProduceResponse] = replace(produce.API, handle=produce.handle)


@pytest.mark.parametrize("version", [3, 6, 7, 9, 12])
def test_one_batch_is_produced_as_in_a_request_with_many(one: OneBroker, version: int) -> None:
    """Both topics receive the same requests, one by the short way and the other by the general one."""
    one.lead("short", 2)
    one.lead("other", 2)
    rng = Random(version)
    for _ in range(150):
        fields = (rng.choice((0, 0, 1, 2)), rng.choice(BATCHES), rng.choice((1, 1, -1, 0, 2)))
        answers = []
        for topic, api in (("short", produce.API), ("other", GENERAL)):
            answer = one.ask_for_anything(api, _produce(topic, *fields), version)
            closes = one.last_context.closes_connection
            if answer is not None:
                answer.responses[0].name = ""
            answers.append((answer, closes))
        assert answers[0] == answers[1]
    ends = [one.broker.replicas.leader_log(TopicPartition(topic, 0)) for topic in ("short", "other")]
    assert not isinstance(ends[0], ErrorCode) and not isinstance(ends[1], ErrorCode)
    assert ends[0].log_end_offset == ends[1].log_end_offset > 0


def test_small_responses_have_the_same_error_codes_as_others() -> None:
    small = large = 0
    rng = Random(14)
    for api in ALL:
        for version in api.versions:
            layout = plan(api.response, version)
            read_small, read = small_error_code_reader(api.response, version), error_code_reader(api.response)
            for most in (1, 2, 4, 9):
                response = build(layout, _random_fields(layout, rng, most))
                codes = read_small(response)
                if _elements(layout, response) > MAX_WHOLE_ELEMENTS:
                    assert codes is None
                    large += 1
                else:
                    assert codes == read(response), api.name
                    small += 1
    assert small > 100 and large > 10


def test_a_response_with_many_elements_is_not_small() -> None:
    read = small_error_code_reader(ListOffsetsResponse, 9)

    def response(topics: int, partitions: int) -> ListOffsetsResponse:
        rows = [ListOffsetsPartitionResponse(partition_index=n, error_code=n) for n in range(partitions)]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=rows)] * topics)

    assert read(response(1, MAX_WHOLE_ELEMENTS - 1)) == list(range(MAX_WHOLE_ELEMENTS - 1))
    assert read(response(1, MAX_WHOLE_ELEMENTS)) is None
    assert read(response(MAX_WHOLE_ELEMENTS // 2, 1)) == [0] * (MAX_WHOLE_ELEMENTS // 2)
    assert read(response(MAX_WHOLE_ELEMENTS // 2, 2)) is None


def test_a_remembered_client_id_is_read_like_a_new_one() -> None:
    table = ApiTable([heartbeat_api()], MetricsRegistry(ManualClock()))
    rng = Random(13)
    decoder = RequestDecoder()
    for _ in range(500):
        api: ApiTableEntry = table.by_code[code_of(HeartbeatRequest.KEY, rng.randint(0, 4))]
        client_id = rng.choice((None, "", "a", "a", "ab", "ä", "a" * 300))
        request = HeartbeatRequest(group_id=rng.choice(("", "a", "group")), generation_id=7, member_id="m")
        header = encode_request_header(RequestHeader(api.key, api.version, 1, client_id))
        if api.is_request_flexible and rng.random() < 0.3:
            header = header[:-1] + b"\x01\x05\x02xy"
        frame = header + encode_bytes(request, api.version)
        read, _ = decode_request_header(frame)
        assert decoder.decode(api, frame) == (read.client_id, request) == (client_id, request)
        assert at_once(decoder.decode_in_slices(api, frame, [])) == (client_id, request)


def _whole(answer: Any) -> Any:
    """The response of a handler that may work in slices."""
    return at_once(answer) if hasattr(answer, "send") else answer


def _random_fields(layout: Type, rng: Random, most: int) -> dict[str, Any]:
    """Random error codes, and arrays of random lengths up to `most`; the other fields have their least values."""
    fields: dict[str, Any] = {}
    for slot in layout.fields:
        if slot.name == "error_code":
            fields[slot.name] = rng.randint(-1, 100)
        elif slot.present and slot.type.element is not None:
            kind = slot.type.element
            count = rng.randint(0, most)
            if kind.struct is not None:
                fields[slot.name] = [_random_fields(kind, rng, most) for _ in range(count)]
            elif kind.code:
                fields[slot.name] = [n % 2 for n in range(count)]
        elif slot.type.nullable:
            fields[slot.name] = None
        elif slot.type.code == "16s":
            fields[slot.name] = ZERO_UUID
    return fields


def _elements(layout: Type, value: Any) -> int:
    """How many elements all arrays of a struct have."""
    count = 0
    for slot in layout.fields:
        inner = getattr(value, slot.name)
        if not slot.present or not slot.type.is_array or not inner:
            continue
        count += len(inner)
        element = slot.type.element
        if element is not None and element.struct is not None:
            count += sum(_elements(element, item) for item in inner)
    return count
