"""The APIs of the transaction coordinator, in all their versions, on one broker with real logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
)
from klamm.controller.events import CreateTopics
from klamm.coordinator.broker_adapters import create_group_coordinator
from klamm.coordinator.transaction.transaction_feature import FinalizedLevel
from klamm.errors import ErrorCode
from klamm.model import (
    CONTROL_LOG_TOPIC,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    TransactionVersion,
)
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest
from tests.support.one_broker import OneBroker

TXN = "txn"
FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.controller.script = broker.create_as_asked
    broker.broker.transactions.startup()
    broker.lead(TRANSACTION_STATE_TOPIC)
    broker.lead("t", 2)
    while broker.broker.transactions.describe(TXN).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        broker.spin()
    yield broker
    broker.broker.transactions.shutdown()
    broker.spin()
    broker.close()


def init(one: OneBroker, version: int = 5, order: int = 1, **fields: Any) -> InitProducerIdResponse:
    request = InitProducerIdRequest(**{"transactional_id": TXN, "transaction_timeout_ms": 60_000, **fields})
    return one.ask(init_producer_id.API, request, version, order=order)


def producer(one: OneBroker, order: int = 1) -> dict[str, Any]:
    response = init(one, order=order)
    assert response.error_code == 0
    identity = {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}
    return {"transactional_id": TXN, **identity}


def topics(*partitions: int, name: str = "t") -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=name, partitions=list(partitions))]


def add(
    one: OneBroker, who: dict[str, Any], version: int, asked: list[AddPartitionsToTxnTopic], order: int = 1
) -> dict[TopicPartition, int]:
    request = AddPartitionsToTxnRequest(
        **{f"v3_and_below_{name}": value for name, value in who.items()}, v3_and_below_topics=asked
    )
    answered = one.ask(add_partitions_to_txn.API, request, version, order=order).results_by_topic_v3_and_below
    return {
        TopicPartition(t.name, p.partition_index): p.partition_error_code
        for t in answered
        for p in t.results_by_partition
    }


def batch(one: OneBroker, version: int, *transactions: AddPartitionsToTxnTransaction) -> dict[str, list[int]]:
    response = one.ask(add_partitions_to_txn.API, AddPartitionsToTxnRequest(transactions=transactions), version)
    assert response.error_code == 0
    return {
        result.transactional_id: [p.partition_error_code for t in result.topic_results for p in t.results_by_partition]
        for result in response.results_by_transaction
    }


def end(one: OneBroker, who: dict[str, Any], version: int = 4, *, commit: bool, order: int = 1) -> Any:
    return one.ask(end_txn.API, EndTxnRequest(**who, committed=commit), version, order=order)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_bumps_the_epoch(one: OneBroker, version: int) -> None:
    first, second = init(one, version), init(one, version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
    refused = init(one, version, transaction_timeout_ms=900_001)
    assert (refused.error_code, refused.producer_id) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1)


@pytest.mark.parametrize("version", range(3, 6))
def test_a_fenced_recovery_is_reported_as_the_version_knows_it(one: OneBroker, version: int) -> None:
    first = init(one)
    init(one)
    refused = init(one, version, producer_id=first.producer_id, producer_epoch=0)
    assert refused.error_code == (FENCED if version >= 4 else OLD_FENCED)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_by_clients(one: OneBroker, version: int) -> None:
    old = producer(one)
    who = producer(one)
    assert add(one, who, version, topics(0, 1)) == {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}
    fenced = FENCED if version >= 2 else OLD_FENCED
    assert add(one, old, version, topics(0)) == {TopicPartition("t", 0): fenced}


def test_one_unknown_partition_refuses_all(one: OneBroker) -> None:
    who = producer(one)
    assert add(one, who, 3, [*topics(0, 7), *topics(0, name="missing")]) == {
        TopicPartition("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        TopicPartition("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert describe(one).transaction_state == "Empty"


def test_clients_cannot_add_the_topics_of_brokers(one: OneBroker) -> None:
    """Markers would be written there."""
    who = producer(one)
    one.lead(CONTROL_LOG_TOPIC)
    for name in (TRANSACTION_STATE_TOPIC, CONTROL_LOG_TOPIC):
        assert add(one, who, 3, [*topics(0), *topics(0, name=name)]) == {
            TopicPartition("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            TopicPartition(name, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
    assert describe(one).transaction_state == "Empty"


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_verify_and_add_several_transactions_at_once(one: OneBroker, version: int) -> None:
    who = producer(one)
    verify = AddPartitionsToTxnTransaction(**who, verify_only=True, topics=topics(0, 1))
    assert batch(one, version, verify) == {TXN: [ErrorCode.TRANSACTION_ABORTABLE] * 2}
    grow = AddPartitionsToTxnTransaction(**who, topics=topics(0))
    stranger = AddPartitionsToTxnTransaction(
        transactional_id="stranger", producer_id=1, producer_epoch=0, verify_only=True, topics=topics(1)
    )
    assert batch(one, version, grow, stranger) == {TXN: [0], "stranger": [ErrorCode.INVALID_PRODUCER_ID_MAPPING]}
    assert batch(one, version, verify) == {TXN: [0, ErrorCode.TRANSACTION_ABORTABLE]}
    missing = AddPartitionsToTxnTransaction(**who, topics=topics(0, 9))
    assert batch(one, version, missing) == {
        TXN: [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    }
    fenced = AddPartitionsToTxnTransaction(**{**who, "producer_epoch": 5}, topics=topics(0))
    assert batch(one, version, fenced) == {TXN: [FENCED]}


@pytest.mark.parametrize("version", range(5))
def test_offsets_partitions_are_added(one: OneBroker, version: int) -> None:
    replicas = one.broker.replicas
    groups = create_group_coordinator(
        config=one.broker.config,
        replicas=replicas,
        append_records=lambda *_: {},
        append_transactional=lambda *_, **__: {},
        metadata=one.broker.metadata,
        clock=one.clock,
        loop=one.loop,
        metrics=one.broker.metrics,
        new_uuid=lambda: "id",
    )
    one.give(groups=groups)
    one.lead(GROUP_METADATA_TOPIC, 3)
    old = producer(one)
    who = producer(one)
    request = AddOffsetsToTxnRequest(**who, group_id="g")
    assert one.ask(add_offsets_to_txn.API, request, version).error_code == 0
    index = groups.partition_for("g")
    assert [(t.topic, list(t.partitions)) for t in describe(one).topics] == [(GROUP_METADATA_TOPIC, [index])]
    refused = one.ask(add_offsets_to_txn.API, AddOffsetsToTxnRequest(**old, group_id="g"), version)
    assert refused.error_code == (FENCED if version >= 2 else OLD_FENCED)


@pytest.mark.parametrize("version", range(6))
def test_end_txn(one: OneBroker, version: int) -> None:
    old = producer(one)
    who = producer(one)
    add(one, who, 3, topics(0))
    ended = end(one, who, version, commit=True)
    assert ended.error_code == 0
    bumped = (who["producer_id"], who["producer_epoch"] + 1)
    assert (ended.producer_id, ended.producer_epoch) == (bumped if version >= 5 else (-1, -1))
    # No broker answers here: the markers are still to be written.
    assert describe(one).transaction_state == "PrepareCommit"
    assert end(one, who, version, commit=True).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    if version < 5:
        assert end(one, old, version, commit=True).error_code == (FENCED if version >= 2 else OLD_FENCED)


def describe(one: OneBroker, name: str = TXN) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=[name, name])
    [state] = one.ask(describe_transactions.API, request, 0).transaction_states
    return state


def test_describe_transactions(one: OneBroker) -> None:
    who = producer(one)
    one.clock.elapsed_ms += 1_000
    add(one, who, 3, topics(0, 1))
    state = describe(one)
    assert (state.error_code, state.transaction_state, state.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (state.producer_id, state.producer_epoch) == (who["producer_id"], who["producer_epoch"])
    assert state.transaction_start_time_ms == one.clock.now_ms()
    assert [(t.topic, list(t.partitions)) for t in state.topics] == [("t", [0, 1])]
    assert describe(one, "unknown").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(one, "").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2))
def test_list_transactions(one: OneBroker, version: int) -> None:
    who = producer(one)
    add(one, who, 3, topics(0))
    one.clock.elapsed_ms += 5_000

    def listed(**filters: Any) -> Any:
        return one.ask(list_transactions.API, ListTransactionsRequest(**filters), version)

    [found] = listed(state_filters=["Ongoing", "Odd"]).transaction_states
    assert (found.transactional_id, found.producer_id, found.transaction_state) == (TXN, who["producer_id"], "Ongoing")
    assert listed(state_filters=["Ongoing", "Odd"]).unknown_state_filters == ["Odd"]
    assert not listed(producer_id_filters=[99]).transaction_states
    if version >= 1:
        assert listed(duration_filter=4_999).transaction_states
        assert not listed(duration_filter=5_000).transaction_states


@pytest.mark.parametrize("version", [0, 3])
def test_requests_on_a_connection_that_was_given_up_close_it_without_an_answer(one: OneBroker, version: int) -> None:
    who = producer(one, order=7)
    assert add(one, who, 3, topics(0), order=8)
    refused: list[tuple[Any, Any]] = [
        (end_txn.API, EndTxnRequest(**who, committed=True)),
        (add_offsets_to_txn.API, AddOffsetsToTxnRequest(**who, group_id="g")),
        (
            add_partitions_to_txn.API,
            AddPartitionsToTxnRequest(
                **{f"v3_and_below_{name}": value for name, value in who.items()}, v3_and_below_topics=topics(1)
            ),
        ),
    ]
    one.give(groups=type("Groups", (), {"partition_for": staticmethod(lambda _: 0)})())
    for api, request in refused:
        assert one.dispatch(api, request, version, order=7) is None
        assert one.last_context.closes_connection
    assert describe(one).transaction_state == "Ongoing"


@pytest.mark.parametrize(
    ("version", "level", "reported_epoch", "closes"),
    [
        (5, TransactionVersion.TV_2, 1_000, False),
        (5, TransactionVersion.TV_0, 1_000, True),  # the level was lowered meanwhile
        (4, TransactionVersion.TV_2, 0, True),  # ... or raised
        (4, TransactionVersion.TV_2, 1_000, False),  # Java 3.9 cannot do better
        (4, TransactionVersion.TV_2, -1, False),  # nor can a client that did not ask
        (4, TransactionVersion.TV_0, 0, False),
        (3, TransactionVersion.TV_2, 0, False),
    ],
)
def test_a_client_that_may_use_another_protocol_is_asked_to_connect_again(
    one: OneBroker, version: int, level: TransactionVersion, reported_epoch: int, closes: bool
) -> None:
    one.broker.features.finalized = FinalizedLevel(level, 1_000)
    who = producer(one)
    add(one, who, 3, topics(0))
    context = one.context(EndTxnRequest.KEY, version)
    context.channel.features_epoch = reported_epoch
    answer = end_txn.API.handle(one.broker, context, EndTxnRequest(**who, committed=True))
    assert isinstance(answer, EndTxnResponse) and answer.error_code == ErrorCode.NONE
    assert context.closes_connection is closes


# --- the coordinator and its topic -------------------------------------------------------------------------------


def find(one: OneBroker, version: int = 4) -> Any:
    return one.ask(find_coordinator.API, FindCoordinatorRequest(coordinator_keys=[TXN], key_type=1), version)


def test_the_coordinator_of_a_transactional_id_is_the_leader_of_its_partition(one: OneBroker) -> None:
    [found] = find(one).coordinators
    assert (found.error_code, found.node_id, found.host) == (0, 1, "host-1")


def created(tmp_path: Path, brokers: int, **properties: str) -> tuple[Any, str]:
    """The topic that the controller is asked for, and the message to the client."""
    one = OneBroker(tmp_path, {name.replace("_", "."): value for name, value in properties.items()})
    one.update_metadata({}, brokers=range(1, brokers + 1))
    [found] = find(one).coordinators
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    [event] = one.controller.submitted
    assert isinstance(event, CreateTopics)
    one.spin()
    one.close()
    return event.topics[0], found.error_message


@pytest.mark.parametrize(("brokers", "factor", "min_isr"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_the_topic_fits_the_size_of_the_cluster(tmp_path: Path, brokers: int, factor: int, min_isr: int) -> None:
    topic, _ = created(tmp_path, brokers)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (TRANSACTION_STATE_TOPIC, 50, factor)
    assert dict(topic.configs) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min_isr),
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


def test_a_factor_that_is_set_is_required(tmp_path: Path) -> None:
    topic, message = created(
        tmp_path, 2, transaction_state_log_replication_factor="3", transaction_state_log_min_isr="2"
    )
    assert topic.replication_factor == 3 and dict(topic.configs)["min.insync.replicas"] == "2"
    assert "transaction.state.log.replication.factor is 3, live brokers: 2" in message
