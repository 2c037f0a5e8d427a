"""A pipeline on Spark that fails, is stopped, and is changed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import deltalake.exceptions
import pytest

from klamm.errors import KlammError
from klamm.spark.pipeline.load_file import load
from klamm.spark.pipeline.pipeline_model import PipelineSpec, Trigger
from klamm.spark.pipeline.run import RunOptions, run
from klamm.spark.pipeline.state import runs
from klamm.spark.pipeline.yaml_file import read_yaml
from klamm.testing import LocalCluster
from tests.spark.conftest import TopicFactory
from tests.support.topics import produce_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTED = """\
name: counted
checkpoint: {base}/ck
restart: {{attempts: 5, first_delay: 50ms, max_delay: 100ms}}
sources:
  events:
    topic: {topic}
    schema: id long, at timestamp
    watermark: {{column: at, delay: 1 second}}
views:
  counts: |
    SELECT window.start AS w, {key} AS k, count(*) AS n
    FROM events
    WHERE {where}
    GROUP BY window(at, '{width}'), {key}
sinks:
  lake: {{from: counts, table: "{base}/lake"}}
"""


def options(spark: SparkSession, servers: str, reported: list[str], once: bool = True, **others: Any) -> RunOptions:
    @contextlib.contextmanager
    def shared(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    return RunOptions(servers, Trigger(available_now=once), report=reported.append, session=shared, **others)


def pipeline(base: Path, topic: str, **changes: str) -> PipelineSpec:
    parts = {"key": "id % 2", "where": "id >= 0", "width": "1 minute", **changes}
    return read_yaml(COUNTED.format(base=base, topic=topic, **parts), "counted.yaml")


def test_a_changed_query_fails_and_names_the_change(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    events, servers = topic("events"), cluster.bootstrap_servers
    produce_json(servers, events, [{"id": n, "at": f"2026-07-01T10:0{n}:00Z"} for n in range(5)])
    reported: list[str] = []
    run(pipeline(tmp_path, events), options(spark, servers, reported))
    assert reported[0] == "Spark runs, waiting for the plans of 1 source and 1 view"
    assert reported[-1] == "lake: finished"
    (state,) = runs()
    assert state["queries"]["lake"]["state"] == "finished" and not state["alive"]

    # A filter may change; keys and windows may not.
    run(pipeline(tmp_path, events, where="id > 0"), options(spark, servers, reported))
    with pytest.raises(KlammError, match=r"it had: aggregate by \[.*% .*2.*\n.*it now has: aggregate by \[.*3"):
        run(pipeline(tmp_path, events, key="id % 3"), options(spark, servers, reported))
    with pytest.raises(KlammError, match=r"klamm pipeline reset counted\.yaml --sink lake"):
        run(pipeline(tmp_path, events, width="2 minutes"), options(spark, servers, reported))
    with pytest.raises(KlammError, match=r"counted\.yaml:\d+: view 'counts': .*missing"):
        run(pipeline(tmp_path, events, key="missing"), options(spark, servers, reported))


PLAIN = """\
name: plain
checkpoint: {base}/ck
restart: {{attempts: 20, first_delay: 50ms, max_delay: 100ms}}
sources:
  events: {{topic: {topic}, schema: id long}}
sinks:
  lake: {{from: events, table: "{base}/lake"}}
"""


def test_a_failed_query_is_restarted_and_a_signal_stops_it_after_its_batch(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    events, servers = topic("events"), cluster.bootstrap_servers
    produce_json(servers, events, [{"id": 1}])
    spec = read_yaml(PLAIN.format(base=tmp_path, topic=events), "plain.yaml")
    reported: list[str] = []
    trouble: list[str] = []
    before = source_processes()

    def interfere() -> None:
        """Kills the query's source process, adds a record, and asks for the end, as another terminal would."""
        try:
            wait_for(lambda: table_ids(tmp_path) == [1], "a first batch")
            for pid in source_processes() - before:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: any("restart in" in line for line in reported), "the supervisor to notice")
            with pytest.raises(KlammError, match="in use: pipeline plain runs as process"):
                run(spec, options(spark, servers, []))
            produce_json(servers, events, [{"id": 2}])
            wait_for(lambda: table_ids(tmp_path) == [1, 2], "a batch after the restart")
        except BaseException as error:
            trouble.append(repr(error))
        finally:
            signal.pthread_kill(main, signal.SIGTERM)

    main = threading.get_ident()
    thread = threading.Thread(target=interfere, daemon=True)
    thread.start()
    run(spec, options(spark, servers, reported, once=False))
    thread.join(60)
    assert not trouble, (trouble, reported)
    assert reported[-2:] == ["stopping after the running batch: SIGTERM", "lake: stopped"]
    assert table_ids(tmp_path) == [1, 2]
    (state,) = runs()
    assert state["queries"]["lake"]["restarts"] >= 1 and not state["alive"]


MISTAKEN = """\
from pyspark.sql import functions as F
from klamm.spark.pipeline import Pipeline
from klamm.spark.pipeline.pipeline_model import Restart

pipeline = Pipeline("mistaken", checkpoint="{base}/ck", restart=Restart(20, 10, 10))
pipeline.source("events", topic="{topic}", schema="id long")

@F.udf("boolean")
def is_small(number):
    return number <= 5.0

@pipeline.view
def small(events):
    return events.where(is_small("id"))

pipeline.sink("lake", "small", table="{base}/lake")
"""


@pytest.mark.long
def test_a_mistake_in_a_function_is_reported_with_its_line_and_not_retried_for_ever(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    events, servers = topic("events"), cluster.bootstrap_servers
    produce_json(servers, events, [{"other": 1}])
    file = tmp_path / "mistaken.py"
    file.write_text(MISTAKEN.format(base=tmp_path, topic=events))
    reported: list[str] = []
    with pytest.raises(
        KlammError, match=r"mistaken\.py line 10: TypeError: '<=' .*3 times in the same batch"
    ) as caught:
        run(load(file), options(spark, servers, reported, log="spark.log"))
    assert str(caught.value).endswith("\nSpark's log is spark.log.")
    assert sum("restart in" in line for line in reported) == 2
    (state,) = runs()
    assert "TypeError" in state["queries"]["lake"]["failure"]


def test_counts_without_a_watermark_fail_and_name_the_setting(
    spark: SparkSession, cluster: LocalCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    text = PLAIN.format(base=tmp_path, topic=topic("events")).replace("from: events, table", "from: counts, table")
    text += "  out: {from: counts, topic: out}\nviews: {counts: SELECT count(*) AS n FROM events}\n"
    reported: list[str] = []
    with pytest.raises(KlammError, match=r"plain\.yaml:7: sink 'lake': .*A table accepts finished rows only: give"):
        run(read_yaml(text, "plain.yaml"), options(spark, cluster.bootstrap_servers, reported))
    topics = "\n".join(line for line in text.splitlines() if "lake:" not in line)
    with pytest.raises(
        KlammError, match=r"plain\.yaml:7: sink 'out': .*Set `mode: update` or `mode: complete`, or give"
    ):
        run(read_yaml(topics, "plain.yaml"), options(spark, cluster.bootstrap_servers, reported))


def table_ids(base: Path) -> list[int]:
    try:
        return sorted(row["id"] for row in deltalake.DeltaTable(base / "lake").to_pyarrow_table().to_pylist())
    except deltalake.exceptions.TableNotFoundError:
        return []


def source_processes() -> set[int]:
    """The processes below this one that read a stream for Spark's driver."""
    found, parents = set(), {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"python_streaming_source_runner" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return {pid for pid in found if os.getpid() in ancestors(pid, parents)}


def ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def wait_for(done: Callable[[], bool], what: str, timeout_s: float = 200.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"did not see {what}"
        time.sleep(0.05)
