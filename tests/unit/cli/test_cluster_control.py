"""Whether `klamm cluster status` notices that no decision is possible: brokers that follow a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.config.entries import ConfigSource
from klamm.errors import ErrorCode
from klamm.local.ports import ReservedPort
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from klamm.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.wire import Message
from tests.support.scripted_broker import scripted_broker, view

MOVING = OngoingPartitionReassignment(partition_index=0, replicas=(2, 1), adding_replicas=(2,), removing_replicas=(1,))
BROKER = 4
OFFSETS_FACTOR = "offsets.topic.replication.factor"
TRANSACTION_FACTOR = "transaction.state.log.replication.factor"


class Script:
    """Broker 1, well unless a test says otherwise; t-0 is on its way from broker 1 to 2."""

    def __init__(self) -> None:
        self.address = ("", 0)
        self.others: dict[int, tuple[str, int]] = {}
        self.controller = 1
        self.is_controller = self.has_voice = True
        self.zookeeper = ErrorCode.NONE
        self.asked: list[Message] = []
        self.configs: dict[str, tuple[str, ConfigSource]] = {}
        self.topics: dict[str, tuple[int, ...]] = {"t": (2, 1)}

    def __call__(self, request: Message) -> Message | None:
        self.asked.append(request)
        match request:
            case MetadataRequest():
                return view({1: self.address} | self.others, self.controller, self.topics, isr=(1,))
            case DescribeConfigsRequest():
                return DescribeConfigsResponse(results=[self._described(each) for each in request.resources])
            case IncrementalAlterConfigsRequest():
                assert request.validate_only and not request.resources[0].configs
                done = AlterConfigsResourceResponse(
                    error_code=self.zookeeper, error_message=None, resource_type=4, resource_name=""
                )
                return IncrementalAlterConfigsResponse(responses=[done])
            case ListPartitionReassignmentsRequest() if self.has_voice:
                code = ErrorCode.NONE if self.is_controller else ErrorCode.NOT_CONTROLLER
                topics = [OngoingTopicReassignment(name="t", partitions=[MOVING])] if self.is_controller else []
                return ListPartitionReassignmentsResponse(error_code=code, error_message=None, topics=topics)
            case _:
                return None

    def _described(self, asked: DescribeConfigsResource) -> DescribeConfigsResult:
        keys = self.configs.keys() & set(asked.configuration_keys or ()) if asked.resource_type == BROKER else ()
        configs = [
            DescribeConfigsResourceResult(
                name=key, value=value, read_only=False, is_sensitive=False, config_source=source
            )
            for key, (value, source) in self.configs.items()
            if key in keys
        ]
        return DescribeConfigsResult(
            error_code=0,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=configs,
        )

    def status(self, *options: str, code: int) -> Any:
        arguments = ["cluster", "status", "--timeout", "60", "-b", f"{self.address[0]}:{self.address[1]}"]
        done = CliRunner().invoke(app, [*arguments, *options])
        assert done.exit_code == code, (done.output, done.exception)
        return done


@pytest.fixture
def broker() -> Iterator[Script]:
    script = Script()
    with scripted_broker(script) as script.address:
        yield script


def test_a_cluster_that_is_well(broker: Script) -> None:
    text = broker.status(code=0).stdout
    assert "Controller  broker 1\nZooKeeper   answers\nPartitions  1 of 1 topics, 0 under-replicated, " in text
    assert " 0 offline, 1 moving\n" in text
    assert text.splitlines()[-1].split() == ["t-0", "moving", "1", "2,1", "1", "-"]
    found = json.loads(broker.status("-f", "json", code=0).stdout)
    assert (found["controller_problem"], found["zookeeper_answers"], found["unwell_partitions"]) == (None, True, [])
    assert [each["adding"] for each in found["moving_partitions"]] == [[2]]


def test_brokers_without_metrics_are_named(broker: Script) -> None:
    """Damaged logs are only visible in metrics: without metrics, the output must not suggest that there are none."""
    other = Script()
    with scripted_broker(other) as other.address:
        broker.others = {2: other.address}
        reported = broker.status(code=0).stderr
    assert "No metrics of brokers 1, 2: damaged logs and replicas of another topic are not shown." in reported


def test_internal_topics_that_cannot_be_created(broker: Script) -> None:
    static = ConfigSource.STATIC_BROKER_CONFIG
    broker.configs = {OFFSETS_FACTOR: ("3", ConfigSource.DEFAULT_CONFIG), TRANSACTION_FACTOR: ("2", static)}
    problems = json.loads(broker.status("--json", code=0).stdout)["problems"]
    remedy = "Start more brokers, or set a smaller factor."
    assert problems == [
        "__consumer_offsets cannot be created, so there are no consumer groups: "
        f"offsets.topic.replication.factor is 3, live brokers: 1. {remedy}",
        "__transaction_state cannot be created, so there are no transactions: "
        f"transaction.state.log.replication.factor is 2, live brokers: 1. {remedy}",
    ]
    assert all(problem in broker.status(code=0).stdout for problem in problems)


def test_internal_topics_that_exist_or_can_be_created(broker: Script) -> None:
    """A factor of transactions that is not set is lowered to the number of brokers."""
    static = ConfigSource.STATIC_BROKER_CONFIG
    for configs, topics in (
        ({OFFSETS_FACTOR: ("1", static), TRANSACTION_FACTOR: ("1", static)}, ["t"]),
        ({OFFSETS_FACTOR: ("1", static), TRANSACTION_FACTOR: ("3", ConfigSource.DEFAULT_CONFIG)}, ["t"]),
        (
            {OFFSETS_FACTOR: ("3", static), TRANSACTION_FACTOR: ("3", static)},
            ["t", "__consumer_offsets", "__transaction_state"],
        ),
    ):
        broker.configs, broker.topics = configs, {name: (2, 1) for name in topics}
        assert json.loads(broker.status("--json", code=0).stdout)["problems"] == []


def test_a_controller_that_is_dead(broker: Script) -> None:
    with ReservedPort() as nobody:
        broker.others, broker.controller = {2: (nobody.host, nobody.number)}, 2
        text = broker.status(code=4).stdout
    assert "Controller  broker 2, which does not answer (no elections or topic changes until one is elected)\n" in text
    assert "ZooKeeper   answers\n" in text, "another broker is asked"


def test_a_controller_that_is_not_one_of_the_brokers(broker: Script) -> None:
    broker.controller = 2
    assert "Controller  broker 2, which is not alive (" in broker.status(code=4).stdout


def test_a_controller_that_answers_nothing_but_metadata(broker: Script) -> None:
    broker.has_voice = False
    assert "Controller  broker 1, which does not answer (" in broker.status(code=4).stdout


def test_a_controller_that_has_lost_the_role(broker: Script) -> None:
    broker.is_controller = False
    text = broker.status(code=4).stdout
    assert "Controller  broker 1, which reports that it is not the controller (" in text
    assert "1 under-replicated" in text, "no answer says that the replica is a new one"


def test_no_controller(broker: Script) -> None:
    broker.controller = -1
    assert "Controller  none (no elections or topic changes until one is elected)\n" in broker.status(code=4).stdout


def test_brokers_that_name_different_controllers(broker: Script) -> None:
    """The one that says itself that it is the controller."""
    other = Script()
    with scripted_broker(other) as other.address:
        broker.others = {2: other.address}
        other.controller = broker.controller = 2
        broker.is_controller, other.others = False, {2: other.address}
        broker.controller = 1
        assert "Controller  broker 2\n" in broker.status(code=0).stdout


@pytest.mark.parametrize(
    ("said", "shown", "code"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, "does not answer (no elections or topic changes until it does)", 4),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "-", 0),
    ],
)
def test_zookeeper(broker: Script, said: ErrorCode, shown: str, code: int) -> None:
    broker.zookeeper = said
    assert f"\nZooKeeper   {shown}\n" in broker.status(code=code).stdout
    assert sum(isinstance(request, IncrementalAlterConfigsRequest) for request in broker.asked) == 1
