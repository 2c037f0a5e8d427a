"""Long forms of tests: parameters that `make test` leaves out.

`make compat NAME=long_forms` runs them, also in its quick form, and `make sim` runs those of the simulator. A test or a
file that is a long form as a whole has the mark itself: `@pytest.mark.long`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def short_for(short: Collection[str], names: Iterable[str]) -> list[Any]:
    """The names as parameters; those that are not in `short` are long forms."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


def every(step: int, names: Iterable[str], *, slow: Collection[str] = ()) -> list[Any]:
    """The names as parameters; of `step` successive ones that are not in `slow` the first is short."""
    found = list(names)
    return short_for([name for name in found if name not in slow][::step], found)
