"""`klamm log dump FILE`: the contents of a segment file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.output import fail, note, say
from klamm.errors import ProtocolError

app = typer.Typer(help="Inspect log files.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Inspect log files."""


@app.command()
def dump(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A segment, such as 00000000000000000000.log.")],
    records: Annotated[bool, typer.Option("--records", "-r", help="Print every record too.")] = False,
) -> None:
    """Print the record batches of a segment file, and where it is damaged."""
    import mmap

    from klamm.protocol.record_batch import next_batch

    if path.suffix != ".log":
        fail(f"{path} is not a segment: expected a file that ends with .log.")
    try:
        size = path.stat().st_size
        if size == 0:
            note(f"{path} is empty.")
            return
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}.")
    view = memoryview(data)
    position, broken = 0, 0
    try:
        while (batch := next_batch(view, position)) is not None:
            broken += not batch.is_valid()
            say(f"position: {position} {_batch_line(batch)}")
            if records:
                _dump_records(batch)
            position += batch.size_bytes
    except ProtocolError as error:
        fail(f"{path} is damaged at position {position}: {error}.")
    if position < size:
        fail(f"{path} ends inside a batch: {size - position} bytes remain at position {position}.")
    if broken:
        fail(f"{path} has {broken} batches with a wrong checksum.")


def _batch_line(batch: object) -> str:
    from klamm.protocol.compression import CompressionType
    from klamm.protocol.record_batch import RecordBatch

    assert isinstance(batch, RecordBatch)
    try:
        codec = CompressionType(batch.compression).name.lower()
    except ValueError:
        codec = f"unknown ({batch.compression})"
    return (
        f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.record_count} "
        f"baseSequence: {batch.base_sequence} producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch} "
        f"partitionLeaderEpoch: {batch.partition_leader_epoch} isTransactional: {str(batch.is_transactional).lower()} "
        f"isControl: {str(batch.is_control).lower()} {batch.timestamp_type.name}: {batch.max_timestamp} "
        f"size: {batch.size_bytes} magic: {batch.magic} compresscodec: {codec} crc: {batch.crc} "
        f"isvalid: {str(batch.is_valid()).lower()}"
    )


def _dump_records(batch: object) -> None:
    from klamm.protocol.record_batch import RecordBatch
    from klamm.protocol.record_batch import records as decode

    assert isinstance(batch, RecordBatch)
    for record in decode(batch):
        headers = ",".join(f"{name}={_shown(value)}" for name, value in record.headers)
        say(
            f"| offset: {record.offset} timestamp: {record.timestamp} key: {_shown(record.key)} "
            f"value: {_shown(record.value)} headers: [{headers}]"
        )


def _shown(data: bytes | None) -> str:
    return "null" if data is None else data.decode("utf-8", "backslashreplace")
