"""`klamm pipeline` as far as it goes without Spark: messages about a start, a reset, a missing topic."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from klamm.cli.pipeline import missing_topic, reset, status
from klamm.errors import KlammError
from klamm.spark.pipeline.load_file import load
from klamm.spark.pipeline.pipeline_model import Trigger
from klamm.spark.pipeline.run import RunOptions
from klamm.spark.pipeline.run import run as run_pipeline
from klamm.spark.pipeline.state import RunFile, runs

PIPELINE = "name: p\ncheckpoint: {base}/ck\nsources: {{t: {{format: raw}}}}\nsinks: {{s: {{from: t, topic: out}}}}\n"


def test_reset_of_what_never_ran_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(base=tmp_path))
    reset(file, [], yes=True)
    assert capsys.readouterr().out == f"There is nothing to reset: p has no checkpoint in {tmp_path}/ck.\n"


def test_a_pipeline_that_starts_is_told_as_such_and_leaves_the_list_when_it_is_reset(
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
    told = capsys.readouterr()
    assert " s     failed " in told.out and "p, s: Spark did not start." in told.err and "spark.log" in told.err
    (tmp_path / "ck" / "s").mkdir()
    reset(file, [], yes=True)
    status()
    assert capsys.readouterr().out.splitlines()[:1] == ["Reset s."] and not list(runs())


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
    told = capsys.readouterr()
    assert " finished " in told.out and f"p: the checkpoint {tmp_path}/ck is no longer there." in told.err


def test_a_topic_that_is_missing_can_be_made() -> None:
    assert missing_topic("ordrs", ["orders"]) == " Did you mean 'orders'? `klamm topic create ordrs` makes it."
    assert missing_topic("out", ["orders"]) == " `klamm topic create out` makes it."
