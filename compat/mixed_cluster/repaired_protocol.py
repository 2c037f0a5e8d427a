"""A Kafka 3.9 broker joins klamm brokers that use `transaction.version` 2 with a Java client of Kafka 4.x.

The level is turned off before the Kafka broker leads a partition, and on again when klamm runs that broker. Meanwhile
the Kafka broker becomes the coordinator of transactions that began under the level: one is open, and two are decided
but not complete. Their records in `__transaction_state` have a bumped epoch and the tagged fields of KIP-890. In the
same states, a klamm broker later becomes the coordinator of transactions that the Kafka broker has coordinated.
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


class Transactions(NamedTuple):
    """Three transactions when their coordinator changes. Each has a topic of the name of its transactional id."""

    open: str
    committed: str
    """In PrepareCommit: its markers in `HandOver.alone` are missing."""
    aborted: str
    """In PrepareAbort."""


class HandOver(NamedTuple):
    """Transactions that the joining broker coordinates.

    It is the preferred leader of `partition` of `__transaction_state`, which `second` leads while it is away. The topic
    `alone` has its replicas on `third` only. A Kafka broker takes `to_kafka` over, and a klamm broker `to_klamm`.
    """

    partition: int
    second: int
    third: int
    to_kafka: Transactions
    to_klamm: Transactions
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
    _create_alone(cluster, plan)
    _begin(java, plan.to_kafka, plan.alone)
    java.run("open", "roll")
    cluster.stop(JOINING)
    cluster.start(JOINING, kind="kafka")
    _await_level(cluster, 0)
    java.run("commit", "roll", "keep")  # begun under level 2, ended under it
    _expect_turns(java, is_bumped=False)
    _expect_epochs(java, "with-kafka", CONSTANT)
    _hand_over(cluster, java, plan)
    java.run("open", "roll")
    _hand_back(cluster, java, plan)
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
            to_kafka, to_klamm = (Transactions(next(fitting), next(fitting), next(fitting)) for _ in range(2))
            return HandOver(partition, replicas[1], replicas[2], to_kafka, to_klamm, "alone")
    raise KlammError(f"broker {JOINING} is not the preferred leader of any partition of {TRANSACTION_STATE_TOPIC}")


def _create_alone(cluster: MixedCluster, plan: HandOver) -> None:
    admin = _admin(cluster)
    assignment = [[plan.third]] * 3
    admin.create_topics([NewTopic(plan.alone, 3, replica_assignment=assignment)])[plan.alone].result(ELECTION_S)
    cluster.admin.leader(plan.alone, 2)


def _begin(java: JavaSession, names: Transactions, alone: str) -> None:
    """Leave transactions open that the joining broker coordinates, each after a complete one of its producer."""
    for name in names:
        java.run("open", name)
        java.run("commit", name, "keep")
        if (coordinator := int(java.run("open", name))) != JOINING:
            raise KlammError(f"broker {coordinator} coordinates {name}, not broker {JOINING}")
    java.run("join", names.committed, alone)
    java.run("join", names.aborted, alone)


def _decide(cluster: MixedCluster, java: JavaSession, names: Transactions, coordinator: int) -> None:
    java.run("decide", names.committed, "commit")
    java.run("decide", names.aborted, "abort")
    _await_states(cluster, coordinator, names, "Ongoing", "Prepare")


def _await_states(cluster: MixedCluster, coordinator: int, names: Transactions, of_open: str, stage: str) -> None:
    await_transaction(cluster, coordinator, names.committed, f"{stage}Commit")
    await_transaction(cluster, coordinator, names.aborted, f"{stage}Abort")
    await_transaction(cluster, coordinator, names.open, of_open)


def _hand_over(cluster: MixedCluster, java: JavaSession, plan: HandOver) -> None:
    """The Kafka broker becomes the coordinator, and completes the transactions of klamm's."""
    cluster.stop(plan.third)  # the markers in `alone` cannot be written before it is back
    _decide(cluster, java, plan.to_kafka, plan.second)
    wanted = [TopicPartition(TRANSACTION_STATE_TOPIC, plan.partition)]
    admin = _admin(cluster)
    admin.elect_leaders(ElectionType.PREFERRED, wanted).result(ELECTION_S)
    _await_states(cluster, JOINING, plan.to_kafka, "Ongoing", "Prepare")
    cluster.start(plan.third)
    _complete(cluster, java, plan.to_kafka, JOINING)
    _expect_records(java, plan.alone, {"joined": 1})


def _hand_back(cluster: MixedCluster, java: JavaSession, plan: HandOver) -> None:
    """klamm runs the Kafka broker again: another klamm broker completes the transactions that Kafka coordinated."""
    _begin(java, plan.to_klamm, plan.alone)
    cluster.stop(plan.third)
    _decide(cluster, java, plan.to_klamm, JOINING)
    cluster.stop(JOINING)
    cluster.start(JOINING, kind="klamm")
    _await_level(cluster, 2)
    _await_states(cluster, plan.second, plan.to_klamm, "Ongoing", "Prepare")
    cluster.start(plan.third)
    _await_level(cluster, 2)
    _complete(cluster, java, plan.to_klamm, plan.second)
    _expect_records(java, plan.alone, {"joined": 2})


def _complete(cluster: MixedCluster, java: JavaSession, names: Transactions, coordinator: int) -> None:
    """The coordinator completes the decided transactions, and the producer of the open one commits it."""
    await_transaction(cluster, coordinator, names.committed, "CompleteCommit")
    await_transaction(cluster, coordinator, names.aborted, "CompleteAbort")
    java.run("commit", names.open, "keep")
    await_transaction(cluster, coordinator, names.open, "CompleteCommit")
    _expect_each(java, names, {})


def _continue(java: JavaSession, plan: HandOver) -> None:
    """A klamm coordinator reads what the Kafka broker has stored; the producers continue."""
    for names in (plan.to_kafka, plan.to_klamm):
        for name in names:
            java.run("turn", name)
        _expect_each(java, names, {"turn": 1})


def _expect_each(java: JavaSession, names: Transactions, more: dict[str, int]) -> None:
    """Expect the records of the first transaction of each producer, and of those that did not abort."""
    _expect_records(java, names.open, {"before": 2, "after": 2, **more})
    _expect_records(java, names.committed, {"before": 2, "after": 1, **more})
    _expect_records(java, names.aborted, {"before": 1, "after": 1, **more})


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
