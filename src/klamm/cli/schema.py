"""`klamm schema infer TOPIC`: the columns of a topic's JSON values, found in a sample."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.client import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_S,
    BootstrapServer,
    client_config,
    cluster_metadata,
    explain,
    no_such_topic,
)
from klamm.cli.completion import TopicName
from klamm.cli.output import fail, note, say

if TYPE_CHECKING:
    from klamm.spark.decode.schema_inference import Inferred

app = typer.Typer(help="Infer the schema of a topic's values.", no_args_is_help=True)

SAMPLE: Final = 1000
Sample = Annotated[
    int, typer.Option("--sample", "-n", min=1, max=1_000_000, help="Number of the newest records to sample.")
]


@app.command()
def infer(
    topic: TopicName,
    sample: Sample = SAMPLE,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write it here: a StructType if it ends in .json, else DDL.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the schema of the JSON objects in a topic, as DDL: for valueSchema, `klamm table create`, pipelines."""
    require_schemas()
    from klamm.spark.decode.ddl import to_ddl

    found = infer_topic(bootstrap_server, topic, sample)
    text = to_ddl(found.schema)
    if out is None:
        say(text)
    else:
        out.write_text(f"{found.schema.json() if out.suffix == '.json' else text}\n", encoding="utf-8")
        note(f"Wrote {out}.")


def require_schemas() -> None:
    """Fail with one sentence if the extra is not installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError:
        fail("Schemas need the Spark part: pip install 'klamm[spark]'.")


def infer_topic(servers: str, topic: str, sample: int) -> Inferred:
    """Return the schema of the newest records, and report the sample."""
    from klamm.spark.decode.schema_inference import infer_json

    values = sample_values(servers, topic, sample)
    if not values:
        fail(f"Topic {topic} has no records to infer a schema from.")
    found = infer_json(values)
    skipped = f", {found.skipped} of other values left out" if found.skipped else ""
    note(f"Inferred from {found.rows} JSON objects of {topic}{skipped}.")
    if found.left_out:
        note(f"Left out, because another field differs in case only: {', '.join(found.left_out)}.")
    return found


def sample_values(servers: str, topic: str, sample: int) -> list[bytes | None]:
    """Return the values of about `sample` newest records, taken equally from all partitions."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(client_config(servers, group_id="klamm-schema-infer", enable_partition_eof=True))
    try:
        found = cluster_metadata(consumer, servers).topics.get(topic)
        if found is None:
            fail(no_such_topic(topic, operation="READ"))
        share = max(1, -(-sample // len(found.partitions)))
        begin, left = [], set()
        for number in sorted(found.partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)
            if high > low:
                begin.append(TopicPartition(topic, number, max(low, high - share)))
                left.add(number)
        consumer.assign(begin)
        values: list[bytes | None] = []
        silent_since = time.monotonic()
        while left and len(values) < sample and time.monotonic() - silent_since < TIMEOUT_S:
            for message in consumer.consume(500, timeout=0.5):
                silent_since = time.monotonic()
                error = message.error()
                if error is None:
                    values.append(_bytes(message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition() or 0)
                elif not error.retriable():
                    fail(explain(error))
        return values[:sample]
    finally:
        consumer.close()


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
