"""Checks of znodes: a path, its decoder, and the remedy if the decoder raises ZnodeFormatError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from klamm.zk.client.blocking import BlockingSession

RESTORE: Final = "Restore the znode; it held"
Check = tuple[str, Callable[[bytes | None], Any], str]


def failed_checks(session: BlockingSession, checks: Sequence[Check]) -> list[str]:
    """Return one sentence and its remedy per znode that exists and cannot be decoded."""
    from klamm.zk.model.znodes import ZnodeFormatError

    problems: list[str] = []
    for (_, decode, remedy), node in zip(checks, session.read_many([path for path, _, _ in checks]), strict=True):
        try:
            if node is not None:
                decode(node)
        except ZnodeFormatError as error:
            problems.append(f"{str(error).rstrip('.')}. {remedy}".rstrip())
    return problems


def children(session: BlockingSession, path: str) -> tuple[str, ...]:
    """Return the names of the children; none for a missing znode."""
    from klamm.zk.model.ops import NoNode

    try:
        return session.get_children(path)
    except NoNode:
        return ()
