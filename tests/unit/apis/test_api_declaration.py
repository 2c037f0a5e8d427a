from __future__ import annotations

import inspect
from pathlib import Path

from klamm.apis import ALL, docs
from klamm.apis.api_declaration import bind
from klamm.network.request_context import Plane
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.one_broker import OneBroker

ROOT = Path(__file__).parents[3]


def test_every_api_is_declared_once_in_the_order_of_keys() -> None:
    keys = [api.key for api in ALL]
    assert keys == sorted(set(keys))


def test_no_version_is_advertised_that_the_messages_cannot_carry() -> None:
    for api in ALL:
        low, high = api.versions
        assert low in api.request.VERSIONS and high in api.request.VERSIONS
        assert low in api.response.VERSIONS and high in api.response.VERSIONS
        assert api.request.KEY == api.response.KEY


def test_old_clients_find_the_minimum_versions_they_look_for() -> None:
    """librdkafka before 2.11.1 tests for exact old versions."""
    versions = {api.name: api.versions[0] for api in ALL}
    for name in ("Produce", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "InitProducerId"):
        assert versions[name] == 0


def test_a_handler_is_a_plain_function() -> None:
    for api in ALL:
        assert inspect.isfunction(api.handle) and not inspect.iscoroutinefunction(api.handle)
        assert list(inspect.signature(api.handle).parameters) == ["broker", "ctx", "req"]


def test_control_requests_take_the_control_plane() -> None:
    control = {api.name for api in ALL if api.plane is Plane.CONTROL}
    assert control >= {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition"}


def test_only_reads_are_dropped_with_their_connection() -> None:
    """All others change something: they are carried out although nobody waits for the response, as in Kafka."""
    assert {api.name for api in ALL if api.is_read} == {
        "ApiVersions",
        "DescribeAcls",
        "DescribeClientQuotas",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeLogDirs",
        "DescribeProducers",
        "DescribeTransactions",
        "DescribeUserScramCredentials",
        "Fetch",
        "FindCoordinator",
        "ListGroups",
        "ListOffsets",
        "ListPartitionReassignments",
        "ListTransactions",
        "Metadata",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
    }


def test_the_documentation_is_fresh() -> None:
    written = (ROOT / "docs" / "reference" / "apis.md").read_text()
    assert written == docs.render(), "run: make docs"


def test_bound_apis_are_what_the_network_serves(one: OneBroker) -> None:
    bound = {api.name: api for api in bind(ALL, one.broker)}
    assert bound["Fetch"].metric_name is not None and bound["Produce"].metric_name is None
    assert bound["Heartbeat"].key == 12 and bound["Heartbeat"].versions == (0, 4)
    response = bound["ApiVersions"].dispatch(one.context(18, 0), ApiVersionsRequest())
    assert isinstance(response, ApiVersionsResponse) and len(response.api_keys) == len(ALL)
