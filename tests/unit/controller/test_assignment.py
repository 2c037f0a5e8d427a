"""Where replicas go. Expected values follow from Kafka's documented rule, computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.controller.assignment import AssignmentError, assign_replicas, rack_alternated


def no_racks(*brokers: int) -> dict[int, str | None]:
    return dict.fromkeys(brokers)


def test_leaders_go_round_and_followers_follow_at_a_growing_shift() -> None:
    plan = assign_replicas(no_racks(0, 1, 2, 3, 4), 10, 3, start_index=0, shift=0)
    assert plan == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_racks_alternate() -> None:
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert rack_alternated(racks) == [0, 3, 1, 5, 4, 2]


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    racks: dict[int, str | None] = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    plan = assign_replicas(racks, 7, 3, start_index=0, shift=0)
    assert plan[0] == (0, 3, 1)
    assert plan[1] == (3, 1, 5)
    assert plan[6] == (0, 4, 2)


def test_racks_are_ignored_when_a_broker_has_none() -> None:
    racks: dict[int, str | None] = {0: "a", 1: None, 2: "a"}
    assert assign_replicas(racks, 1, 2, start_index=1, shift=0) == assign_replicas(
        no_racks(0, 1, 2), 1, 2, start_index=1, shift=0
    )


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "sentence"),
    [
        (3, 0, 1, "Number of partitions must be larger than 0."),
        (3, 1, 0, "Replication factor must be larger than 0."),
        (2, 1, 3, "Replication factor: 3 larger than available brokers: 2."),
        (0, 1, 1, "Replication factor: 1 larger than available brokers: 0."),
    ],
)
def test_requirements_that_cannot_be_met(brokers: int, partitions: int, factor: int, sentence: str) -> None:
    with pytest.raises(AssignmentError, match=sentence):
        assign_replicas(no_racks(*range(brokers)), partitions, factor, start_index=0, shift=0)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd")), min_size=1, max_size=8, unique_by=lambda b: b[0]),
    st.integers(1, 30),
    st.data(),
)
def test_every_assignment_is_sound_and_spread(
    brokers: list[tuple[int, str]], partitions: int, data: st.DataObject
) -> None:
    racks: dict[int, str | None] = dict(brokers)
    factor = data.draw(st.integers(1, len(racks)))
    start, shift = data.draw(st.integers(0, len(racks) - 1)), data.draw(st.integers(0, len(racks) - 1))
    plan = assign_replicas(racks, partitions, factor, start_index=start, shift=shift)
    assert list(plan) == list(range(partitions))
    for replicas in plan.values():
        assert len(set(replicas)) == factor and set(replicas) <= set(racks)
        assert len({racks[r] for r in replicas}) == min(factor, len(set(racks.values())))
    led = [replicas[0] for replicas in plan.values()]
    counts = [led.count(broker) for broker in racks]
    assert max(counts) - min(counts) <= 1
