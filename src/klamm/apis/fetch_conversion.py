"""Fetch v0-v3: record batches become messages of the format that the client knows, 0 in v0-v1 and 1 in v2-v3.

The conversion runs in the thread that validates large batches. A partition's answer ends with the batch that makes it
as large as the data that was read, so it is at most one batch larger; clients fetch the rest with the next request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from klamm.apis.api_declaration import Answer, Broker
from klamm.errors import ErrorCode, ProtocolError
from klamm.model import TopicPartition
from klamm.protocol.message_set import from_batches
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from klamm.waiting import Steps, begin, result_of

_log = logging.getLogger(__name__)
_FIRST_WITH_TIMESTAMPS: Final = 2
_SLICE: Final = 500
"""Partitions of a response that are looked at per step."""


def convert(broker: Broker, version: int, req: FetchRequest, response: FetchResponse) -> Answer[FetchResponse]:
    """The response in the format of this version."""
    return begin(_convert(broker, 1 if version >= _FIRST_WITH_TIMESTAMPS else 0, req, response))


def _convert(broker: Broker, magic: int, req: FetchRequest, response: FetchResponse) -> Steps[FetchResponse]:
    found: dict[TopicPartition, list[PartitionData]] = {}
    for number, (topic, data) in enumerate(_pairs(response.responses), 1):
        if data.records:
            found.setdefault(TopicPartition(topic.topic, data.partition_index), []).append(data)
        if not number % _SLICE:
            yield
    if not found:
        return response
    offsets: dict[TopicPartition, int] = {}
    for number, (topic, asked) in enumerate(_pairs(req.topics), 1):
        if (tp := TopicPartition(topic.topic, asked.partition)) in found:
            offsets[tp] = asked.fetch_offset
        if not number % _SLICE:
            yield
    work = [(tp.topic, data, offsets[tp]) for tp, each in found.items() for data in each]
    done = broker.replicas.record_checks.submit(partial(_convert_all, broker.clock.monotonic, magic, work))
    return _count(broker, (yield from result_of(done)), response)


def _pairs(topics: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    return ((topic, partition) for topic in topics for partition in topic.partitions)


class _Conversions(NamedTuple):
    counts: list[tuple[str, int]]
    """Converted records, with their topics."""
    memory_bytes: int
    seconds: float


def _count(broker: Broker, conversions: _Conversions, response: FetchResponse) -> FetchResponse:
    counts, memory_bytes, seconds = conversions
    broker.replicas.fetch_conversions.record(counts, seconds * 1000, memory_bytes)
    return response


def _convert_all(
    monotonic: Callable[[], float], magic: int, work: list[tuple[str, PartitionData, int]]
) -> _Conversions:
    """Runs in the thread; no other code uses the response meanwhile."""
    started, counts, memory_bytes = monotonic(), [], 0
    for topic, data, offset in work:
        parts = data.records if isinstance(data.records, tuple) else (data.records or b"",)
        sent = b"".join(parts)
        try:
            data.records, count, converting_bytes = from_batches(memoryview(sent), magic, offset, len(sent))
            counts.append((topic, count))
            memory_bytes += converting_bytes
        except ProtocolError as e:
            _log.warning("records at offset %d cannot be converted to message format %d: %s", offset, magic, e)
            data.records, data.error_code = b"", ErrorCode.CORRUPT_MESSAGE
    return _Conversions(counts, memory_bytes, monotonic() - started)
