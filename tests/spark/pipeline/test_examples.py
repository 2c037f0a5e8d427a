"""The pipelines and the Spark job of examples/, and the tutorial's pipeline, on real brokers with known input."""

from __future__ import annotations

import contextlib
import runpy
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.client import BOOTSTRAP_VARIABLE
from klamm.spark.pipeline.load_file import load
from klamm.spark.pipeline.pipeline_model import PipelineSpec, Trigger
from klamm.spark.pipeline.run import RunOptions, run
from klamm.testing import LocalCluster
from tests.support.topics import committed_json, consume_json, delete_everywhere, produce_json
from tests.support.tutorial import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def run_once(spec: PipelineSpec, spark: SparkSession, servers: str) -> None:
    @contextlib.contextmanager
    def shared(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    run(spec, RunOptions(servers, Trigger(available_now=True), session=shared))


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(directory / "lake" / name).to_pyarrow_table().to_pylist()
    return found


@pytest.mark.long
def test_clickstream(spark: SparkSession, cluster: LocalCluster, directories: Path) -> None:
    servers = cluster.bootstrap_servers
    for topic in ("clicks", "sessions"):
        cluster.create_topic(topic, 2, 1)
    clicks = [
        {"user": "eva", "page": "/", "at": "2026-07-01T10:00:05Z"},
        {"user": "eva", "page": "/huts", "at": "2026-07-01T10:00:50Z"},
        {"user": "tom", "page": "/", "at": "2026-07-01T10:00:40Z"},
        {"user": "eva", "page": "/", "at": "2026-07-01T10:30:00Z"},
        # Long after: windows and visits before it are closed.
        {"user": "late", "page": "/", "at": "2026-07-01T12:00:00Z"},
    ]
    produce_json(servers, "clicks", clicks)
    spec = load(EXAMPLES / "clickstream.yaml")
    run_once(spec, spark, servers)

    views = {
        (f"{row['minute']:%H:%M}", row["page"]): (row["views"], row["visitors"])
        for row in rows(directories, "page_views")
    }
    assert views == {("10:00", "/"): (2, 2), ("10:00", "/huts"): (1, 1), ("10:30", "/"): (1, 1)}
    closed = [("eva", 1, "/", "/"), ("eva", 2, "/", "/huts"), ("tom", 1, "/", "/")]
    assert visits(servers) == closed

    # The next run continues where this one ended.
    produce_json(servers, "clicks", [{"user": "eva", "page": "/", "at": "2026-07-01T14:00:00Z"}])
    run_once(spec, spark, servers)
    assert len(rows(directories, "page_views")) == 4
    assert consume_json(servers, "sessions", 4)[-1]["user"] == "late"
    assert visits(servers) == sorted([*closed, ("late", 1, "/", "/")]), "each visit once, in both runs"


def visits(servers: str) -> list[tuple[str, int, str, str]]:
    """All visits that readers of committed records see."""
    found = committed_json(servers, "sessions")
    return sorted((row["user"], row["clicks"], row["entry_page"], row["exit_page"]) for row in found)


@pytest.mark.long
def test_orders(spark: SparkSession, cluster: LocalCluster, directories: Path) -> None:
    servers = cluster.bootstrap_servers
    for topic in ("orders", "payments", "fraud-alerts"):
        cluster.create_topic(topic, 2, 1)
    orders: list[dict[str, Any]] = [
        {"id": 1, "customer": "eva", "amount": 20.0, "at": "2026-07-01T10:00:00Z"},
        {"id": 1, "customer": "eva", "amount": 20.0, "at": "2026-07-01T10:00:00Z"},
        {"id": 2, "customer": "thief", "amount": 1.0, "at": "2026-07-01T10:01:00Z"},
        {"id": 3, "customer": "thief", "amount": 900.0, "at": "2026-07-01T10:02:00Z"},
        {"id": 4, "customer": "tom", "amount": 700.0, "at": "2026-07-01T10:03:00Z"},
        {"id": 5, "customer": "slow", "amount": 2.0, "at": "2026-07-01T10:04:00Z"},
        {"id": 6, "customer": "slow", "amount": 800.0, "at": "2026-07-02T10:04:00Z"},
        {"id": 7, "customer": "new", "amount": 3.0, "at": "2026-07-02T10:20:00Z"},
        # Orders that lack something, and one that is none: nobody's pipeline stops for them.
        {"id": 8, "customer": "tom", "at": "2026-07-02T10:20:00Z"},
        {"id": 9, "customer": "tom", "amount": 1.0},
        {"id": "ten", "customer": "tom", "amount": "much"},
    ]
    payments = [
        {"order_id": 1, "card": "a", "at": "2026-07-01T10:05:00Z"},
        {"order_id": 3, "card": "b", "at": "2026-07-01T10:06:00Z"},
        {"order_id": 4, "card": "c", "at": "2026-07-01T10:30:00Z"},
    ]
    produce_json(servers, "orders", orders, key="customer")
    produce_json(servers, "payments", payments)
    run_once(load(EXAMPLES / "orders.py"), spark, servers)

    paid = sorted((row["id"], row["customer"], row["amount"], row["card"]) for row in rows(directories, "paid_orders"))
    assert paid == [(1, "eva", 20.0, "a"), (3, "thief", 900.0, "b")], "order 4 was paid too late, order 1 only once"
    alerts = consume_json(servers, "fraud-alerts", 1)
    assert alerts == [{"customer": "thief", "small_id": 2, "large_id": 3, "amount": 900.0}], "a day is too late"
    assert remembered(spark, directories) == {"new"}, "the watermark has passed the day of the others"


def remembered(spark: SparkSession, directory: Path) -> set[str]:
    """The customers in the state of the fraud rule."""
    checkpoint = str(directory / "checkpoints" / "orders" / "fraud_alerts")
    operators = spark.read.format("state-metadata").load(checkpoint).collect()
    (operator,) = {row.operatorId for row in operators if "transformWithState" in row.operatorName}
    reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", "small")
    return {row.key.customer for row in reader.load(checkpoint).select("key").collect()}


def control_record(kind: str, sequence: int, second: int, **fields: Any) -> dict[str, Any]:
    at_ms = 1_782_900_000_000 + second * 1000
    common = {"kind": kind, "at_ms": at_ms, "broker_id": 1, "loop": "control", "sequence": sequence}
    return {**common, "controller_epoch": 1, **fields}


CONTROL_LOG = [
    control_record("election", 1, 0, topic="t", partition=0, leader=1, previous_leader=-1, leader_epoch=0),
    control_record("election", 2, 0, topic="t", partition=1, leader=2, previous_leader=-1, leader_epoch=0),
    control_record("election", 2, 0, topic="t", partition=1, leader=2, previous_leader=-1, leader_epoch=0),
    control_record("request_sent", 3, 1, api="UpdateMetadata", target=2, attempt=1, queue_ms=7.5),
    control_record("request_acknowledged", 4, 1, api="UpdateMetadata", target=2, error="NONE", round_trip_ms=30.0),
    control_record(
        "metadata_applied",
        1,
        2,
        broker_id=2,
        loop="broker",
        partitions=[{"topic": "t", "partition": p, "leader": p + 1, "leader_epoch": 0} for p in (0, 1)],
    ),
    control_record("isr_change", 5, 3, topic="t", partition=0, leader=1, leader_epoch=0, isr=[1], previous_isr=[1, 2]),
    control_record("isr_change", 6, 4, topic="t", partition=0, leader=1, leader_epoch=0, isr=[1, 2], previous_isr=[1]),
    control_record("leader_change", 7, 5, topic="t", partition=1, leader=-1, previous_leader=2, leader_epoch=1),
    control_record("election", 8, 6, topic="t", partition=1, leader=1, previous_leader=-1, leader_epoch=2),
    control_record("event_done", 9, 3600),
]


@pytest.mark.long
def test_control_plane(
    spark: SparkSession, cluster: LocalCluster, directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = cluster.bootstrap_servers
    # Only brokers write the real one, and these do not.
    monkeypatch.setenv("CONTROL_LOG", "control-log-copy")
    # Its records have times that retention would take for old.
    cluster.create_topic("control-log-copy", 1, 1, {"retention.ms": -1})
    cluster.create_topic("leader-balance", 1, 1)
    produce_json(servers, "control-log-copy", CONTROL_LOG, timestamp="at_ms")
    run_once(load(EXAMPLES / "control_plane.yaml"), spark, servers)

    lags = sorted((row["broker_id"], row["partition"], row["lag_ms"]) for row in rows(directories, "metadata_lag"))
    assert lags == [(2, 0, 2000), (2, 1, 2000)]
    (sender,) = rows(directories, "slow_senders")
    assert (sender["broker_id"], sender["acknowledged"], sender["longest_queue_ms"]) == (2, 1, 7.5)
    assert (sender["longest_round_trip_ms"], sender["refused"]) == (30.0, 0)
    (churn,) = rows(directories, "isr_churn")
    assert (churn["broker_id"], churn["shrinks"], churn["expansions"]) == (1, 1, 1)
    balance = {row["broker_id"]: row["partitions_led"] for row in consume_json(servers, "leader-balance", 2)}
    assert balance == {1: 2, 2: 0}, "broker 1 leads both since broker 2 has gone"


def test_a_spark_job(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    servers, path = cluster.bootstrap_servers, tmp_path / "revenue"
    cluster.create_topic("sales", 2, 1)
    sales = [("Wien", 12.5), ("Graz", 990.0), ("Wien", 7.5)]
    produce_json(
        servers, "sales", [{"id": n, "city": city, "amount": amount} for n, (city, amount) in enumerate(sales)]
    )
    job = runpy.run_path(str(EXAMPLES.parent / "spark" / "revenue_by_city.py"))
    job["run"](spark, servers, str(path))
    found = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert {row["city"]: row["revenue"] for row in found} == {"Wien": 20.0, "Graz": 990.0}
    delete_everywhere(cluster, "sales")  # other tests of this cluster create it


@pytest.mark.long
def test_a_spark_job_over_the_request_log(spark: SparkSession, cluster: LocalCluster) -> None:
    """Real traces of a real client: the job finds its produces, and the followers that completed them."""
    servers, traced = cluster.bootstrap_servers, cluster.unique_topic_name("traced")
    cluster.create_topic(traced, partitions=1, replication_factor=3)
    on = " ".join(f"-s klamm.request.trace.{it}" for it in ("sample=1", "topic.enable=true", f"topics={traced}"))
    klamm(f"klamm config alter --broker-defaults {on}", servers)
    job = runpy.run_path(str(EXAMPLES.parent / "spark" / "slow_requests.py"))
    producer = Producer({"bootstrap.servers": servers, "client.id": "traced-writer", "acks": "all"})
    try:
        while True:  # the test's own time limit ends it
            producer.produce(traced, value=b"1")
            assert producer.flush(60) == 0
            if job["TOPIC"] in producer.list_topics(timeout=60).topics:
                phases, waits = ([row.asDict() for row in table.collect()] for table in job["analyse"](spark, servers))
                if any(row["api"] == "Produce" and row["purgatory"] == "Produce" for row in waits):
                    break
    finally:
        off = " ".join(f"-d klamm.request.trace.{it}" for it in ("sample", "topic.enable", "topics"))
        klamm(f"klamm config alter --broker-defaults {off}", servers)
    (produce,) = [row for row in phases if row["api"] == "Produce"]
    assert produce["requests"] > 0 and produce["failed"] == 0 and produce["p99_ms"] > 0 and produce["remote_ms"] > 0
    waited = [row for row in waits if (row["api"], row["outcome"]) == ("Produce", "completed")]
    assert {row["completed_by"] for row in waited} == {"Fetch"}
    assert {row["of_broker"] for row in waited} <= set(cluster.broker_ids) - {cluster.leader(traced, 0)}
    assert all(row["longest_ms"] >= row["mean_ms"] > 0 for row in waited)


def test_the_first_pipeline(
    spark: SparkSession, cluster: LocalCluster, directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tutorial from top to bottom. The commands that start a Spark of their own use the tests' session instead."""
    monkeypatch.chdir(directories)
    servers, outputs = cluster.bootstrap_servers, ""
    for block in blocks("first-pipeline.md"):
        if block.title:
            Path(block.title).write_text(block.text)
        elif block.role == "pipeline":
            assert block.text == "klamm pipeline run sales.yaml --once\n"
            run_once(load(directories / "sales.yaml"), spark, servers)
        elif block.language == "sh" and block.role is None:
            for line in block.text.splitlines():
                outputs += klamm(line, servers)
    table = rows(directories, "tutorial_sales")
    assert sorted((row["id"], row["city"], row["amount"]) for row in table) == [
        (1, "Wien", 12.5),
        (2, "Graz", 990.0),
        (3, "Wien", 7.5),
    ]
    assert '"city":"Graz"' in outputs.replace(" ", "")


def klamm(line: str, servers: str) -> str:
    """Run `klamm ...`, or `echo TEXT | klamm ...`, and return what it prints."""
    said, _, command = line.rpartition(" | ")
    text = shlex.split(said)[1] + "\n" if said else None
    done = CliRunner().invoke(app, shlex.split(command)[1:], input=text, env={BOOTSTRAP_VARIABLE: servers})
    assert done.exit_code == 0, (line, done.output, done.exception)
    return done.output
