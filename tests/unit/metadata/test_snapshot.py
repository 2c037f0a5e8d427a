from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.metadata import MetadataCache, MetadataSnapshot, MetadataUpdate, PartitionState, TopicUpdate
from klamm.metadata import snapshot as snapshots
from klamm.metadata.snapshot import PARTITIONS_PER_STEP, AppliedUpdate, TopicState
from klamm.metadata.trie import TrieMap
from klamm.model import LEADER_DURING_DELETE, ZERO_UUID, BrokerEndPoints, EndPoint, TopicPartition
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.support.control_requests import to_update

BROKERS = (
    BrokerEndPoints(1, (EndPoint("PLAINTEXT", "a", 9092), EndPoint("INTERNAL", "a", 9093)), rack="r1"),
    BrokerEndPoints(2, (EndPoint("PLAINTEXT", "b", 9092),)),
)


def state(
    topic: str, partition: int, *, leader: int = 1, epoch: int = 0, version: int = 0, controller: int = 1, life: int = 1
) -> PartitionState:
    """`controller` sends it to this `life` of the broker."""
    return PartitionState(topic, partition, controller, leader, epoch, (1, 2), version, (1, 2), broker_epoch=life)


def update(*states: PartitionState, ids: dict[str, UUID] | None = None, controller_epoch: int = 1) -> MetadataUpdate:
    topics: dict[str, list[PartitionState]] = {}
    for each in states:
        topics.setdefault(each.topic, []).append(each)
    known = ids or {}
    return MetadataUpdate(
        1,
        controller_epoch,
        BROKERS,
        tuple(TopicUpdate(name, tuple(each), known.get(name, ZERO_UUID)) for name, each in topics.items()),
    )


def applied(*updates: MetadataUpdate) -> MetadataSnapshot:
    snapshot = MetadataSnapshot()
    for each in updates:
        snapshot, _ = snapshot.apply(each)
    return snapshot


def test_an_update_brings_topics_brokers_and_the_controller() -> None:
    snapshot = applied(update(state("t", 0), state("t", 1, leader=2), ids={"t": UUID(int=7)}))
    assert snapshot.controller_id == 1 and snapshot.controller_epoch == 1 and snapshot.update_count == 1
    assert snapshot.partition_count == 2
    assert snapshot.topic_name(UUID(int=7)) == "t" and snapshot.topic_id("t") == UUID(int=7)
    found = snapshot.partition("t", 1)
    assert found is not None and found.leader == 2
    assert snapshot.endpoint(1, "INTERNAL") == EndPoint("INTERNAL", "a", 9093)
    assert snapshot.endpoint(2, "INTERNAL") is None and snapshot.endpoint(3, "PLAINTEXT") is None


def test_live_brokers_are_replaced_and_kept_when_equal() -> None:
    first = applied(update(state("t", 0)))
    second, _ = first.apply(update())
    assert second.brokers is first.brokers
    third, _ = first.apply(MetadataUpdate(-1, 1, BROKERS[:1], ()))
    assert list(third.brokers) == [1] and third.controller_id == -1
    assert third.topics is first.topics


def test_leader_minus_two_deletes_whatever_the_epochs() -> None:
    ids = {"t": UUID(int=7)}
    before = applied(update(state("t", 0, epoch=9), state("t", 1), ids=ids))
    gone = replace(state("t", 0), leader=LEADER_DURING_DELETE)
    after, deleted = before.apply(update(gone, ids=ids))
    assert deleted == (TopicPartition("t", 0),)
    assert after.partition("t", 0) is None and after.partition("t", 1) is not None
    empty, deleted = after.apply(update(replace(state("t", 1), leader=LEADER_DURING_DELETE), ids=ids))
    assert deleted == (TopicPartition("t", 1),)
    assert empty.topic("t") is None and empty.topic_name(UUID(int=7)) is None and empty.partition_count == 0


def test_an_overtaken_update_does_not_turn_back_the_clock() -> None:
    newest = state("t", 0, leader=2, epoch=5, version=3, controller=2, life=2)
    for older in (
        state("t", 0, epoch=9, version=9, controller=1, life=2),
        state("t", 0, epoch=9, version=9, controller=2, life=1),
        state("t", 0, epoch=4, version=9, controller=2, life=2),
        state("t", 0, epoch=5, version=2, controller=2, life=2),
    ):
        snapshot = applied(update(newest), update(older))
        assert snapshot.partition("t", 0) == newest
    same = replace(newest, offline_replicas=(2,))
    assert applied(update(newest), update(same)).partition("t", 0) == same


def reported(
    by: int, epoch: int, version: int, *, written_by: int, isr: Sequence[int] = (1, 2), life: int = 1
) -> MetadataUpdate:
    """As a broker understands a request of controller `by`, about a znode that names `written_by`."""
    state = UpdateMetadataPartitionState(
        topic_name="t",
        partition_index=0,
        controller_epoch=written_by,
        leader=1,
        leader_epoch=epoch,
        isr=isr,
        zk_version=version,
        replicas=(1, 2, 3),
    )
    request = UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=by,
        broker_epoch=life,
        topic_states=[UpdateMetadataTopicState(topic_name="t", partition_states=[state])],
        live_brokers=(),
    )
    return to_update(6, request)


@pytest.mark.parametrize(
    "newer",
    [
        pytest.param(reported(6, 4, 9, written_by=2, isr=(1, 2, 3)), id="a leader has changed its ISR"),
        pytest.param(reported(7, 4, 9, written_by=2, isr=(1, 2, 3)), id="a leader had changed its ISR"),
        pytest.param(reported(7, 4, 8, written_by=2), id="the next controller has read it"),
        pytest.param(reported(7, 4, 8, written_by=7), id="the next controller of Kafka has read it"),
        pytest.param(reported(7, 4, 0, written_by=7), id="created again"),
        pytest.param(reported(7, 0, 0, written_by=7), id="created again with other epochs"),
        pytest.param(reported(6, 0, 0, written_by=6, life=2), id="created again while this broker was away"),
    ],
)
def test_the_controller_epoch_of_a_znode_does_not_matter(newer: MetadataUpdate) -> None:
    """Before 2.7 leaders write the controller epoch of their election with the ISR; Kafka's controller sends its own,
    also with a state that it has only read."""
    known = reported(6, 4, 8, written_by=6)
    expected = newer.topics[0].partitions[0]
    assert applied(known, newer).partition("t", 0) == expected
    assert applied(newer, known).partition("t", 0) == expected, "in whichever order they come"


def test_a_topic_created_again_starts_without_old_state() -> None:
    old, new = {"t": UUID(int=7)}, {"t": UUID(int=8)}
    before = applied(update(state("t", 0, epoch=9), state("t", 1, epoch=9), ids=old))
    after, deleted = before.apply(update(state("t", 0), ids=new))
    assert deleted == (TopicPartition("t", 0), TopicPartition("t", 1)), "what was known of the old ones holds no more"
    assert after.partition("t", 0) == state("t", 0) and after.partition("t", 1) is None
    assert after.topic_name(UUID(int=7)) is None and after.topic_name(UUID(int=8)) == "t"
    late = replace(state("t", 0), leader=LEADER_DURING_DELETE)
    unchanged, deleted = after.apply(update(late, ids=old))
    assert deleted == () and unchanged.partition("t", 0) == state("t", 0)


def test_topics_whose_deletion_was_missed_are_taken_out() -> None:
    cache = MetadataCache(1)
    cache.update(update(state("t", 1), state("t", 0), state("kept", 0), ids={"t": UUID(int=7), "kept": UUID(int=9)}))
    known = list(cache.snapshot.topics.values())
    before = cache.snapshot
    assert cache.forget([topic for topic in known if topic.name == "t"]) == (
        TopicPartition("t", 0),
        TopicPartition("t", 1),
    )
    assert not cache.contains("t") and cache.topic_name(UUID(int=7)) is None and cache.snapshot.partition_count == 1
    assert cache.contains("kept") and cache.topic_name(UUID(int=9)) == "kept"
    assert before.partition_count == 3 and before.topic("t") is not None
    assert cache.forget(topic for topic in known if topic.name == "t") == ()


def test_a_topic_that_returned_meanwhile_is_not_removed() -> None:
    for before, after, is_gone in ((7, 8, False), (0, 0, False), (7, 7, True)):
        cache = MetadataCache(1)
        cache.update(update(state("t", 0), ids={"t": UUID(int=before)}))
        known = list(cache.snapshot.topics.values())
        cache.update(update(state("t", 0, epoch=1), state("t", 1), ids={"t": UUID(int=after)}))
        gone = (TopicPartition("t", 0), TopicPartition("t", 1)) if is_gone else ()
        assert cache.forget(known) == gone and cache.contains("t") is not is_gone


def test_readers_of_the_cache_keep_the_snapshot_they_took() -> None:
    cache = MetadataCache(1)
    cache.update(update(state("t", 0)))
    taken = cache.snapshot
    cache.update(update(state("u", 0)))
    assert not taken.topic("u") and cache.contains("u") and cache.contains("t")
    assert cache.has_leaders("u", range(1)) and not cache.has_leaders("u", range(2))
    assert cache.get_all_partitions() == {TopicPartition("t", 0), TopicPartition("u", 0)}
    assert cache.partition_count("u") == 1 and cache.partition_count("v") is None


STATES = st.builds(
    state,
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 40),
    leader=st.sampled_from([1, 2, -1]),
    epoch=st.integers(0, 3),
    version=st.integers(0, 3),
    controller=st.integers(1, 2),
    life=st.integers(1, 2),
)


def age(state: PartitionState) -> tuple[int, ...]:
    return state.controller_epoch, state.broker_epoch, state.leader_epoch, state.partition_epoch


@given(st.lists(STATES, max_size=60), st.randoms(use_true_random=False))
def test_deltas_commute_with_the_full_state(states: list[PartitionState], rng: random.Random) -> None:
    """Whatever the order and grouping of updates, a partition ends in its newest state."""
    one_by_one = list(states)
    rng.shuffle(one_by_one)
    snapshot = applied(*(update(each) for each in one_by_one))
    newest: dict[tuple[str, int], tuple[int, ...]] = {}
    for each in states:
        key = (each.topic, each.partition)
        newest[key] = max(newest.get(key, age(each)), age(each))
    found = {(p.topic, p.partition): age(p) for topic in snapshot.sorted_topics() for p in topic.sorted_partitions()}
    assert found == newest
    assert snapshot.partition_count == len(newest)
    full = applied(update(*(p for topic in snapshot.sorted_topics() for p in topic.sorted_partitions())))
    assert dict(full.topics.items()) == dict(snapshot.topics.items())


def nodes(trie: TrieMap[str, object]) -> dict[int, object]:
    found: dict[int, object] = {}

    def walk(node: object) -> None:
        found[id(node)] = node
        if isinstance(node, tuple):
            for child in node:
                walk(child)

    walk(trie._root)
    return found


def test_one_changed_partition_costs_the_same_in_a_cluster_of_any_size() -> None:
    """Counted, not timed: the entries that one changed partition makes the snapshot copy."""

    def copied(topics: int, partitions: int) -> int:
        big = applied(update(*(state(f"t{t}", p) for t in range(topics) for p in range(partitions))))
        after, _ = big.apply(update(state("t0", 0, epoch=1)))
        topic, changed = big.topic("t0"), after.topic("t0")
        assert topic is not None and changed is not None
        made = 0
        for before_trie, after_trie in ((big.topics, after.topics), (topic.partitions, changed.partitions)):
            known = nodes(before_trie)  # type: ignore[arg-type]
            new = [node for key, node in nodes(after_trie).items() if key not in known]  # type: ignore[arg-type]
            made += sum(len(node) for node in new if isinstance(node, tuple | dict))
        return made

    small = copied(1_000, 1)
    assert copied(20_000, 1) <= 2 * small
    assert copied(1, 20_000) <= 3 * small


def whole(steps: Generator[None, None, AppliedUpdate]) -> tuple[int, AppliedUpdate]:
    """Run to the end; return the number of pauses and the result."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return pauses, done.value
        pauses += 1


class TestSteps:
    def test_a_large_update_is_applied_in_steps_of_so_many_partitions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        changed: list[int] = []
        change_topic = snapshots._change_topic

        def noted(before: TopicState | None, change: TopicUpdate) -> object:
            changed.append(len(change.partitions))
            return change_topic(before, change)

        monkeypatch.setattr(snapshots, "_change_topic", noted)
        many = update(*(state("t", n) for n in range(1_000)), *(state(f"u{n}", 0) for n in range(300)))
        steps = MetadataSnapshot().apply_in_steps(many)
        seen = []
        for _ in steps:
            seen.append(sum(changed))
            changed.clear()
        assert sum(seen) + sum(changed) == 1_300
        assert max(*seen, *changed) <= 2 * PARTITIONS_PER_STEP

    def test_an_update_becomes_visible_at_once(self) -> None:
        cache = MetadataCache(1)
        cache.update(update(state("t", 0)))
        many = update(*(state("t", n, epoch=1) for n in range(3 * PARTITIONS_PER_STEP)))
        before = cache.snapshot
        pauses, prepared = whole(cache.prepare(many))
        assert pauses >= 2 and cache.snapshot is before
        cache.update(many, prepared)
        assert cache.snapshot is prepared.after and cache.partition_count("t") == 3 * PARTITIONS_PER_STEP

    def test_a_snapshot_that_was_overtaken_is_not_used(self) -> None:
        cache = MetadataCache(1)
        many = update(*(state("t", n) for n in range(3 * PARTITIONS_PER_STEP)))
        _, prepared = whole(cache.prepare(many))
        cache.update(update(state("u", 0)))
        cache.update(many, prepared)
        assert cache.contains("u") and cache.partition_count("t") == 3 * PARTITIONS_PER_STEP

    @given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(-2, 2), st.booleans()))))
    def test_steps_of_any_size_have_the_same_result(self, updates: list[list[tuple[int, int, int, bool]]]) -> None:
        """Topics, partitions, leaders (-2 deletes), and whether the topic was created again."""
        one, another = MetadataSnapshot(), MetadataSnapshot()
        for number, changes in enumerate(updates):
            is_again = {topic: again for topic, _, _, again in changes}
            states = {(t, p): state(f"t{t}", p, leader=leader, epoch=number) for t, p, leader, _ in changes}
            ids = {f"t{topic}": UUID(int=1 + topic + 10 * again) for topic, again in is_again.items()}
            each = update(*states.values(), ids=ids)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(snapshots, "PARTITIONS_PER_STEP", 2)
                one, deleted = one.apply(each)
            another, also_deleted = another.apply(each)
            assert one == another and sorted(deleted) == sorted(also_deleted)
            assert one.partition_count == sum(len(topic.partitions) for topic in one.topics.values())
