"""WriteTxnMarkers: transactions end in the partitions that this broker leads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from klamm.apis import write_txn_markers
from klamm.clock import elapsed_ms
from klamm.coordinator.deferred import Deferred
from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.producer_state import AppendOrigin
from klamm.model import TopicPartition
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from klamm.protocol.record_batch import batches, records
from klamm.replica.append_path import append_records
from klamm.replica.transactional_producers import MarkerConnections
from tests.support.one_broker import OneBroker, batch

T0 = TopicPartition("t", 0)


def marker(
    producer_id: int = 5,
    epoch: int = 0,
    *,
    commit: bool = True,
    coordinator_epoch: int = 0,
    topics: dict[str, Sequence[int]] | None = None,
    version: int = 0,
) -> WritableTxnMarker:
    named = {"t": (0,)} if topics is None else topics
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in named.items()],
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )


def ask(one: OneBroker, *markers: WritableTxnMarker, version: int = 2) -> WriteTxnMarkersResponse:
    return one.ask(write_txn_markers.API, WriteTxnMarkersRequest(markers=markers), version)


def codes(response: WriteTxnMarkersResponse) -> list[tuple[int, dict[tuple[str, int], int]]]:
    return [
        (m.producer_id, {(t.name, p.partition_index): p.error_code for t in m.topics for p in t.partitions})
        for m in response.markers
    ]


def write(one: OneBroker, *, producer_id: int = 5, epoch: int = 0, sequence: int = 0, topic: str = "t") -> None:
    data = batch(b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
    results = append_records(one.broker.replicas, 1, True, AppendOrigin.CLIENT, {TopicPartition(topic, 0): data})
    assert isinstance(results, dict) and all(result.error == 0 for result in results.values())


def log_of(one: OneBroker, tp: TopicPartition = T0) -> Log:
    log = one.broker.replicas.leader_log(tp)
    assert isinstance(log, Log)
    return log


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_kafkas_control_batch(one: OneBroker, version: int, commit: bool) -> None:
    one.lead("t")
    write(one)
    response = ask(one, marker(commit=commit, coordinator_epoch=7), version=version)
    assert codes(response) == [(5, {("t", 0): 0})]
    log = log_of(one)
    assert log.last_stable_offset == log.high_watermark == 2
    read = log.read(1, 1 << 20, max_offset=2, include_aborted=True)
    assert not isinstance(read, ErrorCode)
    [control] = batches(bytes(read.records))
    assert control.is_control and control.is_transactional and control.is_valid()
    assert (control.producer_id, control.producer_epoch, control.base_sequence) == (5, 0, -1)
    [record] = records(control)
    assert record.key == bytes.fromhex("00000001" if commit else "00000000")
    assert record.value == bytes.fromhex("000000000007"), "version 0, the coordinator's epoch"
    assert record.timestamp == one.clock.now_ms()
    whole = log.read(0, 1 << 20, max_offset=2, include_aborted=True)
    assert not isinstance(whole, ErrorCode)
    assert len(whole.aborted) == (0 if commit else 1)


def test_every_marker_and_partition_has_its_answer(one: OneBroker) -> None:
    one.lead("t", 3)
    one.leader_and_isr({"u": [0]}, leader=2, replicas=(1, 2), isr=(1, 2))
    one.update_metadata({"u": [0]}, leader=2, replicas=(1, 2), isr=(1, 2), brokers=(1, 2))
    asked = (
        marker(5, topics={"t": (0, 2, 2), "u": (0,), "missing": (1,)}),
        marker(6, commit=False, topics={"t": (1,)}),
        marker(7, topics={}),
    )
    assert codes(ask(one, *asked)) == [
        (
            5,
            {
                ("t", 0): 0,
                ("t", 2): 0,
                ("u", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ("missing", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            },
        ),
        (6, {("t", 1): 0}),
        (7, {}),
    ]
    assert log_of(one, TopicPartition("t", 2)).log_end_offset == 1, "named twice, written once"


def test_fences(one: OneBroker) -> None:
    one.lead("t")
    write(one, epoch=3)
    assert codes(ask(one, marker(epoch=3, coordinator_epoch=4)))[0][1] == {("t", 0): 0}
    older = codes(ask(one, marker(epoch=3, coordinator_epoch=3)))[0][1]
    assert older == {("t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    zombie = codes(ask(one, marker(epoch=2, coordinator_epoch=9)))[0][1]
    assert zombie == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}


def test_a_marker_that_was_repeated_on_a_younger_connection_does_not_end_the_next_transaction(one: OneBroker) -> None:
    one.lead("t", 2)
    write(one, epoch=3)

    def send(order: int, *markers: WritableTxnMarker, version: int = 1) -> WriteTxnMarkersResponse | None:
        request = WriteTxnMarkersRequest(markers=markers)
        response: WriteTxnMarkersResponse | None = one.ask_for_anything(
            write_txn_markers.API, request, version, order=order
        )
        return response

    assert send(8, marker(epoch=3)) is not None
    write(one, epoch=3, sequence=1)
    assert send(7, marker(epoch=3)) is None and one.last_context.closes_connection
    assert log_of(one).producers.has_open_transaction(5, 3)
    # The same coordinator on its present connection, another coordinator, another producer, another epoch.
    assert send(8, marker(epoch=3)) is not None
    assert send(2, marker(epoch=3, coordinator_epoch=1)) is not None
    assert send(1, marker(6, epoch=3)) is not None
    assert send(1, marker(epoch=4, coordinator_epoch=1)) is not None
    assert send(0, marker(epoch=5, coordinator_epoch=1, version=2), version=2) is not None


def test_a_marker_that_was_repeated_to_another_leader_does_not_end_the_next_transaction(one: OneBroker) -> None:
    producers = one.broker.replicas.transactional_producers
    last_connection = 4
    one.broker.logs.number_connections(lambda: last_connection)

    def send(order: int, *markers: WritableTxnMarker, version: int = 1) -> WriteTxnMarkersResponse | None:
        request = WriteTxnMarkersRequest(markers=markers)
        response: WriteTxnMarkersResponse | None = one.ask_for_anything(
            write_txn_markers.API, request, version, order=order
        )
        return response

    one.lead("t", leader_epoch=1)
    write(one, epoch=3)
    assert send(4, marker(epoch=3)) is not None, "the first transaction of a producer has no late marker"
    producers.marker_connections = MarkerConnections()  # the other leader received it
    last_connection = 8
    one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=2, partition_epoch=1, replicas=(1, 2), isr=(1, 2))
    one.lead("t", leader_epoch=3, partition_epoch=2, replicas=(1, 2), isr=(1,))
    last_connection = 9
    assert send(8, marker(epoch=3)) is not None, "it ends nothing"
    write(one, epoch=3, sequence=1)
    assert send(8, marker(epoch=3)) is None and one.last_context.closes_connection
    assert log_of(one).producers.has_open_transaction(5, 3)
    # The same coordinator on a new connection. Another coordinator, and the repaired protocol, have epochs.
    assert send(9, marker(epoch=3)) is not None
    producers.marker_connections = MarkerConnections()
    write(one, epoch=3, sequence=2)
    assert send(8, marker(epoch=3, coordinator_epoch=1)) is not None
    write(one, epoch=3, sequence=3)
    assert send(8, marker(epoch=4, coordinator_epoch=1, version=2), version=2) is not None


@pytest.mark.parametrize(("epoch", "is_written"), [(2, True), (3, False)])
def test_a_leader_that_leads_on_remembers_which_connections_are_older_than_its_leadership(
    one: OneBroker, epoch: int, *, is_written: bool
) -> None:
    """A follower left the ISR: no other broker can have received a marker. One may have led in an epoch in between."""
    last_connection = 4
    one.broker.logs.number_connections(lambda: last_connection)

    def ends(order: int) -> bool:
        request = WriteTxnMarkersRequest(markers=[marker(epoch=3)])
        return one.ask_for_anything(write_txn_markers.API, request, 1, order=order) is not None

    one.lead("t", leader_epoch=1)
    last_connection = 9
    write(one, epoch=3)
    assert ends(9)
    one.lead("t", leader_epoch=epoch, partition_epoch=1)
    write(one, epoch=3, sequence=1)
    assert ends(9) is is_written


def test_connections_of_markers_are_forgotten_one_by_one() -> None:
    connections = MarkerConnections(2)
    for producer_id in (1, 2, 1, 3):
        assert connections.admit(producer_id, 0, 0, 9)
    assert len(connections) == 2
    assert not connections.admit(1, 0, 0, 8) and connections.admit(2, 0, 0, 8)
    assert connections.admit(1, 0, -1, 1), "the log refuses an older coordinator"


def test_kafka_19446_the_version_of_a_marker_decides_about_equal_epochs(one: OneBroker) -> None:
    one.lead("t")
    write(one, epoch=3)
    late = codes(ask(one, marker(epoch=3, version=2)))[0][1]
    assert late == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    assert log_of(one).producers.has_open_transaction(5, 3)
    assert codes(ask(one, marker(epoch=3, version=1)))[0][1] == {("t", 0): 0}


def test_kafka_19999_a_repeated_marker_succeeds(one: OneBroker) -> None:
    one.lead("t")
    write(one, epoch=3)
    for _ in range(2):
        assert codes(ask(one, marker(epoch=4, version=2)))[0][1] == {("t", 0): 0}
    assert log_of(one).last_stable_offset == log_of(one).log_end_offset


def test_versions_before_2_do_not_name_a_version(one: OneBroker) -> None:
    one.lead("t")
    write(one, epoch=3)
    assert codes(ask(one, marker(epoch=3, version=2), version=1))[0][1] == {("t", 0): 0}
    write(one, epoch=3, sequence=1)
    strict = codes(ask(one, marker(epoch=3, version=100)))[0][1]
    assert strict == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}, "a newer version is as strict at least"


def test_the_answer_waits_for_all_in_sync_replicas(one: OneBroker) -> None:
    one.lead("t", 2, replicas=(1, 2), isr=(1, 2))
    one.lead("__consumer_offsets", replicas=(1, 2), isr=(1, 2))
    write(one)
    topics: dict[str, Sequence[int]] = {"t": (0, 1), "__consumer_offsets": (0,)}
    request = WriteTxnMarkersRequest(markers=[marker(topics=topics), marker(6, topics={"t": (1,)})])
    waiting = one.dispatch(write_txn_markers.API, request, 1)
    while not isinstance(waiting, asyncio.Future):
        try:
            next(waiting)
        except StopIteration as done:
            waiting = done.value
    assert log_of(one).last_stable_offset == 0 and one.groups.completed == []

    def follow(tp: TopicPartition) -> None:
        partition = one.broker.replicas.partitions[tp]
        end = log_of(one, tp).log_end_offset
        if partition.on_follower_fetch(2, end, 0, elapsed_ms(one.clock), -1):
            one.broker.replicas.complete_after_high_watermark(tp)

    for tp in (T0, TopicPartition("t", 1)):
        follow(tp)
    one.spin()
    assert not waiting.done()
    follow(TopicPartition("__consumer_offsets", 0))
    response = one.run(waiting)
    assert codes(response) == [
        (5, {("t", 0): 0, ("t", 1): 0, ("__consumer_offsets", 0): 0}),
        (6, {("t", 1): 0}),
    ]
    assert one.groups.completed == [(5, {0: 0}, True)], "the offsets are visible before the answer"


def test_the_answer_waits_until_all_offsets_of_the_transaction_are_committed(one: OneBroker) -> None:
    """Else the offsets of the producer's next transaction could replace those whose turn has not come."""
    one.lead("__consumer_offsets")
    one.groups.completion = Deferred()
    waiting = one.dispatch(
        write_txn_markers.API, WriteTxnMarkersRequest(markers=[marker(topics={"__consumer_offsets": (0,)})]), 2
    )
    while not isinstance(waiting, asyncio.Future):
        try:
            next(waiting)
        except StopIteration as done:
            waiting = done.value
    one.spin()
    assert one.groups.completed == [(5, {0: 0}, True)] and not waiting.done()
    one.groups.completion.complete(None)
    assert codes(one.run(waiting)) == [(5, {("__consumer_offsets", 0): 0})]


def test_offsets_of_refused_markers_stay_open(one: OneBroker) -> None:
    one.lead("__consumer_offsets")
    write(one, epoch=3, topic="__consumer_offsets")
    topics: dict[str, Sequence[int]] = {"__consumer_offsets": (0, 1)}
    answered = codes(ask(one, marker(epoch=2, topics=topics)))[0][1]
    assert answered[("__consumer_offsets", 0)] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.groups.completed == []
    ask(one, marker(epoch=3, commit=False, topics=topics))
    assert one.groups.completed == [(5, {0: 1}, False)]


def test_too_few_in_sync_replicas(one: OneBroker) -> None:
    one.topic_configs["t"] = LogConfig(min_insync_replicas=2)
    one.lead("t", replicas=(1, 2), isr=(1,))
    assert codes(ask(one, marker()))[0][1] == {("t", 0): ErrorCode.NOT_ENOUGH_REPLICAS}


def test_many_partitions_are_written_in_slices(one: OneBroker) -> None:
    one.lead("t", 100)
    request = WriteTxnMarkersRequest(markers=[marker(topics={"t": range(100)})])
    steps = one.dispatch(write_txn_markers.API, request, 1)
    assert sum(1 for _ in steps) > 1
    assert codes(ask(one, marker(topics={"t": range(100)})))[0][1] == {("t", index): 0 for index in range(100)}
