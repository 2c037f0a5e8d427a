"""Results and errors for callers of the client; errors name the path without the chroot."""

from __future__ import annotations

from typing import Any

from klamm.zk.model import ops
from klamm.zk.model.ops import (
    ConnectionLoss,
    Exists,
    ExistsResult,
    GetChildrenResult,
    GetData,
    GetDataResult,
    ReadOp,
    ReadResult,
    SessionExpired,
    Stat,
    ZkError,
)


def read_result(op: ReadOp, answer: Any) -> ReadResult:
    if isinstance(op, Exists):
        return ExistsResult(None if answer is None else Stat._make(answer))
    value, stat = answer
    if isinstance(op, GetData):
        return GetDataResult(value, Stat._make(stat))
    return GetChildrenResult(tuple(value), Stat._make(stat))


def about(error: ZkError, path: str) -> ZkError:
    """Return the same error with the path that the caller knows."""
    if isinstance(error, ConnectionLoss | SessionExpired):
        return type(error)(path, f"{error.code.name} during a request for {path}")
    return ops.error_for(error.code, path)
