"""`klamm txn` against brokers that answer from a script."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner, Result

from klamm.cli.app import app
from klamm.client.transaction_views import Description, OpenTransaction, hanging
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from klamm.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from klamm.protocol.messages.describe_transactions import TransactionState as Described
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.messages.list_transactions import TransactionState as Listed
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from klamm.protocol.wire import Message
from tests.support.scripted_broker import scripted_broker, view

ORDERS = TopicPartition("orders", 0)
SERVED: tuple[type[Message], ...] = (
    MetadataRequest,
    ListTransactionsRequest,
    DescribeTransactionsRequest,
    DescribeProducersRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
)


@dataclass
class Script:
    """One broker with one transactional id, whose transaction has `partitions`, and one open transaction in a log."""

    address: tuple[str, int] = ("", 0)
    partitions: tuple[int, ...] = (0,)
    is_known: bool = True
    is_coordinated: bool = True
    state: str = "Ongoing"
    idle_ms: int = 3_600_000
    looks_open: list[bool] = field(default_factory=list)
    """Whether the log's transaction is open, one question after the other; then it is."""
    errors: list[ErrorCode] = field(default_factory=list)
    """Answers of coordinators, one after the other, before they serve."""
    received: list[Message] = field(default_factory=list)

    def __call__(self, request: Message) -> Message | None:
        self.received.append(request)
        match request:
            case ApiVersionsRequest():
                keys = [
                    ApiVersion(api_key=each.KEY, min_version=each.VERSIONS[0], max_version=each.VERSIONS[-1])
                    for each in SERVED
                ]
                return ApiVersionsResponse(error_code=0, api_keys=keys)
            case MetadataRequest():
                return self._view([each.name for each in request.topics or ()])
            case FindCoordinatorRequest():
                return FindCoordinatorResponse(node_id=1, host=self.address[0], port=self.address[1])
            case ListTransactionsRequest():
                known = [Listed(transactional_id="tx", producer_id=7, transaction_state="Ongoing")]
                return ListTransactionsResponse(
                    error_code=self._error(), transaction_states=known if self.is_known else []
                )
            case DescribeTransactionsRequest():
                return DescribeTransactionsResponse(transaction_states=[self._described(request.transactional_ids[0])])
            case DescribeProducersRequest():
                return DescribeProducersResponse(topics=[TopicResponse(name="orders", partitions=[self._producers()])])
            case InitProducerIdRequest():
                return InitProducerIdResponse(error_code=self._error(), producer_id=7, producer_epoch=4)
            case WriteTxnMarkersRequest():
                row = WritableTxnMarkerPartitionResult(partition_index=0, error_code=self._error())
                topic = WritableTxnMarkerTopicResult(name="orders", partitions=[row])
                return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=[topic])])
            case _:
                raise AssertionError(request)

    def _view(self, names: list[str | None]) -> Message:
        name = "__transaction_state" if "__transaction_state" in names else "orders"
        response = view({1: self.address}, 1, {name: (1,)})
        if name != "orders":
            response.topics[0].partitions[0].leader_id = 1 if self.is_coordinated else -1
        return response

    def _error(self) -> ErrorCode:
        return self.errors.pop(0) if self.errors else ErrorCode.NONE

    def _described(self, transactional_id: str) -> Described:
        is_there = transactional_id == "tx" and self.is_known
        error = self._error() if is_there else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return Described(
            error_code=error,
            transactional_id=transactional_id,
            transaction_state=self.state,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=int(time.time() * 1000) - 5_000,
            producer_id=7,
            producer_epoch=3,
            topics=[TopicData(topic="orders", partitions=list(self.partitions))],
        )

    def _producers(self) -> PartitionResponse:
        is_open = self.looks_open.pop(0) if self.looks_open else True
        last_ms = int(time.time() * 1000) - self.idle_ms
        states = [
            ProducerState(
                producer_id=7,
                producer_epoch=3,
                last_timestamp=last_ms,
                coordinator_epoch=-1,
                current_txn_start_offset=40 if is_open else -1,
            ),
            ProducerState(producer_id=8, producer_epoch=0, last_timestamp=last_ms, coordinator_epoch=-1),
        ]
        return PartitionResponse(partition_index=0, error_code=0, active_producers=states)


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    with scripted_broker(script) as script.address:
        yield script


def klamm(script: Script, *arguments: str) -> Result:
    host, port = script.address
    return CliRunner().invoke(app, ["txn", *arguments, "--bootstrap-server", f"{host}:{port}"])


def test_list(script: Script) -> None:
    done = klamm(script, "list", "--state", "Ongoing")
    assert done.stdout.splitlines()[1].split() == ["tx", "1", "7", "Ongoing"]
    (request,) = [each for each in script.received if isinstance(each, ListTransactionsRequest)]
    assert list(request.state_filters) == ["Ongoing"]
    listed = json.loads(klamm(script, "list", "--json", "--longer-than-ms", "10").stdout)
    assert listed == [{"transactional_id": "tx", "coordinator": 1, "producer_id": 7, "state": "Ongoing"}]


def test_list_waits_for_a_coordinator_that_loads(script: Script) -> None:
    script.errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert "tx" in klamm(script, "list").stdout
    script.errors = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    done = klamm(script, "list", "--timeout", "0")
    assert "Broker 1 did not list its transactions" in str(done.exception)


def test_describe(script: Script) -> None:
    head, row = klamm(script, "describe", "tx").stdout.splitlines()
    cells = dict(zip(head.split(), row.split(), strict=True))
    assert cells.pop("AGE-MS").isdecimal()
    assert cells == {
        "TRANSACTIONAL-ID": "tx",
        "COORDINATOR": "1",
        "PRODUCER-ID": "7",
        "EPOCH": "3",
        "STATE": "Ongoing",
        "TIMEOUT-MS": "60000",
        "PARTITIONS": "orders-0",
    }
    (described,) = json.loads(klamm(script, "describe", "tx", "--json").stdout)
    assert described["partitions"] == ["orders-0"]
    assert "No coordinator knows the transactional id other" in str(klamm(script, "describe", "other").exception)


def test_describe_shows_the_known_ids_before_it_fails(script: Script) -> None:
    done = klamm(script, "describe", "other", "tx", "third")
    assert done.exit_code == 1 and done.stdout.splitlines()[1].startswith("tx ")
    assert [line.split()[6] for line in str(done.exception).splitlines()] == ["other.", "third."]
    done = klamm(script, "describe", "tx", "other", "--json")
    assert done.exit_code == 1 and json.loads(done.stdout)[0]["transactional_id"] == "tx"
    assert klamm(script, "describe", "other").stdout == ""


@pytest.mark.parametrize(
    ("is_known", "partitions"), [(False, ()), (True, (1,))], ids=["unknown id", "not its partition"]
)
def test_find_hanging(script: Script, is_known: bool, partitions: tuple[int, ...]) -> None:
    script.is_known, script.partitions = is_known, partitions
    row = klamm(script, "find-hanging").stdout.splitlines()[1].split()
    assert row[:6] == ["orders", "0", "7", "3", "-1", "40"]
    (found,) = json.loads(klamm(script, "find-hanging", "--broker-id", "1", "--topic", "orders", "--json").stdout)
    assert (found["partition"], found["start_offset"]) == ("orders-0", 40)


def test_a_transaction_that_its_coordinator_will_end_does_not_hang(script: Script) -> None:
    assert klamm(script, "find-hanging").stdout == ""
    script.is_known = False
    script.idle_ms = 60_000
    assert klamm(script, "find-hanging").stdout == "", "it may have begun while the brokers were asked"
    assert klamm(script, "find-hanging", "--max-transaction-timeout", "0", "--json").stdout != "[]\n"


def test_a_transaction_that_ends_meanwhile_does_not_hang(script: Script) -> None:
    """It was open when its partition was asked, and its coordinator had completed it when that one was asked."""
    script.is_known = False
    script.looks_open = [True, False]
    assert klamm(script, "find-hanging").stdout == ""
    script.looks_open = [True, False]
    done = klamm(script, "abort", "--topic", "orders", "--partition", "0", "--start-offset", "40")
    assert "does not hang" in str(done.exception)
    assert not [each for each in script.received if isinstance(each, WriteTxnMarkersRequest)]


def test_without_a_coordinator_hanging_transactions_are_unknown(script: Script) -> None:
    script.is_known = script.is_coordinated = False
    for arguments in (["find-hanging"], ["abort", "-t", "orders", "-p", "0", "--start-offset", "40"]):
        assert "__transaction_state-0 has no leader" in str(klamm(script, *arguments).exception)
    assert not [each for each in script.received if isinstance(each, WriteTxnMarkersRequest)]


def test_abort_a_hanging_transaction(script: Script) -> None:
    script.partitions = ()
    script.errors = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    done = klamm(script, "abort", "--topic", "orders", "--partition", "0", "--start-offset", "40")
    assert done.stdout == "Aborted the transaction of producer 7 in orders-0.\n", done.exception
    markers = [each.markers[0] for each in script.received if isinstance(each, WriteTxnMarkersRequest)]
    assert len(markers) == 2, "the leader had moved"
    (producer_id, epoch, result, coordinator_epoch) = (
        markers[0].producer_id,
        markers[0].producer_epoch,
        markers[0].transaction_result,
        markers[0].coordinator_epoch,
    )
    assert (producer_id, epoch, result, coordinator_epoch) == (7, 3, False, 0)


def test_a_transaction_with_a_coordinator_is_not_aborted_behind_its_back(script: Script) -> None:
    arguments = ["abort", "--topic", "orders", "--partition", "0", "--start-offset", "40"]
    assert "does not hang" in str(klamm(script, *arguments).exception)
    assert not [each for each in script.received if isinstance(each, WriteTxnMarkersRequest)]
    assert klamm(script, *arguments, "--force").exit_code == 0
    assert [each for each in script.received if isinstance(each, WriteTxnMarkersRequest)]


def test_abort_names_a_transaction_that_is_open(script: Script) -> None:
    done = klamm(script, "abort", "--topic", "orders", "--partition", "0", "--start-offset", "41")
    assert "orders-0 has no open transaction that starts at offset 41" in str(done.exception)


def test_abort_by_the_transactional_id_fences(script: Script) -> None:
    script.errors = [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS]
    done = klamm(script, "abort", "tx")
    assert done.stdout == "The transaction of tx was aborted; producers with an epoch below 4 are fenced.\n"
    requests = [each for each in script.received if isinstance(each, InitProducerIdRequest)]
    assert len(requests) == 2, "the abort was not complete"
    assert (requests[0].transactional_id, requests[0].transaction_timeout_ms, requests[0].producer_id) == (
        "tx",
        60_000,
        -1,
    )


@pytest.mark.parametrize(
    ("state", "was"),
    [("CompleteCommit", "not open"), ("Empty", "not open"), ("PrepareCommit", "already committed")],
)
def test_abort_names_the_outcome(script: Script, state: str, was: str) -> None:
    script.state = state
    assert klamm(script, "abort", "tx").stdout.startswith(f"The transaction of tx was {was};")
    (described,) = json.loads(klamm(script, "describe", "tx", "--json").stdout)
    assert (described["start_time_ms"] is None) == (was == "not open"), "the start of the last transaction"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["abort"], "Pass a TRANSACTIONAL-ID"),
        (["abort", "tx", "--topic", "orders"], "Pass a TRANSACTIONAL-ID"),
        (["abort", "tx", "--partition", "0"], "Pass a TRANSACTIONAL-ID"),
        (["abort", "--topic", "orders", "--partition", "0"], "Pass a TRANSACTIONAL-ID"),
        (["find-hanging", "--partition", "0"], "--partition requires --topic."),
    ],
)
def test_options_that_belong_together(script: Script, arguments: list[str], said: str) -> None:
    assert said in str(klamm(script, *arguments).exception)
    assert not script.received


def test_a_broker_without_transactions_is_named_at_once(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SERVED", (MetadataRequest,))
    said = str(klamm(script, "list").exception)
    assert "the broker serves ListTransactionsRequest in versions 0 to -1 only" in said


def test_a_permanent_error_is_not_repeated(script: Script) -> None:
    script.errors = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert "CLUSTER_AUTHORIZATION_FAILED" in str(klamm(script, "list").exception)


def test_hanging_compares_logs_with_coordinators() -> None:
    def in_log(producer_id: int, partition: int) -> OpenTransaction:
        return OpenTransaction(TopicPartition("t", partition), producer_id, 0, -1, 5, 0)

    def known(transactional_id: str, producer_id: int, *partitions: int) -> Description:
        tps = tuple(TopicPartition("t", partition) for partition in partitions)
        return Description(transactional_id, 1, producer_id, 0, "Ongoing", 1, 0, tps)

    candidates = [in_log(1, 0), in_log(1, 1), in_log(2, 0), in_log(3, 0)]
    found = hanging(candidates, {1: "a", 3: "c"}, {"a": known("a", 1, 0)})
    assert found == [in_log(1, 1), in_log(2, 0), in_log(3, 0)]
