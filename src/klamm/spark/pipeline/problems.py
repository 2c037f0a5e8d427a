"""What is wrong with a pipeline file: every finding with its line, told all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from klamm.errors import KlammError


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    line: int
    reason: str


class PipelineError(KlammError):
    """A pipeline file cannot be run. The message has a line `file:line: reason` for each finding."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(_told(file, problem) for problem in self.problems))


def _told(file: str, problem: Problem) -> str:
    return f"{file}:{problem.line}: {problem.reason}" if problem.line else f"{file}: {problem.reason}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'orders'?`, or what there is when nothing is close, or nothing."""
    names = sorted(known)
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f" Did you mean {close[0]!r}?"
    return f" There are: {', '.join(names)}." if 0 < len(names) <= 12 else ""
