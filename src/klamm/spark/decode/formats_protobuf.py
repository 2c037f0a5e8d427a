"""Protobuf values as typed columns: each value is one message, described by a FileDescriptorSet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from klamm.errors import KlammError
from klamm.spark.decode.row_decoder import RowDecoder
from klamm.spark.decode.value_schema import ValueSchema, descriptor_set

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_SCALAR: Final = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
Convert = Callable[[Any], Any]


class ProtobufDecoder(RowDecoder):
    """One column per field of the message. An unset field with presence is null; others have their default."""

    def __init__(self, schema: ValueSchema) -> None:
        message = _message(descriptor_set(schema), schema.message or "")
        self._class: Any = message_factory.GetMessageClass(message)
        described = [_Field(field, (message.full_name,)) for field in message.fields]
        self._fields = described
        self.arrow_fields = [pa.field(field.name, field.type) for field in described]

    def row(self, value: bytes) -> tuple[list[object] | None, str | None]:
        try:
            message = self._class.FromString(value)
            return [field.read(message) for field in self._fields], None
        except DecodeError as error:
            return None, f"not this Protobuf message: {error}"
        except (ValueError, OverflowError) as error:
            return None, f"a Protobuf message that does not fit the columns: {error}"


def _message(data: bytes, name: str) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except DecodeError:
        raise KlammError("The schema is not a FileDescriptorSet, as protoc --descriptor_set_out writes.") from None
    except KeyError:
        found = [f"{file.package}.{m.name}".lstrip(".") for file in files.file for m in file.message_type]
        raise KlammError(f"The descriptor set has no message {name!r}; it has {', '.join(sorted(found))}.") from None
    except TypeError as error:
        raise KlammError(f"The descriptor set is not complete: {error}; write it with --include_imports.") from None


class _Field:
    """How one field becomes a column."""

    def __init__(self, field: FieldDescriptor, inside: tuple[str, ...]) -> None:
        self.name = field.name
        self._has_presence = field.has_presence
        self.type: pa.DataType
        self._convert: Convert
        if (entry := _map_entry(field)) is not None:
            key, _ = _single(entry.fields_by_name["key"], inside)
            item, convert = _single(entry.fields_by_name["value"], inside)
            self.type = pa.map_(key, item)
            self._convert = lambda value: [(name, convert(inner)) for name, inner in value.items()]
        elif field.is_repeated:
            item, convert = _single(field, inside)
            self.type = pa.list_(item)
            self._convert = lambda value: [convert(inner) for inner in value]
        else:
            self.type, self._convert = _single(field, inside)

    def read(self, message: Any) -> Any:
        if self._has_presence and not message.HasField(self.name):
            return None
        return self._convert(getattr(message, self.name))


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    kind = field.message_type
    return kind if kind is not None and kind.GetOptions().map_entry else None


def _single(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    if field.message_type is not None:
        return _nested(field, field.message_type, inside)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), bytes
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.string(), str
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return _SCALAR[field.cpp_type], Decimal
    return _SCALAR[field.cpp_type], lambda value: value


def _nested(field: FieldDescriptor, kind: Descriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Convert]:
    if kind.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC"), lambda value: value.ToDatetime(tzinfo=UTC)
    if kind.full_name in inside:
        raise KlammError(f"The message {kind.full_name} holds itself in {field.full_name}: it cannot be columns.")
    fields = [_Field(inner, (*inside, kind.full_name)) for inner in kind.fields]
    made = pa.struct([pa.field(inner.name, inner.type) for inner in fields])
    return made, lambda message: {inner.name: inner.read(message) for inner in fields}
