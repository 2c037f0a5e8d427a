"""Pipeline files in Python: the builder, and what is refused before Spark starts."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.spark.pipeline.load_file import load
from klamm.spark.pipeline.pipeline_model import PipelineSpec
from klamm.spark.pipeline.pipeline_problems import PipelineError

GOOD = """\
from __future__ import annotations
from dataclasses import dataclass
from klamm.spark.pipeline import Pipeline

@dataclass
class Limit:
    amount: float = 1000

pipeline = Pipeline("orders", checkpoint="ck", trigger="2s")
pipeline.source("orders", schema="id long, amount double, at timestamp", watermark=("at", "10 minutes"))

@pipeline.view
def large(fresh):
    return fresh.where(f"amount > {Limit().amount}")

@pipeline.view(deduplicate=("id",))
def fresh(orders):
    return orders

pipeline.sql("counted", "select count(*) n from large")
pipeline.sink("out", "large", topic="large-orders", key="id")
pipeline.sink("lake", "counted", table="/lake")
"""


def loaded(tmp_path: Path, text: str) -> PipelineSpec:
    path = tmp_path / "orders.py"
    path.write_text(textwrap.dedent(text))
    return load(path)


def test_a_whole_file(tmp_path: Path) -> None:
    spec = loaded(tmp_path, GOOD)
    assert [view.name for view in spec.views] == ["fresh", "large", "counted"]
    assert spec.views[1].inputs == ("fresh",)
    assert spec.views[0].deduplicate == ("id",)
    assert [sink.format for sink in spec.sinks] == ["json", "delta"]
    assert spec.trigger.interval_ms == 2000


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("def large(fresh)", "def large(frsh)", 12, "Did you mean 'fresh'?"),
        ('"10 minutes"', '"a while"', 10, "not a duration"),
        ('watermark=("at", "10 minutes")', 'watermark="at"', 10, "write ('column', '10 minutes')"),
        ("key=", "kex=", 21, "no key 'kex'. Did you mean 'key'?"),
        ("def fresh(orders)", "def fresh()", 16, "it reads nothing"),
        ("    return orders", "    return orders +", 18, "not Python"),
        ("pipeline.sql(", "undefined(", 20, "NameError"),
        ('trigger="2s"', 'trigger="now"', 9, "a duration like 5s"),
        ("from large", "from big", 20, "neither a source nor a view"),
    ],
)
def test_mistakes_have_a_line_and_a_reason(tmp_path: Path, old: str, new: str, line: int, reason: str) -> None:
    with pytest.raises(PipelineError) as caught:
        loaded(tmp_path, GOOD.replace(old, new, 1))
    found = [(problem.line, problem.reason) for problem in caught.value.problems]
    assert any(at == line and reason in reported for at, reported in found), found


def test_one_file_is_one_pipeline(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="does not create"):
        loaded(tmp_path, "x = 1")
    with pytest.raises(PipelineError, match="2 pipelines"):
        loaded(tmp_path, GOOD + '\nother = Pipeline("b", checkpoint="c")\n')
    with pytest.raises(KlammError, match=r"\.yaml, \.yml or \.py"):
        load(tmp_path / "x.toml")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.yaml")
