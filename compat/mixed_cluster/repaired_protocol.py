"""A Kafka 3.9 broker joins klamm brokers that use `transaction.version` 2 with a Java client of Kafka 4.x.

The level is turned off before the Kafka broker leads a partition, and on again when klamm runs that broker. Meanwhile
the Kafka broker becomes the coordinator of two transactions that began under the level: one is open, and one is decided
but not complete. Their records in `__transaction_state` have a bumped epoch and the tagged fields of KIP-890.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import count, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from compat.mixed_cluster.cluster import MixedCluster
from compat.mixed_cluster.load import CLIENT
from compat.mixed_cluster.state import await_transaction, partitions_of
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.client.blocking_connection import ask_once
from klamm.coordinator.partitioning import partition_for
from klamm.errors import KlammError
from klamm.model import TRANSACTION_STATE_TOPIC
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.java_clients import JavaSession, compiled

OLDEST: Final = "3.9.2"
NEWEST: Final = "4.4.0"
TRANSACTIONS: Final = 4
TURNS: Final = 6
COMMITTED: Final = {"before": 2, "after": 2, "turn": 2 * TURNS}
WAIT_S: Final = 60.0
STATE_PARTITIONS: Final = 3
"""With three brokers, each is the preferred leader of one of them."""
JOINING: Final = 3
ELECTION_S: Final = 30.0
SETTINGS: Final = {
    "transaction.state.log.num.partitions": STATE_PARTITIONS,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
BUMPED: Final = list(range(TRANSACTIONS))
CONSTANT: Final = [0] * TRANSACTIONS


class HandOver(NamedTuple):
    """Transactions that the joining broker will coordinate.

    It is the preferred leader of `partition` of `__transaction_state`, which `second` leads while it is away. The topic
    `alone` has its replicas on `third` only.
    """

    partition: int
    second: int
    third: int
    is_open: str
    is_decided: str
    alone: str


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
    plan = _plan(cluster)
    _begin(cluster, java, plan)
    java.run("open", "roll")
    cluster.stop(JOINING)
    cluster.start(JOINING, kind="kafka")
    _await_level(cluster, 0)
    java.run("commit", "roll", "keep")  # begun under level 2, ended under it
    _expect_turns(java, is_bumped=False)
    _expect_epochs(java, "with-kafka", CONSTANT)
    _hand_over(cluster, java, plan)
    java.run("open", "roll")
    cluster.stop(JOINING)
    cluster.start(JOINING, kind="klamm")
    _await_level(cluster, 2)
    java.run("commit", "roll", "keep")
    _continue(java, plan)
    _expect_turns(java, is_bumped=True)
    _expect_epochs(java, "klamm-again", BUMPED)
    _expect_records(java, "roll", COMMITTED)


# --- the coordinator changes hands ------------------------------------------------------------------------------------


def _plan(cluster: MixedCluster) -> HandOver:
    """Choose transactional ids whose coordinator is the joining broker as soon as it is elected."""
    for (topic, partition), state in partitions_of(cluster).items():
        replicas = list(state[4])  # type: ignore[call-overload]
        if topic == TRANSACTION_STATE_TOPIC and replicas[0] == JOINING:
            fitting = (f"moved-{n}" for n in count() if partition_for(f"moved-{n}", STATE_PARTITIONS) == partition)
            return HandOver(partition, replicas[1], replicas[2], next(fitting), next(fitting), "alone")
    raise KlammError(f"broker {JOINING} is not the preferred leader of any partition of {TRANSACTION_STATE_TOPIC}")


def _begin(cluster: MixedCluster, java: JavaSession, plan: HandOver) -> None:
    """Leave two transactions open under level 2, in epochs that were bumped by earlier ones."""
    admin = _admin(cluster)
    assignment = [[plan.third]] * 3
    admin.create_topics([NewTopic(plan.alone, 3, replica_assignment=assignment)])[plan.alone].result(ELECTION_S)
    cluster.admin.leader(plan.alone, 2)
    for name in (plan.is_open, plan.is_decided):
        java.run("open", name)
        java.run("commit", name, "keep")
        java.run("open", name)
    java.run("join", plan.is_decided, plan.alone)


def _hand_over(cluster: MixedCluster, java: JavaSession, plan: HandOver) -> None:
    """The Kafka broker becomes the coordinator, and completes both."""
    cluster.stop(plan.third)  # the markers in `alone` cannot be written before it is back
    java.run("decide", plan.is_decided)
    await_transaction(cluster, plan.second, plan.is_decided, "PrepareCommit")
    await_transaction(cluster, plan.second, plan.is_open, "Ongoing")
    wanted = [TopicPartition(TRANSACTION_STATE_TOPIC, plan.partition)]
    admin = _admin(cluster)
    admin.elect_leaders(ElectionType.PREFERRED, wanted).result(ELECTION_S)
    await_transaction(cluster, JOINING, plan.is_decided, "PrepareCommit")
    await_transaction(cluster, JOINING, plan.is_open, "Ongoing")
    cluster.start(plan.third)
    await_transaction(cluster, JOINING, plan.is_decided, "CompleteCommit")
    java.run("commit", plan.is_open, "keep")
    await_transaction(cluster, JOINING, plan.is_open, "CompleteCommit")
    _expect_records(java, plan.is_open, {"before": 2, "after": 2})
    _expect_records(java, plan.is_decided, {"before": 2, "after": 1})
    _expect_records(java, plan.alone, {"joined": 1})


def _continue(java: JavaSession, plan: HandOver) -> None:
    """A klamm coordinator reads what the Kafka broker has stored; the producers continue."""
    for name in (plan.is_open, plan.is_decided):
        java.run("turn", name)
    _expect_records(java, plan.is_open, {"before": 2, "after": 2, "turn": 1})
    _expect_records(java, plan.is_decided, {"before": 2, "after": 1, "turn": 1})


def _admin(cluster: MixedCluster) -> AdminClient:
    return AdminClient({**CLIENT, "bootstrap.servers": cluster.bootstrap_servers})


def _expect_records(java: JavaSession, topic: str, expected: dict[str, int]) -> None:
    """Expect these committed records, by the beginning of their value, in each partition."""
    found = Counter(java.run("committed", topic).split(","))
    if found != {f"{stem}-{index}": times for stem, times in expected.items() for index in range(3)}:
        raise KlammError(f"committed records of {topic}: {found}")


# --- the level --------------------------------------------------------------------------------------------------------


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
