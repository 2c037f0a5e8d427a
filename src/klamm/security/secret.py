"""Secret: a password or key that no log, error or debugger prints by accident."""

from __future__ import annotations

from hmac import compare_digest
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T", str, bytes)
HIDDEN: Final = "[hidden]"


class Secret(Generic[T]):
    """Holds a value that appears as `[hidden]`. Only `reveal` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value: T = value

    def reveal(self) -> T:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and _bytes(self._value) == _bytes(other.reveal())

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._value,)


def is_same(one: str, other: str) -> bool:
    """Compare two passwords in a time that does not depend on where they differ."""
    return compare_digest(one.encode(), other.encode())


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
