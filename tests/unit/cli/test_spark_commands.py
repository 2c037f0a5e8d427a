"""The commands of Spark as far as they go without it: what is missing, what is wrong, what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.cli import demo_spark
from klamm.cli.output import Failure
from klamm.cli.pipeline import reset, status, stop, validate
from klamm.cli.spark import cluster_down, cluster_status
from klamm.cli.spark_session import require_spark
from klamm.cli.table import create, sync
from klamm.errors import KlammError
from klamm.spark.cluster import doctor
from klamm.spark.cluster import standalone as cluster
from klamm.spark.cluster.shipping import source_archive
from klamm.spark.cluster.warmup import warmup
from klamm.spark.pipeline.state import CheckpointLock
from klamm.spark.tables.table_definition import TableDefinition, checkpoint_of, create_table, load_definition

PIPELINE = "name: p\ncheckpoint: {base}/ck\nsources: {{t: {{format: raw}}}}\nsinks: {{s: {{from: t, topic: out}}}}\n"


def test_without_java_the_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Failure, match="Spark needs Java 17"):
        require_spark()
    assert "needs Java 17" in demo_spark.missing()
    assert doctor.java().state == "failed"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor.java().found == "missing"


def test_doctor_finds_what_is_installed() -> None:
    found = {finding.what: finding.state for finding in doctor.findings()}
    assert found["Java"] == found["pyspark"] == found['format("klamm")'] == "ok"


def test_validate_shows_what_a_file_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(base=tmp_path))
    validate(file)
    assert capsys.readouterr().out.endswith("t to topic out, append, at least once\n")
    file.write_text(PIPELINE.format(base=tmp_path).replace("topic: out", "tpic: out"))
    with pytest.raises(KlammError, match=r"p\.yaml:4: sink 's' has no key 'tpic'\. Did you mean 'topic'\?"):
        validate(file)


def test_status_stop_and_reset_of_a_pipeline_that_never_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(base=tmp_path))
    status()
    assert capsys.readouterr().out.startswith("Pipeline")
    with pytest.raises(Failure, match="There is no pipeline p"):
        status("p")
    with pytest.raises(Failure, match="No pipeline p runs"):
        stop("p")
    with pytest.raises(Failure, match="no sink 'x'"):
        reset(file, ["x"], yes=True)
    reset(file, [], yes=True)
    file.write_text(PIPELINE.format(base="s3a://bucket"))
    with pytest.raises(Failure, match="not on this machine"):
        reset(file, [], yes=True)


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KlammError, match="no Spark cluster"):
        cluster_down(tmp_path)
    with pytest.raises(KlammError, match="no Spark cluster"):
        cluster_status(tmp_path)
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(KlammError, match="damaged"):
        cluster.read(tmp_path)
    gone = cluster.Node("master", 2**22 + 1, "1")
    assert cluster.SparkCluster("spark://127.0.0.1:1", "http://127.0.0.1:1", (gone,)).alive() == []
    assert cluster.master_state(cluster.SparkCluster("", "http://127.0.0.1:1", ()), 0.5) is None


def test_the_archive_holds_both_packages(tmp_path: Path) -> None:
    import zipfile

    archive = source_archive(tmp_path)
    assert source_archive(tmp_path) == archive
    names = set(zipfile.ZipFile(archive).namelist())
    assert {"klamm/__init__.py", "klamm/spark/data_source.py", "pyspark_klamm/__init__.py"} <= names


def test_warmup_runs_every_kernel() -> None:
    assert warmup() == 3


def test_the_table_of_bad_records_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create(Path("lake/orders"), "orders", schema="id long", bad_records="lake/bad", bootstrap_server="127.0.0.1:1")
    assert load_definition(tmp_path / "lake/orders").bad_records == str(tmp_path / "lake/bad")
    with pytest.raises(KlammError, match="s3:// is not supported"):
        create(Path("lake/more"), "orders", schema="id long", bad_records="s3://b/bad", bootstrap_server="127.0.0.1:1")


def test_a_second_sync_of_a_table_is_refused(tmp_path: Path) -> None:
    create_table(tmp_path / "t", TableDefinition("orders", "127.0.0.1:1", schema="id long"))
    with (
        CheckpointLock(str(checkpoint_of(tmp_path / "t")), "sync of t", 0),
        pytest.raises(KlammError, match=r"in use: pipeline sync of t runs as process \d+"),
    ):
        sync(tmp_path / "t")
