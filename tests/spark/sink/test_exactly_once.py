"""Topics written exactly once: through Spark, at every point where a driver can die, and with processes killed.

`KLAMM_CRASH_MATRIX=long` kills drivers at every point, and executors too; the default kills a driver, a worker, the
leader of a partition and the coordinator, and has a zombie driver.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import klamm.spark as ks
from klamm.client.transaction_client import Ended, Transaction, TransactionClient
from klamm.errors import KlammError
from klamm.spark.dataframes import refuse_speculation
from klamm.spark.sink.exactly_once import Claim, SinkDriver
from klamm.spark.sink.sink_state import PreparedBatch, TakenOverError
from klamm.spark.sink.state_topic import StateTopic
from klamm.spark.sink.transactional_writer import (
    ExactlyOnceStreamWriter,
    Prepared,
    TaskIdentity,
    kept_claim,
    stream_claim,
    write_task,
)
from klamm.spark.sink.write_options import WriterOptions, parse
from klamm.spark.source.checkpoint_locations import CheckpointError
from klamm.spark.source.client_options import driver_client
from klamm.testing import LocalCluster
from tests.support.calm import kill_at_once
from tests.support.long_form import short_for
from tests.support.remote_checkpoints import mounted
from tests.support.sink_matrix import (
    KILLED,
    SinkMatrix,
    crashes_of_brokers,
    crashes_of_drivers,
    crashes_of_executors,
    zombie_driver,
)

TopicFactory = Callable[..., str]
TIMEOUT_MS = 600_000


def committed(spark: SparkSession, cluster: LocalCluster, topic: str) -> list[str]:
    """The records that everybody sees when all transactions have ended: their markers follow the answer."""
    wait_for_no_transaction(cluster)
    frame = ks.topic(
        spark,
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        streaming=False,
        **{"kafka.isolation.level": "read_committed"},
    )
    return sorted(row[0] for row in frame.selectExpr("string(value)").collect())


def open_transactions(cluster: LocalCluster) -> list[str]:
    with driver_client(cluster.bootstrap_servers) as client:
        return TransactionClient(client).open_ids("")


def wait_for_no_transaction(cluster: LocalCluster) -> None:
    """Much shorter than the time after which the coordinator ends a transaction that nobody ends."""
    cluster.wait_for(lambda: open_transactions(cluster) == [], timeout_s=120, what="the end of all transactions")


def test_streams_and_jobs_are_written_once_and_leave_no_transaction(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic("in", partitions=2), topic("out", partitions=3)
    servers = cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})

    def copy(mode: str = "append") -> None:
        for number in range(300):
            producer.produce(source, b"%d" % number, partition=number % 2)
        producer.flush()
        frame = ks.topic(spark, source, bootstrap_servers=servers, startingOffsets="earliest", maxOffsetsPerTrigger=200)
        if mode == "update":
            frame = frame.groupBy("value").count().selectExpr("value")
        query = ks.to_topic(
            frame.selectExpr("value"),
            target,
            bootstrap_servers=servers,
            checkpoint=tmp_path / mode,
            trigger="available_now",
            mode=mode,
            guarantee="exactly_once",
        )
        query.awaitTermination()

    copy()
    copy()  # the same query in the same session: another run
    assert committed(spark, cluster, target) == sorted(str(number) for number in range(300) for _ in range(2))
    copy("update")
    assert len(committed(spark, cluster, target)) >= 900, "each changed row of each batch"
    jobs = topic("jobs", partitions=2)
    writer = spark.range(100).repartition(2).selectExpr("string(id) as value").write.format("klamm").mode("append")
    options = {"kafka.bootstrap.servers": servers, "topic": jobs, "guarantee": "exactly_once"}
    writer.options(**options).save()
    assert committed(spark, cluster, jobs) == sorted(str(number) for number in range(100))
    failing = spark.range(100).repartition(2).selectExpr("string(id) as value", "if(id = 7, 9, 0) as partition")
    with pytest.raises(PySparkException, match=r"UNKNOWN_PARTITION\. The topic has 2 partitions"):
        failing.write.format("klamm").mode("append").options(**options).save()
    assert committed(spark, cluster, jobs) == sorted(str(number) for number in range(100)), "all or none"
    wait_for_no_transaction(cluster)
    options = {"kafka.transaction.timeout.ms": "7200000"}
    with pytest.raises(PySparkException, match="the brokers allow less: lower it, or raise"):
        ks.to_topic(
            ks.topic(spark, source, bootstrap_servers=servers, startingOffsets="earliest").selectExpr("value"),
            target,
            bootstrap_servers=servers,
            checkpoint=tmp_path / "long",
            trigger="available_now",
            guarantee="exactly_once",
            **cast(Any, options),
        ).awaitTermination()


@pytest.mark.parametrize("mode", ["append", pytest.param("update", marks=pytest.mark.long)])
def test_an_older_remote_checkpoint_is_refused_and_a_repeated_batch_or_a_new_checkpoint_is_not(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, mode: str
) -> None:
    source, target = topic("in"), topic("out")
    servers, prefix = cluster.bootstrap_servers, cluster.unique_topic_name("copy")
    remote = mounted(spark, local := tmp_path / "remote")
    producer = Producer({"bootstrap.servers": servers})

    def produce(value: str) -> None:
        producer.produce(source, value.encode())
        producer.flush()

    def run(checkpoint: str = remote) -> None:
        frame = ks.topic(spark, source, bootstrap_servers=servers, startingOffsets="earliest").selectExpr("value")
        query = ks.to_topic(
            frame,
            target,
            bootstrap_servers=servers,
            checkpoint=checkpoint,
            trigger="available_now",
            mode=mode,
            guarantee="exactly_once",
            transactionalIdPrefix=prefix,
        )
        query.awaitTermination()

    produce("a")
    run()
    shutil.copytree(local, older := tmp_path / "older")
    produce("b")
    run()
    (local / "commits" / "1").unlink()
    run()
    assert committed(spark, cluster, target) == ["a", "b"], "Spark repeats the batch: it does not know of its commit"
    shutil.rmtree(local)
    shutil.copytree(older, local)
    for value in ("c", "d"):
        produce(value)
        with pytest.raises(CheckpointError, match="has batch 1 of this query, and the checkpoint ends with batch 0"):
            run()
        assert not (local / "offsets" / "1").exists(), "the next start would take this batch for the topic's"
    assert committed(spark, cluster, target) == ["a", "b"]
    run(mounted(spark, tmp_path / "new"))
    assert committed(spark, cluster, target) == ["a", "a", "b", "b", "c", "d"], "another query under the same name"


def test_a_query_that_is_stopped_inside_a_batch_leaves_no_transaction(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic("in"), topic("out")
    servers = cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    large = b"x" * 100_000  # Spark keeps 64 KiB of a worker's rows back until more follow
    for _ in range(4):
        producer.produce(source, large, partition=0)
    producer.flush()

    def stuck(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 2:
                time.sleep(600)  # until Spark kills the worker

    def begun_by_the_task() -> list[str] | None:
        """The driver opens transactions too, for moments."""
        return [each for each in open_transactions(cluster) if not each.endswith(".driver")] or None

    frame = ks.topic(spark, source, bootstrap_servers=servers, startingOffsets="earliest").selectExpr("value")
    rows = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    options = {"kafka.batch.size": "1000"}  # the task sends each row when it gets it
    try:
        query = ks.to_topic(
            frame.mapInArrow(stuck, "value binary"),
            target,
            bootstrap_servers=servers,
            checkpoint=tmp_path / "stopped",
            guarantee="exactly_once",
            **cast(Any, options),
        )
        cluster.wait_for(begun_by_the_task, timeout_s=300, what="a transaction of the task")
        query.stop()
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows))
    assert committed(spark, cluster, target) == []


def test_all_processes_of_an_application_share_a_claim(
    cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark plans batches in several processes: one that claimed again would end the batches of the others."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    options = parse(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "topic": topic(),
            "guarantee": "exactly_once",
            "transactionalIdPrefix": cluster.unique_topic_name("shared"),
        }
    )
    assert kept_claim(options) is None
    found = stream_claim(options)
    assert found == stream_claim(options) == kept_claim(options) and found.generation == 1
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "another application"))
    (tmp_path / "another application").mkdir()
    assert stream_claim(options).generation == 2


def test_an_application_that_lost_its_claim_gets_the_sink_back_with_its_next_run(
    cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query was moved to another application and back. The first one still has its claim of the first time."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    options = parse(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "topic": topic(),
            "guarantee": "exactly_once",
            "transactionalIdPrefix": cluster.unique_topic_name("moved"),
        }
    )

    def run() -> None:
        claim = stream_claim(options)
        rows = iter([pa.record_batch({"value": pa.array(["a"], pa.string())})])
        message = write_task(options, claim, TaskIdentity("query", "aa", 0, 0, 0), rows)
        ExactlyOnceStreamWriter(options, claim).commit([message], 0)

    first = stream_claim(options)
    SinkDriver(cluster.bootstrap_servers, TIMEOUT_MS).claim(first.sink)
    with pytest.raises(TakenOverError):
        run()
    run()
    assert stream_claim(options).generation == first.generation + 2


def test_speculation_is_refused() -> None:
    settings: Any = SimpleNamespace(conf={"spark.speculation": "true"})
    with pytest.raises(KlammError, match=r"needs spark\.speculation=false"):
        refuse_speculation(settings)
    refuse_speculation(SimpleNamespace(conf={}))  # type: ignore[arg-type]
    frame: Any = SimpleNamespace(isStreaming=True, sparkSession=settings)
    with pytest.raises(KlammError, match=r"needs spark\.speculation=false"):
        ks.to_topic(frame, "t", bootstrap_servers="b:1", checkpoint="c", guarantee=" Exactly_Once")


class Sink:
    """A sink without Spark: tasks are calls, and a driver dies by an exception."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.servers = cluster.bootstrap_servers
        self.name = cluster.unique_topic_name("sink")
        self.options: WriterOptions = parse(
            {"kafka.bootstrap.servers": self.servers, "topic": topic, "guarantee": "exactly_once"}
        )
        self.driver = SinkDriver(self.servers, TIMEOUT_MS)

    def run(self, batch: int, values: list[str], run: str = "aa", attempt: int = 0) -> tuple[PreparedBatch, bool]:
        """Claim the sink and prepare a batch in two tasks, as a driver that has just started does."""
        return self._prepare(self.driver.claim(self.name), batch, values, run, attempt)

    def job(self, values: list[str]) -> PreparedBatch:
        """Prepare a job in two tasks, as `df.write` does."""
        return self._prepare(Claim(self.name, 0), 0, values, "aa", 0)[0]

    def _prepare(
        self, claim: Claim, batch: int, values: list[str], run: str, attempt: int
    ) -> tuple[PreparedBatch, bool]:
        messages: list[Prepared] = []
        for partition, part in enumerate((values[::2], values[1::2])):
            task = TaskIdentity("query", run, batch, partition, attempt)
            rows = iter([pa.record_batch({"value": pa.array(part, pa.string())})])
            messages.append(write_task(self.options, claim, task, rows))
        assert not any(message.failure for message in messages)
        transactions = tuple(message.transaction for message in messages if message.transaction is not None)
        prepared = PreparedBatch(self.name, "query", claim.generation, batch, transactions)
        return prepared, any(message.is_skipped for message in messages)

    def commit(self, prepared: PreparedBatch) -> bool:
        return self.driver.commit(prepared, may_have_leftovers=False)


class Died(Exception):
    pass


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the driver die at a point of its next commit."""

    def at(point: str) -> None:
        change, end_all = StateTopic.change, TransactionClient.end_all

        def changing(self: StateTopic, *arguments: Any) -> Any:
            if point == "before the decision":
                raise Died
            change(self, *arguments)
            raise Died

        def ending(
            self: TransactionClient, transactions: list[Transaction], *, commit: bool
        ) -> dict[Transaction, Ended]:
            end_all(self, transactions[:1], commit=commit)
            raise Died

        if point == "between two ends":
            monkeypatch.setattr(TransactionClient, "end_all", ending)
        else:
            monkeypatch.setattr(StateTopic, "change", changing)

    return at


@pytest.mark.parametrize(
    "point", short_for(["after the decision"], ["before the decision", "after the decision", "between two ends"])
)
def test_a_batch_is_whole_wherever_its_driver_dies(
    spark: SparkSession,
    cluster: LocalCluster,
    topic: TopicFactory,
    dies: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    name = topic("copy", partitions=2)
    sink = Sink(cluster, name)
    prepared, _ = sink.run(0, ["a", "b", "c"])
    dies(point)
    with pytest.raises(Died):
        sink.commit(prepared)
    monkeypatch.undo()
    again, is_skipped = sink.run(0, ["a", "b", "c"], "bb")
    assert is_skipped == (point != "before the decision")
    assert sink.commit(again) == (point == "before the decision")
    assert committed(spark, cluster, name) == ["a", "b", "c"]
    with pytest.raises(TakenOverError):
        sink.commit(prepared)
    assert sink.commit(sink.run(1, ["d"])[0])
    assert committed(spark, cluster, name) == ["a", "b", "c", "d"]
    wait_for_no_transaction(cluster)


@pytest.mark.parametrize("point", short_for(["between two ends"], ["after the decision", "between two ends"]))
def test_the_next_job_completes_a_decided_job_whose_driver_died(
    spark: SparkSession,
    cluster: LocalCluster,
    topic: TopicFactory,
    dies: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    """Decision 0033. The next job writes to another topic, and knows nothing of the first one."""
    name, other = topic("job", partitions=2), topic("next", partitions=1)
    sink = Sink(cluster, name)
    prepared = sink.job(["a", "b", "c"])
    assert len(prepared.transactions) == 2
    dies(point)
    with pytest.raises(Died):
        sink.driver.commit_job(prepared, may_have_leftovers=False)
    monkeypatch.undo()
    assert open_transactions(cluster), "the driver died before all its transactions had ended"
    rows = spark.range(2).coalesce(1).selectExpr("string(id) as value")
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": other, "guarantee": "exactly_once"}
    rows.write.format("klamm").mode("append").options(**options).save()
    assert committed(spark, cluster, name) == ["a", "b", "c"]
    assert committed(spark, cluster, other) == ["0", "1"]
    sink.driver.finish_jobs()
    assert committed(spark, cluster, name) == ["a", "b", "c"], "nothing is left to complete"


def test_a_job_succeeds_while_another_driver_completes_it(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are committed: a driver that reported a failure would have them written once more."""
    name = topic("job", partitions=2)
    sink = Sink(cluster, name)
    prepared = sink.job(["a", "b", "c"])
    write = StateTopic._write

    def late(self: StateTopic, change: Transaction, key: str, value: bytes | None) -> None:
        if value is None:  # the state is removed
            monkeypatch.undo()
            SinkDriver(sink.servers, TIMEOUT_MS).finish_jobs()  # as a job that starts now does
        write(self, change, key, value)

    monkeypatch.setattr(StateTopic, "_write", late)
    sink.driver.commit_job(prepared, may_have_leftovers=False)
    assert StateTopic._write is write, "the state was removed"
    assert committed(spark, cluster, name) == ["a", "b", "c"]
    sink.driver.finish_jobs()
    assert committed(spark, cluster, name) == ["a", "b", "c"], "nothing is left to complete"


def test_a_zombie_disturbs_no_other_and_fails_with_a_sentence(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory
) -> None:
    name = topic("copy", partitions=2)
    sink = Sink(cluster, name)
    old, _ = sink.run(0, ["a", "b"], "aa")
    new, _ = sink.run(0, ["a", "b"], "bb")
    with pytest.raises(TakenOverError, match="Another run of the query has taken over the sink"):
        sink.commit(old)  # its transactions were swept
    with pytest.raises(TakenOverError):
        sink.driver.commit(replace(old, transactions=()), may_have_leftovers=True)
    sink.driver.abort(sink.name, old.generation, old.transactions)
    assert sink.commit(new)
    sink.driver.abort(sink.name, new.generation, new.transactions)
    assert committed(spark, cluster, name) == ["a", "b"]
    wait_for_no_transaction(cluster)


def test_an_abort_after_the_decision_aborts_nothing(
    spark: SparkSession,
    cluster: LocalCluster,
    topic: TopicFactory,
    dies: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark calls abort after a commit that failed, and the commit may have failed after its decision."""
    name = topic("copy", partitions=2)
    sink = Sink(cluster, name)
    prepared, _ = sink.run(0, ["a", "b"])
    dies("after the decision")
    with pytest.raises(Died):
        sink.commit(prepared)
    monkeypatch.undo()
    sink.driver.abort(sink.name, prepared.generation, prepared.transactions)
    sink.driver.claim(sink.name)
    assert committed(spark, cluster, name) == ["a", "b"]
    other, _ = sink.run(1, ["c", "d"])
    sink.driver.abort(sink.name, other.generation, other.transactions[:1])
    wait_for_no_transaction(cluster)  # of the task without a message either
    assert committed(spark, cluster, name) == ["a", "b"]


def test_an_attempt_beside_an_open_one_takes_another_id(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory
) -> None:
    """Spark counts the attempts of tasks from 0 again if it repeats a stage."""
    name = topic("copy", partitions=1)
    sink = Sink(cluster, name)
    claim = sink.driver.claim(sink.name)
    task = TaskIdentity("query", "aa", 0, 0, 0)
    made = [
        write_task(sink.options, claim, task, iter([pa.record_batch({"value": pa.array(["a"])})])) for _ in range(2)
    ]
    assert [message.has_siblings for message in made] == [False, True]
    [first, second] = [message.transaction for message in made]
    assert first is not None and second is not None
    prepared = PreparedBatch(sink.name, "query", claim.generation, 0, (second,))
    assert sink.driver.commit(prepared, may_have_leftovers=True)
    assert committed(spark, cluster, name) == ["a"]
    wait_for_no_transaction(cluster)


@pytest.fixture
def matrix(cluster: LocalCluster, topic: TopicFactory, tmp_path: Path) -> Iterator[SinkMatrix]:
    source, target = (topic(name, partitions=2, replication_factor=3) for name in ("source", "target"))
    made = SinkMatrix(cluster, source, target, tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(3600)
@pytest.mark.long
def test_nothing_is_lost_or_duplicated_whichever_process_is_killed(matrix: SinkMatrix, cluster: LocalCluster) -> None:
    if os.environ.get("KLAMM_CRASH_MATRIX") == "long":
        crashes_of_drivers(matrix)
        zombie_driver(matrix)
        crashes_of_brokers(matrix, lambda broker_id: kill_at_once(cluster, broker_id))
        crashes_of_executors(matrix)
        return
    matrix.produce(3)
    assert matrix.run(("between_ends", 1, "driver")) == KILLED
    assert not matrix.is_committed_in_spark(1)
    assert matrix.run(("after_rows", 2, "worker")) == 0, matrix.said()
    matrix.check()
    zombie_driver(matrix)
    crashes_of_brokers(matrix, lambda broker_id: kill_at_once(cluster, broker_id))
