"""The stateful operators of a query, from Spark's analysed plan."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXPRESSION_ID: Final = re.compile(r"#\d+L?")
_WINDOW: Final = re.compile(r"\b(window|session_window)(?:-[\w]+)?\b")


def stateful_operators(frame: DataFrame) -> tuple[str, ...]:
    """Return them in plan order. Column names and window definitions count, output names do not."""
    # Only the JVM has the plan; both attributes are what pyspark itself uses for explain().
    return tuple(_walk(frame._jdf.queryExecution().analyzed()))


def _walk(plan: Any) -> Iterator[str]:
    for child in _elements(plan.children()):
        yield from _walk(child)
    if plan.isStreaming():
        described = _described(plan)
        if described:
            yield described


def _described(plan: Any) -> str:
    name = plan.nodeName()
    if name == "Aggregate":
        keys = [_clean(key) for key in _elements(plan.groupingExpressions())]
        functions = [text for item in _elements(plan.aggregateExpressions()) for text in _functions(item)]
        return f"aggregate by [{', '.join(keys)}] of [{', '.join(functions)}]{_window_definition(plan, keys)}"
    if name == "Join" and _joins_streams(plan):
        condition = plan.condition().get() if plan.condition().isDefined() else "true"
        sides = " with ".join(_columns(side) for side in _elements(plan.children()))
        return f"{plan.joinType().sql().lower()} join of {sides} on {_clean(condition)}"
    if name in ("Deduplicate", "DeduplicateWithinWatermark"):
        keys = sorted(_clean(key) for key in _elements(plan.keys()))
        return f"{'deduplicate' if name == 'Deduplicate' else 'deduplicate within the watermark'} by {', '.join(keys)}"
    if name == "Distinct":
        return f"distinct of {_columns(plan)}"
    if "State" in name or name.startswith("FlatMapGroups"):
        return f"{name} giving {_columns(plan)}"
    return ""


def _functions(expression: Any) -> Iterator[str]:
    """The aggregate functions within an expression: `count(1)` of `count(1) + 1 AS n`."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        yield _clean(expression)
        return
    for child in _elements(expression.children()):
        yield from _functions(child)


def _window_definition(plan: Any, keys: list[str]) -> str:
    """In the plan a window is only a column; an operator below computes it."""
    wanted = {found[1] for key in keys if (found := _WINDOW.search(key))}
    if not wanted:
        return ""
    texts = [_clean(item) for item in _definitions(plan) if any(f" AS {name}" in str(item) for name in wanted)]
    return f" over windows {hashlib.sha256(repr(texts).encode()).hexdigest()[:8]}" if texts else ""


def _definitions(plan: Any) -> Iterator[str]:
    for child in _elements(plan.children()):
        if child.nodeName() == "Project":
            yield from (item.toString() for item in _elements(child.projectList()))
        elif child.nodeName() == "Expand":
            yield from (row.toString() for row in _elements(child.projections()))
        if child.nodeName() != "Aggregate":
            yield from _definitions(child)


def _joins_streams(plan: Any) -> bool:
    return all(child.isStreaming() for child in _elements(plan.children()))


def _columns(plan: Any) -> str:
    return f"({', '.join(f'{_clean(column.name())} {column.dataType().sql()}' for column in _elements(plan.output()))})"


def _clean(expression: Any) -> str:
    text = expression if isinstance(expression, str) else expression.toString()
    return _EXPRESSION_ID.sub("", re.sub(r"-T\d+ms", "", text))


def _elements(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
