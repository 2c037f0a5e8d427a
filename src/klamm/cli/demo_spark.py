"""The second part of `klamm demo`: the clickstream pipeline on Spark, over the kill of a broker.

It counts clicks into a table, and writes the visits of each user to a topic. Both are exactly once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.client import client_config, result
from klamm.cli.output import fail, say, table

if TYPE_CHECKING:
    from klamm.local.local_cluster import LocalCluster

PIPELINE: Final = Path(__file__).parents[3] / "examples" / "pipelines" / "clickstream.yaml"
PAGES: Final = ("/huts", "/maps", "/weather")
CLICKS: Final = 3000
TIMEOUT_S: Final = 300.0
Step = Callable[[float, str, str], None]


def missing() -> str:
    """Return a sentence that says why the Spark part cannot run here; empty if it can."""
    try:
        import deltalake  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError:
        return "it needs Spark: pip install 'klamm[spark]'."
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        return "it needs Java 17: apt-get install openjdk-17-jre-headless."
    return "" if PIPELINE.exists() else "its pipeline is examples/pipelines/clickstream.yaml of a checkout."


def play(cluster: LocalCluster, directory: Path, step: Step) -> None:
    """Produce clicks before and after a broker is killed, and check that table and topic have the results once."""
    servers = cluster.bootstrap_servers
    _create(servers)
    clicks = [_click(number) for number in range(CLICKS)]
    begun = time.monotonic()
    with _pipeline(servers, directory) as process:
        _produce(servers, clicks[: CLICKS // 2])
        _wait(
            process,
            directory / "pipeline.log",
            lambda: (directory / "checkpoints/clickstream/page_views/commits/0").exists(),
            "a first batch",
        )
        step(begun, "pipeline", f"clickstream.yaml runs on Spark; {CLICKS // 2} clicks are in its first batches")
        begun = time.monotonic()
        victim = cluster.leader("clicks", 0)
        cluster.kill(victim)
        _produce(servers, clicks[CLICKS // 2 :])
        # A click an hour later closes all windows before it.
        _produce(servers, [{"user": "last", "page": "/", "at": "2026-07-01T11:30:00Z"}])
        step(begun, "kill -9", f"broker {victim}, which led clicks-0; {CLICKS - CLICKS // 2} more clicks after it")
        begun = time.monotonic()
        expected = Counter((click["at"][11:16], click["page"]) for click in clicks)
        _wait(process, directory / "pipeline.log", lambda: len(_rows(directory)) >= len(expected), "the table")
        step(begun, "table", "all windows are in the Delta table, the query continued through the failover")
        begun = time.monotonic()
        users = {click["user"] for click in clicks}
        _wait(process, directory / "pipeline.log", lambda: len(_visits(servers)) >= len(users), "the visits")
        step(begun, "topic", "all visits are in the topic sessions, written in transactions")
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)
        step(begun, "stop", "the pipeline stopped after its batch")
    begun = time.monotonic()
    cluster.start(victim)
    step(begun, "start again", f"broker {victim}")
    _show(_rows(directory), expected)
    _check_visits(_visits(servers), users)


def _create(servers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    new = [NewTopic(name, 3, 3, config={"min.insync.replicas": "2"}) for name in ("clicks", "sessions")]
    admin = AdminClient(client_config(servers))
    for future in admin.create_topics(new).values():
        result(future)


def _click(number: int) -> dict[str, Any]:
    """Return one click. All clicks together are spread evenly over three minutes."""
    second = number * 180 // CLICKS
    at = f"2026-07-01T10:{second // 60:02}:{second % 60:02}Z"
    return {"user": f"user-{number % 25}", "page": PAGES[number * 7 % 11 % 3], "at": at}


def _produce(servers: str, clicks: list[dict[str, Any]]) -> None:
    from confluent_kafka import Producer

    problems: list[Any] = []
    producer = Producer(client_config(servers, enable_idempotence=True, linger_ms=5))
    for click in clicks:
        producer.produce(
            "clicks",
            json.dumps(click).encode(),
            click["user"].encode(),
            on_delivery=lambda error, _: problems.append(error) if error else None,
        )
    producer.flush()
    if problems:
        fail(f"{len(problems)} clicks were not accepted: {problems[0].str()}.")


@contextmanager
def _pipeline(servers: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `klamm pipeline run` in another process, as in a second terminal."""
    env = {
        **os.environ,
        "LAKE": str(directory / "lake"),
        "CHECKPOINTS": str(directory / "checkpoints"),
        "KLAMM_STATE_DIR": str(directory / "state"),
        "KLAMM_SPARK_LOG": str(directory / "spark.log"),
    }
    command = [
        sys.executable,
        "-m",
        "klamm.cli.main",
        "pipeline",
        "run",
        str(PIPELINE),
        "--every",
        "500ms",
        "-b",
        servers,
    ]
    with (directory / "pipeline.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, text=True, cwd=directory)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _said(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-5:])


def _wait(process: subprocess.Popen[str], log: Path, done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if process.poll() is not None:
            fail(f"The pipeline ended with code {process.returncode} before {what} was there: {_said(log)}")
        if time.monotonic() > deadline:
            fail(f"The pipeline did not produce {what} within {TIMEOUT_S:g} s: {_said(log)}")
        time.sleep(0.1)


def _rows(directory: Path) -> list[dict[str, Any]]:
    import deltalake
    from deltalake.exceptions import TableNotFoundError

    try:
        rows: list[dict[str, Any]] = deltalake.DeltaTable(directory / "lake/page_views").to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    return rows


def _visits(servers: str) -> list[str]:
    """The users of the committed visits, up to the end of the topic."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = client_config(servers, group_id="demo-visits", enable_partition_eof=True)
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("sessions", number, 0) for number in range(3)])
    found: list[str] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < 3 and time.monotonic() < deadline:
        for message in consumer.consume(100, timeout=1.0):
            error = message.error()
            if error is None:
                found.append(json.loads(message.value() or b"{}")["user"])
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return found


def _check_visits(found: list[str], users: set[str]) -> None:
    if Counter(found) != Counter(users):
        fail(f"The topic should have {len(users)} visits, each once; it has {len(found)}.")
    say(f"All {len(found)} visits are in the topic exactly once, for readers with read_committed.")


def _show(rows: list[dict[str, Any]], expected: Counter[tuple[str, str]]) -> None:
    found = sorted((f"{row['minute']:%H:%M}", row["page"], row["views"], row["visitors"]) for row in rows)
    say()
    table(("Minute", "Page", "Views", "Visitors"), found)
    say()
    if Counter({(minute, page): views for minute, page, views, _ in found}) != expected or len(found) != len(expected):
        fail(f"The table should count {expected.total()} clicks, each once: {dict(expected)}.")
    say(f"All {expected.total()} clicks are counted exactly once, across the kill.")
