"""Aborted transactions: SQL, pipelines and synchronised tables do not read them, unless a level is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import klamm.spark as ks
from klamm.spark.pipeline.pipeline_model import Trigger
from klamm.spark.pipeline.run import RunOptions, run
from klamm.spark.pipeline.yaml_file import read_yaml
from klamm.spark.sql.topic_tables import TopicTables
from klamm.spark.tables.sync import sync
from klamm.spark.tables.table_definition import TableDefinition, create_table
from klamm.testing import LocalCluster
from tests.spark.conftest import TopicFactory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COPY = """\
name: copy
checkpoint: {base}/ck
sources:
  orders: {{topic: {topic}, schema: id long}}
  everything: {{topic: {topic}, schema: id long, options: {{kafka.isolation.level: read_uncommitted}}}}
sinks:
  committed: {{from: orders, table: "{base}/committed"}}
  all: {{from: everything, table: "{base}/all"}}
"""


def produce_transactions(servers: str, topic: str) -> None:
    """One committed transaction (id 0), then an aborted one (id 1)."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "transactional.id": topic})
    producer.init_transactions(60)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, b'{"id": %d}' % number)
        assert producer.flush(60) == 0, "an abort would drop what is not yet in the log"
        end(60)


def test_only_committed_records_are_read_by_default(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    servers, orders = cluster.bootstrap_servers, topic("orders")
    produce_transactions(servers, orders)

    def ids(level: Mapping[str, str] | None = None) -> list[int]:
        found = TopicTables(spark, servers, lambda: [orders], level).query(f"select id from `{orders}` order by id")
        return [row["id"] for row in found.collect()]

    assert ids() == [0]
    assert ids({"kafka.isolation.level": "read_uncommitted"}) == [0, 1]

    @contextlib.contextmanager
    def shared(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    spec = read_yaml(COPY.format(base=tmp_path, topic=orders), "copy.yaml")
    run(spec, RunOptions(servers, Trigger(available_now=True), session=shared))
    assert table_ids(spark, tmp_path / "committed") == [0]
    assert table_ids(spark, tmp_path / "all") == [0, 1]

    lake = tmp_path / "lake"
    create_table(lake, TableDefinition(topic=orders, bootstrap_servers=servers, format="json", schema="id long"))
    sync(spark, lake).awaitTermination()
    assert table_ids(spark, lake) == [0]


def table_ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["id"] for row in ks.table(spark, path).collect())
