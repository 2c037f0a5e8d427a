"""Fetch v0-v3: record batches become messages of the format that the client knows, 0 in v0-v1 and 1 in v2-v3.

The conversion runs in the thread that validates large batches. A partition's answer ends with the batch with which it
reaches the size that was read, so that it grows by one batch at most; clients fetch the rest with the next request.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from klamm.apis.api_declaration import Broker
from klamm.errors import ErrorCode, ProtocolError
from klamm.model import TopicPartition
from klamm.protocol.message_set import from_batches
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from klamm.waiting import after

_log = logging.getLogger(__name__)
_FIRST_WITH_TIMESTAMPS: Final = 2


def convert(
    broker: Broker, version: int, req: FetchRequest, answer: FetchResponse | asyncio.Future[FetchResponse]
) -> FetchResponse | asyncio.Future[FetchResponse]:
    """The answer in the format of this version."""
    magic = 1 if version >= _FIRST_WITH_TIMESTAMPS else 0
    return after(answer, lambda response: _convert(broker, magic, req, response))


def _convert(
    broker: Broker, magic: int, req: FetchRequest, response: FetchResponse
) -> FetchResponse | asyncio.Future[FetchResponse]:
    found: dict[TopicPartition, list[PartitionData]] = {}
    for topic in response.responses:
        for data in topic.partitions:
            if data.records:
                found.setdefault(TopicPartition(topic.topic, data.partition_index), []).append(data)
    if not found:
        return response
    offsets = {
        tp: asked.fetch_offset
        for topic_asked in req.topics
        for asked in topic_asked.partitions
        if (tp := TopicPartition(topic_asked.topic, asked.partition)) in found
    }
    work = [(data, offsets[tp]) for tp, each in found.items() for data in each]
    done = broker.replicas.record_checks.submit(partial(_convert_all, magic, work))
    return after(done, lambda _: response)


def _convert_all(magic: int, work: list[tuple[PartitionData, int]]) -> None:
    """Runs in the thread; no other code uses the response meanwhile."""
    for data, offset in work:
        parts = data.records if isinstance(data.records, tuple) else (data.records or b"",)
        sent = b"".join(parts)
        try:
            data.records = from_batches(memoryview(sent), magic, offset, len(sent))
        except ProtocolError as e:
            _log.warning("records at offset %d cannot be converted to message format %d: %s", offset, magic, e)
            data.records, data.error_code = b"", ErrorCode.CORRUPT_MESSAGE
