"""Compiles the numba kernels before an executor's first task needs them; the result is cached on disk."""

from __future__ import annotations


def warmup() -> int:
    """Decode and encode a few records, so that every kernel is compiled. Returns the number of decoded records."""
    import pyarrow as pa

    from klamm.client.transactional_producer import RecordSet
    from klamm.model import TopicPartition
    from klamm.protocol.record_batch import Header, Record, build_batch
    from klamm.spark.decode.batch_scan import NothingAborted, scan
    from klamm.spark.decode.record_columns import RecordDecoder
    from klamm.spark.sink.row_batches import RowBatches
    from klamm.spark.source.topic_schema import ARROW_TYPES

    tp = TopicPartition("warmup", 0)
    rows = [Record(number, 1000 + number, b"key", b"value", (Header("name", b"value"),)) for number in range(3)]
    chunk = scan(memoryview(build_batch(rows)), tp)
    schema = pa.schema([pa.field(name, kind) for name, kind in ARROW_TYPES.items()])
    decoder = RecordDecoder(tp, schema, batch_bytes=1 << 20)
    encoded: list[dict[TopicPartition, RecordSet]] = []
    encoder = RowBatches(encoded.append, lambda _: 1, batch_bytes=1 << 20, memory_bytes=1 << 20)
    encoder.add("warmup", pa.record_batch({"key": pa.array([b"key"]), "value": pa.array([b"value"])}))
    encoder.close()
    return sum(batch.num_rows for batch in decoder.decode(chunk, 0, len(rows), NothingAborted()))
