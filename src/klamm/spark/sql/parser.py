"""Finds the tables of a query in its syntax tree (sqlglot): fast, and without a JVM.

sqlglot does not know all of Spark's SQL. If it cannot parse a query, or interprets words differently from Spark, there
is no answer, and `table_names` scans the query's tokens instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

_QUERIES: Final = ("SELECT", "WITH", "FROM", "(")
"""How a query begins. Other statements are Spark's own."""
_OF_SPARK: Final = frozenset({"STREAM"})
"""Words that mean something in Spark's FROM and are names for sqlglot."""

Found = tuple[tuple[str, ...], int, int, int]
"""The parts of a name, its line, and where it begins and ends in the text."""


def parsed_tables(sql: str) -> list[Found] | None:
    """Return the tables in the order of the text; None if sqlglot has no answer."""
    try:
        from sqlglot.dialects.spark import Spark
        from sqlglot.errors import SqlglotError
    except ImportError:
        return None
    dialect = Spark()
    try:
        tokens = dialect.tokenize(sql)
        if not tokens or tokens[0].text.upper() not in _QUERIES or any(t.text.upper() in _OF_SPARK for t in tokens):
            return None
        _name_windows(tokens)
        trees = dialect.parser().parse(tokens, sql)
    except (SqlglotError, RecursionError, ValueError, IndexError, AttributeError, TypeError):
        return None
    if len(trees) != 1 or trees[0] is None:
        return None
    found = [_found(table, sql) for table in _tables(trees[0])]
    return None if None in found else sorted((one for one in found if one is not None), key=lambda one: one[2])


def _name_windows(tokens: list[Any]) -> None:
    """`window(at, '1 minute')` and `window.start` are not a WINDOW clause."""
    from sqlglot.tokenizer_core import TokenType

    for token, following in pairwise(tokens):
        if token.token_type == TokenType.WINDOW and following.token_type in (TokenType.L_PAREN, TokenType.DOT):
            token.token_type = TokenType.VAR


def _tables(tree: Any) -> Iterator[Any]:
    from sqlglot import exp

    for table in tree.find_all(exp.Table):
        is_named = all(isinstance(part, exp.Identifier) for part in table.parts)
        if is_named and table.find_ancestor(exp.Hint) is None and not _is_defined(table):
            yield table


def _is_defined(table: Any) -> bool:
    """Whether WITH defines this name at the place of the table."""
    if len(table.parts) > 1:
        return False
    name = table.name.lower()
    path = [table]
    while (parent := path[-1].parent) is not None:
        clause = parent.args.get("with_") or parent.args.get("with")
        if clause is not None:
            names = [definition.alias.lower() for definition in clause.expressions]
            if path[-1] is clause:
                # Within a definition only earlier names are visible, and its own if it is recursive.
                index = next(i for i, definition in enumerate(clause.expressions) if definition is path[-2])
                names = names[: index + bool(clause.args.get("recursive"))]
            if name in names:
                return True
        path.append(parent)
    return False


def _found(table: Any, sql: str) -> Found | None:
    """Return None if the text at that place differs."""
    first, last = table.parts[0].meta, table.parts[-1].meta
    if "start" not in first or "end" not in last:
        return None
    begin, end = first["start"], last["end"] + 1
    parts = tuple(part.name for part in table.parts)
    for part in table.parts:
        text = sql[part.meta.get("start", 0) : part.meta.get("end", -1) + 1]
        if text != part.name and text != "`" + part.name.replace("`", "``") + "`":
            return None
    return parts, sql.count("\n", 0, begin) + 1, begin, end
