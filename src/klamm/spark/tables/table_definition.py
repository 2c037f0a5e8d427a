"""The definition of a table, stored in `_klamm/table.json`: the topic, the format and the schema of its values.

With the checkpoint in `_klamm/checkpoint`, the directory of a table is all that `klamm table sync` needs.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import KlammError
from klamm.spark.decode.value_schema import ValueSchema

if TYPE_CHECKING:
    import pyarrow as pa

DIRECTORY: Final = "_klamm"
"""Vacuum and readers of the table ignore names that begin with an underscore."""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """`schema` is a text that `value_schema` accepts; `partition_by_date` names a timestamp column."""

    topic: str
    bootstrap_servers: str
    format: str = "json"
    schema: str | None = None
    message: str | None = None
    partition_by_date: str | None = None
    bad_records: str | None = None
    starting_offsets: str = "earliest"

    def columns(self) -> pa.Schema:
        """Return the table's columns. Raises KlammError for an unusable schema."""
        import pyarrow as pa

        from klamm.spark.decode.formats import decoder

        if self.format == "raw":
            fields = [pa.field("value", pa.binary())]
        else:
            fields = decoder(self.format, ValueSchema(self.format, self.schema or "", self.message)).arrow_fields
        return pa.schema([*fields, *_record_columns()])


def _record_columns() -> list[pa.Field]:
    import pyarrow as pa

    return [
        pa.field("key", pa.binary()),
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", "UTC")),
    ]


def checkpoint_of(path: Path) -> Path:
    return path / DIRECTORY / "checkpoint"


def load_definition(path: Path) -> TableDefinition:
    """Read the definition. Raises KlammError if it is missing or unreadable."""
    place = path / DIRECTORY / "table.json"
    try:
        given: Any = json.loads(place.read_text(encoding="utf-8"))
        return TableDefinition(**given)
    except FileNotFoundError:
        if (path / "_delta_log").is_dir():
            raise KlammError(
                f"The table at {path} was not made by `klamm table create`: its pipeline or program writes it."
            ) from None
        raise KlammError(f"There is no table at {path}: create it with `klamm table create`.") from None
    except (OSError, ValueError, TypeError) as error:
        raise KlammError(f"The definition {place} cannot be read: {error}.") from None


def create_table(path: Path, definition: TableDefinition) -> list[str]:
    """Create the table and store its definition. Returns the columns that were added to an existing table.

    An existing table accepts only the same definition with added columns.
    """
    from klamm.spark.source.read_options import parse_read_options
    from klamm.spark.tables.commits import BatchOfFiles, create, evolve
    from klamm.spark.tables.delta import parse_options

    parse_options({"path": str(path), "badRecords": definition.bad_records or ""})
    columns = definition.columns()
    parse_read_options(
        {
            "kafka.bootstrap.servers": definition.bootstrap_servers,
            "subscribe": definition.topic,
            "startingOffsets": definition.starting_offsets,
        },
        streaming=True,
    )
    is_partitioned = definition.partition_by_date is not None
    if is_partitioned and definition.partition_by_date not in columns.names:
        raise KlammError(f"There is no column {definition.partition_by_date!r} to partition by.")
    added: list[str] = []
    if (path / DIRECTORY / "table.json").exists():
        _check_same(load_definition(path), definition)
    if (path / "_delta_log").exists():
        from klamm.spark.tables.read import open_table

        added = evolve(open_table(path), columns, is_partitioned)
    else:
        create(path, BatchOfFiles(columns, [], is_partitioned))
    _save(path, definition)
    return added


def _check_same(before: TableDefinition, now: TableDefinition) -> None:
    changing = {"schema", "bootstrap_servers"}
    for field in dataclasses.fields(TableDefinition):
        old, new = getattr(before, field.name), getattr(now, field.name)
        if field.name not in changing and old != new:
            raise KlammError(f"The table exists already, with {field.name} {old!r}, not {new!r}.")


def _save(path: Path, definition: TableDefinition) -> None:
    directory = path / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / "table.json.new"
    unfinished.write_text(json.dumps(dataclasses.asdict(definition), indent=2) + "\n", encoding="utf-8")
    os.replace(unfinished, directory / "table.json")
