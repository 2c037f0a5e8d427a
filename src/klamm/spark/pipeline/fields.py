"""Reads a mapping of a YAML file key by key; problems are collected with their line, and reading continues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from klamm.spark.pipeline.pipeline_model import NAME, Watermark, duration_ms
from klamm.spark.pipeline.pipeline_problems import Problem
from klamm.spark.pipeline.yaml_tree import Scalar, Sequence, Table, Tree
from klamm.spark.suggestion import suggestion

_KINDS: Final[dict[type, str]] = {str: "text", int: "a number", bool: "true or false"}


class Fields:
    """The keys of one table. `what` names it in messages: `source 'orders'`."""

    def __init__(self, table: Table, what: str, known: Iterable[str], problems: list[Problem]) -> None:
        self.line = table.line
        self._table = table
        self._what = what
        self._problems = problems
        known = sorted(known)
        for key, line in table.key_lines.items():
            if key not in known:
                self.wrong(line, f"{what} has no key {key!r}.{suggestion(key, known)}")

    def wrong(self, line: int, reason: str) -> None:
        self._problems.append(Problem(line, reason))

    def has(self, key: str) -> bool:
        return key in self._table.items

    def key_line(self, key: str) -> int:
        return self._table.key_lines.get(key, self.line)

    def lines(self) -> dict[str, int]:
        """Return the lines of the keys, and of options as `options.<name>`."""
        options = self._table.items.get("options")
        inner = options.key_lines if isinstance(options, Table) else {}
        return {**self._table.key_lines, **{f"options.{name}": line for name, line in inner.items()}}

    def text(self, key: str, default: str | None = None) -> str | None:
        """Accept numbers as text: a topic may be called 2024."""
        value, line = self._scalar(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.wrong(line, f"{key!r} of {self._what} must be text.")
            return default
        if not str(value).strip():
            self.wrong(line, f"{key!r} of {self._what} is empty.")
            return default
        return str(value)

    def flag(self, key: str) -> bool:
        value, line = self._scalar(key)
        if value is not None and not isinstance(value, bool):
            self.wrong(line, f"{key!r} of {self._what} must be true or false.")
        return value is True

    def count(self, key: str, default: int | None, least: int = 0) -> int | None:
        value, line = self._scalar(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.wrong(line, f"{key!r} of {self._what} must be a whole number of at least {least}.")
            return default
        return value

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        value = self.text(key, default)
        if value not in (allowed := tuple(choices)):
            self.wrong(
                self.key_line(key), f"{key!r} of {self._what} cannot be {value!r}.{suggestion(value or '', allowed)}"
            )
            return default
        return value or default

    def duration(self, key: str, default_ms: int, least_ms: int = 0) -> int:
        value = self.text(key)
        if value is None:
            return default_ms
        try:
            found = duration_ms(value)
        except ValueError as error:
            self.wrong(self.key_line(key), f"{key!r} of {self._what}: {error}")
            return default_ms
        if found < least_ms:
            self.wrong(self.key_line(key), f"{key!r} of {self._what} must be at least {least_ms} ms.")
        return found

    def names(self, key: str) -> tuple[str, ...]:
        """One column or a list of them."""
        tree = self._table.items.get(key)
        if tree is None:
            return ()
        items = tree.items if isinstance(tree, Sequence) else (tree,)
        found = tuple(item.value for item in items if isinstance(item, Scalar) and isinstance(item.value, str))
        if not found or len(found) != len(items):
            self.wrong(self.key_line(key), f"{key!r} of {self._what} must be a column or a list of columns.")
        return found

    def options(self, key: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, item in self.tables(key).items():
            if isinstance(item, Scalar) and item.value is not None:
                found[name] = str(item.value).lower() if isinstance(item.value, bool) else str(item.value)
            else:
                self.wrong(item.line, f"option {name!r} of {self._what} must be text, a number, true or false.")
        return found

    def tables(self, key: str) -> dict[str, Tree]:
        """Return a mapping from names to values."""
        tree = self._table.items.get(key)
        if tree is None or (isinstance(tree, Scalar) and tree.value is None):
            return {}
        if not isinstance(tree, Table):
            self.wrong(tree.line, f"{key!r} of {self._what} must be keys with values.")
            return {}
        return dict(tree.items)

    def name_line(self, key: str, name: str) -> int:
        """Return the line of `name` in the mapping `key`."""
        tree = self._table.items.get(key)
        return tree.key_lines.get(name, tree.line) if isinstance(tree, Table) else self.line

    def watermark(self) -> Watermark | None:
        """`watermark: {column: at, delay: 10 minutes}`."""
        tree = self._table.items.get("watermark")
        if tree is None:
            return None
        if not isinstance(tree, Table):
            self.wrong(tree.line, f"'watermark' of {self._what} must be written as {{column: at, delay: 10 minutes}}.")
            return None
        inner = Fields(tree, f"'watermark' of {self._what}", ("column", "delay"), self._problems)
        column = inner.text("column")
        if column is None or not inner.has("delay"):
            self.wrong(tree.line, f"'watermark' of {self._what} needs both 'column' and 'delay'.")
            return None
        return Watermark(column, inner.duration("delay", 0))

    def _scalar(self, key: str) -> tuple[Any, int]:
        tree = self._table.items.get(key)
        if tree is None:
            return None, self.line
        if not isinstance(tree, Scalar):
            self.wrong(tree.line, f"{key!r} of {self._what} must be a single value.")
            return None, tree.line
        return tree.value, tree.line


def check_name(name: str, what: str, line: int, problems: list[Problem]) -> None:
    """Sources and views are tables of SQL, and sinks directories; a pipeline may have dashes in its name as well."""
    is_pipeline = what == "pipeline"
    if not NAME.fullmatch(name.replace("-", "_") if is_pipeline else name):
        allowed = "letters, digits, underscores and dashes" if is_pipeline else "letters, digits and underscores"
        use = "" if is_pipeline else ", for use in SQL"
        problems.append(
            Problem(line, f"{what} {name!r}: a name consists of {allowed} and does not begin with a digit{use}.")
        )
