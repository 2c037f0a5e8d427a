"""`klamm log dump FILE`: the contents of a segment file."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from klamm.cli.output import fail, note, say
from klamm.cli.progress_line import ProgressLine
from klamm.errors import ProtocolError

if TYPE_CHECKING:
    from klamm.protocol.record_batch import RecordBatch

app = typer.Typer(help="Inspect log files.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Inspect log files."""


@app.command()
def dump(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A segment, such as 00000000000000000000.log.")],
    records: Annotated[bool, typer.Option("--records", "-r", help="Print every record too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per batch; with --records it has its records.")
    ] = False,
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
        # A bar is drawn only if the lines go to a file: between lines on the terminal, or in a pager, it would disturb.
        with ProgressLine(enabled=_is_file(sys.stdout)) as line:
            while (batch := next_batch(view, position)) is not None:
                broken += not batch.is_valid()
                if as_json:
                    say(json.dumps(_batch_object(batch, position, with_records=records)))
                else:
                    say(f"position: {position} {_batch_line(batch)}")
                    if records:
                        _dump_records(batch)
                position += batch.size_bytes
                line.show(position / size, f"{position >> 20} of {size >> 20} MiB")
    except ProtocolError as error:
        fail(f"{path} is damaged at position {position}: {error}.")
    if position < size:
        fail(f"{path} ends inside a batch: {size - position} bytes remain at position {position}.")
    if broken:
        fail(f"{path} has {broken} batches with a wrong checksum.")


def _is_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return False


def _codec(batch: RecordBatch) -> str:
    from klamm.protocol.compression import CompressionType

    try:
        return CompressionType(batch.compression).name.lower()
    except ValueError:
        return f"unknown ({batch.compression})"


def _batch_object(batch: RecordBatch, position: int, *, with_records: bool) -> dict[str, object]:
    from klamm.protocol.record_batch import records as decode

    found: dict[str, object] = {
        "position": position,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "count": batch.record_count,
        "base_sequence": batch.base_sequence,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "partition_leader_epoch": batch.partition_leader_epoch,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
        "timestamp_type": batch.timestamp_type.name,
        "max_timestamp": batch.max_timestamp,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "compression": _codec(batch),
        "crc": batch.crc,
        "is_valid": batch.is_valid(),
    }
    if with_records:
        found["records"] = [
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
            }
            for record in decode(batch)
        ]
    return found


def _batch_line(batch: RecordBatch) -> str:
    return (
        f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.record_count} "
        f"baseSequence: {batch.base_sequence} producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch} "
        f"partitionLeaderEpoch: {batch.partition_leader_epoch} isTransactional: {str(batch.is_transactional).lower()} "
        f"isControl: {str(batch.is_control).lower()} {batch.timestamp_type.name}: {batch.max_timestamp} "
        f"size: {batch.size_bytes} magic: {batch.magic} compresscodec: {_codec(batch)} crc: {batch.crc} "
        f"isvalid: {str(batch.is_valid()).lower()}"
    )


def _dump_records(batch: RecordBatch) -> None:
    from klamm.protocol.record_batch import records as decode

    for record in decode(batch):
        headers = ",".join(f"{name}={_shown(value)}" for name, value in record.headers)
        say(
            f"| offset: {record.offset} timestamp: {record.timestamp} key: {_shown(record.key)} "
            f"value: {_shown(record.value)} headers: [{headers}]"
        )


def _shown(data: bytes | None) -> str:
    return _text(data) or ("null" if data is None else "")


def _text(data: bytes | None) -> str | None:
    """Return bytes as text; those that are not UTF-8 as escapes."""
    return None if data is None else bytes(data).decode("utf-8", "backslashreplace")
