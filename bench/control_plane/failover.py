"""A controller takes over very many partitions.

Real processes: ZooKeeper and two klamm brokers, of which one is the controller. The partitions live on three brokers
that are only registered (`stub_brokers`), so that no logs are made: the time is the controller's. When the controller
is killed, one of the three leaves as well. The next one reads everything, elects a new leader for every third
partition, takes the dead replica out of the ISR of the others, and notifies the remaining two and itself.

The clock starts when ZooKeeper deletes `/controller`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.control_plane.large_cluster import LargeCluster
from bench.control_plane.observe import ZnodeWatch
from bench.control_plane.probe import Probe, p99
from bench.control_plane.seeding import seed_now, topic_names
from bench.control_plane.stub_brokers import Arrival, StubBrokers
from bench.processes import cpu_seconds
from bench.report import Row
from klamm.errors import KlammError

STUBS: Final = (11, 12, 13)
PARTITIONS_PER_TOPIC: Final = 10
LIMIT_S: Final = 120.0
GOAL_S: Final = 2.0
_PARTITION_COUNT: Final = "kafka_controller_kafkacontroller_globalpartitioncount"
_EVENT_MS: Final = 'kafka_controller_controllerstats_controllerchangerateandtimems{quantile="0.999"}'


@dataclass(frozen=True, slots=True)
class Failover:
    """Seconds from the end of the old controller, and what it cost."""

    partitions: int
    elected_s: float
    """`/controller` is there again."""
    event_s: float
    """How long the controller's event took: reloaded, elected, written, queued."""
    sent_s: float
    """The last control request was read by the last broker, and every partition was among them."""
    calm_p99_ms: float
    p99_ms: float
    longest_ms: float
    rss_mb: float
    zookeeper_rss_mb: float
    cpu_s: float
    zookeeper_cpu_s: float
    """The CPU time that the new controller's process and ZooKeeper's used, from the kill until all was sent."""


def measure(partitions: int, limit_s: float = LIMIT_S) -> Failover:
    names = topic_names(partitions // PARTITIONS_PER_TOPIC)
    with LargeCluster(brokers=2) as cluster:
        old = cluster.local.controller_id
        new = 3 - old
        topic = _topic_led_by(cluster, new)
        stubs = StubBrokers(cluster.zookeeper, STUBS)
        try:
            seed_now(cluster.zookeeper, names, PARTITIONS_PER_TOPIC, STUBS, len(STUBS))
            cluster.wait_until_notified(partitions, limit_s)
            return _fail_over(cluster, stubs, old, new, topic, partitions)
        finally:
            stubs.close()


def _topic_led_by(cluster: LargeCluster, broker_id: int) -> str:
    for number in range(20):
        cluster.local.create_topic(f"probe-{number}", 1, 1)
        if cluster.local.leader(f"probe-{number}") == broker_id:
            return f"probe-{number}"
    raise KlammError(f"No topic came to broker {broker_id}.")


def _fail_over(cluster: LargeCluster, stubs: StubBrokers, old: int, new: int, topic: str, partitions: int) -> Failover:
    probe = Probe(cluster.local.port(new), topic)
    time.sleep(2.0)
    stubs.report()
    cpu_s, zookeeper_cpu_s = cpu_seconds(cluster.local.pid(new)), cpu_seconds(cluster.zookeeper_pid)
    with ZnodeWatch(cluster.zookeeper, "/controller") as role:
        killed = time.monotonic()
        cluster.local.kill(old)
        stubs.leave(STUBS[-1])
        gone = role.wait(lambda data: True, killed)  # a quick successor is there before the watch looks
        elected = role.wait(lambda data: data is not None, killed)
        came = _wait_for_all(stubs, killed, partitions)
    cpu_s, zookeeper_cpu_s = (
        cpu_seconds(cluster.local.pid(new)) - cpu_s,
        cpu_seconds(cluster.zookeeper_pid) - zookeeper_cpu_s,
    )
    # On a busy machine the watch may report the end of the old controller after the new one has sent all.
    sent = max(elected, *(arrival.at for arrival in came))
    time.sleep(0.5)
    samples = probe.stop()
    p99_ms, longest_ms = p99(samples, gone, sent)
    return Failover(
        partitions,
        elected - gone,
        cluster.metrics(new)[_EVENT_MS] / 1000,
        sent - gone,
        p99(samples, killed - 2.0, killed)[0],
        p99_ms,
        longest_ms,
        cluster.rss_bytes(new) / 1e6,
        cluster.zookeeper_rss_bytes() / 1e6,
        cpu_s,
        zookeeper_cpu_s,
    )


def _wait_for_all(stubs: StubBrokers, after: float, partitions: int) -> list[Arrival]:
    """Until both stubs that are left have received every partition by LeaderAndIsr and by UpdateMetadata."""
    came: list[Arrival] = []
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        came += [arrival for arrival in stubs.report() if arrival.at > after]
        reported = {
            (broker, key): sum(a.partitions for a in came if (a.broker, a.key) == (broker, key))
            for broker in STUBS[:2]
            for key in (4, 6)
        }
        if all(count >= partitions for count in reported.values()):
            return came
        time.sleep(0.5)
    raise KlammError(f"The brokers did not receive {partitions} partitions within {LIMIT_S:g} s: {reported}")


def rows(partitions: int, *, has_goal: bool) -> Iterator[Row]:
    found = measure(partitions)
    what = f"Failover, {partitions:,} partitions"
    goal = f" (goal {GOAL_S:g} s)" if has_goal else ""
    yield Row(f"{what}: reloaded, elected and sent{goal}", found.sent_s, "s")
    yield Row(f"{what}: of it until the role was won", found.elected_s, "s")
    yield Row(f"{what}: of it the controller's event", found.event_s, "s")
    yield Row(f"{what}: CPU of the new controller's process", found.cpu_s, "s CPU")
    yield Row(f"{what}: CPU of ZooKeeper", found.zookeeper_cpu_s, "s CPU")
    yield Row(f"{what}: produce p99 on that broker before", found.calm_p99_ms, "ms")
    yield Row(f"{what}: produce p99 on that broker during", found.p99_ms, "ms")
    yield Row(f"{what}: longest produce during", found.longest_ms, "ms")
    yield Row(f"{what}: resident memory of the new controller's broker", found.rss_mb, "MB")
    yield Row(f"{what}: resident memory of ZooKeeper", found.zookeeper_rss_mb, "MB")
