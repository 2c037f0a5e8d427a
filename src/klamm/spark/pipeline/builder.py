"""Pipelines in Python: functions from DataFrames to a DataFrame, whose parameters name their inputs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, overload

from klamm.spark.pipeline.checks import checked
from klamm.spark.pipeline.pipeline_model import (
    PipelineSpec,
    Restart,
    Sink,
    Source,
    Trigger,
    View,
    Watermark,
    duration_ms,
)
from klamm.spark.pipeline.pipeline_problems import PipelineError, Problem
from klamm.spark.suggestion import suggestion

F = TypeVar("F", bound=Callable[..., Any])


class Pipeline:
    """Collects sources, views and sinks. `klamm pipeline run FILE.py` runs the pipeline that the file creates.

    `view` decorates a function: its name is the view's, its parameters are the sources and views it reads.
    """

    def __init__(
        self,
        name: str,
        *,
        checkpoint: str,
        bootstrap_servers: str | None = None,
        trigger: str | None = None,
        restart: Restart | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._checkpoint = checkpoint
        self._bootstrap_servers = bootstrap_servers
        self._problems: list[Problem] = []
        self._trigger = self._parsed_trigger(trigger)
        self._restart = restart or Restart()
        self._settings = dict(settings or {})
        self._sources: list[Source] = []
        self._views: list[View] = []
        self._sinks: list[Sink] = []

    def source(
        self,
        name: str,
        *,
        topic: str | None = None,
        pattern: str | None = None,
        watermark: tuple[str, str] | None = None,
        deduplicate: tuple[str, ...] = (),
        **keys: Any,
    ) -> None:
        """Add a topic as a view; without `topic` and `pattern` it is the topic of that name. Keys as in YAML."""
        line = _caller_line()
        topic = name if topic is None and pattern is None else topic
        mark = self._watermark(watermark, line, f"source {name!r}")
        self._add(
            self._sources,
            Source,
            dict(name=name, line=line, topic=topic, pattern=pattern, watermark=mark, deduplicate=tuple(deduplicate)),
            keys,
        )

    @overload
    def view(self, function: F) -> F: ...
    @overload
    def view(
        self,
        *,
        watermark: tuple[str, str] | None = None,
        deduplicate: tuple[str, ...] = (),
        on_error: str = "fail",
        dead_letters: str | None = None,
    ) -> Callable[[F], F]: ...
    def view(
        self,
        function: F | None = None,
        *,
        watermark: tuple[str, str] | None = None,
        deduplicate: tuple[str, ...] = (),
        on_error: str = "fail",
        dead_letters: str | None = None,
    ) -> F | Callable[[F], F]:
        """`@pipeline.view` or `@pipeline.view(watermark=("at", "10 minutes"))` above a function."""

        def add(function: F) -> F:
            line = function.__code__.co_firstlineno
            name = function.__name__
            mark = self._watermark(watermark, line, f"view {name!r}")
            inputs = tuple(inspect.signature(function).parameters)
            if not inputs:
                self._problems.append(Problem(line, f"view {name!r} has no parameters, so it reads nothing."))
            self._views.append(
                View(
                    name,
                    line,
                    function=function,
                    inputs=inputs,
                    watermark=mark,
                    deduplicate=tuple(deduplicate),
                    on_error=on_error,
                    dead_letters=dead_letters,
                )
            )
            return function

        return add if function is None else add(function)

    def sql(self, name: str, query: str, **keys: Any) -> None:
        """Add a view in SQL."""
        line = _caller_line()
        mark = self._watermark(keys.pop("watermark", None), line, f"view {name!r}")
        self._add(self._views, View, dict(name=name, line=line, sql=query, watermark=mark), keys)

    def sink(self, name: str, view: str, **keys: Any) -> None:
        """Add the sink of `view`: `topic=` or `table=`, and the keys of YAML."""
        keys.setdefault("format", "json" if keys.get("table") is None else "delta")
        self._add(self._sinks, Sink, dict(name=name, line=_caller_line(), view=view), keys)

    def spec(self, file: str) -> PipelineSpec:
        """Return the checked pipeline. Raises PipelineError with all problems."""
        spec = PipelineSpec(
            name=self.name,
            file=file,
            checkpoint=self._checkpoint,
            bootstrap_servers=self._bootstrap_servers,
            trigger=self._trigger,
            restart=self._restart,
            settings={key: str(value) for key, value in self._settings.items()},
            sources=tuple(self._sources),
            views=tuple(self._views),
            sinks=tuple(self._sinks),
            kind="python",
        )
        return checked(spec, self._problems)

    def _add(self, parts: list[Any], kind: type, given: dict[str, Any], keys: dict[str, Any]) -> None:
        try:
            parts.append(kind(**given, **keys))
        except TypeError:
            known = {field.name for field in fields(kind)} - {"line", "lines"}
            what = f"{kind.__name__.lower()} {given['name']!r}"
            for key in keys.keys() - known:
                reason = f"{what} has no key {key!r}.{suggestion(key, known)}"
                self._problems.append(Problem(given["line"], reason))

    def _watermark(self, given: tuple[str, str] | None, line: int, what: str) -> Watermark | None:
        if given is None:
            return None
        try:
            column, delay = given
            return Watermark(column, duration_ms(delay))
        except (ValueError, TypeError) as error:
            reason = str(error) if isinstance(given, tuple) and len(given) == 2 else "write ('column', '10 minutes')."
            self._problems.append(Problem(line, f"'watermark' of {what}: {reason}"))
            return None

    def _parsed_trigger(self, text: str | None) -> Trigger:
        if text is None:
            return Trigger()
        if text.replace(" ", "_").lower() in ("available_now", "once"):
            return Trigger(available_now=True)
        try:
            return Trigger(interval_ms=duration_ms(text))
        except ValueError:
            self._problems.append(
                Problem(_caller_line(3), f"'trigger' must be a duration like 5s, or available_now: {text!r}.")
            )
            return Trigger()


def _caller_line(depth: int = 2) -> int:
    return sys._getframe(depth).f_lineno


__all__ = ["Pipeline", "PipelineError"]
