"""Every kind of record as JSON, as docs/reference/control-log.md shows it; and the buffer, which drops and counts."""

from __future__ import annotations

import json
import re
import threading
from typing import get_args

import pytest

from klamm.clock import SystemClock
from klamm.control_log import NO_CONTROL_LOG, ControlLogBuffer, Entry, to_json
from klamm.control_log.encoding import key_of
from klamm.control_log.records import (
    MAX_LISTED,
    ControllerChanged,
    ControlRecord,
    Decision,
    EventDone,
    EventQueued,
    EventStarted,
    LeadershipChange,
    ListedOperation,
    ListedPartition,
    ListedProposal,
    MetadataApplied,
    ProposalAnswered,
    RegistrationChanged,
    RequestAcknowledged,
    RequestCoalesced,
    RequestFailed,
    RequestQueued,
    RequestSent,
    RequestSummary,
    RoleChanged,
    SessionChanged,
    ZnodesWritten,
    first,
)
from klamm.model import LeaderAndIsr, TopicPartition
from tests.support.source_tree import ROOT

TP = TopicPartition("orders", 0)
LISTED = (ListedPartition("orders", 0, 2, 5),)
REQUEST = RequestSummary("LeaderAndIsr", 3, 41, 1, LISTED)
DECISION = Decision("BrokerChange", 15, 2, "BrokerChange")
OPERATIONS = (
    ListedOperation("check", "/controller_epoch", 7),
    ListedOperation("set", "/brokers/topics/orders/partitions/0/state", 8),
)
BEFORE, AFTER = LeaderAndIsr(-1, 4, (2, 3), 8), LeaderAndIsr(2, 5, (2, 3), 9)

PROPOSED = (ListedProposal("orders", 0, 5, 9, (2, 3, 1), "INELIGIBLE_REPLICA"),)

SAMPLES: tuple[ControlRecord, ...] = (
    EventQueued(7, "CreateTopics", 12, "request", ("orders",), None, 0, 3, "TopicChange"),
    EventStarted(7, "CreateTopics", 12, 0.221, 3, "TopicChange"),
    EventDone(7, "CreateTopics", 12, 6.5, "done", 3, "TopicChange"),
    ControllerChanged(7, 2),
    LeadershipChange(7, "BrokerChange", 15, "offline", TP, BEFORE, AFTER, 2, "BrokerChange"),
    LeadershipChange(7, "BrokerChange", 15, "", TP, LeaderAndIsr(1, 3, (1, 2, 3), 7), BEFORE, 2, "BrokerChange"),
    LeadershipChange(7, "AlterPartition", 19, "", TP, AFTER, LeaderAndIsr(2, 5, (2, 3, 1), 10), 9, "IsrChange"),
    RequestQueued(7, 30, DECISION, REQUEST, 1),
    RequestCoalesced(7, 30, DECISION, REQUEST),
    RequestSent(7, 28, 57, DECISION, (14, 15), 1, REQUEST, 0.4),
    RequestAcknowledged(7, 28, 57, DECISION, (14, 15), REQUEST, "NONE", 0, 2.839),
    ZnodesWritten(7, "BrokerChange", 15, 2, OPERATIONS, "BadVersion", "/controller_epoch", 3.2, 2, "BrokerChange"),
    ProposalAnswered(7, "AlterPartition", 19, 2, 41, "NONE", 1, 1, PROPOSED, 9, "IsrChange"),
    SessionChanged(0, "expired", "0x100018bb8a30004"),
    RegistrationChanged(7, "BrokerChange", 15, 1, "gone", 40, 2, "BrokerChange"),
    MetadataApplied(7, 2, 58, 44, (1, 2, 3), 1, LISTED),
    RoleChanged(7, 57, TP, "leader", 5),
    RequestFailed(7, "DescribeConfigs", 4, 12, "admin-1", "127.0.0.1:9092-127.0.0.1:51312-7", "KeyError('orders')", 1),
)


def as_written(record: ControlRecord) -> dict[str, object]:
    written = json.loads(to_json(Entry(90, 1_794_780_483_585, 7816.4068, record), 2, "control"))
    assert isinstance(written, dict)
    return written


def documented() -> dict[str, dict[str, object]]:
    text = (ROOT / "docs" / "reference" / "control-log.md").read_text()
    examples = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.S)]
    return {example["kind"]: example for example in examples}


def test_there_is_a_sample_of_every_class() -> None:
    assert {type(sample) for sample in SAMPLES} == set(get_args(ControlRecord))


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: record.KIND)
def test_the_documents_example_has_the_fields_that_are_written(record: ControlRecord) -> None:
    written = as_written(record)
    assert list(written)[:7] == [
        *("kind", "at_ms", "monotonic_ms", "broker_id", "loop", "sequence"),
        "controller_epoch",
    ]
    assert written["monotonic_ms"] == 7816406.8
    assert documented()[record.KIND].keys() == written.keys()


def test_no_other_kind_is_documented() -> None:
    assert documented().keys() == {sample.KIND for sample in SAMPLES}


def test_an_election_names_the_previous_leader_and_a_possible_loss() -> None:
    clean = as_written(SAMPLES[4])
    assert (clean["kind"], clean["leader"], clean["isr"], clean["unclean"]) == ("election", 2, [2, 3], False)
    unclean = LeadershipChange(
        7, "BrokerChange", 15, "offline", TP, LeaderAndIsr(1, 4, (1,)), LeaderAndIsr(2, 5, (2,)), 2, "BrokerChange"
    )
    assert as_written(unclean)["unclean"] is True
    new = as_written(LeadershipChange(7, "CreateTopics", 15, "initial", TP, None, AFTER, 3, "TopicChange"))
    assert (new["previous_leader"], new["previous_isr"], new["unclean"]) == (-1, [], False)


def test_records_of_one_partition_have_it_as_their_key() -> None:
    keys = {sample.KIND: key_of(Entry(1, 2, 3.0, sample)) for sample in SAMPLES}
    with_key = {kind for kind, key in keys.items() if key == b"orders-0"}
    assert with_key == {"election", "leader_change", "isr_change", "role_changed"}
    assert all(key is None for kind, key in keys.items() if kind not in with_key)


def test_long_lists_are_cut() -> None:
    assert len(first(ListedPartition("t", p, 1, 0) for p in range(100))) == MAX_LISTED


def test_a_full_buffer_drops_its_oldest_and_counts() -> None:
    buffer = ControlLogBuffer("broker", 3, SystemClock())
    for epoch in range(5):
        buffer.record(ControllerChanged(epoch, 1))
    assert (len(buffer), buffer.dropped) == (3, 2)
    taken = buffer.take(2)
    assert [entry.sequence for entry in taken] == [3, 4]
    assert [entry.sequence for entry in buffer.take(10)] == [5]
    assert buffer.take(10) == [] and buffer.dropped == 2


def test_a_buffer_that_one_thread_fills_and_another_empties_accounts_for_everything() -> None:
    buffer, count = ControlLogBuffer("control", 50, SystemClock()), 20_000

    def fill() -> None:
        for _ in range(count):
            buffer.record(ControllerChanged(1, 1))

    filler = threading.Thread(target=fill)
    sequences: list[int] = []
    filler.start()
    while filler.is_alive():
        sequences += [entry.sequence for entry in buffer.take(7)]
    filler.join()
    sequences += [entry.sequence for entry in buffer.take(count)]
    assert sequences == sorted(set(sequences))
    assert len(sequences) + buffer.dropped == count


def test_without_a_log_nothing_is_kept() -> None:
    assert not NO_CONTROL_LOG.is_enabled
    NO_CONTROL_LOG.record(SAMPLES[0])
