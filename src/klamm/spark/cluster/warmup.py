"""Compiles the numba kernels before an executor's first task needs them; the result is cached on disk."""

from __future__ import annotations


def warmup() -> int:
    """Decode a few records with every column, so that every kernel is compiled. Returns the number of records."""
    import pyarrow as pa

    from klamm.model import TopicPartition
    from klamm.protocol.record_batch import Header, Record, build_batch
    from klamm.spark.decode.batch_scan import NothingAborted, scan
    from klamm.spark.decode.record_columns import RecordDecoder
    from klamm.spark.source.topic_schema import ARROW_TYPES

    tp = TopicPartition("warmup", 0)
    rows = [Record(number, 1000 + number, b"key", b"value", (Header("name", b"value"),)) for number in range(3)]
    chunk = scan(memoryview(build_batch(rows)), tp)
    schema = pa.schema([pa.field(name, kind) for name, kind in ARROW_TYPES.items()])
    decoder = RecordDecoder(tp, schema, batch_bytes=1 << 20)
    return sum(batch.num_rows for batch in decoder.decode(chunk, 0, len(rows), NothingAborted()))
