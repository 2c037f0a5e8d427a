"""Records on which a view fails: reported with their place, or written to the dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from klamm.errors import KlammError
from klamm.spark.pipeline.dead_letters import DeadLetters
from klamm.spark.pipeline.diagnosis import Diagnosis, Diagnostician
from klamm.spark.pipeline.pipeline_model import Sink
from klamm.spark.pipeline.run import run
from klamm.spark.pipeline.yaml_file import read_yaml
from klamm.spark.source.checkpoint_files import SparkCheckpoint
from klamm.spark.source.checkpoint_locations import CheckpointUnreachableError
from klamm.testing import LocalCluster
from tests.spark.conftest import TopicFactory
from tests.spark.pipeline.test_run import options
from tests.support.remote_checkpoints import mounted
from tests.support.topics import produce_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = """\
name: shop
checkpoint: {base}/ck
restart: {{attempts: 20, first_delay: 10ms, max_delay: 10ms}}
sources:
  orders: {{topic: {orders}, schema: "id long, amount string, at timestamp", watermark: {{column: at, delay: 0s}}}}
views:
  priced:
    sql: SELECT id, cast(amount AS double) AS amount, at FROM orders
    on_error: {on_error}
  totals: SELECT window.start AS minute, sum(amount) AS amount FROM priced GROUP BY window(at, '1 minute')
sinks:
  totals: {{from: totals, table: "{base}/totals"}}
"""


@pytest.mark.parametrize("checkpoint", ["", "unknown://host/ck", "file://elsewhere/ck"])
def test_a_checkpoint_that_cannot_be_read_hides_no_failure(spark: SparkSession, checkpoint: str) -> None:
    """Java's errors reach Python as several kinds: an invalid path, no such file system, one that refuses the path."""
    spec = read_yaml(SHOP.format(base="/nowhere", orders="orders", on_error="fail"), "shop.yaml")
    examiner = Diagnostician(spec, spark, "127.0.0.1:1", lambda name, frames: None)
    assert str(examiner.diagnose(spec.sinks[0], checkpoint)) == ""
    with pytest.raises(KlammError, match=r"The checkpoint .* (is not a valid path|cannot be read): ") as reported:
        SparkCheckpoint(spark, checkpoint).planned_batches()
    assert isinstance(reported.value, CheckpointUnreachableError) == bool(checkpoint)
    if checkpoint:
        assert SparkCheckpoint(spark, checkpoint).offsets_of(0) is None
        with pytest.raises(CheckpointUnreachableError):
            SparkCheckpoint(spark, checkpoint).query_id()


def rows(path: Path) -> list[dict[str, object]]:
    return list(deltalake.DeltaTable(path).to_pyarrow_table().to_pylist())


@pytest.mark.long
def test_a_record_on_which_a_view_fails_is_named_or_put_aside(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    orders, servers = topic("orders"), cluster.bootstrap_servers
    amounts = ["1.5"] * 20
    amounts[7], amounts[12] = "free", "n/a"
    at = "2026-07-01T10:{:02}:00Z"
    produce_json(servers, orders, [{"id": n, "amount": x, "at": at.format(n)} for n, x in enumerate(amounts)])
    reported: list[str] = []

    def shop(on_error: str) -> None:
        text = SHOP.format(base=tmp_path, orders=orders, on_error=on_error)
        run(read_yaml(text, "shop.yaml"), options(spark, servers, reported))

    place = rf"\(at view 'priced', record {orders}-0 offset 7\)"
    with pytest.raises(KlammError, match=rf"Sink totals failed: \[CAST_INVALID_INPUT.* SQLSTATE: 22018 {place}"):
        shop("fail")
    reported.clear()
    shop("dead_letter")
    assert sum(float(str(row["amount"])) for row in rows(tmp_path / "totals")) == 1.5 * 17, "the last one waits"
    letters = sorted(rows(tmp_path / "ck_dead_letters" / "priced"), key=lambda row: str(row["_offset"]))
    assert [row["_offset"] for row in letters] == [12, 7]
    assert letters[0]["value"] == b'{"id": 12, "amount": "n/a", "at": "2026-07-01T10:12:00Z"}'
    assert all("CAST_INVALID_INPUT" in str(row["_error"]) and row["_topic"] == orders for row in letters)
    assert sum("2 records, the first at" in line for line in reported) == 1, reported


REMOTE = """\
name: shop
checkpoint: {checkpoint}
restart: {{attempts: 20, first_delay: 10ms, max_delay: 10ms}}
sources: {{orders: {{topic: {orders}, schema: "id long, amount string"}}}}
views:
  priced:
    sql: SELECT id, cast(amount AS double) AS amount FROM orders
    on_error: dead_letter
    dead_letters: {base}/dead
sinks:
  priced: {{from: priced, table: "{base}/priced"}}
"""


@pytest.mark.long
def test_dead_letters_of_a_query_with_a_remote_checkpoint(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    orders, servers = topic("orders"), cluster.bootstrap_servers
    produce_json(servers, orders, [{"id": n, "amount": x} for n, x in enumerate(["1.5", "free", "2.5"])])
    remote = mounted(spark, tmp_path / "remote")
    spec = read_yaml(REMOTE.format(checkpoint=remote, base=tmp_path, orders=orders), "shop.yaml")
    searches: list[str] = []
    diagnose, add = Diagnostician.diagnose, DeadLetters.add

    def counted(self: Diagnostician, sink: Sink, checkpoint: str) -> Diagnosis:
        searches.append(checkpoint)
        return diagnose(self, sink, checkpoint)

    def full(self: DeadLetters, rows: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Diagnostician, "diagnose", counted)
    monkeypatch.setattr(DeadLetters, "add", full)
    with pytest.raises(KlammError, match="the dead letters were not written: No space left on device"):
        run(spec, options(spark, servers, []))
    assert searches == [f"{remote}/priced"], "the batch that fails again is not searched again"
    monkeypatch.setattr(DeadLetters, "add", add)
    reported: list[str] = []
    run(spec, options(spark, servers, reported))
    assert sorted(int(str(row["id"])) for row in rows(tmp_path / "priced")) == [0, 2]
    assert [row["_offset"] for row in rows(tmp_path / "dead")] == [1]
    assert sum("went to the dead letters" in line for line in reported) == 1, reported


@pytest.mark.long
def test_more_records_than_one_search_finds_are_put_aside_search_by_search(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("klamm.spark.pipeline.diagnosis.MAX_RECORDS", 2)
    orders, servers = topic("orders"), cluster.bootstrap_servers
    amounts = ["1.5", "x", "1.5", "y", "z", "1.5"]
    at = "2026-07-01T10:{:02}:00Z"
    produce_json(servers, orders, [{"id": n, "amount": x, "at": at.format(n)} for n, x in enumerate(amounts)])
    reported: list[str] = []
    run(
        read_yaml(SHOP.format(base=tmp_path, orders=orders, on_error="dead_letter"), "shop.yaml"),
        options(spark, servers, reported),
    )
    assert sum(float(str(row["amount"])) for row in rows(tmp_path / "totals")) == 1.5 * 2, "the last one waits"
    assert sorted(int(str(row["_offset"])) for row in rows(tmp_path / "ck_dead_letters" / "priced")) == [1, 3, 4]
    assert sum("went to the dead letters" in line for line in reported) == 2, reported
