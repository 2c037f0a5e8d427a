"""Finds the tables that a SQL query names, without Spark: only these topics are read, and wrong names fail at once.

A SQL parser finds them (`parser`). For queries that it cannot parse there is a token scanner: it follows FROM and JOIN
through subqueries and skips names that WITH defines, table functions, and the FROM of EXTRACT, TRIM and similar. Spark
makes the final decision on a query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from klamm.errors import KlammError
from klamm.spark.sql.parser import parsed_tables

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+ | --[^\n]*)
    | (?P<comment>/\*)
    | (?P<string>[rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE: Final = re.compile(r"/\*(?!\+)|\*/")
"""Comments nest; a hint (a comment that begins with a plus) does not open another."""
_NAME_WITH_DIGITS: Final = re.compile(r"\d+(?!(?:[LSYDF]|BD|E\d+)$)[^\W\d]\w*", re.IGNORECASE)
"""Not the numbers among which SQL has letters: 5L, 1.5BD, 1e3."""
_CLAUSES: Final = frozenset(
    {
        *("WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "UNION", "INTERSECT", "EXCEPT", "MINUS", "SELECT"),
        *("WINDOW", "QUALIFY", "CLUSTER", "DISTRIBUTE", "SORT", "PIVOT", "UNPIVOT"),
    }
)
_FROM_IS_AN_ARGUMENT: Final = frozenset(["EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION"])
_BEFORE_A_TABLE: Final = frozenset(["LATERAL", "STREAM"])
_AFTER_A_TABLE: Final = _CLAUSES - {"SELECT"} | {
    *("AS", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI", "ON", "USING", "TABLESAMPLE"),
    *("LATERAL", "FOR"),
}
_FILE_FORMATS: Final = frozenset(["parquet", "json", "csv", "orc", "text", "xml", "binaryfile"])


class SqlTextError(KlammError):
    """The text cannot be tokenised: an open string, comment or bracket."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    line: int
    at: int
    """Position in the text."""

    @property
    def keyword(self) -> str:
        """In capitals; empty for anything that is not a bare word."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def identifier(self) -> str:
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the query names it; `line` counts from 1 within the query."""

    parts: tuple[str, ...]
    line: int
    begin: int
    end: int
    """Position of the name in the query."""

    @property
    def name(self) -> str:
        return ".".join(self.parts)

    @property
    def is_file(self) -> bool:
        """Spark reads files by `parquet.`/path``."""
        return len(self.parts) == 2 and self.parts[0].lower() in _FILE_FORMATS

    @property
    def is_delta(self) -> bool:
        """``delta.`path` ``: a Delta table by its directory."""
        return len(self.parts) == 2 and self.parts[0].lower() == "delta"


def tokens(sql: str) -> list[Token]:
    """Return words, quoted names, strings, numbers and symbols, without whitespace and comments."""
    found: list[Token] = []
    line, at = 1, 0
    for kind, text in _pieces(sql):
        if kind == "open":
            begin = text[:2] if text.startswith("/*") else text[0]
            what = {"/*": "comment", "`": "name"}.get(begin, "string")
            raise SqlTextError(line, f"the {what} that begins with {begin} never ends.")
        if kind not in ("space", "comment"):
            found.append(Token(kind, text, line, at))
        line += text.count("\n")
        at += len(text)
    return found


def _pieces(sql: str) -> Iterator[tuple[str, str]]:
    """Split the whole text into tokens. An unterminated comment, string or quoted name takes the rest, as kind
    `open`."""
    at = 0
    while match := _TOKEN.match(sql, at):
        kind, end = match.lastgroup or "symbol", match.end()
        if kind == "comment":
            end = _end_of_comment(sql, at) or len(sql) + 1
        if end > len(sql) or (kind == "symbol" and match[0] in "'\"`"):
            kind, end = "open", len(sql)
        yield kind, sql[at:end]
        at = end


def _end_of_comment(sql: str, begin: int) -> int | None:
    depth = 1
    for edge in _COMMENT_EDGE.finditer(sql, begin + 2):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return None


def statements(text: str) -> tuple[list[str], str]:
    """Return the statements that end with a semicolon, and the rest."""
    done: list[str] = []
    begin = at = 0
    for kind, piece in _pieces(text):
        at += len(piece)
        if kind == "symbol" and piece == ";":
            if statement := text[begin : at - 1].strip():
                done.append(statement)
            begin = at
    return done, text[begin:]


def relations(sql: str) -> list[Relation]:
    """Return the tables that the query reads, each once, in the order of the text."""
    found: dict[tuple[str, ...], Relation] = {}
    for relation in _all_relations(sql):
        found.setdefault(relation.parts, relation)
    return list(found.values())


def renamed(sql: str, names: Mapping[tuple[str, ...], str]) -> str:
    """Return the query with some of its tables renamed."""
    pieces, at = [], 0
    for relation in _all_relations(sql):
        if (name := names.get(relation.parts)) is not None:
            pieces += [sql[at : relation.begin], f"`{name}`"]
            at = relation.end
    return "".join([*pieces, sql[at:]])


def _all_relations(sql: str) -> Iterator[Relation]:
    words = tokens(sql)
    if (parsed := parsed_tables(sql)) is not None:
        yield from (Relation(*found) for found in parsed)
        return
    defined = list(_defined(words))
    for index, relation in _Reader(words).read():
        if len(relation.parts) > 1 or not any(name.is_meant(relation.parts[0], index) for name in defined):
            yield relation


@dataclass(frozen=True, slots=True)
class _Defined:
    """A name that WITH defines, and the tokens of its scope, which exclude its own definition."""

    name: str
    begin: int
    end: int

    def is_meant(self, name: str, index: int) -> bool:
        return name.lower() == self.name and self.begin <= index < self.end


def _defined(words: list[Token]) -> Iterator[_Defined]:
    """Return the definitions of `WITH a AS (...), b (x, y) AS (...)`."""
    for index, word in enumerate(words):
        if word.keyword == "WITH":
            yield from _common_tables(words, index + 1, _after_bracket(words, index, depth=1))


def _common_tables(words: list[Token], index: int, end: int) -> Iterator[_Defined]:
    is_recursive = index < len(words) and words[index].keyword == "RECURSIVE"
    index += is_recursive
    while index < len(words) and words[index].kind in ("word", "quoted"):
        name, index = words[index].identifier, index + 1
        if index < len(words) and words[index].text == "(":
            index = _after_bracket(words, index)
        if not (index + 1 < len(words) and words[index].keyword == "AS" and words[index + 1].text == "("):
            return
        body, index = index + 1, _after_bracket(words, index + 1)
        yield _Defined(name.lower(), body if is_recursive else index, end)
        if not (index < len(words) and words[index].text == ","):
            return
        index += 1


def _after_bracket(words: list[Token], index: int, depth: int = 0) -> int:
    """Return the index after the bracket that opens here, or, with depth 1, after the enclosing one."""
    while index < len(words):
        depth += {"(": 1, ")": -1}.get(words[index].text, 0) if words[index].kind == "symbol" else 0
        index += 1
        if depth == 0:
            break
    return index


@dataclass(slots=True)
class _Frame:
    """One level of brackets: whether a table may come next, and whether a comma leads to another one."""

    line: int
    expects: bool = False
    in_from: bool = False
    argument: bool = False


def _may_be_name(word: Token) -> bool:
    return word.kind in ("word", "quoted") or (
        word.kind == "number" and _NAME_WITH_DIGITS.fullmatch(word.text) is not None
    )


class _Reader:
    def __init__(self, words: list[Token]) -> None:
        self._words = words
        self._frames = [_Frame(1)]
        self._index = 0

    def read(self) -> Iterator[tuple[int, Relation]]:
        """Yield the tables, each with the index of its first token."""
        self._describe()
        while self._index < len(self._words):
            word = self._words[self._index]
            frame = self._frames[-1]
            if word.kind == "symbol":
                self._symbol(word, frame)
            elif frame.expects and _may_be_name(word) and not self._passes(word, frame):
                frame.expects = False
                index, relation = self._index, self._name(word.line)
                if relation is not None:
                    yield index, relation
                continue
            elif word.keyword:
                self._keyword(word.keyword, frame)
            self._index += 1
        if len(self._frames) > 1:
            raise SqlTextError(self._frames[-1].line, "a bracket is opened and never closed.")

    def _describe(self) -> None:
        """`DESCRIBE orders`, `TABLE orders`: the name comes without FROM."""
        words = ("DESCRIBE", "DESC", "TABLE", "EXTENDED", "EXPLAIN", "FORMATTED", "CACHE")
        while self._word(self._index) in words and self._index + 1 < len(self._words):
            self._frames[0].expects = self._word(self._index) not in ("EXPLAIN",)
            self._index += 1
        if self._word(self._index) in ("SELECT", "WITH", "FROM", "QUERY"):
            self._frames[0].expects = False

    def _word(self, index: int) -> str:
        return self._words[index].keyword if 0 <= index < len(self._words) else ""

    def _symbol(self, word: Token, frame: _Frame) -> None:
        if word.text == "(":
            argument = self._word(self._index - 1) in _FROM_IS_AN_ARGUMENT
            self._frames.append(_Frame(word.line, expects=frame.expects, argument=argument))
            self._frames[-1].in_from = frame.expects
            frame.expects = False
        elif word.text == ")":
            if len(self._frames) == 1:
                raise SqlTextError(word.line, "unmatched closing bracket.")
            self._frames.pop()
        elif word.text == "," and frame.in_from:
            frame.expects = True

    def _passes(self, word: Token, frame: _Frame) -> bool:
        """Skip words between FROM and the table; after SELECT or VALUES no table follows.

        If nothing follows that such a word could introduce, it is a table name, as in Spark.
        """
        if self._ends_table(self._index + 1) and not self._begins_query(word):
            return False
        if word.keyword in ("SELECT", "VALUES", "WITH", "FROM"):
            frame.expects = False
            frame.in_from = word.keyword == "VALUES"
            self._keyword(word.keyword, frame)
            return True
        return word.keyword in _BEFORE_A_TABLE

    def _begins_query(self, word: Token) -> bool:
        """`(SELECT window.start ...`: the column has the name of a clause."""
        return (
            word.keyword in ("SELECT", "VALUES", "WITH", "FROM")
            and self._text(self._index - 1) == "("
            and self._text(self._index + 1) not in (")", ",")
            and self._index + 1 < len(self._words)
        )

    def _ends_table(self, index: int) -> bool:
        return index >= len(self._words) or self._text(index) in (")", ",") or self._word(index) in _AFTER_A_TABLE

    def _keyword(self, keyword: str, frame: _Frame) -> None:
        if (
            keyword == "FROM" and not frame.argument and self._word(self._index - 1) != "DISTINCT"
        ) or keyword == "JOIN":
            frame.expects = frame.in_from = True
        elif keyword in _CLAUSES or (keyword == "LATERAL" and self._word(self._index + 1) == "VIEW"):
            frame.expects = frame.in_from = False

    def _name(self, line: int) -> Relation | None:
        """Parse `a`, `` `a.b` `` or `a.b`; returns it with the next index, None for a table function."""
        first = last = self._words[self._index]
        parts = [first.identifier]
        self._index += 1
        while self._text(self._index) == "." and self._index + 1 < len(self._words):
            last = self._words[self._index + 1]
            parts.append(last.identifier)
            self._index += 2
        if self._text(self._index) == "(":
            return None
        return Relation(tuple(parts), line, first.at, last.at + len(last.text))

    def _text(self, index: int) -> str:
        return self._words[index].text if index < len(self._words) and self._words[index].kind == "symbol" else ""
