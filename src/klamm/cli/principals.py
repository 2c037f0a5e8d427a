"""Names of users, which are not principals: the user of User:alice is alice."""

from __future__ import annotations

from typing import Final

from klamm.cli.output import fail

_TYPE: Final = "User:"


def refuse_type(name: str | None) -> None:
    """Fail if a principal was passed as the name of a user: settings of such a name apply to nobody."""
    if name is not None and name.startswith(_TYPE):
        fail(f"{name!r} is a principal: pass the name of the user, {name.removeprefix(_TYPE) or 'alice'}.")
