"""One SparkSession and one cluster for all tests of Spark; tests that kill processes start their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.spark_jvm import set_variables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFactory = Callable[..., str]
SPARK_DEADLINE_S = 900
"""A first query starts a JVM and several Python processes; on a busy machine that takes its time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.path.as_posix() and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_DEADLINE_S))


@pytest.fixture(autouse=True, scope="session")
def _jvm_settings() -> None:
    set_variables()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session all tests share: two cores, three attempts per task."""
    if shutil.which("java") is None:
        pytest.fail("Spark needs Java 17 or 21 on the PATH: install a JRE, for example openjdk-17-jre-headless.")
    from klamm.spark.cluster.session import session

    made = session(
        "local[2,3]",
        "klamm-tests",
        {
            "spark.ui.enabled": False,
            "spark.log.level": "ERROR",
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield made
    made.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers for all tests of Spark. A test that stops one starts it again."""
    with LocalCluster(brokers=3, broker_configs=CALM) as made:
        yield made


@pytest.fixture
def topic(cluster: LocalCluster) -> TopicFactory:
    """Makes a topic of its own for the test: `topic(partitions=2, config={...})` returns its name."""

    def make(
        stem: str = "topic",
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: dict[str, object] | None = None,
    ) -> str:
        name = cluster.unique_topic_name(stem)
        cluster.create_topic(name, partitions, replication_factor, config)
        return name

    return make
