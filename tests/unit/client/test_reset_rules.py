"""New offsets of a reset: every target, limited to the log."""

from __future__ import annotations

import pytest

from klamm.client.reset_rules import Bounds, NewOffset, ResetTarget, new_offsets

BOUNDS = {"a": Bounds(10, 100), "b": Bounds(0, 0)}
COMMITTED = {"a": 50}


@pytest.mark.parametrize(
    ("target", "value", "expected"),
    [
        (ResetTarget.EARLIEST, 0, {"a": 10, "b": 0}),
        (ResetTarget.LATEST, 0, {"a": 100, "b": 0}),
        (ResetTarget.OFFSET, 60, {"a": 60, "b": 0}),
        (ResetTarget.OFFSET, 3, {"a": 10, "b": 0}),
        (ResetTarget.SHIFT, -20, {"a": 30, "b": 0}),
        (ResetTarget.SHIFT, 1_000, {"a": 100, "b": 0}),
        (ResetTarget.TIME, 5, {"a": 70, "b": 0}),
    ],
)
def test_targets(target: ResetTarget, value: int, expected: dict[str, int]) -> None:
    found = new_offsets(target, value, ["a", "b", "gone"], COMMITTED, BOUNDS, {"a": 70, "b": None})
    assert {name: new.offset for name, new in found.items()} == expected


def test_a_cut_is_named() -> None:
    found = new_offsets(ResetTarget.OFFSET, 3, ["a"], COMMITTED, BOUNDS, {})
    assert found == {"a": NewOffset(10, 3)} and found["a"].is_cut


def test_a_time_after_the_last_record_is_the_end() -> None:
    """librdkafka returns -1 for it, klamm's client None. A partition that did not answer is left out."""
    for answer in (None, -1):
        assert new_offsets(ResetTarget.TIME, 1, ["a"], {}, BOUNDS, {"a": answer})["a"].offset == 100
    assert new_offsets(ResetTarget.TIME, 1, ["a"], {}, BOUNDS, {}) == {}


def test_a_shift_without_a_committed_offset_starts_at_the_first() -> None:
    assert new_offsets(ResetTarget.SHIFT, 5, ["a"], {}, BOUNDS, {})["a"].offset == 15
