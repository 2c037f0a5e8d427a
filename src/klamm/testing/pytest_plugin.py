"""pytest fixtures, active wherever klamm is installed.

`klamm_cluster` is a cluster of real broker processes that the tests of one module share. A module that needs more than
one broker, or other settings, says so:

    KLAMM_CLUSTER = {"brokers": 3, "broker_configs": {"min.insync.replicas": 2}}

    def test_orders(klamm_cluster, klamm_topic):
        producer = Producer({"bootstrap.servers": klamm_cluster.bootstrap_servers})
        producer.produce(klamm_topic, b"hello")

The module's dictionary is the keyword arguments of `klamm.testing.LocalCluster`. `klamm_topic` is the name of a topic
with one partition. Every test gets a new one, which is deleted after the test. `klamm_client_config` has the settings
of a client, which a secured cluster requires.

The report of a failed test has the last lines of the brokers' logs, for every fixture of it that is a LocalCluster.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from klamm.local.local_cluster import LocalCluster

REPORTED_LINES: Final = 40
"""Of each broker's log, in the report of a failed test."""
REPORTED_BYTES: Final = 16_384


@pytest.fixture(scope="module")
def klamm_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster of real broker processes that the tests of one module share; it ends after the module's last test.

    Its keyword arguments are the module's `KLAMM_CLUSTER`, such as `{"brokers": 3}`; without it, one broker.
    """
    from klamm.local.local_cluster import LocalCluster

    settings = getattr(request.module, "KLAMM_CLUSTER", {})
    with LocalCluster(**settings) as cluster:
        yield cluster


@pytest.fixture
def klamm_client_config(klamm_cluster: LocalCluster) -> dict[str, Any]:
    """Settings of confluent-kafka for `klamm_cluster`, also if `KLAMM_CLUSTER` secures it: those of a super user."""
    return klamm_cluster.client_config()


@pytest.fixture
def klamm_topic(klamm_cluster: LocalCluster) -> Iterator[str]:
    """The name of a new topic of one partition in `klamm_cluster`; every test has its own, deleted after the test."""
    name = klamm_cluster.unique_topic_name()
    klamm_cluster.create_topic(name)
    yield name
    klamm_cluster.delete_topic(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the brokers to the report: their data directory is usually gone when somebody reads it."""
    report = yield
    if report.failed:
        for name, cluster in _clusters(item):
            for broker_id in cluster.broker_ids:
                if lines := _last_lines(cluster.logs(broker_id)):
                    report.sections.append((f"{name}: log of broker {broker_id}", lines))
    return report


def _clusters(item: pytest.Item) -> Iterator[tuple[str, LocalCluster]]:
    """Yield the names and values of the item's fixtures that are clusters."""
    module = sys.modules.get("klamm.local.local_cluster")  # Without it there is no cluster; the import costs time.
    if module is not None:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, module.LocalCluster):
                yield name, value


def _last_lines(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - REPORTED_BYTES, 0))
            tail = file.read(REPORTED_BYTES)
    except OSError:
        return ""  # a broker that was never started, or a cluster that was closed
    return "\n".join(tail.decode(errors="replace").splitlines()[-REPORTED_LINES:])
