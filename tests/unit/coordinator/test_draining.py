"""Objects that a walk has left behind are not kept by it."""

from __future__ import annotations

import weakref

from klamm.coordinator.draining import drained


class Item:
    pass


def test_a_walk_keeps_no_item_that_it_has_passed() -> None:
    items = [Item() for _ in range(3)]
    alive = [weakref.ref(item) for item in items]
    walk = drained(items)
    items.clear()
    assert [sum(each() is not None for each in alive) for item in walk] == [3, 2, 1]
