"""Problems of a pipeline file: all of them, each with its line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from klamm.errors import KlammError


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    line: int
    reason: str


class PipelineError(KlammError):
    """A pipeline file is invalid. The message has one line `file:line: reason` per problem."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(_format_problem(file, problem) for problem in self.problems))


def _format_problem(file: str, problem: Problem) -> str:
    return f"{file}:{problem.line}: {problem.reason}" if problem.line else f"{file}: {problem.reason}"
