"""Decides whether a query can continue from its checkpoint, by the parts that Spark's saved offsets and state depend
on.

The shape of every sink's query is kept beside the checkpoint. Filters, projections and triggers are not part of it and
may change; sources, the target table, the output mode and stateful operators may not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from klamm.errors import KlammError
from klamm.spark.pipeline.pipeline_model import PipelineSpec, Sink
from klamm.spark.pipeline.state import home_of
from klamm.spark.source.checkpoint_locations import local_path

_FILE: Final = "klamm-pipeline.json"


@dataclass(frozen=True, slots=True)
class QueryShape:
    """`operators` is None until Spark has analysed the query."""

    sources: tuple[str, ...]
    target: str
    mode: str
    operators: tuple[str, ...] | None = None


def shape_of(spec: PipelineSpec, sink: Sink, operators: tuple[str, ...] | None = None) -> QueryShape:
    upstream = set(spec.upstream(sink.view))
    streams = [source for source in spec.sources if source.name in upstream and not source.static]
    # A topic may change between runs; a table must stay, because it holds the earlier rows.
    target = "a topic" if sink.topic is not None else f"table {sink.table}"
    return QueryShape(tuple(sorted(source.reads for source in streams)), target, sink.mode, operators)


def changes(old: QueryShape, new: QueryShape) -> list[str]:
    """Return the changes that make the checkpoint unusable, as text; empty if it is usable."""
    found = []
    if old.sources != new.sources:
        found.append(f"it read {_listed(old.sources)} and now reads {_listed(new.sources)}")
    if old.target != new.target:
        found.append(f"it wrote to {old.target} and now writes to {new.target}")
    if old.mode != new.mode:
        found.append(f"its output mode was {old.mode} and is now {new.mode}")
    if old.operators is not None and new.operators is not None and old.operators != new.operators:
        found += _operator_changes(old.operators, new.operators)
    return found


def _operator_changes(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[str]:
    gone = [operator for operator in old if operator not in new]
    added = [operator for operator in new if operator not in old]
    yield from (f"it had: {operator}" for operator in gone)
    yield from (f"it now has: {operator}" for operator in added)
    if not gone and not added:
        yield "its stateful operators are in a different order"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


class ShapeFile:
    """The shapes of a pipeline's queries, by sink."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self.path = home_of(checkpoint) / _FILE

    def read(self) -> dict[str, QueryShape]:
        try:
            stored = json.loads(self.path.read_text())
            return {name: _parsed(shape) for name, shape in stored["queries"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise KlammError(f"{self.path} is damaged: it should hold the shapes of the pipeline's queries.") from None

    def check(self, file: str, shapes: Mapping[str, QueryShape]) -> None:
        """Refuse queries that cannot continue from their checkpoint."""
        stored = self.read()
        for name, shape in shapes.items():
            if name not in stored or not self._has_run(name):
                continue
            if found := changes(stored[name], shape):
                raise KlammError(
                    f"Sink {name!r} cannot continue from its checkpoint, because its query has changed:\n"
                    + "\n".join(f"  {change}" for change in found)
                    + f"\nUndo the change, or start over with `klamm pipeline reset {file} --sink {name}`."
                )

    def write(self, shapes: Mapping[str, QueryShape]) -> None:
        """Store these shapes; those of sinks no longer in the file stay, like their checkpoints."""
        merged = {name: asdict(shape) for name, shape in {**self.read(), **shapes}.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"queries": merged}, indent=1, sort_keys=True))
        temporary.replace(self.path)

    def forget(self, names: list[str]) -> None:
        kept = {name: asdict(shape) for name, shape in self.read().items() if name not in names}
        if self.path.exists():
            self.path.write_text(json.dumps({"queries": kept}, indent=1, sort_keys=True))

    def _has_run(self, name: str) -> bool:
        """Whether a checkpoint exists; assumed if it is not on this machine."""
        if (path := local_path(self._checkpoint)) is None:
            return True
        offsets: Path = path / name / "offsets"
        return offsets.is_dir() and any(entry.name.isdecimal() for entry in offsets.iterdir())


def _parsed(shape: Mapping[str, object]) -> QueryShape:
    sources, operators = shape["sources"], shape["operators"]
    assert isinstance(sources, list)
    return QueryShape(
        tuple(map(str, sources)),
        str(shape["target"]),
        str(shape["mode"]),
        tuple(map(str, operators)) if isinstance(operators, list) else None,
    )
