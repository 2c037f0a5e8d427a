"""The schema of a topic's values: given as text, or read from a file on the driver and sent to executors as text.

| format | text | file |
|---|---|---|
| json | DDL, or a StructType as JSON | the same, or the output of `klamm schema infer` |
| avro | an Avro schema (JSON) | .avsc |
| protobuf | a FileDescriptorSet in base64 | the output of `protoc --descriptor_set_out --include_imports` |
| string, raw | none | none |
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import KlammError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS: Final = ("json", "avro", "protobuf", "string", "raw")
WITHOUT_SCHEMA: Final = ("string", "raw")


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """`text` is the schema as the table above says, `message` the name of a Protobuf message."""

    format: str
    text: str = ""
    message: str | None = None


def load(
    value_format: str, *, schema: str | None = None, file: str | Path | None = None, message: str | None = None
) -> ValueSchema:
    """Return the schema from text or a file. Raises KlammError if it is missing, not needed, or unreadable."""
    if value_format not in FORMATS:
        raise KlammError(f"{value_format!r} is not a format of values: expected one of {', '.join(FORMATS)}.")
    if value_format in WITHOUT_SCHEMA:
        if schema is not None or file is not None:
            raise KlammError(f"The format {value_format} has no schema.")
        return ValueSchema(value_format)
    if (schema is None) == (file is None):
        raise KlammError(
            f"The format {value_format} needs a schema: as text (valueSchema) or a file (valueSchemaFile)."
        )
    if message is None and value_format == "protobuf":
        raise KlammError("The format protobuf needs the name of the message (valueMessage).")
    return ValueSchema(value_format, schema if schema is not None else _read(value_format, Path(file or "")), message)


def _read(value_format: str, file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise KlammError(f"The schema file {file} cannot be read: {error.strerror}.") from None
    if value_format == "protobuf":
        return base64.b64encode(data).decode()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise KlammError(f"The schema file {file} is not text in UTF-8.") from None


def struct_type(schema: ValueSchema) -> StructType:
    """The columns of a json schema: from DDL, or from a StructType as JSON. No two may differ in case only."""
    from pyspark.sql.types import StructType

    from klamm.spark.decode.ddl import parse_ddl

    text = schema.text.strip()
    if not text.startswith("{"):
        return parse_ddl(text)
    try:
        found = StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KlammError(f"The schema is neither DDL nor a StructType as JSON: {error}.") from None
    _refuse_same_names(found, "")
    return found


def _refuse_same_names(kind: Any, place: str) -> None:
    """Spark and Delta do not distinguish columns that differ in case only."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _refuse_same_names(kind.elementType, place)
    if isinstance(kind, MapType):
        return _refuse_same_names(kind.valueType, place)
    if not isinstance(kind, StructType):
        return
    seen: dict[str, str] = {}
    for field in kind.fields:
        if (other := seen.setdefault(field.name.lower(), field.name)) != field.name:
            raise KlammError(
                f"The schema has columns {place + other!r} and {place + field.name!r}, which differ in case only."
            )
        _refuse_same_names(field.dataType, f"{place}{field.name}.")


def descriptor_set(schema: ValueSchema) -> bytes:
    """Return the bytes of a protobuf schema."""
    try:
        return base64.b64decode(schema.text, validate=True)
    except binascii.Error as error:
        raise KlammError(f"The schema is not a descriptor set in base64: {error}.") from None
