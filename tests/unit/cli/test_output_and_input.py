"""Output and input of the commands, without a cluster."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from klamm.cli.client import parse_pairs
from klamm.cli.consume import formatter
from klamm.cli.output import Failure, table
from klamm.cli.produce import records


def test_columns_are_aligned_and_numbers_stand_right(capsys: pytest.CaptureFixture[str]) -> None:
    table(("GROUP", "LAG"), [("a", 5), ("longer", 1000), ("b", None)])
    assert capsys.readouterr().out == "GROUP    LAG\na          5\nlonger  1000\nb          -\n"


def test_a_name_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Clients choose the ids of groups and of transactions."""
    table(("GROUP",), [("a\x1b[2J\nGROUP",)])
    assert capsys.readouterr().out == "GROUP\na\\x1b[2J\\nGROUP\n"


def test_an_empty_table_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    table(("Topic", "Partition"), [])
    assert capsys.readouterr().out == "Topic  Partition\n"


def test_lines_become_records() -> None:
    assert list(records(io.BytesIO(b"a\n\nb\r\nlast"), None, None)) == [
        (None, b"a"),
        (None, b""),
        (None, b"b"),
        (None, b"last"),
    ]


def test_keys_and_nulls() -> None:
    lines = io.BytesIO(b"k:v:w\n:v\ngone:NULL\n")
    assert list(records(lines, ":", "NULL")) == [(b"k", b"v:w"), (b"", b"v"), (b"gone", None)]


def test_a_line_without_a_key() -> None:
    with pytest.raises(Failure, match="Line 2 has no key"):
        list(records(io.BytesIO(b"a:b\nc\n"), ":", None))


class FakeMessage:
    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 42

    def timestamp(self) -> tuple[int, int]:
        return (1, 1700)

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("a", b"1"), ("b", None)]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("value", b"v\n"),
        ("key-value", b"null\tv\n"),
        ("%t-%p@%o %T %k=%v %h %%\\n", b"t-3@42 1700 null=v a=1,b=None %\n"),
    ],
)
def test_formats(name: str, line: bytes) -> None:
    message: Any = FakeMessage(None, b"v")
    assert formatter(name)(message) == line


def test_json_format() -> None:
    message: Any = FakeMessage(b"k", None)
    record = json.loads(formatter("json")(message))
    assert record["key"] == "k" and record["value"] is None and record["headers"] == [["a", "1"], ["b", None]]


def test_an_unknown_format() -> None:
    with pytest.raises(Failure, match="'xml' is not a format"):
        formatter("xml")


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c="], "--config") == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(Failure, match="--config 'a' is not key=value"):
        parse_pairs(["a"], "--config")
