"""Full collections look only at new objects, and at everything when the process has grown."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from klamm.network.slice_passes import PASS_OBJECTS, PASS_SECONDS
from klamm.server.collector import THRESHOLDS, UNVISITED, FullCollections, resident_bytes, slice_passes


class Node:
    def __init__(self) -> None:
        self.itself: Node | None = self


class Memory:
    def __init__(self) -> None:
        self.resident_bytes = 0


@contextmanager
def collections(memory: Memory, thaw_bytes: int = 100) -> Iterator[None]:
    callback = FullCollections(lambda: memory.resident_bytes, thaw_bytes)
    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)
        gc.unfreeze()


def test_survivors_are_not_walked_through_again() -> None:
    kept = [[i] for i in range(50_000)]
    with collections(Memory()):
        gc.collect()
        assert sum(gc.get_count()) + len(gc.get_objects(generation=2)) < len(kept)
        assert gc.get_freeze_count() >= len(kept)


def test_no_pass_walks_through_many_objects() -> None:
    """A client that opens large sessions makes many objects that stay: each pass holds the loop."""
    walked: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

    before = gc.get_threshold()
    with collections(Memory()):
        gc.collect()
        gc.collect()  # Python waits with a full pass for a quarter of the survivors of the last: now they are few
        gc.callbacks.append(note)
        gc.set_threshold(*THRESHOLDS)
        try:
            kept = [[i] for i in range(600_000)]
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(note)
    assert len(kept) > sum(THRESHOLDS) and 0 < max(walked) < 60_000


def test_objects_that_were_made_while_the_collector_was_off_are_not_walked_through() -> None:
    walked: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

    with collections(Memory()):
        gc.collect()
        gc.callbacks.append(note)
        gc.disable()
        try:
            kept = [[i] for i in range(3 * UNVISITED)]
            gc.enable()
            kept += [[i] for i in range(2 * gc.get_threshold()[0])]
        finally:
            gc.enable()
            gc.callbacks.remove(note)
    assert walked and max(walked) < UNVISITED


def test_new_cycles_are_collected() -> None:
    with collections(Memory()):
        gc.collect()
        lost = weakref.ref(Node())
        gc.collect()
        assert lost() is None


def test_old_cycles_are_collected_when_the_process_has_grown() -> None:
    memory = Memory()
    with collections(memory):
        node: Node | None = Node()
        lost = weakref.ref(node)
        gc.collect()
        del node
        gc.collect()
        assert lost() is not None, "it is frozen"
        memory.resident_bytes = 101
        gc.collect()
        assert lost() is None


def test_the_next_look_at_everything_waits_for_twice_the_memory() -> None:
    memory = Memory()
    with collections(memory):
        memory.resident_bytes = 300
        gc.collect()
        node: Node | None = Node()
        lost = weakref.ref(node)
        gc.collect()
        del node
        memory.resident_bytes = 600
        gc.collect()
        assert lost() is not None
        memory.resident_bytes = 601
        gc.collect()
        assert lost() is None


def test_frozen_objects_without_cycles_are_freed_at_once() -> None:
    class Plain:
        pass

    with collections(Memory()):
        plain: Plain | None = Plain()
        lost = weakref.ref(plain)
        gc.collect()
        del plain
        assert lost() is None


def test_the_resident_memory_is_known() -> None:
    assert resident_bytes() > 1 << 20


def test_work_in_slices_has_passes_of_its_own() -> None:
    """A large response replaces a large request: Python counts no new objects, and passes would visit all of them."""
    walked: list[int] = []
    slices: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

    before = gc.get_threshold()
    request = [[i] for i in range(100_000)]
    response: list[list[list[int]]] = []
    with collections(Memory()):
        passes = slice_passes()
        gc.collect()
        gc.collect()
        gc.callbacks.append(note)
        gc.set_threshold(*THRESHOLDS)
        try:
            while request:
                passes.hold_back()
                count = len(walked)
                for _ in range(1000):
                    response.append([[], request.pop()])
                slices.append(len(walked) - count)
                passes.note_slice(PASS_SECONDS)
                assert passes.is_due
                passes.run()
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(note)
    assert not any(slices), "no pass within a slice"
    assert 100 <= len(walked) <= 110
    assert max(walked) < 10_000
    assert gc.isenabled()


def test_short_work_in_slices_needs_no_pass() -> None:
    with collections(Memory()):
        passes = slice_passes()
        passes.hold_back()
        passes.note_slice(PASS_SECONDS / 2)
        assert (passes.is_due, passes.is_held_back, gc.isenabled()) == (False, True, False)
        passes.end()
        assert (passes.is_due, passes.is_held_back, gc.isenabled()) == (False, False, True)


def test_objects_of_other_work_between_slices_bring_the_pass_forward() -> None:
    with collections(Memory()):
        passes = slice_passes()
        passes.hold_back()
        kept = [[i] for i in range(PASS_OBJECTS)]
        assert passes.is_due and kept
        passes.run()
        assert (passes.is_due, gc.isenabled()) == (False, True)


def test_without_frozen_objects_there_are_no_passes_between_slices() -> None:
    passes = slice_passes()
    passes.hold_back()
    passes.note_slice(1.0)
    assert gc.isenabled() and not passes.is_due and not passes.is_held_back


def test_a_collector_that_is_off_stays_off() -> None:
    with collections(Memory()):
        gc.disable()
        try:
            passes = slice_passes()
            passes.hold_back()
            passes.note_slice(PASS_SECONDS)
            passes.run()
            assert not gc.isenabled()
        finally:
            gc.enable()
