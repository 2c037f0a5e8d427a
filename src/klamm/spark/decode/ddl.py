"""Spark's way to write a schema as text, `id long, amount decimal(10,2), tags array<string>`, without a JVM.

Spark parses it in the JVM, which executors' Python processes and checking commands do not have. NOT NULL is kept for
the decoder, which rejects records without the field. COMMENT is parsed and dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import types as t

from klamm.errors import KlammError

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|(.))", re.S)
_WORD: Final = re.compile(r"[A-Za-z_]\w*$")

_ATOMIC: Final[Mapping[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "byte": t.ByteType(),
    "smallint": t.ShortType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "real": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
}


def parse_ddl(text: str) -> t.StructType:
    """Return the columns of `text`. Raises KlammError with the position of an error."""
    parser = _Parser(text)
    fields = parser.columns(closing=None)
    if not fields:
        raise KlammError("The schema has no columns: expected text such as 'id long, name string'.")
    return t.StructType(fields)


def to_ddl(schema: t.StructType) -> str:
    """Return the text that `parse_ddl` parses."""
    return ", ".join(f"{_name(field.name)} {_field_text(field)}" for field in schema.fields)


def _field_text(field: t.StructField) -> str:
    return type_text(field.dataType) + ("" if field.nullable else " NOT NULL")


def type_text(kind: t.DataType) -> str:
    if isinstance(kind, t.StructType):
        return "struct<" + ", ".join(f"{_name(f.name)}: {_field_text(f)}" for f in kind.fields) + ">"
    if isinstance(kind, t.ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, t.MapType):
        return f"map<{type_text(kind.keyType)}, {type_text(kind.valueType)}>"
    return kind.simpleString()


def _name(name: str) -> str:
    return name if _WORD.match(name) else "`" + name.replace("`", "``") + "`"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def columns(self, closing: str | None) -> list[t.StructField]:
        fields: list[t.StructField] = []
        if self._peek() == closing:
            return fields
        while True:
            name = self._identifier()
            if self._peek() == ":":
                self._next()
            kind = self._type()
            if any(name.lower() == other.name.lower() for other in fields):
                self._fail(f"column {name!r} appears twice")
            fields.append(t.StructField(name, kind, nullable=self._attributes()))
            if self._peek() == closing:
                return fields
            self._expect(",")

    def _attributes(self) -> bool:
        """Whether the column may be null."""
        is_nullable = True
        while (word := (self._peek() or "").upper()) in ("NOT", "COMMENT"):
            self._next()
            following = self._next()
            if word == "NOT" and following.upper() != "NULL":
                self._fail("expected NULL after NOT")
            if word == "COMMENT" and not following.startswith("'"):
                self._fail("expected 'text' after COMMENT")
            is_nullable = is_nullable and word != "NOT"
        return is_nullable

    def _type(self) -> t.DataType:
        word = self._next().lower()
        if (atomic := _ATOMIC.get(word)) is not None:
            return atomic
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return t.ArrayType(element)
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return t.MapType(key, value)
        if word == "struct":
            self._expect("<")
            fields = self.columns(closing=">")
            self._expect(">")
            return t.StructType(fields)
        self._fail(f"{word!r} is not a type")
        raise AssertionError

    def _decimal(self) -> t.DecimalType:
        if self._peek() != "(":
            return t.DecimalType(10, 0)
        self._next()
        precision = self._number()
        scale = 0
        if self._peek() == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            self._fail(f"decimal({precision},{scale}) is invalid: at most 38 digits, including the scale")
        return t.DecimalType(precision, scale)

    def _number(self) -> int:
        word = self._next()
        if not word.isdecimal():
            self._fail(f"expected a number, not {word!r}")
        return int(word)

    def _identifier(self) -> str:
        word = self._next()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not re.match(r"\w", word):
            self._fail(f"expected the name of a column, not {word!r}")
        return word

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            self._fail(f"expected {token!r}, not {found!r}")

    def _peek(self) -> str | None:
        position = self._position
        token = self._take()
        self._position = position
        return token

    def _next(self) -> str:
        token = self._take()
        if token is None:
            self._fail("the text ends too early")
            raise AssertionError
        return token

    def _take(self) -> str | None:
        match = _TOKEN.match(self._text, self._position)
        if match is None or not match[0].strip():
            return None
        self._position = match.end()
        return match[1] or match[2] or match[3] or match[4]

    def _fail(self, reason: str) -> None:
        raise KlammError(f"The schema {self._text.strip()!r} is wrong near position {self._position}: {reason}.")
