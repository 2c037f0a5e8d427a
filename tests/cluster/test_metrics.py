"""The metrics of a running broker, compared with the requests that were sent to it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from klamm.controller.controller_runner import THREAD_NAME
from klamm.errors import ErrorCode
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient, batch_of, eventually

BROKER_RESOURCE = 4
PARTS = ["requestqueue", "local", "remote", "throttle", "responsequeue", "responsesend", "total"]
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = "9", "11", "7"


class Scrape:
    """All samples of one scrape, by name and labels."""

    def __init__(self, text: str) -> None:
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                # this parser has its own idea of how a counter must end; a Prometheus server has not
                name = sample.name.removesuffix("_total") if sample.name.endswith("_count_total") else sample.name
                key = (name, frozenset(sample.labels.items()))
                assert key not in self._samples, f"{key} is there twice"
                self._samples[key] = sample.value

    def get(self, name: str, default: float | None = None, **labels: str) -> float:
        value = self._samples.get((name, frozenset(labels.items())), default)
        assert value is not None, f"{name} {labels} is missing"
        return value

    def requests(self, request: str, version: str) -> float:
        return self.get("kafka_network_requestmetrics_requests_total", 0.0, request=request, version=version)

    def topic(self, what: str, topic: str) -> float:
        return self.get(f"kafka_server_brokertopicmetrics_{what}_total", 0.0, topic=topic)

    def all_topics(self, what: str) -> float:
        return self.get(f"kafka_server_brokertopicmetrics_{what}_total")


class Metrics:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        ready = json.loads((self._cluster.data_dir / "broker-1.ready").read_text())
        return f"http://127.0.0.1:{ready['metrics_port']}"

    def text(self) -> str:
        with urllib.request.urlopen(self.address + "/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text: str = answer.read().decode()
            return text

    def scrape(self) -> Scrape:
        return Scrape(self.text())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(broker_configs={"klamm.metrics.port": 0}) as running:
        yield running


@pytest.fixture
def metrics(cluster: LocalCluster) -> Metrics:
    return Metrics(cluster)


@pytest.fixture
def client(cluster: LocalCluster) -> RawClient:
    return RawClient(cluster.port(1))


def test_produce_and_fetch_are_counted(cluster: LocalCluster, metrics: Metrics, client: RawClient) -> None:
    cluster.create_topic("counted")
    before = metrics.scrape()
    batch = batch_of([b"x" * 100] * 7)
    for _ in range(5):
        assert client.produce("counted", batch).error_code == ErrorCode.NONE
    assert client.produce("counted", batch[:-1] + b"!").error_code == ErrorCode.CORRUPT_MESSAGE
    fetched = client.fetch("counted", 0)
    after = metrics.scrape()

    assert after.topic("messagesin", "counted") == 35
    assert after.topic("bytesin", "counted") == 5 * len(batch)
    assert after.topic("bytesout", "counted") == 5 * len(batch)
    assert isinstance(fetched.records, memoryview) and len(fetched.records) == 5 * len(batch)
    assert after.topic("totalproducerequests", "counted") == 6
    assert after.topic("failedproducerequests", "counted") == 0, "a client's mistake is not a failure of the broker"
    assert after.topic("invalidmessagecrcrecords", "counted") == 1
    assert after.topic("totalfetchrequests", "counted") == 1
    for what, grown in (("messagesin", 35), ("bytesin", 5 * len(batch)), ("totalproducerequests", 6)):
        assert after.all_topics(what) - before.all_topics(what) == grown
    assert after.requests("Produce", PRODUCE_VERSION) - before.requests("Produce", PRODUCE_VERSION) == 6
    for name in ("Fetch", "FetchConsumer"):
        assert after.requests(name, FETCH_VERSION) - before.requests(name, FETCH_VERSION) == 1
    errors = "kafka_network_requestmetrics_errors_total"
    assert (
        after.get(errors, request="Produce", error="NONE") - before.get(errors, 0.0, request="Produce", error="NONE")
        == 5
    )
    assert after.get(errors, request="Produce", error="CORRUPT_MESSAGE") == 1


def test_requests_are_timed_in_parts(metrics: Metrics, client: RawClient) -> None:
    before = metrics.scrape()
    for _ in range(3):
        client.metadata()
    after = metrics.scrape()
    asked = after.requests("Metadata", METADATA_VERSION) - before.requests("Metadata", METADATA_VERSION)
    assert asked == 3
    for part in PARTS:
        name = f"kafka_network_requestmetrics_{part}timems"
        for request in ("Metadata", "Produce", "Fetch", "UpdateMetadata", "LeaderAndIsr"):
            assert after.get(name, request=request, quantile="0.99") >= 0.0
        grown = after.get(f"{name}_count", request="Metadata") - before.get(f"{name}_count", request="Metadata")
        assert grown == asked
    size = "kafka_network_requestmetrics_requestbytes"
    assert 10 < after.get(size, request="Metadata", quantile="0.50") < 100
    assert after.get("kafka_network_requestmetrics_totaltimems", request="Metadata", quantile="0.99") > 0.0


def test_a_long_poll_is_remote_time(cluster: LocalCluster, metrics: Metrics, client: RawClient) -> None:
    """Waiting for records is the remote part of a Fetch."""
    cluster.create_topic("poll")
    assert client.fetch("poll", 0, max_wait_ms=300).error_code == ErrorCode.NONE
    found = metrics.scrape()
    assert found.get("kafka_network_requestmetrics_remotetimems", request="FetchConsumer", quantile="0.999") >= 250


def test_gauges_are_true(cluster: LocalCluster, metrics: Metrics) -> None:
    cluster.create_topic("gauged", partitions=3)
    found = metrics.scrape()
    handler_pool = "kafka_server_kafkarequesthandlerpool"
    assert 0.0 < found.get(f"{handler_pool}_requesthandleravgidle_percent") <= 1.0
    assert 0.0 < found.get(f"{handler_pool}_controlplanerequesthandleravgidle_percent") <= 1.0
    assert 0.0 < found.get("kafka_network_socketserver_networkprocessoravgidlepercent") <= 1.0
    assert found.get("kafka_network_requestchannel_requestqueuesize") == 0
    assert found.get("kafka_network_requestchannel_controlplanerequestqueuesize") == 0
    assert found.get("kafka_network_requestchannel_responsequeuesize", processor="0") == 0
    controller = "kafka_controller_kafkacontroller"
    assert found.get(f"{controller}_activecontrollercount") == 1
    assert found.get(f"{controller}_offlinepartitionscount") == 0
    partitions = found.get(f"{controller}_globalpartitioncount")
    assert partitions >= 3 and found.get(f"{controller}_globaltopiccount") >= 1
    assert found.get("kafka_server_replicamanager_leadercount") == partitions
    assert found.get("kafka_server_replicamanager_partitioncount") == partitions
    assert found.get("kafka_cluster_partition_insyncreplicascount", topic="gauged", partition="2") == 1
    # The topic was created in the last minute: events and requests have waited, if only for a moment.
    assert found.get("klamm_controller_controllereventmanager_eventqueuesizemax") >= 1
    assert found.get("klamm_controller_controllerchannelmanager_queuesizemax", broker_id="1") >= 1


def test_resources_are_those_of_the_process(cluster: LocalCluster, metrics: Metrics) -> None:
    pid = cluster.pid(1)
    found = metrics.scrape()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    assert 0.5 < found.get("klamm_server_process_residentbytes") / (pages * os.sysconf("SC_PAGE_SIZE")) < 2
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    cpu_ms = found.get("klamm_server_process_cpums_total")
    assert 0 < cpu_ms <= ticks * 1000 / os.sysconf("SC_CLK_TCK") + 20
    (path,) = {
        sample.labels["logDirectory"]
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if sample.name == "klamm_log_logmanager_disktotalbytes"
    }
    usage = shutil.disk_usage(path)
    assert found.get("klamm_log_logmanager_disktotalbytes", logDirectory=path) == usage.total
    assert 0 <= found.get("klamm_log_logmanager_diskusablebytes", logDirectory=path) <= usage.total
    assert found.get("kafka_log_logmanager_logdirectoryoffline", logDirectory=path) == 0
    assert found.get("kafka_log_logmanager_offlinelogdirectorycount") == 0


def test_threads_of_a_broker_have_their_names(cluster: LocalCluster) -> None:
    """ARCHITECTURE lists them. Linux keeps 15 bytes of a name."""
    names = {path.read_text().rstrip() for path in Path(f"/proc/{cluster.pid(1)}/task").glob("*/comm")}
    assert {THREAD_NAME[:15], "zookeeper"} <= names


def test_connections_are_counted(cluster: LocalCluster, metrics: Metrics) -> None:
    def count(what: str) -> float:
        name = f"kafka_server_socket_server_metrics_connection_{what}"
        return metrics.scrape().get(name, listener="PLAINTEXT", networkProcessor="0")

    created, before = count("creation_total"), count("count")
    opened = [socket.create_connection(("127.0.0.1", cluster.port(1)), 60) for _ in range(3)]
    eventually(lambda: count("creation_total") == created + 3, "the connections were not counted")
    assert 3 <= count("count") <= before + 3
    for connection in opened:
        connection.close()
    eventually(lambda: count("count") <= before, "closed connections are still counted")


def test_metrics_of_a_deleted_topic_go(cluster: LocalCluster, metrics: Metrics, client: RawClient) -> None:
    cluster.create_topic("gone")
    client.produce("gone", batch_of([b"x"]))
    assert metrics.scrape().topic("messagesin", "gone") == 1
    cluster.delete_topic("gone")
    eventually(lambda: metrics.scrape().topic("messagesin", "gone") == 0, "the topic's meters are still there")


def test_the_pool_of_handlers_is_resized(metrics: Metrics, client: RawClient, cluster: LocalCluster) -> None:
    """As an operator does it; a step to less than half or more than double is refused, as Kafka does."""
    for old, new in (("8", "16"), ("16", "9")):
        assert alter(client, "num.io.threads", new)[0] == ErrorCode.NONE
        until_logged(cluster, f"num.io.threads changed from {old} to {new}")
        assert described(client, "num.io.threads") == new
    error, message = alter(client, "num.io.threads", "4")
    assert error == ErrorCode.INVALID_REQUEST and message is not None and "num.io.threads" in message
    assert described(client, "num.io.threads") == "9"
    idle = metrics.scrape().get("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent")
    assert 0.0 < idle <= 1.0


def until_logged(cluster: LocalCluster, sentence: str) -> None:
    eventually(lambda: sentence in cluster.logs(1).read_text(), f"the broker never said: {sentence}")


def alter(client: RawClient, key: str, value: str) -> tuple[ErrorCode, str | None]:
    config = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=BROKER_RESOURCE, resource_name="1", configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = client.ask(request, 1, IncrementalAlterConfigsResponse).responses[0]
    return ErrorCode(answer.error_code), answer.error_message


def described(client: RawClient, key: str) -> str | None:
    resource = DescribeConfigsResource(resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=[key])
    answer = client.ask(DescribeConfigsRequest(resources=[resource]), 4, DescribeConfigsResponse)
    return answer.results[0].configs[0].value


def test_the_endpoint_serves_nothing_else(metrics: Metrics) -> None:
    for path in ("/", "/metrics/x"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(metrics.address + path, timeout=60)
        assert refused.value.code == 404
        refused.value.close()
