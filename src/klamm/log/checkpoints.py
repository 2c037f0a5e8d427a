"""The small text files of a log directory, in Kafka's formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from sys import intern
from typing import Final
from uuid import UUID

from klamm.errors import KlammError, shown
from klamm.lazy_dataclass import lazy_dataclass
from klamm.log import names
from klamm.log.files import Files
from klamm.model import TopicPartition, decode_topic_id, encode_topic_id, make_topic_partition

_VERSION: Final = "0"
_INT64_MAX: Final = (1 << 63) - 1


def encode_checkpoint(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "\n".join((_VERSION, str(len(rows)), *rows, "")).encode()


def decode_checkpoint(data: bytes, path: str) -> list[list[str]]:
    """Return the fields of every line. Raises KlammError, which names the file, if it is not a checkpoint."""
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines:
        return []
    if lines[0] != _VERSION:
        raise KlammError(f"{path} has version {shown(lines[0])}: version {_VERSION} is expected")
    rows = [line.split() for line in lines[2:] if line]
    if len(lines) > 1 and lines[1] != str(len(rows)):
        raise KlammError(f"{path} has {len(rows)} entries; its header says {shown(lines[1])}")
    return rows


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_checkpoint(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint; one that was never written is empty. All lines of a topic share its name."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return {}
    try:
        rows = decode_checkpoint(data, path)
        offsets = {make_topic_partition((intern(topic), int(number))): int(offset) for topic, number, offset in rows}
    except ValueError as e:
        raise KlammError(f"{path} has a line that is not `topic partition offset`") from e
    if offsets and not (min(offsets.values()) >= 0 and max(offsets.values()) <= _INT64_MAX):
        raise KlammError(f"{path} has an offset that is not a number from 0 to {_INT64_MAX}")
    return offsets


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}".encode()


def decode_partition_metadata(data: bytes, path: str) -> UUID:
    try:
        return _topic_id_of(data)
    except (KeyError, ValueError) as e:
        raise KlammError(f"{path} has no topic id") from e


@lru_cache(maxsize=1024)
def _topic_id_of(data: bytes) -> UUID:
    """Cached, because the partitions of a topic have equal files and a start reads all of them."""
    fields = dict(line.split(": ", 1) for line in data.decode("utf-8", "replace").splitlines() if ": " in line)
    return decode_topic_id(fields["topic_id"].strip())


@lazy_dataclass(frozen=True, slots=True)
class MetaProperties:
    """The broker and the cluster that own a log directory: version 0, as a ZooKeeper-mode broker writes it."""

    broker_id: int
    cluster_id: str | None = None


UNOWNED: Final = MetaProperties(-1)
"""The owner that an empty file names. The power may have failed while it was written."""


def write_meta_properties(files: Files, log_dir: str, meta: MetaProperties) -> None:
    lines = ["#", f"broker.id={meta.broker_id}", "version=0"]
    if meta.cluster_id is not None:
        lines.append(f"cluster.id={meta.cluster_id}")
    files.write_atomic(f"{log_dir}/{names.META_PROPERTIES}", ("\n".join(lines) + "\n").encode())


def read_meta_properties(files: Files, log_dir: str) -> MetaProperties | None:
    """Return None for a directory that no broker has used. Raises KlammError if the file is invalid.

    An empty file names no owner (`UNOWNED`), as in Kafka, which writes the missing values.
    """
    path = f"{log_dir}/{names.META_PROPERTIES}"
    try:
        text = files.read_bytes(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith(("#", "!")))
    values = {key.strip(): value.strip() for key, _, value in pairs}
    if not any(values):
        return UNOWNED
    if values.get("version", "0") != "0":
        raise KlammError(f"{path} has version {shown(values['version'])}: only version 0 (ZooKeeper mode) can be used")
    try:
        return MetaProperties(int(values["broker.id"]), values.get("cluster.id"))
    except (KeyError, ValueError) as e:
        raise KlammError(f"{path} has no broker.id") from e
