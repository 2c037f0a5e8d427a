"""A controller core over a tree, for tests of one rule: the harness of the transcripts with faults and answers."""

from __future__ import annotations

from collections.abc import Callable

from klamm.controller.events import ControllerEvent
from klamm.controller.replies import EventReply
from klamm.zk.model.ops import (
    Check,
    Create,
    Delete,
    ErrorResult,
    MultiFailed,
    MultiFailure,
    SetData,
    WriteOp,
    ZkError,
)
from tests.transcripts.harness import Harness


class Core(Harness):
    """`refused`: paths that ZooKeeper refuses to write, each with the error."""

    def __init__(self, *commands: str) -> None:
        super().__init__()
        self.refused: dict[str, ZkError] = {}
        self.before_multi: Callable[[tuple[WriteOp, ...]], None] = lambda _: None
        self.multis: list[tuple[WriteOp, ...]] = []
        for command in commands:
            self.run(command)

    def is_active(self) -> bool:
        return self.controller is not None and self.controller.is_active

    def ask(self, event: ControllerEvent) -> EventReply:
        """The answer to one event, when everything that it led to is done."""
        self.lines = []
        self.replies.clear()
        self.queue.append(event)
        self.drain()
        return self.replies[0]

    def run_event(self, event: ControllerEvent) -> list[str]:
        """The lines of the controller's actions after one event, when everything that it led to is done."""
        self.lines = []
        self.queue.append(event)
        self.drain()
        return self.lines

    def tool_writes(self, path: str, data: bytes) -> None:
        there = path in self.tree.nodes
        self.tree.write(self.tools, SetData(path, data) if there else Create(path, data), 0)

    def tool_deletes(self, path: str) -> None:
        self.tree.write(self.tools, Delete(path), 0)

    def _multi(self, ops: tuple[WriteOp, ...]) -> object:
        self.multis.append(ops)
        self.before_multi(ops)
        assert len(self.multis) < 1_000, f"{ops} is tried again and again"
        for index, op in enumerate(ops):
            if op.path in self.refused and not isinstance(op, Check):
                error = self.refused[op.path]
                results = tuple(ErrorResult(error.code) for _ in ops)
                raise MultiFailed(MultiFailure(index, op, error, results))
        return super()._multi(ops)
