"""`klamm pipeline` as far as it goes without Spark: messages about a start, a reset, a missing topic."""

from __future__ import annotations

import os
import shlex
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.pipeline import missing_topic, reset, status
from klamm.errors import KlammError
from klamm.spark.pipeline.load_file import load
from klamm.spark.pipeline.pipeline_model import Trigger
from klamm.spark.pipeline.run import RunOptions
from klamm.spark.pipeline.run import run as run_pipeline
from klamm.spark.pipeline.state import RunFile, runs
from klamm.spark.query.progress_sinks import PrometheusEndpoint

PIPELINE = "name: p\ncheckpoint: {base}/ck\nsources: {{t: {{format: raw}}}}\nsinks: {{s: {{from: t, topic: out}}}}\n"


def test_reset_of_a_pipeline_that_never_ran_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(base=tmp_path))
    reset(file, [], yes=True)
    assert capsys.readouterr().out == f"There is nothing to reset: p has no checkpoint in {tmp_path}/ck.\n"


def test_a_pipeline_that_starts_is_listed_as_such_and_leaves_the_list_when_it_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(base=tmp_path))
    RunFile("p", str(tmp_path / "ck")).write({"checkpoint": str(tmp_path / "ck"), "name": "p", "pid": 1, "queries": {}})
    shown: list[str] = []

    def session(master: str, app_name: str, conf: Mapping[str, str]) -> Any:
        status()
        shown.append(capsys.readouterr().out)
        raise KlammError("Spark did not start.")

    with pytest.raises(KlammError, match="did not start"):
        run_pipeline(load(file), RunOptions("127.0.0.1:1", Trigger(), session=session, log="spark.log"))
    assert f" {os.getpid()} " in shown[0] and " s     starting " in shown[0]
    status()
    reported = capsys.readouterr()
    assert (
        " s     failed " in reported.out
        and "p, s: Spark did not start." in reported.err
        and "spark.log" in reported.err
    )
    (tmp_path / "ck" / "s").mkdir()
    reset(file, [], yes=True)
    status()
    assert capsys.readouterr().out.splitlines()[:1] == ["Reset s."] and not list(runs())


def test_metrics_name_the_sinks_before_spark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(base=tmp_path))
    endpoint = PrometheusEndpoint()
    shown: list[str] = []

    def read() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60) as answer:
            shown.append(answer.read().decode())

    def session(master: str, app_name: str, conf: Mapping[str, str]) -> Any:
        read()
        raise KlammError("Spark did not start.")

    try:
        with pytest.raises(KlammError, match="did not start"):
            run_pipeline(load(file), RunOptions("127.0.0.1:1", Trigger(), session=session, progress=[endpoint]))
        read()
    finally:
        endpoint.close()
    for text, state in zip(shown, ("starting", "failed"), strict=True):
        assert 'klamm_spark_query_up{query="p.s"} 0' in text
        assert f'klamm_spark_query_state{{query="p.s",state="{state}"}} 1' in text


def test_status_says_that_a_checkpoint_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    queries = {"s": {"state": "finished", "restarts": 0}}
    (tmp_path / "ck").mkdir()
    RunFile("p", str(tmp_path / "ck")).write(
        {"checkpoint": str(tmp_path / "ck"), "name": "p", "pid": 1, "queries": queries}
    )
    status()
    assert capsys.readouterr().err == ""
    (tmp_path / "ck").rename(tmp_path / "moved")
    status()
    reported = capsys.readouterr()
    assert " finished " in reported.out and f"p: the checkpoint {tmp_path}/ck is no longer there." in reported.err


def test_a_topic_that_is_missing_can_be_made() -> None:
    assert missing_topic("ordrs", ["orders"]) == " Did you mean 'orders'? `klamm topic create ordrs` makes it."
    assert missing_topic("out", ["orders"]) == " `klamm topic create out` makes it."


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        *[(command, "yaml") for command in ("status", "stop p", "validate {}", "run {}", "reset {}")],
        *[(command, "pyspark") for command in ("validate {}", "run {}", "reset {}")],
    ],
)
def test_without_the_extra_a_command_names_it(
    command: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(base=tmp_path))
    monkeypatch.setitem(sys.modules, missing, None)
    done = CliRunner().invoke(app, ["pipeline", *shlex.split(command.format(shlex.quote(str(file))))])
    assert isinstance(done.exception, SystemExit | KlammError), done.exception
    assert "pip install 'klamm[spark]'" in f"{done.output}{done.exception}"
