"""Parts of a large request that are sent to the controller one after the other, so that no event holds a loop.

One event of 100,000 topics is copied, answered and visited by the garbage collector in single steps of several
milliseconds (docs/adr/0016). `klamm.apis.parts` splits whole requests; this module serves handlers that have to look at
all elements of their request first, because they drop repeated ones or answer in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

MOST: Final = 500
"""Elements of an event. The controller makes that many results in about half a millisecond."""

K = TypeVar("K")


def parts_of(keys: Sequence[K]) -> Iterator[Sequence[K]]:
    """Split `keys` into parts. There is at least one, so that the controller is asked at least once."""
    for start in range(0, max(len(keys), 1), MOST):
        yield keys[start : start + MOST]
