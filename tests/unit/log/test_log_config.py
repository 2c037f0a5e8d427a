"""Topic keys that stand in for others, and the levels of the codecs."""

from __future__ import annotations

import pytest

from klamm.errors import ErrorCode
from klamm.log import LogConfig, append_as_leader
from klamm.log.log_config import INT64_MAX
from klamm.protocol.compression import CompressionType, compress
from klamm.protocol.record_batch import RECORD_BATCH_OVERHEAD, Record, build_batch, records
from tests.unit.log.harness import NOW, Bench, append, batch, read_batches


@pytest.mark.parametrize(
    ("properties", "before", "after"),
    [
        ({}, INT64_MAX, INT64_MAX),
        ({"difference": 5}, 5, 5),
        ({"difference": 5, "before": 7}, 7, 5),
        ({"difference": 5, "after": 7, "before": INT64_MAX}, 5, 7),
        ({"difference": INT64_MAX, "after": 7}, INT64_MAX, 7),
    ],
)
def test_the_old_bound_of_timestamps(properties: dict[str, int], before: int, after: int) -> None:
    config = LogConfig.from_properties({f"message.timestamp.{k}.max.ms": str(v) for k, v in properties.items()})
    assert (config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms) == (before, after)


def test_the_old_bound_refuses_records() -> None:
    log = Bench(LogConfig.from_properties({"message.timestamp.difference.max.ms": "1000"})).open()
    for distance_ms in (-1001, 1001):
        assert append_as_leader(log, batch(b"x", timestamp=NOW + distance_ms), 0).error == ErrorCode.INVALID_TIMESTAMP
    append(log, batch(b"x", timestamp=NOW - 1000))


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_the_level_of_the_codec_is_used(codec: str) -> None:
    rows = [Record(timestamp=NOW, key=b"k", value=b"%d, " % (i * i) * 20) for i in range(200)]
    stored = {}
    for level in (1, 9):
        properties = {"compression.type": codec, f"compression.{codec}.level": str(level)}
        log = Bench(LogConfig.from_properties(properties)).open()
        append(log, build_batch(rows))
        [found] = read_batches(log)
        assert [r.value for r in records(found)] == [r.value for r in rows]
        stored[level] = bytes(found.view[RECORD_BATCH_OVERHEAD:])
    body = build_batch(rows)[RECORD_BATCH_OVERHEAD:]
    assert stored == {level: compress(CompressionType[codec.upper()], body, level) for level in (1, 9)}
    assert stored[1] != stored[9]
