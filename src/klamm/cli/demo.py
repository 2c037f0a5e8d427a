"""`klamm demo`: the main job from end to end, with a real client."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.cli.client import client_config, result
from klamm.cli.output import fail, say, table

if TYPE_CHECKING:
    from klamm.local.local_cluster import LocalCluster

TOPIC = "orders"
CITIES = ("Innsbruck", "Bozen", "Trento", "Garmisch", "Meran")
COUNT = 1000


def demo() -> None:
    """Start three brokers, replicate a topic, kill a leader in the middle, and show that nothing is lost.

    If Java and Spark are available, a pipeline then counts clicks into a table while another leader is killed.
    """
    from klamm.local.local_cluster import LocalCluster

    steps: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="klamm-demo-") as directory:
        begun = time.monotonic()
        with LocalCluster(brokers=3, data_dir=Path(directory)) as cluster:
            _step(steps, begun, "start", f"3 brokers on {cluster.bootstrap_servers}; {cluster.controller_id} controls")
            _play(cluster, steps)
            _play_on_spark(cluster, Path(directory), steps)
            begun = time.monotonic()
        _step(steps, begun, "stop", "controlled shutdown of all brokers")
    say()
    table(("Step", "Seconds", "What happened"), steps)


def _play(cluster: LocalCluster, steps: list[tuple[str, str, str]]) -> None:
    servers = cluster.bootstrap_servers
    _create(servers, steps)
    _produce(servers, steps, range(COUNT // 2))
    first = _consume(servers, steps, COUNT // 4)
    _wait_in_sync(cluster)  # on a machine that stood still for seconds, the leader may have been alone
    begun = time.monotonic()
    victim = cluster.leader(TOPIC, 0)
    cluster.kill(victim)
    _step(steps, begun, "kill -9", f"broker {victim}, which led {TOPIC}-0")
    _produce(servers, steps, range(COUNT // 2, COUNT))
    begun = time.monotonic()
    leader, controller_id = cluster.leader(TOPIC, 0), cluster.controller_id
    _step(steps, begun, "failover", f"broker {leader} leads {TOPIC}-0 now, broker {controller_id} controls")
    second = _consume(servers, steps, COUNT - COUNT // 4)
    _compare(first + second, steps)
    begun = time.monotonic()
    cluster.start(victim)
    _wait_in_sync(cluster)
    _step(steps, begun, "start again", f"broker {victim} caught up; in sync: {sorted(cluster.isr(TOPIC, 0))}")


def _play_on_spark(cluster: LocalCluster, directory: Path, steps: list[tuple[str, str, str]]) -> None:
    from klamm.cli import demo_spark

    if reason := demo_spark.missing():
        say(f"The Spark part is left out: {reason}")
        steps.append(("Spark", "0.00", f"left out: {reason}"))
        return
    demo_spark.play(cluster, directory, lambda begun, name, text: _step(steps, begun, name, text))


def _wait_in_sync(cluster: LocalCluster) -> None:
    deadline = time.monotonic() + 60
    while any(len(cluster.isr(TOPIC, partition)) < 3 for partition in range(3)):
        if time.monotonic() > deadline:
            fail("Not all brokers came into the in-sync replicas within a minute.")
        time.sleep(0.05)


def _step(steps: list[tuple[str, str, str]], begun: float, name: str, text: str) -> None:
    steps.append((name, f"{time.monotonic() - begun:.2f}", text))
    say(f"{name}: {text}")


def _create(servers: str, steps: list[tuple[str, str, str]]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    begun = time.monotonic()
    admin = AdminClient(client_config(servers))
    result(admin.create_topics([NewTopic(TOPIC, 3, 3, config={"min.insync.replicas": "2"})])[TOPIC])
    _step(steps, begun, "create topic", f"{TOPIC}, 3 partitions on 3 brokers, min.insync.replicas=2")


def _produce(servers: str, steps: list[tuple[str, str, str]], numbers: range) -> None:
    from confluent_kafka import Producer

    begun = time.monotonic()
    problems: list[Any] = []
    producer = Producer(client_config(servers, compression_type="lz4", enable_idempotence=True, linger_ms=5))
    for number in numbers:
        city = CITIES[number % len(CITIES)]
        producer.produce(
            TOPIC,
            f"order {number}".encode(),
            city.encode(),
            on_delivery=lambda error, _: problems.append(error) if error else None,
        )
    producer.flush()
    if problems:
        fail(f"{len(problems)} records were not accepted: {problems[0].str()}.")
    _step(steps, begun, "produce", f"{len(numbers)} records, idempotent, acks=all, lz4")


def _consume(servers: str, steps: list[tuple[str, str, str]], count: int) -> list[bytes]:
    from confluent_kafka import Consumer

    begun = time.monotonic()
    consumer = Consumer(client_config(servers, group_id="demo", auto_offset_reset="earliest", enable_auto_commit=False))
    consumer.subscribe([TOPIC])
    seen: Counter[str] = Counter()
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while seen.total() < count:
        if time.monotonic() > deadline:
            fail(f"Only {seen.total()} of {count} records came back within a minute.")
        for message in consumer.consume(min(100, count - seen.total()), 0.5):
            if message.error() is None:
                seen[(message.key() or b"").decode()] += 1
                values.append(message.value() or b"")
    consumer.commit(asynchronous=False)
    consumer.close()
    _step(steps, begun, "consume", f"{count} records in group demo, offsets committed: {_counted(seen)}")
    return values


def _compare(values: list[bytes], steps: list[tuple[str, str, str]]) -> None:
    begun = time.monotonic()
    if sorted(values) != sorted(f"order {number}".encode() for number in range(COUNT)):
        fail(f"{COUNT} records were produced, but {len(set(values))} different ones came back, {len(values)} in all.")
    _step(steps, begun, "compare", f"all {COUNT} records came back exactly once, across the kill")


def _counted(seen: Counter[str]) -> str:
    return ", ".join(f"{city} {number}" for city, number in sorted(seen.items()))
