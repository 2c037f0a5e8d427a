"""Drives rules that read ZooKeeper (`klamm.metadata.read_steps`) with a session."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from klamm.metadata.read_steps import Answers, Pause, Reads, ReadSteps
from klamm.zk.model.ops import GetData, GetDataResult, NoNode, ReadOp, ReadResult, Stat

T = TypeVar("T")


class Session(Protocol):
    """`klamm.zk.client.zk_session.ZkSession`, as far as it is used here."""

    async def read(self, op: ReadOp) -> ReadResult: ...

    async def read_many(self, paths: list[str]) -> list[tuple[bytes | None, Stat] | None]: ...


async def run(session: Session, steps: ReadSteps[T]) -> T:
    """Carry out the steps of a rule and return its result."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                step = steps.send(())
            else:
                step = steps.send(await _read(session, step))
    except StopIteration as end:
        result: T = end.value
        return result


async def _read(session: Session, reads: Reads) -> Answers:
    if all(isinstance(op, GetData) for op in reads.ops):
        found = await session.read_many([op.path for op in reads.ops])
        return tuple([None if node is None else GetDataResult(*node) for node in found])
    return tuple([await _read_one(session, op) for op in reads.ops])


async def _read_one(session: Session, op: ReadOp) -> ReadResult | None:
    try:
        return await session.read(op)
    except NoNode:
        return None
