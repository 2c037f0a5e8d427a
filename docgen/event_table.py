"""The controller's events, each with its state, timer and handlers, read from the code that dispatches them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple, get_args

from docgen.source_index import SOURCE
from klamm.controller import controller, events
from klamm.controller.states import ControllerState


class EventRow(NamedTuple):
    event: str
    state: ControllerState
    handlers: tuple[str, ...]


def rows() -> list[EventRow]:
    """In the order of the states, then of the declaration."""
    handlers = _handlers()
    found = [
        EventRow(event.__name__, event.STATE, handlers.get(event.__name__, ()))
        for event in get_args(events.ControllerEvent)
    ]
    return sorted(found, key=lambda row: row.state)


def _handlers() -> dict[str, tuple[str, ...]]:
    """The calls in each `case e.Event(...)` of the controller, then those of `if isinstance(event, EVENTS)`."""
    found: dict[str, tuple[str, ...]] = {}
    names = {event.__name__ for event in get_args(events.ControllerEvent)}
    for path in sorted((SOURCE / "controller").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.match_case):
                for name in _patterns(node.pattern):
                    if name in names and (calls := tuple(dict.fromkeys(_calls(node)))):
                        found.setdefault(name, calls)
    for name, calls in _follow_ups().items():
        found[name] = (*found.get(name, ()), *calls)
    return found


def _follow_ups() -> dict[str, tuple[str, ...]]:
    """The steps that `KafkaController._process_active` adds after the handlers of the events in a tuple."""
    found: dict[str, tuple[str, ...]] = {}
    (dispatch,) = (
        node
        for node in ast.walk(ast.parse((SOURCE / "controller" / "controller.py").read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "_process_active"
    )
    for node in dispatch.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Call):
            named = getattr(controller, ast.unparse(node.test.args[1]))
            if isinstance(named, tuple):
                calls = [part for step in node.body for part in ast.walk(step) if isinstance(part, ast.Call)]
                for event in named:
                    found[event.__name__] = tuple(ast.unparse(call.func) for call in calls)
    return found


def _patterns(pattern: ast.pattern) -> Iterator[str]:
    for node in ast.walk(pattern):
        if isinstance(node, ast.MatchClass):
            yield ast.unparse(node.cls).rpartition(".")[2]


def _calls(case: ast.match_case) -> Iterator[str]:
    """The functions that the case calls itself: `topics.on_topic_change`, `KafkaController._elect`."""
    for statement in case.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                if called.startswith("self."):
                    yield called.replace("self.", "KafkaController.", 1)
                elif node.func.attr.startswith(("on_", "register", "maybe_", "read_")):
                    yield called
