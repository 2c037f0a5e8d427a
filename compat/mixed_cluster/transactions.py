"""Transactions in a mixed cluster: a coordinator of one kind completes what one of the other kind has begun.

`before` runs once per inter-broker protocol: those in KLAMM_MIXED_PROTOCOLS (such as `3.1,2.6`, or `all` for every one
that differs from the others), or DEFAULT_PROTOCOLS.
`after` has a Kafka broker join brokers that use `transaction.version` 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, NamedTuple

from compat.mixed_cluster import repaired_protocol
from compat.mixed_cluster.cluster import Kind, MixedCluster
from compat.mixed_cluster.load import CLIENT
from compat.mixed_cluster.state import await_transaction, differences, partitions_of, unequal_logs
from confluent_kafka import (
    Consumer,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.client.blocking_connection import ask_once
from klamm.coordinator.partitioning import partition_for
from klamm.errors import ErrorCode, KlammError
from klamm.local.security_choice import ADMIN
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse

STATE_TOPIC: Final = "__transaction_state"
OFFSETS_TOPIC: Final = "__consumer_offsets"
STATE_PARTITIONS: Final = 6
"""With three brokers, each broker leads two of them, and the two have different brokers in the second place."""
OFFSETS_PARTITIONS: Final = 4
PARTITIONS: Final = 6
WAIT_S: Final = 90.0
TIMEOUT_MS: Final = 10_000
SETTINGS: Final[Mapping[str, object]] = {
    "transaction.state.log.num.partitions": STATE_PARTITIONS,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "min.insync.replicas": 1,
}
_CONTROLLED_BY_KLAMM: Final[Mapping[int, Kind]] = {1: "klamm", 2: "kafka", 3: "klamm"}
_CONTROLLED_BY_KAFKA: Final[Mapping[int, Kind]] = {1: "kafka", 2: "klamm", 3: "kafka"}
PROTOCOLS: Final[Mapping[str, Mapping[int, Kind]]] = {
    "3.9": _CONTROLLED_BY_KLAMM,
    "3.8": _CONTROLLED_BY_KAFKA,
    "3.7": _CONTROLLED_BY_KLAMM,
    "3.6": _CONTROLLED_BY_KAFKA,
    "3.5": _CONTROLLED_BY_KLAMM,
    "3.5-IV0": _CONTROLLED_BY_KAFKA,
    "3.4": _CONTROLLED_BY_KAFKA,
    "3.3": _CONTROLLED_BY_KLAMM,
    "3.2": _CONTROLLED_BY_KLAMM,
    "3.1": _CONTROLLED_BY_KLAMM,
    "3.0": _CONTROLLED_BY_KAFKA,
    "3.0-IV0": _CONTROLLED_BY_KLAMM,
    "2.8": _CONTROLLED_BY_KAFKA,
    "2.8-IV0": _CONTROLLED_BY_KLAMM,
    "2.7": _CONTROLLED_BY_KLAMM,
    "2.7-IV1": _CONTROLLED_BY_KAFKA,
    "2.7-IV0": _CONTROLLED_BY_KLAMM,
    "2.6": _CONTROLLED_BY_KAFKA,
    "2.5": _CONTROLLED_BY_KLAMM,
    "2.4": {1: "klamm", 2: "kafka", 3: "kafka"},
    "2.4-IV0": {1: "kafka", 2: "klamm", 3: "klamm"},
}
"""All releases that klamm supports, and their steps that differ. The first controller is of broker 1's kind."""
DIFFERENT_PROTOCOLS: Final = tuple(it for it in PROTOCOLS if it not in ("3.7", "3.6", "3.2", "2.5"))
"""One per combination of versions and mechanisms: every other protocol equals one of these."""
DEFAULT_PROTOCOLS: Final = ("3.9", "3.3", "3.0", "2.8", "2.4")


class Roles(NamedTuple):
    """A partition of `__transaction_state`: its leader, the broker that follows it, and the third one."""

    partition: int
    first: int
    second: int
    third: int


class TransactionChecks:
    """Prints a line per check. Producers and consumers are clients of `user`; `label` ends the name of each check."""

    def __init__(self, cluster: MixedCluster, label: str, user: str = ADMIN) -> None:
        self._cluster = cluster
        self._label = label
        self._numbers = count()
        self._admin = AdminClient({**CLIENT, **cluster.client_settings()})
        self._settings = {**CLIENT, **cluster.client_settings(user)}

    def run(self) -> None:
        self.check("first transaction", self.begin)
        self.check("a klamm coordinator completes transactions of Kafka's", lambda: self.take_over("kafka", "klamm"))
        self.check("a Kafka coordinator completes transactions of klamm's", lambda: self.take_over("klamm", "kafka"))

    def check(self, name: str, act: Callable[[], object]) -> None:
        name = f"{name} ({self._label})"
        try:
            act()
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            print(f"not ok {name}: {type(error).__name__}: {lines[0][:300]}", flush=True)
        else:
            print(f"ok {name}", flush=True)

    def begin(self) -> None:
        """Have the internal topics created: by the first transaction and the first group."""
        self._cluster.admin.create_topic("data", PARTITIONS, 3, {})
        producer = self._producer("first")
        producer.begin_transaction()
        self._write(producer, "data", "first")
        self._send_offsets(producer, 1)
        producer.commit_transaction(WAIT_S)
        self._settle()

    def take_over(self, first: Kind, second: Kind) -> None:
        """Kill a coordinator of one kind in the middle of five transactions; one of the other kind ends them."""
        self._admin.elect_leaders(ElectionType.PREFERRED, None).result(30)
        self._settle()
        roles = self._roles(first, second)
        name = f"{first}-{second}"
        topic, alone = f"data-{name}", f"alone-{name}"
        self._cluster.admin.create_topic(topic, PARTITIONS, 3, {})
        self._admin.create_topics([NewTopic(alone, 1, replica_assignment=[[roles.third]])])[alone].result(30)
        self._cluster.admin.leader(alone, 0)
        ids = [f"{name}-{number}" for number in self._ids_of(name, roles.partition, 5)]

        decided = self._join(ids[0], topic, alone, "decided", 10)
        undone = self._join(ids[4], topic, alone, "undone", 20)
        self._cluster.stop(roles.third)  # the markers in `alone` cannot be written before it is back
        left = {it: self._open(it, topic) for it in ids[1:3]}
        self._open(ids[3], topic, **{"transaction.timeout.ms": TIMEOUT_MS, "message.timeout.ms": TIMEOUT_MS})
        decided.commit_transaction(WAIT_S)
        undone.abort_transaction(WAIT_S)
        await_transaction(self._cluster, roles.first, ids[0], "PrepareCommit")
        await_transaction(self._cluster, roles.first, ids[4], "PrepareAbort")

        self._cluster.kill(roles.first)
        self._cluster.start(roles.third)
        self._write(left[ids[1]], topic, "more")
        left[ids[1]].commit_transaction(WAIT_S)
        self._fence(ids[2], left[ids[2]], topic)
        for it, end in zip(ids, ("Commit", "Commit", "Commit", "Abort", "Abort"), strict=True):
            await_transaction(self._cluster, roles.second, it, f"Complete{end}")
        self._cluster.start(roles.first)
        self._settle()
        expected = {stem: PARTITIONS for stem in ("decided", f"open {ids[1]}", "more", "fresh")}
        self._expect_records(topic, expected)
        self._expect_records(alone, {"decided": 1})
        self._expect_offsets(10)
        self._expect_equal_logs()

    def _roles(self, first: Kind, second: Kind) -> Roles:
        states = partitions_of(self._cluster)
        for partition in range(STATE_PARTITIONS):
            state = states[STATE_TOPIC, partition]
            leader, replicas = state[2], list(state[4])  # type: ignore[call-overload]
            kinds = [self._cluster.kinds[broker_id] for broker_id in replicas]
            if leader == replicas[0] and kinds[:2] == [first, second]:
                return Roles(partition, *replicas)
        raise KlammError(f"no partition of {STATE_TOPIC} has a {first} leader that a {second} broker follows")

    def _ids_of(self, name: str, partition: int, wanted: int) -> list[int]:
        """Return numbers whose transactional ids belong to this partition of `__transaction_state`."""
        fitting = (it for it in self._numbers if partition_for(f"{name}-{it}", STATE_PARTITIONS) == partition)
        return [next(fitting) for _ in range(wanted)]

    # --- producers -----------------------------------------------------------------------------------------------

    def _producer(self, transactional_id: str, **extra: object) -> Producer:
        producer = Producer({**self._settings, **extra, "transactional.id": transactional_id})
        producer.init_transactions(WAIT_S)
        return producer

    def _open(self, transactional_id: str, topic: str, **extra: object) -> Producer:
        producer = self._producer(transactional_id, **extra)
        producer.begin_transaction()
        self._write(producer, topic, f"open {transactional_id}")
        self._flush(producer)
        return producer

    def _join(self, transactional_id: str, topic: str, alone: str, value: str, offset: int) -> Producer:
        """Begin a transaction with records in both topics and a position of each group."""
        producer = self._producer(transactional_id)
        producer.begin_transaction()
        self._write(producer, topic, value)
        producer.produce(alone, value.encode(), partition=0)
        self._flush(producer)
        self._send_offsets(producer, offset)
        return producer

    def _write(self, producer: Producer, topic: str, value: str) -> None:
        for partition in range(PARTITIONS):
            producer.produce(topic, value.encode(), partition=partition)

    def _flush(self, producer: Producer) -> None:
        if left := producer.flush(WAIT_S):
            raise KlammError(f"{left} records were not acknowledged")

    def _groups(self) -> list[str]:
        """One group per partition of `__consumer_offsets`, so that every broker coordinates some."""
        found: dict[int, str] = {}
        for number in count():
            if len(found) == OFFSETS_PARTITIONS:
                return list(found.values())
            found.setdefault(partition_for(f"g{number}", OFFSETS_PARTITIONS), f"g{number}")
        raise AssertionError

    def _send_offsets(self, producer: Producer, offset: int) -> None:
        for group in self._groups():
            member = Consumer({**self._settings, "group.id": group})
            position = [TopicPartition("data", 0, offset)]
            producer.send_offsets_to_transaction(position, member.consumer_group_metadata(), WAIT_S)
            member.close()

    def _fence(self, transactional_id: str, zombie: Producer, topic: str) -> None:
        """A new producer aborts the transaction that began under the other coordinator, and fences its producer."""
        fresh = self._producer(transactional_id)
        try:
            zombie.commit_transaction(WAIT_S)
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
        else:
            raise KlammError("a fenced producer has committed")
        fresh.begin_transaction()
        self._write(fresh, topic, "fresh")
        fresh.commit_transaction(WAIT_S)

    # --- expectations --------------------------------------------------------------------------------------------

    def _expect_records(self, topic: str, expected: Mapping[str, int]) -> None:
        """Read all committed records of the topic, to the end of each partition."""
        settings = {**self._settings, "group.id": "reader"}
        consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
        found: dict[str, int] = {}
        ended: set[int | None] = set()
        try:
            partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            while len(ended) < len(partitions):
                message = consumer.poll(WAIT_S)
                if message is None:
                    raise KlammError(f"{topic}: the end was not reached in {WAIT_S:g} s")
                error = message.error()
                if error is None:
                    value = (message.value() or b"").decode()
                    found[value] = found.get(value, 0) + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        finally:
            consumer.close()
        if found != expected:
            raise KlammError(f"{topic} has the committed records {found}, expected {dict(expected)}")

    def _expect_offsets(self, offset: int) -> None:
        """Every group has this position, and none of a transaction that is still open there."""
        for group in self._groups():
            found: list[str] = []

            def is_there(group: str = group, found: list[str] = found) -> bool:
                broker_id = self._cluster.admin.leader(OFFSETS_TOPIC, partition_for(group, OFFSETS_PARTITIONS))
                topic = OffsetFetchRequestTopic(name="data", partition_indexes=[0])
                request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)
                address, security = self._cluster.answering()[broker_id], self._cluster.client_security
                answer = ask_once(address, request, 7, OffsetFetchResponse, WAIT_S, security=security)
                stored = [
                    (ErrorCode.of(part.error_code), part.committed_offset)
                    for it in answer.topics
                    for part in it.partitions
                ]
                found[:] = [f"{self._cluster.kinds[broker_id]} broker {broker_id}: {answer.error_code} {stored}"]
                return answer.error_code == ErrorCode.NONE and stored == [(ErrorCode.NONE, offset)]

            try:
                self._cluster.wait(is_there, "")
            except KlammError:
                raise KlammError(f"group {group} is not at {offset}: {found}") from None

    def _expect_equal_logs(self) -> None:
        """The last records may still be on their way to a follower that is in sync."""
        found: list[str] = []

        def are_equal() -> bool:
            found[:] = unequal_logs(self._cluster)
            return not found

        try:
            self._cluster.wait(are_equal, "")
        except KlammError:
            raise KlammError("; ".join(found)) from None

    def _settle(self) -> None:
        found: list[str] = []

        def is_settled() -> bool:
            try:
                found[:] = differences(self._cluster)
            except OSError as error:
                found[:] = [str(error)]
            return not found

        try:
            self._cluster.wait(is_settled, "")
        except KlammError:
            raise KlammError(f"the cluster did not come to rest: {'; '.join(found[:3])}") from None


def run(protocol: str) -> None:
    """Start klamm's brokers first: a Kafka controller would keep their reports of unclean shutdowns (decision 0013)."""
    kinds = PROTOCOLS[protocol]
    with MixedCluster(kinds, protocol, SETTINGS) as cluster:
        for kind in ("klamm", "kafka"):
            cluster.start(*(broker_id for broker_id in kinds if kinds[broker_id] == kind))
        cluster.make_controller(kinds[1])
        TransactionChecks(cluster, f"protocol {protocol}, controller {kinds[1]}").run()


def chosen_protocols() -> list[str]:
    chosen = [it.strip() for it in os.environ.get("KLAMM_MIXED_PROTOCOLS", "").split(",") if it.strip()]
    if chosen == ["all"]:
        return list(DIFFERENT_PROTOCOLS)
    if unknown := [it for it in chosen if it not in PROTOCOLS]:
        raise KlammError(f"KLAMM_MIXED_PROTOCOLS has {unknown}: choose `all`, or some of {', '.join(PROTOCOLS)}")
    return chosen or list(DEFAULT_PROTOCOLS)


def main(phase: str) -> None:
    if phase == "before":
        for protocol in chosen_protocols():
            run(protocol)
    else:
        repaired_protocol.run()


if __name__ == "__main__":
    main(sys.argv[1])
