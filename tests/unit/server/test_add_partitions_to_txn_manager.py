"""Questions of partition leaders to transaction coordinators, which are scripts here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from klamm.clock import SystemClock
from klamm.coordinator.partitioning import partition_for
from klamm.errors import ErrorCode
from klamm.metadata import MetadataCache, MetadataUpdate
from klamm.metadata.update import PartitionState, TopicUpdate
from klamm.metrics import MetricsRegistry
from klamm.model import TRANSACTION_STATE_TOPIC, TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.server import add_partitions_to_txn_manager
from klamm.server.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from tests.support.waiting import until
from tests.unit.controller.fake_broker import FakeBroker

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PARTITIONS = 4


def coordinator(
    *, errors: dict[TopicPartition, ErrorCode] | None = None, error: int = 0, highest: int = 5
) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        if isinstance(request, ApiVersionsRequest):
            keys = [ApiVersion(api_key=AddPartitionsToTxnRequest.KEY, min_version=0, max_version=highest)]
            return ApiVersionsResponse(error_code=0, api_keys=keys)
        return AddPartitionsToTxnResponse(
            error_code=error,
            results_by_transaction=[] if error else [result(txn) for txn in request.transactions],
        )

    def result(txn: Any) -> AddPartitionsToTxnResult:
        return AddPartitionsToTxnResult(
            transactional_id=txn.transactional_id,
            topic_results=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index,
                            partition_error_code=(errors or {}).get(TopicPartition(topic.name, index), 0),
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in txn.topics
            ],
        )

    return answer


def metadata(leaders: dict[int, int], *brokers: FakeBroker) -> MetadataCache:
    """`leaders`: the broker that leads each partition of `__transaction_state`."""
    states = tuple(
        PartitionState(TRANSACTION_STATE_TOPIC, index, 1, leader, 0, (leader,), 0, (leader,))
        for index, leader in leaders.items()
    )
    cache = MetadataCache(9)
    endpoints = tuple(broker.endpoints for broker in brokers)
    cache.update(MetadataUpdate(1, 1, endpoints, (TopicUpdate(TRANSACTION_STATE_TOPIC, states),)))
    return cache


def manager(cache: MetadataCache, metrics: MetricsRegistry | None = None) -> AddPartitionsToTxnManager:
    return AddPartitionsToTxnManager(
        cache,
        "PLAINTEXT",
        name="broker-9",
        loop=asyncio.get_running_loop(),
        metrics=metrics or MetricsRegistry(SystemClock()),
    )


def asked(broker: FakeBroker) -> list[AddPartitionsToTxnRequest]:
    return [request for request in broker.requests if isinstance(request, AddPartitionsToTxnRequest)]


def everywhere(leader: int) -> dict[int, int]:
    return dict.fromkeys(range(PARTITIONS), leader)


def test_the_leader_of_the_ids_partition_is_asked() -> None:
    async def run() -> None:
        async with FakeBroker(1, coordinator()) as one, FakeBroker(2, coordinator()) as two:
            leaders = everywhere(1) | {partition_for("tx", PARTITIONS): 2}
            asking = manager(metadata(leaders, one, two))
            answer = await asking("tx", 7, 3, [T0, U0], verify_only=True)
            assert answer == {T0: 0, U0: 0}
            assert asked(one) == []
            [request] = asked(two)
            [txn] = request.transactions
            assert (txn.transactional_id, txn.producer_id, txn.producer_epoch, txn.verify_only) == ("tx", 7, 3, True)
            assert {topic.name: list(topic.partitions) for topic in txn.topics} == {"t": [0], "u": [0]}
            await asking.close()

    asyncio.run(run())


def test_one_request_at_a_time_takes_what_waits() -> None:
    """Questions of one transaction are joined. An answer names the id only: of two epochs of it, one waits."""

    async def run() -> None:
        async with FakeBroker(1, coordinator(errors={T1: ErrorCode.INVALID_TXN_STATE})) as one:
            asking = manager(metadata(everywhere(1), one))
            first = asking("tx", 7, 0, [T0], verify_only=True)
            await one.received(1)
            others = [
                asking("tx", 7, 0, [T1], verify_only=True),
                asking("tx", 7, 0, [T0, T1], verify_only=True),
                asking("tx", 7, 1, [T0], verify_only=True),
                asking("other", 8, 0, [T0], verify_only=False),
            ]
            assert (await first) == {T0: 0}
            refused = ErrorCode.INVALID_TXN_STATE
            assert await asyncio.gather(*others) == [{T1: refused}, {T0: 0, T1: refused}, {T0: 0}, {T0: 0}]
            rows = [
                [(t.transactional_id, t.producer_epoch, t.verify_only) for t in request.transactions]
                for request in asked(one)
            ]
            assert rows[0] == [("tx", 0, True)]
            assert rows[1:] == [[("tx", 0, True), ("other", 0, False)], [("tx", 1, True)]]
            assert len(one._writers) == 1, "over one connection"
            await asking.close()

    asyncio.run(run())


def test_a_bug_does_not_keep_later_questions_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    read, bugs = add_partitions_to_txn_manager._errors_by_transaction, [KeyError("a bug")]

    def read_with_a_bug(response: AddPartitionsToTxnResponse) -> Any:
        if bugs:
            raise bugs.pop()
        return read(response)

    monkeypatch.setattr(add_partitions_to_txn_manager, "_errors_by_transaction", read_with_a_bug)

    async def run() -> None:
        async with FakeBroker(1, coordinator()) as one:
            asking = manager(metadata(everywhere(1), one))
            first = asking("tx", 7, 0, [T0], verify_only=True)
            await one.received(1)
            second = asking("tx", 7, 1, [T0], verify_only=True)
            assert await first == {T0: ErrorCode.NETWORK_EXCEPTION}
            assert await second == {T0: ErrorCode.NONE}
            await asking.close()

    asyncio.run(run())


def test_large_requests_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_partitions_to_txn_manager, "MAX_REQUEST_PARTITIONS", 3)

    async def run() -> None:
        async with FakeBroker(1, coordinator()) as one:
            asking = manager(metadata(everywhere(1), one))
            answers = [asking(f"tx{i}", i, 0, [T0, T1], verify_only=True) for i in range(3)]
            answers.append(asking("large", 9, 0, [TopicPartition("t", i) for i in range(5)], verify_only=True))
            await asyncio.gather(*answers)
            sizes = [sum(len(t.partitions) for x in r.transactions for t in x.topics) for r in asked(one)]
            assert sizes == [2, 2, 2, 5]
            await asking.close()

    asyncio.run(run())


def test_too_many_questions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_partitions_to_txn_manager, "MAX_WAITING_PARTITIONS", 2)

    async def run() -> None:
        async with FakeBroker(1, coordinator()) as one:
            asking = manager(metadata(everywhere(1), one))
            waiting = asking("tx", 7, 0, [T0, T1], verify_only=True)
            refused = asking("other", 7, 0, [T0], verify_only=True)
            assert refused.done() and refused.result() == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
            assert await waiting == {T0: 0, T1: 0}
            await asking.close()

    asyncio.run(run())


def test_answers_as_producers_know_them() -> None:
    async def run() -> None:
        errors = {T0: ErrorCode.PRODUCER_FENCED, T1: ErrorCode.TRANSACTION_ABORTABLE}
        async with FakeBroker(1, coordinator(errors=errors)) as one:
            metrics = MetricsRegistry(SystemClock())
            asking = manager(metadata(everywhere(1), one), metrics)
            answer = await asking("tx", 7, 0, [T0, T1, U0], verify_only=True)
            assert answer == {T0: ErrorCode.INVALID_PRODUCER_EPOCH, T1: ErrorCode.TRANSACTION_ABORTABLE, U0: 0}
            failures = metrics.meter("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate")
            times = metrics.histogram("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs")
            assert (failures.count, times.count) == (2, 1)
            await asking.close()

    asyncio.run(run())


def test_a_partition_that_the_coordinator_does_not_know_yet_does_not_fail_the_others() -> None:
    """Questions of several Produce requests are joined: the others are tried again, not aborted."""

    async def run() -> None:
        errors = {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, T1: ErrorCode.OPERATION_NOT_ATTEMPTED}
        async with FakeBroker(1, coordinator(errors=errors)) as one:
            asking = manager(metadata(everywhere(1), one))
            new, old = asking("tx", 7, 0, [T0], verify_only=False), asking("tx", 7, 0, [T1], verify_only=False)
            assert await new == {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert await old == {T1: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert len(asked(one)) == 1
            await asking.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_an_error_of_the_whole_request(error: ErrorCode, reported: ErrorCode) -> None:
    async def run() -> None:
        async with FakeBroker(1, coordinator(error=error)) as one:
            asking = manager(metadata(everywhere(1), one))
            assert await asking("tx", 7, 0, [T0], verify_only=True) == {T0: reported}
            await asking.close()

    asyncio.run(run())


def test_an_answer_without_the_transaction_does_not_count() -> None:
    def silent(request: Any) -> Any:
        if isinstance(request, ApiVersionsRequest):
            return coordinator()(request)
        return AddPartitionsToTxnResponse()

    async def run() -> None:
        async with FakeBroker(1, silent) as one:
            asking = manager(metadata(everywhere(1), one))
            assert await asking("tx", 7, 0, [T0], verify_only=True) == {T0: ErrorCode.NETWORK_EXCEPTION}
            await asking.close()

    asyncio.run(run())


def test_a_lost_connection_is_an_answer_and_the_next_question_connects_again() -> None:
    left = [None]

    def answer(request: Any) -> Any:
        if isinstance(request, AddPartitionsToTxnRequest) and left:
            return left.pop()
        return coordinator()(request)

    async def run() -> None:
        async with FakeBroker(1, answer) as one:
            asking = manager(metadata(everywhere(1), one))
            assert await asking("tx", 7, 0, [T0], verify_only=True) == {T0: ErrorCode.NETWORK_EXCEPTION}
            assert await asking("tx", 7, 0, [T0], verify_only=True) == {T0: 0}
            await asking.close()

    asyncio.run(run())


def test_a_broker_that_cannot_verify_is_trusted_as_kafka_does() -> None:
    async def run() -> None:
        async with FakeBroker(1, coordinator(highest=3)) as one:
            asking = manager(metadata(everywhere(1), one))
            assert await asking("tx", 7, 0, [T0], verify_only=True) == {T0: 0}
            assert await asking("tx", 7, 0, [T0], verify_only=False) == {T0: ErrorCode.NETWORK_EXCEPTION}
            assert asked(one) == []
            await asking.close()

    asyncio.run(run())


@pytest.mark.parametrize("leaders", [{}, everywhere(-1), everywhere(5)])
def test_without_a_coordinator(leaders: dict[int, int]) -> None:
    async def run() -> None:
        asking = manager(metadata(leaders))
        answer = asking("tx", 7, 0, [T0], verify_only=True)
        assert answer.done() and answer.result() == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        await asking.close()

    asyncio.run(run())


def test_closing_answers_what_waits() -> None:
    async def run() -> None:
        async with FakeBroker(1, coordinator()) as one:
            one.answer = lambda request: coordinator()(request) if isinstance(request, ApiVersionsRequest) else None
            asking = manager(metadata(everywhere(1), one))
            first = asking("tx", 7, 0, [T0], verify_only=True)
            later = asking("tx", 7, 1, [T0], verify_only=True)
            await asking.close()
            await until(lambda: first.done() and later.done())
            assert first.result() == later.result() == {T0: ErrorCode.NETWORK_EXCEPTION}
            after = asking("tx", 7, 0, [T0], verify_only=True)
            assert after.result() == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}

    asyncio.run(run())
