"""A Kafka 3.9 broker joins klamm brokers that use `transaction.version` 2 with a Java client of Kafka 4.x.

The level is turned off before the Kafka broker leads a partition, and on again when klamm runs that broker.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Final

from compat.mixed_cluster.cluster import MixedCluster

from klamm.client.blocking_connection import ask_once
from klamm.errors import KlammError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.java_clients import JavaSession, compiled

OLDEST: Final = "3.9.2"
NEWEST: Final = "4.4.0"
TRANSACTIONS: Final = 4
TURNS: Final = 6
COMMITTED: Final = {"before": 2, "after": 2, "turn": 2 * TURNS}
WAIT_S: Final = 60.0
SETTINGS: Final = {
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
BUMPED: Final = list(range(TRANSACTIONS))
CONSTANT: Final = [0] * TRANSACTIONS


def run() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="klamm-java-") as folder,
        MixedCluster({1: "klamm", 2: "klamm", 3: "klamm"}, configs=SETTINGS) as cluster,
    ):
        cluster.start(1, 2, 3)
        classes = compiled("KlammTransactions.java", Path(folder), OLDEST)
        with JavaSession("KlammTransactions", classes, NEWEST, cluster.bootstrap_servers) as java:
            try:
                _walk(cluster, java)
            except (KlammError, AssertionError, OSError) as error:
                print(f"not ok transaction.version follows the brokers: {str(error).splitlines()[0][:300]}", flush=True)
            else:
                print("ok transaction.version follows the brokers", flush=True)


def _walk(cluster: MixedCluster, java: JavaSession) -> None:
    _await_level(cluster, 2)
    _expect_epochs(java, "klamm-only", BUMPED)
    java.run("open", "roll")
    cluster.stop(3)
    cluster.start(3, kind="kafka")
    _await_level(cluster, 0)
    java.run("commit", "roll", "keep")  # begun under level 2, ended under it
    _expect_turns(java, is_bumped=False)
    _expect_epochs(java, "with-kafka", CONSTANT)
    java.run("open", "roll")
    cluster.stop(3)
    cluster.start(3, kind="klamm")
    _await_level(cluster, 2)
    java.run("commit", "roll", "keep")
    _expect_turns(java, is_bumped=True)
    _expect_epochs(java, "klamm-again", BUMPED)
    records = java.run("committed", "roll").split(",")
    expected = {f"{stem}-{index}": count for stem, count in COMMITTED.items() for index in range(3)}
    if Counter(records) != expected:
        raise KlammError(f"committed records: {Counter(records)}")


def _expect_turns(java: JavaSession, *, is_bumped: bool) -> None:
    """A client decides about the protocol of the next transaction when it ends one, so a change takes two of them.

    At most one transaction may abort: a client that has not learnt of the change does not add the partitions that the
    Kafka broker leads.
    """
    aborts, epochs = zip(*(map(int, java.run("turn", "roll").split()) for _ in range(TURNS)), strict=True)
    differences = [later - earlier for earlier, later in pairwise(epochs[2:])]
    if sum(aborts) > 1 or differences != [int(is_bumped)] * (TURNS - 3):
        raise KlammError(f"aborted transactions {aborts}, epochs {epochs}")


def _expect_epochs(java: JavaSession, topic: str, expected: list[int]) -> None:
    found = [int(it) for it in java.run("epochs", topic, str(TRANSACTIONS)).split(",")]
    if found != expected:
        raise KlammError(f"the epochs of {topic} are {found}, expected {expected}")


def _await_level(cluster: MixedCluster, level: int) -> None:
    """Wait until every broker reports this level; 0 is none."""
    request = ApiVersionsRequest(client_software_name="compat", client_software_version="1")

    def is_reached() -> bool:
        answers = [ask_once(it, request, 3, ApiVersionsResponse, WAIT_S) for it in cluster.answering().values()]
        levels = [max((it.max_version_level for it in answer.finalized_features), default=0) for answer in answers]
        return set(levels) == {level}

    cluster.wait(is_reached, f"transaction.version is not {level} on all brokers")
