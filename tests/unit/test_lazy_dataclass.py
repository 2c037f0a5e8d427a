"""Quick frozen values behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from klamm.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class Quick:
    number: int
    name: str = "x"
    seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError(f"{self.number} is negative")


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    number: int
    name: str = "x"
    seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError(f"{self.number} is negative")


@lazy_dataclass(frozen=True, slots=True)
class Empty: ...


@lazy_dataclass(frozen=True, slots=True)
class Unpickled:
    number: int


def test_it_is_built_compared_and_shown_as_a_plain_one() -> None:
    for kind in (Quick, Plain):
        made: Any = kind(3, name="y")
        assert made == kind(3, "y", {"a": 1}) and made != kind(4, "y") and made != Empty()
        assert hash(made) == hash((3, "y"))
        assert repr(made) == f"{kind.__name__}(number=3, name='y')"
        assert dataclasses.replace(made, number=5) == kind(5, "y")
        assert dataclasses.astuple(made) == (3, "y", {})
        assert kind.__match_args__ == ("number", "name", "seen")
        with pytest.raises(ValueError, match="negative"):
            kind(-1)
        with pytest.raises(TypeError, match=r"Quick\.__init__|Plain\.__init__"):
            kind()  # type: ignore[call-arg]
    assert Quick(1).seen is not Quick(1).seen


def test_it_does_not_change() -> None:
    for made in (Quick(3), Plain(3)):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'number'"):
            made.number = 4  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'number'"):
            del made.number
        assert not hasattr(made, "__dict__")


def test_copies_are_equal() -> None:
    made = Quick(3, "y")
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    assert Empty() == Empty() and hash(Empty()) == hash(Empty()) and repr(Empty()) == "Empty()"


def test_a_value_that_was_never_built_here_can_be_compared() -> None:
    made = Unpickled.__new__(Unpickled)
    made.__setstate__([3])  # type: ignore[attr-defined]
    assert made == made and hash(made) == hash((3,))
    assert repr(made) == "Unpickled(number=3)"
    assert made == Unpickled(3)
