"""klamm and Apache Kafka in one cluster: `before` with a controller of klamm, `after` with one of Kafka.

Brokers of either kind are killed and stopped under load, and one is run by the other program on the same directory.
`lost_tails` has brokers that lose power and the end of a log.
The long form runs at the inter-broker protocols 3.9 and 2.4, the quick form at 3.9.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

from compat.mixed_cluster import lost_tails, quotas
from compat.mixed_cluster.cluster import Kind, MixedCluster
from compat.mixed_cluster.load import CLIENT, Load
from compat.mixed_cluster.state import differences, partitions_of, unequal_logs
from confluent_kafka import Consumer, ElectionType
from confluent_kafka.admin import AdminClient, NewPartitions

from klamm.errors import KlammError
from klamm.local.security_choice import ADMIN

TOPIC: Final = "mixed"
PARTITIONS: Final = 6
PROTOCOLS: Final = ("3.9", "2.4")
GROUP_TIMEOUT_S: Final = 60.0


class Checks:
    """Prints a line per check. `controller` is the kind of broker that starts first; `user` writes and reads."""

    def __init__(self, cluster: MixedCluster, controller: Kind, user: str = ADMIN, note: str = "") -> None:
        self._cluster = cluster
        self._controller = controller
        self._note = note
        self._settings = {**CLIENT, **cluster.client_settings(user)}
        self._load = Load(self._settings, TOPIC, PARTITIONS)

    def check(self, name: str, act: Callable[[], object]) -> None:
        name = f"{name} (controller {self._controller}{self._note})"
        try:
            act()
        except Exception as error:
            print(f"not ok {name}: {str(error).strip().splitlines()[0][:300]}", flush=True)
        else:
            print(f"ok {name}", flush=True)

    def create(self) -> None:
        self._cluster.admin.create_topic(TOPIC, PARTITIONS // 2, 3, {"min.insync.replicas": 2})
        admin = self._admin()
        admin.create_partitions([NewPartitions(TOPIC, PARTITIONS)])[TOPIC].result(30)
        self._settle()
        if len(partitions_of(self._cluster)) < PARTITIONS:
            raise KlammError("the topic has not grown")

    def delete(self) -> None:
        self._cluster.admin.create_topic("gone", 3, 3, {})
        self._cluster.admin.delete_topic("gone")
        folders = [self._cluster.log_dir(broker_id) / f"gone-{part}" for broker_id in (1, 2, 3) for part in range(3)]
        self._cluster.wait(lambda: not any(path.exists() for path in folders), "replicas were not deleted")
        self._settle()

    def elect(self) -> None:
        """Preferred leaders: every broker leads two partitions then."""
        admin = self._admin()
        admin.elect_leaders(ElectionType.PREFERRED, None).result(30)
        self._settle()
        if moved := [key for key, state in partitions_of(self._cluster).items() if state[2] != state[4][0]]:  # type: ignore[index]
            raise KlammError(f"{moved} are not led by their first replica")

    def kill(self, broker_id: int) -> None:
        self._around(lambda: self._cluster.kill(broker_id), lambda: self._cluster.start(broker_id))

    def stop(self, broker_id: int) -> None:
        self._around(lambda: self._cluster.stop(broker_id), lambda: self._cluster.start(broker_id))

    def become(self, broker_id: int, kind: Kind) -> None:
        self._around(lambda: self._cluster.stop(broker_id), lambda: self._cluster.start(broker_id, kind=kind))

    def group(self) -> None:
        """A group reads all that was acknowledged so far, and a second member of it nothing again."""
        if (count := self._read()) != len(self._load.acked):
            raise KlammError(f"{count} of {len(self._load.acked)} records were read")

    def move_controller(self, kind: Kind) -> None:
        self._cluster.make_controller(kind)
        self._settle()

    def _around(self, end: Callable[[], None], start: Callable[[], None]) -> None:
        with self._load:
            time.sleep(1.0)
            end()
            self._settle()
            start()
            self._settle()
        self._settle()
        if wrong := self._load.check() or self._unequal():
            raise KlammError("; ".join(wrong))

    def _settle(self) -> None:
        found: list[str] = []

        def is_settled() -> bool:
            try:
                found[:] = differences(self._cluster)
            except OSError as error:
                found[:] = [str(error)]
            return not found

        try:
            self._cluster.wait(is_settled, "the cluster did not come to rest")
        except KlammError as error:
            raise KlammError(f"{'; '.join(found[:3])} ({str(error).splitlines()[0]})") from None

    def _unequal(self) -> list[str]:
        """The last records may still be on their way to a follower that is in sync."""
        found: list[str] = []
        deadline = time.monotonic() + GROUP_TIMEOUT_S
        while (found := unequal_logs(self._cluster)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _read(self) -> int:
        consumer = Consumer(
            {
                **self._settings,
                "group.id": f"group-{self._controller}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        deadline, count = time.monotonic() + GROUP_TIMEOUT_S, 0
        try:
            while count < len(self._load.acked) and time.monotonic() < deadline:
                count += sum(1 for message in consumer.consume(500, 0.5) if message.error() is None)
        finally:
            consumer.close()
        return count

    def _admin(self) -> AdminClient:
        return AdminClient({**CLIENT, **self._cluster.client_settings()})


def run(controller: Kind, protocol: str) -> None:
    """Broker 1 is the controller; of 2 and 3 at least one is of the other kind."""
    other: Kind = "kafka" if controller == "klamm" else "klamm"
    kinds: dict[int, Kind] = {1: controller, 2: "klamm", 3: other}
    with MixedCluster(kinds, protocol) as cluster:
        checks = Checks(cluster, controller, note=f", protocol {protocol}")
        cluster.start(1)
        cluster.start(2, 3)
        checks.check("topic created and grown", checks.create)
        checks.check("kill -9 of a klamm broker", lambda: checks.kill(2))
        checks.check("preferred leaders", checks.elect)
        checks.check("consumer group", checks.group)
        checks.check("topic deleted", checks.delete)
        checks.check("quotas set by either kind", lambda: quotas.check(cluster))
        checks.check(f"controlled shutdown, {other} to {controller}", lambda: checks.become(3, controller))
        if controller == "kafka":
            checks.check("the controller moves to klamm", lambda: checks.move_controller("klamm"))
            checks.check("kill -9 of the klamm controller", lambda: checks.kill(2))
        else:
            checks.check("controlled shutdown, klamm to kafka", lambda: checks.become(3, "kafka"))
            checks.check("the controller moves to kafka", lambda: checks.move_controller("kafka"))
            checks.check("kill -9 of the kafka controller", lambda: checks.kill(3))


if __name__ == "__main__":
    first: Kind = "klamm" if sys.argv[1] == "before" else "kafka"
    for each in PROTOCOLS[:1] if os.environ.get("KLAMM_QUICK") else PROTOCOLS:
        run(first, each)
    lost_tails.run(first)
