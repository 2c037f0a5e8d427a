"""YAML with line numbers: PyYAML's nodes as plain values that remember their lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from klamm.spark.pipeline.pipeline_problems import PipelineError, Problem

_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
MAX_DEPTH: Final = 16
MAX_NODES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Scalar:
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Tree, ...]
    line: int

    def __iter__(self) -> Iterator[Tree]:
        return iter(self.items)


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping; `key_lines` holds the line of each key."""

    items: Mapping[str, Tree]
    line: int
    key_lines: Mapping[str, int] = field(default_factory=dict)


Tree = Scalar | Sequence | Table


def parse(text: str, file: str, environment: Mapping[str, str] = os.environ) -> Table:
    """Parse the one document of `text`. `${NAME}` and `${NAME:-default}` are replaced from the environment."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise PipelineError(file, [Problem(mark.line + 1 if mark else 1, f"not YAML: {reason}.")]) from None
    if not isinstance(node, yaml.MappingNode):
        raise PipelineError(file, [Problem(1, "expected keys like `name:`, `sources:` and `sinks:` at the top.")])
    composer = _Composer(environment)
    tree = composer.tree(node, 0)
    if composer.problems:
        raise PipelineError(file, composer.problems)
    assert isinstance(tree, Table)
    return tree


class _Composer:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._scalars = yaml.SafeLoader("")
        self._nodes = 0
        self.problems: list[Problem] = []

    def tree(self, node: yaml.Node, depth: int) -> Tree:
        line = node.start_mark.line + 1
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            too_much = (
                f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_NODES} values"
            )
            self.problems.append(Problem(line, f"{too_much}, with those that aliases stand for."))
            return Scalar(None, line)
        if isinstance(node, yaml.MappingNode):
            return self._table(node, line, depth)
        if isinstance(node, yaml.SequenceNode):
            return Sequence(tuple(self.tree(item, depth + 1) for item in node.value), line)
        return Scalar(self._scalar(node, line), line)

    def _table(self, node: yaml.MappingNode, line: int, depth: int) -> Table:
        items: dict[str, Tree] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            if not key:
                self.problems.append(Problem(key_line, "a key must be a word."))
            elif key in items:
                self.problems.append(Problem(key_line, f"{key!r} appears twice, first in line {lines[key]}."))
            else:
                items[key], lines[key] = self.tree(value_node, depth + 1), key_line
        return Table(items, line, lines)

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        try:
            value = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self.problems.append(Problem(line, f"not a value: {str(error).splitlines()[0]}."))
            return None
        return self._substituted(value, line) if isinstance(value, str) else value

    def _substituted(self, text: str, line: int) -> str:
        def value(match: re.Match[str]) -> str:
            default: str | None = match[2]
            found = self._environment.get(match[1], default)
            if found is None:
                self.problems.append(
                    Problem(line, f"{match[1]} is not set; write a default as ${{{match[1]}:-value}}.")
                )
            return found or ""

        return _VARIABLE.sub(value, text)
