"""Values as typed columns: JSON, Avro, Protobuf, text; and each wrong record with its reason, in its row."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import KlammError
from klamm.spark.decode import formats_json
from klamm.spark.decode.ddl import parse_ddl, to_ddl
from klamm.spark.decode.formats import decoder
from klamm.spark.decode.row_decoder import assemble
from klamm.spark.decode.schema_inference import infer_json
from klamm.spark.decode.value_schema import ValueSchema, load

SCHEMA = "id long, amount double, name string, at timestamp, day date"


def decode(value_format: str, schema: Any, *values: bytes | None) -> list[dict[str, Any]]:
    """A dictionary a row: the columns, and `error`."""
    made = decoder(value_format, schema)
    columns, errors = made.decode(pa.array(values, pa.binary()))
    for column, field in zip(columns, made.arrow_fields, strict=True):
        assert column.type == field.type
        column.validate(full=True)
    table = pa.table([*columns, errors], names=[*(field.name for field in made.arrow_fields), "error"])
    return list(table.to_pylist())


# --- JSON ---


def test_json_objects_become_columns() -> None:
    value = (
        b'{"id": 7, "amount": 1.5, "name": "\\u00e9", "at": "2025-01-02T03:04:05Z", "day": "2025-01-02", "more": []}'
    )
    row = {
        "id": 7,
        "amount": 1.5,
        "name": "é",
        "at": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2025, 1, 2),
        "error": None,
    }
    empty = dict.fromkeys(row)
    # One row goes through Python, several through Arrow: both give the same.
    assert decode("json", SCHEMA, value) == [row]
    assert decode("json", SCHEMA, value, b" {} ", None, value) == [row, empty, empty, row]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", "not JSON: Expecting value at position 0"),
        (b"nope", "not JSON: Expecting value at position 0"),
        (b'{"id": 1', "not JSON: Expecting ',' delimiter at position 8"),
        (b'{"id": 1}{"id": 2}', "not JSON: Extra data at position 9"),
        (b"[1]", "not a JSON object: [1]"),
        (b"null", "not a JSON object: null"),
        (b'{"id": 1.5}', "field 'id': expected bigint, not 1.5"),
        (b'{"id": "1"}', "field 'id': expected bigint, not \"1\""),
        (b'{"id": 9223372036854775808}', "field 'id': expected bigint, not 9223372036854775808"),
        (b'{"amount": "much"}', "field 'amount': expected double, not \"much\""),
        (b'{"amount": 1e400}', "field 'amount': expected double, not 1e400"),
        (b'{"name": "\\ud83d"}', "field 'name': half of a surrogate pair"),
        (b'{"at": "yesterday"}', "field 'at': expected timestamp, not \"yesterday\""),
        (b'{"day": "2025-02-30"}', "field 'day': expected a date such as 2025-12-31, not \"2025-02-30\""),
        (b'{"name": "\xff"}', "not UTF-8: byte 0xff at position 10"),
        (b'{"name": "a\nb"}', "not JSON: Invalid control character at at position 11"),
        (b'{"x":' + b"[" * 100_000 + b"}", "not JSON that can be read: nested too deeply"),
    ],
)
def test_a_wrong_row_has_its_reason_and_its_neighbours_their_values(value: bytes, error: str) -> None:
    rows = decode("json", SCHEMA, b'{"id": 1}', value, b'{"id": 3}')
    assert [row["id"] for row in rows] == [1, None, 3]
    assert [row["error"] for row in rows] == [None, error, None]


def test_rows_that_only_together_are_json_are_two_errors() -> None:
    """As one text of lines these would be two objects in two rows."""
    rows = decode("json", "id long", b'{"id": 1}{"id"', b":2}", b'{"id": 3}{', b'"id": 4}')
    assert [row["error"] is not None for row in rows] == [True] * 4


def test_a_value_in_place_of_a_string_becomes_text() -> None:
    values = [b'{"name": 1.50}', b'{"name": {"a": [1, true]}}', b'{"name": false}', b'{"name": null}']
    assert [row["name"] for row in decode("json", SCHEMA, *values)] == ["1.50", '{"a":[1,true]}', "false", None]


def test_nested_types_maps_decimals_and_bytes() -> None:
    schema = "a array<struct<b: int, c: map<string, double>>>, d decimal(6,2), e binary, f timestamp_ntz, g date"
    value = {
        "a": [{"b": 1, "c": {"x": 1, "y": None}}, None],
        "d": 12.5,
        "e": base64.b64encode(b"\x00\xff").decode(),
        "f": "2025-01-02 03:04:05.000001",
        "g": "2025-01-02",
    }
    (row,) = decode("json", schema, json.dumps(value).encode())
    assert row == {
        "a": [{"b": 1, "c": [("x", 1.0), ("y", None)]}, None],
        "d": Decimal("12.50"),
        "e": b"\x00\xff",
        "f": datetime(2025, 1, 2, 3, 4, 5, 1),
        "g": date(2025, 1, 2),
        "error": None,
    }
    wrong = [b'{"d": 12.345}', b'{"d": 12345.1}', b'{"e": "*"}', b'{"a": [{"b": "x"}]}', b'{"d": "1_0"}']
    assert [row["error"] for row in decode("json", schema, *wrong)] == [
        "field 'd': 12.345 does not fit decimal(6,2)",
        "field 'd': 12345.1 does not fit decimal(6,2)",
        "field 'e': expected bytes in base64, not \"*\"",
        "field 'a': field 'b': expected int, not \"x\"",
        "field 'd': expected decimal(6,2), not \"1_0\"",
    ]


TIMES = ["2025-01-02T03:04:05", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "0000-01-01", "9999-12-31"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(TIMES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
ROWS = st.one_of(
    st.dictionaries(st.sampled_from(["id", "amount", "name", "at", "day", "x"]), JSON_VALUES).map(
        lambda value: json.dumps(value).encode()
    ),
    st.builds(lambda number: b'{"id": %d}' % number, st.integers(0, 9)),
    st.builds(lambda time: b'{"at": "%s"}' % time.encode(), st.sampled_from(TIMES)),
    st.sampled_from([b'{"id":', b"1}", b"}{", b"{", b"}", b'{"id": 1}\n', b'{"id"\n:1}', b'{"id":1}{"id":1}', b"\xff"]),
    st.none(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=40))
def test_a_batch_decodes_as_its_rows_do_alone(values: list[bytes | None]) -> None:
    few, formats_json.FEW_ROWS = formats_json.FEW_ROWS, 2  # type: ignore[misc]
    try:
        together = decode("json", SCHEMA, *values)
    finally:
        formats_json.FEW_ROWS = few  # type: ignore[misc]
    alone = [row for value in values for row in decode("json", SCHEMA, value)]
    assert repr(together) == repr(alone)


@pytest.mark.parametrize("field", ["at", "ntz", "day", "inner", "times", "price", "amount", "ratio", "id"])
@pytest.mark.parametrize("value", [*(f'"{time}"' for time in TIMES), "40000", "1E5", "9999.99", "-0", "-0.0"])
def test_a_row_is_taken_alone_exactly_if_it_is_with_neighbours(field: str, value: str) -> None:
    """Arrow reads years and decimals that the rules for a single row do not have."""
    schema = (
        "id long, amount double, ratio float, at timestamp, ntz timestamp_ntz, price decimal(6,2), day date, "
        "inner struct<at: timestamp, day: string>, times array<timestamp>"
    )
    text = {"inner": f'{{"at": {value}}}', "times": f"[null, {value}]"}.get(field, value)
    row = f'{{"{field}": {text}}}'.encode()
    (alone,) = decode("json", schema, row)
    assert repr(decode("json", schema, b"{}", row, b"{}")[1]) == repr(alone)
    assert repr(decode("json", schema, row, row)) == repr([alone, alone])


def test_an_error_that_shows_half_of_a_surrogate_pair_is_text() -> None:
    (row,) = decode("json", "id long", b'{"id": "\\ud83d"}')
    assert row["error"] == "field 'id': expected bigint, not \"\\ud83d\""


def test_many_wrong_rows_are_each_found() -> None:
    values = [b'{"id": "x"}' if number % 7 == 3 else b'{"id": %d}' % number for number in range(5000)]
    rows = decode("json", SCHEMA, *values)
    assert [number for number, row in enumerate(rows) if row["error"]] == list(range(3, 5000, 7))
    assert all(row["id"] == number for number, row in enumerate(rows) if number % 7 != 3)


# --- the others ---


def test_strings() -> None:
    rows = decode("string", None, b"a", None, b"\xc3\x28", "é".encode())
    assert [row["value"] for row in rows] == ["a", None, None, "é"]
    assert [row["error"] for row in rows] == [None, None, "not UTF-8: byte 0xc3 at position 0", None]


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}


def test_avro_records_become_columns() -> None:
    order = {
        "id": 5,
        "note": None,
        "at": datetime(2025, 1, 2, tzinfo=UTC),
        "price": Decimal("12.50"),
        "kind": "OLD",
        "lines": [{"a": 1}],
        "key": "5e0c1b1e-9a5e-4b7c-8d4c-0a3f7c2d1e0f",
    }
    data = io.BytesIO()
    schemaless_writer(data, AVRO, order)
    value = data.getvalue()
    rows = decode("avro", json.dumps(AVRO), value, None, value[:-3], value + b"x")
    assert rows[0] == {**order, "lines": [[("a", 1)]], "error": None}
    assert [row["id"] for row in rows[1:]] == [None] * 3
    assert rows[1]["error"] is None
    assert rows[2]["error"].startswith("not this Avro record")
    assert rows[3]["error"] == "not this Avro record: 1 bytes are left after it"


def avro_number(number: int) -> bytes:
    """As Avro writes an int or a long, of any size."""
    left = number << 1 if number >= 0 else ((-number) << 1) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [("int", -(1 << 31), (1 << 31) - 1), ("long", -(1 << 63), (1 << 63) - 1)],
)
def test_avro_numbers_that_do_not_fit_are_errors_of_their_rows(kind: str, least: int, most: int) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}, {"name": "s", "type": "string"}]}
    fit, unfit = [least, -1, most], [least - 1, most + 1, 1 << 40 if kind == "int" else 1 << 64, 1 << 70]
    values = [avro_number(number) + b"\x02x" for number in (*fit, *unfit, 7)]
    rows = decode("avro", json.dumps(schema), *values, None, avro_number(5) + avro_number(12) + "привет".encode())
    assert [row["n"] for row in rows] == [*fit, *[None] * len(unfit), 7, None, 5]
    assert [row["s"] for row in rows] == ["x"] * 3 + [None] * 4 + ["x", None, "привет"], (
        "of a wrong row nothing is kept"
    )
    assert [row["error"] is not None for row in rows] == [False] * 3 + [True] * 4 + [False] * 3
    assert all(row["error"].startswith("field 'n' does not fit int") for row in rows[3:7])


def test_avro_decimals_beyond_their_precision_are_errors_of_their_rows() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    items = {"type": "array", "items": price}
    schema = {"type": "record", "name": "R", "fields": [{"name": "p", "type": price}, {"name": "all", "type": items}]}
    large, small = avro_number(4) + (123_456_789).to_bytes(4), avro_number(2) + (12345).to_bytes(2)
    values = [small + b"\x00", large + b"\x00", small + b"\x02" + large + b"\x00", large + b"\x02" + large + b"\x00"]
    rows = decode("avro", json.dumps(schema), *values)
    assert [row["p"] for row in rows] == [Decimal("123.45"), None, None, None]
    assert [row["error"] is None for row in rows] == [True, False, False, False]
    assert "field 'p'" in rows[1]["error"] and "field 'all'" in rows[2]["error"]


def test_whatever_a_column_cannot_hold_is_an_error_of_its_row() -> None:
    """Of every format that decodes row by row."""
    fields = [pa.field("a", pa.int32()), pa.field("b", pa.string()), pa.field("c", pa.decimal128(5, 2))]
    rows = [[1, "x", Decimal(1)], [1 << 40, "x", None], [2, "\ud800", None], None, [1 << 64, 5, None], [3, None, None]]
    columns, errors = assemble(fields, rows, [None, None, None, "before", None, None])
    assert columns[0].to_pylist() == [1, None, None, None, None, 3]
    assert columns[1].to_pylist() == ["x", None, None, None, None, None]
    assert [error is not None for error in errors.to_pylist()] == [False, True, True, True, True, False]
    assert errors[3].as_py() == "before"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("not json", "Avro schema is wrong"),
        ('"string"', "must be a record"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["int","string"]}]}', "'a' is a union"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["null","R"]}]}', "holds itself"),
    ],
)
def test_avro_schemas_that_cannot_be_columns(schema: str, reason: str) -> None:
    with pytest.raises(KlammError, match=reason):
        decoder("avro", schema)


def descriptors() -> bytes:
    """The output of protoc for a message Order with all kinds of fields."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="OLD", number=1)
    order = file.message_type.add(name="Order")
    types = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="id", number=1, type=types.TYPE_INT64, label=types.LABEL_OPTIONAL)
    order.field.add(name="total", number=2, type=types.TYPE_UINT64, label=types.LABEL_OPTIONAL)
    order.field.add(name="tags", number=3, type=types.TYPE_STRING, label=types.LABEL_REPEATED)
    order.field.add(name="kind", number=4, type=types.TYPE_ENUM, type_name=".shop.Kind", label=types.LABEL_OPTIONAL)
    order.field.add(
        name="at",
        number=5,
        type=types.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=types.LABEL_OPTIONAL,
    )
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=types.TYPE_MESSAGE, type_name=".shop.Node", label=types.LABEL_OPTIONAL)
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file]).SerializeToString()


def test_protobuf_messages_become_columns(tmp_path: Path) -> None:
    (tmp_path / "order.desc").write_bytes(descriptors())
    schema = load("protobuf", file=tmp_path / "order.desc", message="shop.Order")
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message = order(id=5, total=(1 << 64) - 1, tags=["a", "b"], kind=1)
    message.at.FromDatetime(datetime(2025, 1, 2, tzinfo=UTC))
    rows = decode("protobuf", schema, message.SerializeToString(), b"", None, b"\xff\xff")
    assert rows[0] == {
        "id": 5,
        "total": Decimal((1 << 64) - 1),
        "tags": ["a", "b"],
        "kind": "OLD",
        "at": datetime(2025, 1, 2, tzinfo=UTC),
        "error": None,
    }
    assert rows[1] == {"id": 0, "total": Decimal(0), "tags": [], "kind": "NEW", "at": None, "error": None}
    assert rows[2]["error"] is None
    assert rows[3]["error"].startswith("not this Protobuf message")


def test_protobuf_schemas_that_cannot_be_used() -> None:
    text = base64.b64encode(descriptors()).decode()
    with pytest.raises(KlammError, match=r"has no message 'shop.Nothing'; it has .*shop.Order"):
        decoder("protobuf", ValueSchema("protobuf", text, "shop.Nothing"))
    with pytest.raises(KlammError, match="holds itself"):
        decoder("protobuf", ValueSchema("protobuf", text, "shop.Node"))
    with pytest.raises(KlammError, match="base64"):
        decoder("protobuf", ValueSchema("protobuf", "*", "shop.Order"))
    with pytest.raises(KlammError, match="name of the message"):
        load("protobuf", schema=text)


# --- schemas ---


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("", "no columns"),
        ("id", "ends too early"),
        ("id lon", "'lon' is not a type"),
        ("id long name string", "expected ',', not 'name'"),
        ("id long, ID string", "'ID' appears twice"),
        ("a array<int", "ends too early"),
        ("a decimal(40,2)", "at most 38 digits"),
        ("a int NOT", "ends too early"),
        ("<", "expected the name of a column"),
    ],
)
def test_wrong_ddl_is_refused_with_its_place(ddl: str, reason: str) -> None:
    with pytest.raises(KlammError, match=reason):
        parse_ddl(ddl)


def test_ddl_is_read_and_written() -> None:
    text = "`a b` string, c struct<d: array<int>, `e-f`: map<string, decimal(5,2)>>, g timestamp_ntz, h bigint"
    assert to_ddl(parse_ddl(text)) == text
    assert to_ddl(parse_ddl("a INT NOT NULL COMMENT 'the \\' first', b:Long")) == "a int NOT NULL, b bigint"


@pytest.mark.parametrize("value_format", ["json", "avro", "protobuf"])
def test_a_format_needs_its_schema(value_format: str, tmp_path: Path) -> None:
    with pytest.raises(KlammError, match="needs a schema"):
        load(value_format)
    with pytest.raises(KlammError, match="cannot be read: No such file"):
        load(value_format, file=tmp_path / "none", message="m")


def test_schemas_are_inferred_from_samples() -> None:
    values = [
        b'{"id": 1, "amount": 1, "tags": [], "who": {"name": "a"}, "nothing": null, "empty": {}}',
        b'{"id": 2, "amount": 1.5, "tags": ["x"], "who": {"age": 3}, "mixed": 1}',
        b'{"mixed": "one", "ok": true, "deep": [{"a": 1}, {"b": null}]}',
        b"not json",
        None,
    ]
    inferred = infer_json(values)
    assert (inferred.rows, inferred.skipped) == (3, 1)
    assert to_ddl(inferred.schema) == (
        "id bigint, amount double, tags array<string>, who struct<name: string, age: bigint>, nothing string, "
        "empty string, mixed string, ok boolean, deep array<struct<a: bigint, b: string>>"
    )
    rows = decode("json", inferred.schema.json(), *values)
    assert [row["error"] is None for row in rows] == [True, True, True, False, True]
    with pytest.raises(KlammError, match="no JSON object"):
        infer_json([b"1", b"{}"])
