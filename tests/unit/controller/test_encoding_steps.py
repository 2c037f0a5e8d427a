"""A request of very many partitions is encoded in steps: the same bytes, and once for all brokers."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from klamm.controller import wire_states
from klamm.controller.config import InterBrokerProtocol
from klamm.controller.control_wire import Encoded, encode_in_steps
from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    RequestHead,
    UpdateMetadataBody,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.model import LeaderAndIsr, TopicPartition
from tests.support.control_requests import encode_request

PROTOCOL = InterBrokerProtocol.parse("3.9")
PARTITIONS = [TopicPartition(topic, partition) for topic in ("a", "b") for partition in range(7)]


def leader_and_isr() -> LeaderAndIsrRequest:
    states = tuple(LeaderAndIsrPartition(tp, LeaderAndIsr(1, 2, (1, 2)), 3, (1, 2)) for tp in PARTITIONS)
    return LeaderAndIsrRequest(RequestHead(1, 2, 3), states, ())


def update_metadata(body: UpdateMetadataBody | None = None, broker_epoch: int = 3) -> UpdateMetadataRequest:
    states = tuple(UpdateMetadataPartition(tp, 3, 1, 2, (1, 2), 4, (1, 2)) for tp in PARTITIONS)
    return UpdateMetadataRequest(RequestHead(1, 2, broker_epoch), body or UpdateMetadataBody(states, (), ()))


def drive(*requests: ControlRequest) -> tuple[list[Encoded], int]:
    """Let the senders of these requests take turns; return the results, and the pauses of all."""
    pauses = 0
    results: dict[int, Encoded] = {}
    running = {number: encode_in_steps(request, PROTOCOL) for number, request in enumerate(requests)}
    while running:
        for number, steps in list(running.items()):
            try:
                next(steps)
                pauses += 1
            except StopIteration as done:
                results[number] = done.value
                del running[number]
    return [results[number] for number in sorted(results)], pauses


@pytest.mark.parametrize("make", [leader_and_isr, update_metadata])
def test_the_bytes_of_all_steps_are_those_of_one(
    make: Callable[[], ControlRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,), pauses = drive(make())
    assert pauses == 0
    monkeypatch.setattr(wire_states, "STATES_PER_STEP", 3)
    (stepwise,), pauses = drive(make())
    assert pauses == 5, "one after grouping, the others between states"
    assert b"".join(stepwise[2]) == b"".join(whole[2])
    assert stepwise[:2] == whole[:2]
    assert b"".join(encode_request(make(), PROTOCOL)[2]) == b"".join(whole[2])


def test_senders_share_the_encoding_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_states, "STATES_PER_STEP", 3)
    encoded: list[UpdateMetadataPartition] = []
    original = wire_states.update_metadata_state

    def counted(state: UpdateMetadataPartition) -> bytes:
        encoded.append(state)
        return original(state)

    monkeypatch.setattr(wire_states, "update_metadata_state", counted)
    body = update_metadata().body
    results, _ = drive(*(update_metadata(body, broker_epoch) for broker_epoch in (3, 4, 5)))
    assert len(encoded) == len(PARTITIONS)
    assert len({b"".join(parts) for _, _, parts in results}) == 3, "the broker epochs differ"
    assert not body.encoding


def test_a_body_that_cannot_be_encoded_fails_for_every_sender() -> None:
    body = UpdateMetadataBody((), (("a", None),), (None,))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(AttributeError):
            drive(update_metadata(body))


def test_slices_share_the_ids_of_all_topics_and_send_their_own() -> None:
    ids = tuple((topic, UUID(int=number)) for number, topic in enumerate(("a", "b"), 1))
    whole = update_metadata(UpdateMetadataBody(update_metadata().body.partitions, ids, ()))
    slices = whole.slices(5)
    assert [len(part.body.partitions) for part in slices] == [5, 5, 4]
    sent = [b"".join(encode_request(part, PROTOCOL)[2]) for part in slices]
    a, b = (topic_id.bytes for _, topic_id in ids)
    assert [(a in data, b in data) for data in sent] == [(True, False), (True, True), (False, True)]
    assert slices[0].body.ids_by_topic() is slices[2].body.ids_by_topic()
