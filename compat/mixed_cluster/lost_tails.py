"""Brokers that lost the tail of a log in a mixed cluster: where klamm's rule holds, and where Kafka's does.

Processes are killed as by a loss of power, logs are cut, and the brokers return. `before` has a controller of klamm:
its rule (decision 0013) protects partitions whose in-sync replicas are on klamm brokers, and Kafka's rule applies
where a Kafka broker is in sync. `after` has a controller of Kafka, so Kafka's rule applies everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from compat.mixed_cluster.cluster import Kind, MixedCluster
from compat.mixed_cluster.load import CLIENT
from compat.mixed_cluster.state import records
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.controller.log_end_query import VERSION, build_request
from klamm.errors import ErrorCode, KlammError
from klamm.model import NO_EPOCH, LeaderAndIsr, TopicPartition
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from klamm.zk.model import paths
from klamm.zk.model.ops import Delete, MultiFailed, NoNode
from klamm.zk.model.znodes import decode_partition_state
from tests.support.raw_client import RawClient, batch_of

RECORDS: Final = 200
PER_BATCH: Final = 20
CUT: Final = 0.5
LEAST_ISR: Final = "min.insync.replicas"
NOT_YET: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""The answers of a leader that does not know the new topic yet."""
SETTINGS: Final[Mapping[str, object]] = {
    # Only the checks end sessions and change ISRs, and no check waits until the controller gives up on replicas.
    "zookeeper.session.timeout.ms": 40_000,
    "replica.lag.time.max.ms": 40_000,
    "klamm.unclean.replica.wait.ms": 3_600_000,
}


class LostTailChecks:
    """Prints a line per check. Every topic has one partition."""

    def __init__(self, cluster: MixedCluster, label: str) -> None:
        self._cluster = cluster
        self._label = label
        self._admin = AdminClient({**CLIENT, **cluster.client_settings()})

    def check(self, name: str, act: Callable[[], object]) -> None:
        name = f"{name} ({self._label})"
        try:
            act()
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            print(f"not ok {name}: {type(error).__name__}: {lines[0][:300]}", flush=True)
        else:
            print(f"ok {name}", flush=True)

    def kafka_in_sync(self) -> None:
        """The ISR has a klamm broker, which waits, and a Kafka broker, which is trusted, whatever it has lost."""
        safe, lost = self._fill("safe", [2, 3]), self._fill("lost", [2, 3])
        self._lose_power(1, 2, 3)
        self._cut(2, "safe")
        self._cut(3, "lost")
        self._cluster.start(1)
        self._cluster.start(2)
        for topic in ("safe", "lost"):
            self._await_hold(topic, 1, {2, 3})
        self._cluster.start(3)
        for topic in ("safe", "lost"):
            self._await_state(topic, 3, {2, 3})
        self._expect("safe", 3, safe)
        self._expect("lost", 3, lost, is_shortened=True)

    def kafka_outside_the_isr(self) -> None:
        """A Kafka broker that is not in sync cannot be compared, and holds nothing up."""
        self._create("beside", [2, 1, 3], 2)
        self._cluster.stop(3)
        values = self._write("beside", 2)
        self._lose_power(1, 2)
        self._cut(2, "beside")
        self._cluster.start(2)
        self._cluster.start(3)
        self._await_hold("beside", 2, {1, 2})
        self._await_refusals("beside", 3)
        self._cluster.start(1)
        self._await_state("beside", 1, {1, 2, 3})
        self._expect("beside", 1, values)

    def kafka_was_in_sync(self) -> None:
        """Sessions end one after the other: the controller elects a klamm broker that is gone as well.

        The Kafka broker was in sync until then, but cannot be compared. When it is back, waiting longer is pointless.
        """
        values = self._fill("former", [3, 2])
        self._lose_power(3, 2, until=lambda: self._await_state("former", 2, {2}))
        self._await_state("former", -1, {2})
        self._cluster.start(2)
        self._await_hold("former", 1, {2})
        self._cluster.start(3)
        self._await_state("former", 2, {2, 3})
        self._expect("former", 2, values)

    def kafka_controls(self) -> None:
        """A Kafka controller leaves one member in an ISR of dead brokers, and elects it in spite of its report."""
        values = self._fill("report", [2, 3])
        self._lose_power(1, 2, 3)
        self._cluster.start(1)
        self._cluster.wait(lambda: self._state("report").leader == -1, "report has a leader that is gone")
        first = self._state("report").isr[0]
        self._cut(first, "report")
        self._cluster.start(first)
        self._cluster.start(5 - first)
        self._await_state("report", first, {2, 3})
        self._expect("report", first, values, is_shortened=True)

    def _fill(self, topic: str, replicas: list[int]) -> list[bytes]:
        self._create(topic, replicas, len(replicas))
        return self._write(topic, replicas[0])

    def _create(self, topic: str, replicas: list[int], least: int) -> None:
        new = NewTopic(topic, 1, replica_assignment=[replicas], config={LEAST_ISR: str(least)})
        self._admin.create_topics([new])[topic].result(30)
        self._await_state(topic, replicas[0], {*replicas})

    def _write(self, topic: str, leader: int) -> list[bytes]:
        """Records that every replica in sync has, in ten batches."""
        values = [f"{topic} {number}".encode() for number in range(RECORDS)]
        client = self._client(leader)
        for start in range(0, RECORDS, PER_BATCH):
            batch = batch_of(values[start : start + PER_BATCH])

            def is_acked(batch: bytes = batch) -> bool:
                answer = client.produce(topic, batch)
                if answer.error_code not in (ErrorCode.NONE, *NOT_YET):
                    raise KlammError(f"{topic}: records were refused with {ErrorCode(answer.error_code).name}")
                return answer.error_code == ErrorCode.NONE

            self._cluster.wait(is_acked, f"broker {leader} does not lead {topic}")
        return values

    def _lose_power(self, *broker_ids: int, until: Callable[[], None] | None = None) -> None:
        """All at once. Their registrations end in this order; `until` returns when the first end has had its effect."""
        for broker_id in broker_ids:
            self._cluster.pause(broker_id)
        for broker_id in broker_ids:
            self._cluster.kill(broker_id)
        for broker_id in broker_ids:
            self._delete(paths.broker_path(broker_id))
            if until is not None and broker_id == broker_ids[0]:
                until()
        if not self._cluster.running():
            self._delete(paths.CONTROLLER)

    def _delete(self, path: str) -> None:
        with self._cluster.zk_session() as session, suppress(NoNode):
            try:
                session.write([Delete(path)])
            except MultiFailed as failed:
                raise failed.error from None

    def _cut(self, broker_id: int, topic: str) -> None:
        """The broker's log loses its end."""
        log = self._cluster.log_dir(broker_id) / f"{topic}-0" / "00000000000000000000.log"
        with log.open("r+b") as file:
            file.truncate(int(log.stat().st_size * CUT))

    def _await_hold(self, topic: str, controller: int, isr: set[int]) -> None:
        """All live members of the ISR are suspects: the controller logs it, and the partition has no leader."""
        log, line = self._cluster.log_file(controller, "klamm"), f"partition {topic}-0 has no leader"
        self._cluster.wait(lambda: line in log.read_text(), f"broker {controller} does not hold {topic}")
        self._await_state(topic, -1, isr)

    def _await_refusals(self, topic: str, broker_id: int) -> None:
        """A Kafka broker does not learn the epoch of a partition without a leader, and refuses to report its log end.

        The controller may have asked before LeaderAndIsr arrived, when the answer is another one.
        """
        tp, client = TopicPartition(topic, 0), self._client(broker_id)

        def refusal(epoch: int) -> ErrorCode:
            answer = client.ask(build_request({tp: epoch}), VERSION, OffsetForLeaderEpochResponse)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        epoch = self._state(topic).leader_epoch
        self._cluster.wait(
            lambda: refusal(epoch) is ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} knows epoch {epoch} of {tp}"
        )
        if (found := refusal(NO_EPOCH)) is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
            raise KlammError(f"{topic}: broker {broker_id} answers {found.name} to a question without an epoch")

    def _await_state(self, topic: str, leader: int, isr: set[int]) -> None:
        found = ""

        def is_reached() -> bool:
            nonlocal found
            state = self._state(topic)
            found = f"leader {state.leader}, ISR {state.isr}"
            return (state.leader, {*state.isr}) == (leader, isr)

        try:
            self._cluster.wait(is_reached, "")
        except KlammError:
            raise KlammError(f"{topic}: {found} instead of leader {leader}, ISR {isr}") from None

    def _state(self, topic: str) -> LeaderAndIsr:
        with self._cluster.zk_session() as session:
            data = session.get(paths.partition_state_path(topic, 0))
        return decode_partition_state(TopicPartition(topic, 0), data, 0).leader_and_isr

    def _expect(self, topic: str, leader: int, values: list[bytes], *, is_shortened: bool = False) -> None:
        """The leader has all records, or as in Kafka its own ones, and the others have the same bytes."""
        found = [value for _, value in self._client(leader).read_all(topic)]
        wanted = values[: len(found)] if is_shortened else values
        if found != wanted or (is_shortened and not 0 < len(found) < len(values)):
            raise KlammError(f"{topic}: {len(found)} of {len(values)} records were read")
        logs = {replica: records(self._cluster, replica, (topic, 0)) for replica in self._state(topic).isr}
        if len({*logs.values()}) > 1:
            raise KlammError(f"{topic}: the logs have {[len(log) for log in logs.values()]} bytes")

    def _client(self, broker_id: int) -> RawClient:
        host, port = self._cluster.answering()[broker_id]
        return RawClient(port, host)


def run(controller: Kind) -> None:
    """Broker 1 is the controller."""
    kinds: dict[int, Kind] = {1: controller, 2: "klamm", 3: "kafka" if controller == "klamm" else "klamm"}
    with MixedCluster(kinds, configs=SETTINGS) as cluster:
        checks = LostTailChecks(cluster, f"controller {controller}")
        cluster.start(1)
        cluster.start(2, 3)
        if controller == "klamm":
            checks.check("lost tails, a Kafka broker that was in sync", checks.kafka_was_in_sync)
            checks.check("lost tails, a Kafka broker in sync", checks.kafka_in_sync)
            checks.check("lost tails, a Kafka broker outside the ISR", checks.kafka_outside_the_isr)
        else:
            checks.check("lost tails, a Kafka controller", checks.kafka_controls)


if __name__ == "__main__":
    run("klamm" if sys.argv[1] == "before" else "kafka")
