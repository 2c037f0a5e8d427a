"""Rules for JSON values: no null where the schema forbids it, within the range of the column, distinguished by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.decode.formats import decoder
from klamm.spark.decode.schema_inference import infer_json
from klamm.spark.pipeline.failures import failure_of
from klamm.spark.source.planner import _check_same
from klamm.spark.source.read_options import EARLIEST, OptionError, parse_read_options
from klamm.spark.tables.commits import BatchOfFiles, commit
from klamm.spark.tables.table_definition import TableDefinition, create_table


def decoded(schema: str, values: Iterable[object], repeat: int = 1) -> list[tuple[object, str | None]]:
    """The first column of each value, and its error; many rows go the way of whole batches."""
    rows = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values] * repeat
    columns, errors = decoder("json", schema).decode(pa.array(rows, pa.binary()))
    return list(zip(columns[0].to_pylist(), errors.to_pylist(), strict=True))


@pytest.mark.parametrize("repeat", [1, 400])
def test_a_record_without_a_field_that_is_not_null_is_a_bad_record(repeat: int) -> None:
    given = [{"id": 1}, {"id": None}, {"other": 2}, {"id": 3}]
    wanted = [
        (1, None),
        (None, "field 'id': it is null, and must not be null"),
        (None, "field 'id': it is missing, and must not be null"),
        (3, None),
    ]
    assert decoded("id long NOT NULL, other long", given, repeat) == wanted * repeat


@pytest.mark.parametrize("repeat", [1, 400])
def test_not_null_within_structs_lists_and_maps(repeat: int) -> None:
    schema = "a struct<b: struct<c: int NOT NULL>>"
    given: list[object] = [{"a": None}, {"a": {"b": None}}, {"a": {"b": {"c": 1}}}, {"a": {"b": {}}}]
    wrong = "field 'a': field 'b': field 'c': it is missing, and must not be null"
    assert [error for _, error in decoded(schema, given, repeat)] == [None, None, None, wrong] * repeat
    element = '{"type":"array","elementType":"long","containsNull":false}'
    text = f'{{"type":"struct","fields":[{{"name":"l","type":{element},"nullable":true,"metadata":{{}}}}]}}'
    found = decoded(text, [{"l": [1, 2]}, {"l": None}, {"l": [1, None]}], repeat)
    assert [error is None for _, error in found] == [True, True, False] * repeat


def test_columns_stay_nullable_for_the_rows_of_bad_records() -> None:
    made = decoder("json", "id long NOT NULL, s struct<x: int NOT NULL>")
    assert all(field.nullable for field in made.arrow_fields)
    assert all(field.nullable for field in made.arrow_fields[1].type)


@pytest.mark.parametrize("repeat", [1, 400])
def test_a_number_too_large_for_its_column_is_a_bad_record(repeat: int) -> None:
    given = [b'{"x": 1.5}', b'{"x": 1e39}', b'{"x": -1e39}', b'{"x": 3.4028235e38}', b'{"x": "Infinity"}']
    found = decoded("x float", given, repeat)
    assert [error is None for _, error in found] == [True, False, False, True, True] * repeat
    assert "expected float, not 1e39" in str(found[1][1])
    # Without a text among them whole batches are parsed at once, by Arrow, which makes such a number infinite.
    numbers = decoded("x float", [b'{"x": 1.5}', b'{"x": 1e39}'], repeat)
    assert [error is None for _, error in numbers] == [True, False] * repeat
    doubles = decoded("x double", [b'{"x": 1e400}', b'{"x": 1e39}'], repeat)
    assert [error is None for _, error in doubles] == [False, True] * repeat


def test_fields_that_differ_in_case_only(tmp_path: Path) -> None:
    found = infer_json([b'{"id": 1, "ID": "x", "who": {"a": 1, "A": 2}}'])
    assert [field.name for field in found.schema.fields] == ["id", "who"] and found.left_out == ("ID",)
    assert found.schema["who"].dataType.simpleString() == "struct<a:bigint>"
    fields = [f'{{"name":"{name}","type":"long","nullable":true,"metadata":{{}}}}' for name in ("id", "Id")]
    two = f'{{"type":"struct","fields":[{",".join(fields)}]}}'
    with pytest.raises(KlammError, match="columns 'id' and 'Id', which differ in case only"):
        decoder("json", two)
    commit(tmp_path, BatchOfFiles(pa.schema([("id", pa.int64())]), [], False))
    with pytest.raises(KlammError, match="'Id' of the rows and 'id' of the table differ in case only"):
        commit(tmp_path, BatchOfFiles(pa.schema([("Id", pa.int64())]), [], False))
    with pytest.raises(KlammError, match="Columns 'a' and 'A' differ in case only"):
        commit(tmp_path / "new", BatchOfFiles(pa.schema([("a", pa.int64()), ("A", pa.int64())]), [], False))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"orders": {"0": 1}', r"'startingOffsets' is not valid JSON: Expecting ',' delimiter at position 19"),
        ('{"orders": {"x": 1}}', "'x' of 'orders' is not a partition"),
        ('{"orders": {"-1": 1}}', "'-1' of 'orders' is not a partition"),
        ('{"orders": {"0": -3}}', "has -3 for orders-0: an offset is 0 or more, -1 for latest, or -2 for earliest"),
        ('{"orders": {"0": "5"}}', 'has "5" for orders-0: an offset is 0 or more'),
        ('{"orders": {"0": 9223372036854775808}}', "has 9223372036854775808 for orders-0"),
    ],
)
def test_impossible_offsets_are_reported_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders", "startingOffsets": text}
    with pytest.raises(OptionError, match=reason):
        parse_read_options(given, streaming=True)
    definition = TableDefinition("orders", "h:1", schema="id long", starting_offsets=text)
    with pytest.raises(KlammError, match=reason):
        create_table(tmp_path / "t", definition)


def test_offsets_of_missing_partitions_are_reported_by_name() -> None:
    tps = tuple(TopicPartition("orders", index) for index in range(3))
    named = dict.fromkeys(tps, EARLIEST)
    _check_same(named, tps, "startingOffsets")
    with pytest.raises(OptionError, match="names orders-7, which is not read: topic 'orders' has partitions 0, 1, 2"):
        _check_same({**named, TopicPartition("orders", 7): 1}, tps, "startingOffsets")
    with pytest.raises(OptionError, match="names topic 'ordres', which is not read: the query reads orders"):
        _check_same({TopicPartition("ordres", 0): 1}, tps, "startingOffsets")
    with pytest.raises(OptionError, match="must name every partition that is read; it lacks orders-1, orders-2"):
        _check_same({tps[0]: 1}, tps, "startingOffsets")


def test_a_wrong_option_is_not_tried_again() -> None:
    error = Exception(
        "Traceback (most recent call last):\n  File ...\nklamm.spark.source.read_options.OptionError: Option 'x' no"
    )
    assert failure_of(error, "p.yaml", "lake").permanent
