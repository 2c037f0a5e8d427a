"""A group's offsets against a model: plain and transactional commits, markers and tombstones, acknowledged late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.coordinator.deferred import Deferred
from klamm.coordinator.offsets_log import Appended
from klamm.model import TopicPartition
from tests.unit.coordinator.harness import GROUP, Harness

PARTITIONS = [TopicPartition("t", i) for i in range(3)]
PRODUCERS = [1, 2]


@dataclass
class Model:
    """The offsets that a replay of the log gives, written as plainly as possible."""

    committed: dict[TopicPartition, int] = field(default_factory=dict)
    """The offset in the log of the record that counts; the committed value is looked up by it."""
    pending: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)

    def commit(self, tp: TopicPartition, position: int) -> None:
        self.committed[tp] = max(position, self.committed.get(tp, -1))

    def commit_in_transaction(self, producer_id: int, tp: TopicPartition, position: int) -> None:
        self.pending.setdefault(producer_id, {})[tp] = position

    def delete(self, tp: TopicPartition) -> None:
        self.committed.pop(tp, None)
        for offsets in self.pending.values():
            offsets.pop(tp, None)

    def end(self, producer_id: int, commit: bool) -> None:
        for tp, position in self.pending.pop(producer_id, {}).items():
            if commit:
                self.commit(tp, position)


class World:
    """A coordinator and the model. Acknowledgements are held back; plain commits and tombstones keep their order."""

    def __init__(self) -> None:
        self.harness = Harness().start()
        self.harness.log.holds = True
        self.model = Model()
        self.values: dict[int, int] = {}
        self.ordered: list[Callable[[], None]] = []
        self.unordered: list[Callable[[], None]] = []
        self.open_markers: Counter[int] = Counter()
        """Markers by producer that the coordinator has not learned of."""

    def _hold(self, queue: list[Callable[[], None]]) -> int:
        """Move the append that was just made to `queue`; returns its position in the log."""
        ((deferred, appended),) = self.harness.log.held
        self.harness.log.held = []
        queue.append(partial(_acknowledge, deferred, appended))
        return appended.base_offset

    def commit(self, tp: TopicPartition, value: int) -> None:
        self.harness.commit(value, tp=tp)
        position = self._hold(self.ordered)
        self.values[position] = value
        self.model.commit(tp, position)

    def commit_in_transaction(self, producer_id: int, tp: TopicPartition, value: int) -> None:
        if self.open_markers[producer_id]:
            return  # No transaction begins before the last one's markers were answered.
        self.harness.commit_in_transaction(value, producer_id, tp=tp)
        position = self._hold(self.unordered)
        self.values[position] = value
        self.model.commit_in_transaction(producer_id, tp, position)

    def end(self, producer_id: int, commit: bool) -> None:
        self.harness.end_transaction(producer_id, commit=commit)
        self._hold(self.unordered)
        self.model.end(producer_id, commit)
        acknowledge = self.unordered.pop()
        self.unordered.append(partial(self._report, acknowledge, producer_id))
        self.open_markers[producer_id] += 1

    def _report(self, acknowledge: Callable[[], None], producer_id: int) -> None:
        self.open_markers[producer_id] -= 1
        acknowledge()

    def delete(self, tp: TopicPartition) -> None:
        group = self.harness.manager.get(GROUP)
        if group is None or not group.offsets.known([tp]):
            return
        self.harness.delete_offsets([tp])
        self._hold(self.ordered)
        self.model.delete(tp)

    def acknowledge(self, choice: int) -> None:
        candidates = [*self.unordered, *self.ordered[:1]]
        if candidates:
            chosen = candidates[choice % len(candidates)]
            queue = self.ordered if self.ordered and chosen is self.ordered[0] else self.unordered
            queue.remove(chosen)
            chosen()
            # An empty group that loses its last offset is deleted: the tombstone of a group without a record is none.
            while self.harness.log.held:
                self.harness.log.release()

    def restart(self) -> None:
        """Acknowledge everything first: unacknowledged appends of a dead broker concern nobody."""
        self.settle()
        self.harness.log.holds = False
        self.harness = self.harness.restart()
        self.harness.log.holds = True

    def settle(self) -> None:
        while self.unordered or self.ordered:
            self.acknowledge(0)

    def check(self) -> None:
        for tp in PARTITIONS:
            position = self.model.committed.get(tp)
            assert self.harness.committed(tp) == (None if position is None else self.values[position]), tp
            assert self.harness.is_unstable(tp) == any(tp in offsets for offsets in self.model.pending.values()), tp


def _acknowledge(deferred: Deferred[Appended], appended: Appended) -> None:
    deferred.complete(appended)


partitions = st.sampled_from(PARTITIONS)
producers = st.sampled_from(PRODUCERS)
values = st.integers(0, 1_000)
steps = st.one_of(
    st.builds(lambda tp, value: lambda world: world.commit(tp, value), partitions, values),
    st.builds(
        lambda p, tp, value: lambda world: world.commit_in_transaction(p, tp, value), producers, partitions, values
    ),
    st.builds(lambda p, commit: lambda world: world.end(p, commit), producers, st.booleans()),
    st.builds(lambda tp: lambda world: world.delete(tp), partitions),
    st.builds(lambda choice: lambda world: world.acknowledge(choice), st.integers(0, 20)),
    st.builds(lambda: lambda world: world.restart()),
)


@given(st.lists(steps, max_size=40))
@settings(max_examples=300, deadline=None)
def test_offsets_are_what_a_replay_of_the_log_gives(plan: list[Callable[[World], None]]) -> None:
    world = World()
    for step in plan:
        step(world)
        if not world.unordered and not world.ordered:
            world.check()
    world.settle()
    world.check()
    world.restart()
    world.check()
