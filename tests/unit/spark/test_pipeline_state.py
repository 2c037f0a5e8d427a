"""The lock on a checkpoint, the status that runs report, and the shape of a query on which its checkpoint depends."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.errors import KlammError
from klamm.spark.pipeline.shape import QueryShape, ShapeFile, changes, shape_of
from klamm.spark.pipeline.state import (
    CheckpointLock,
    RunFile,
    forget_moved,
    holder,
    home_of,
    refuse_if_running,
    runs,
)
from klamm.spark.pipeline.yaml_file import read_yaml
from klamm.state_directory import state_directory

PIPELINE = """\
name: p
checkpoint: CK
sources:
  a: {schema: id long}
  b: {schema: id long, topic: b.v2}
  users: {schema: id long, static: true}
views:
  joined: select a.id from a join b on a.id = b.id join users on users.id = a.id
sinks:
  lake: {from: joined, table: /lake}
  out: {from: a, topic: out}
"""


def test_a_second_run_on_a_checkpoint_fails_and_names_the_holder(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "ck")
    assert holder(checkpoint) is None
    with CheckpointLock(checkpoint, "orders", 5):
        with pytest.raises(KlammError, match=f"pipeline orders runs as process {os.getpid()}"):
            CheckpointLock(f"file://{checkpoint}", "orders", 6).__enter__()
        with pytest.raises(KlammError, match="in use"):
            refuse_if_running(checkpoint)
    refuse_if_running(checkpoint)
    with CheckpointLock(checkpoint, "orders", 7):
        pass


def test_a_look_at_the_lock_refuses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointLock(str(tmp_path), "orders", 5):
        pass
    looking = (tmp_path / ".klamm-lock").open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("klamm.spark.pipeline.state.time.sleep", lambda seconds: looking.close())
    with CheckpointLock(str(tmp_path), "orders", 6):
        assert looking.closed


def test_a_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys; from klamm.spark.pipeline.state import CheckpointLock\n"
        "lock = CheckpointLock(sys.argv[1], 'p', 1).__enter__(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        found = holder(str(tmp_path))
        assert found is not None and found["pid"] == process.pid
        process.kill()
        process.wait()
    assert holder(str(tmp_path)) is None


def test_runs_are_listed_with_their_liveness(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "ck")
    file = RunFile("my-pipe", checkpoint, tmp_path)
    file.write({"name": "my-pipe", "checkpoint": checkpoint, "state": "running"})
    (file.path.parent / "broken.json").write_text("{")
    (found,) = runs(tmp_path)
    assert found["name"] == "my-pipe" and not found["alive"]
    with CheckpointLock(checkpoint, "my-pipe", 1):
        assert next(iter(runs(tmp_path)))["alive"]
    file.remove()
    assert not list(runs(tmp_path))


def test_a_run_on_a_moved_checkpoint_replaces_the_entry_of_the_old_one(tmp_path: Path) -> None:
    places = [str(tmp_path / name) for name in ("old", "busy", "new")]
    for place in places:
        RunFile("p", place, tmp_path).write({"name": "p", "file": "/p.yaml", "checkpoint": place})
    other = RunFile("p", str(tmp_path / "other"), tmp_path)
    other.write({"name": "p", "file": "/another.yaml", "checkpoint": str(tmp_path / "other")})
    with CheckpointLock(places[1], "p", 1):
        forget_moved("p", "/p.yaml", places[2], tmp_path)
    assert sorted(Path(run["checkpoint"]).name for run in runs(tmp_path)) == ["busy", "new", "other"]


def test_where_state_is_kept(tmp_path: Path) -> None:
    assert state_directory({"KLAMM_STATE_DIR": "/s"}) == Path("/s")
    assert state_directory({"XDG_STATE_HOME": "/x"}) == Path("/x/klamm")
    assert home_of("/a/b") == home_of("file:///a/b") == Path("/a/b")
    assert home_of("s3a://bucket/ck", {"KLAMM_STATE_DIR": "/s"}).parent == Path("/s/checkpoints")


def test_the_shape_of_a_query() -> None:
    spec = read_yaml(PIPELINE, "p.yaml")
    lake, out = (shape_of(spec, sink) for sink in spec.sinks)
    assert lake == QueryShape(("a", "b.v2"), "table /lake", "append")
    assert out == QueryShape(("a",), "a topic", "append")
    assert changes(lake, lake) == []
    assert "reads a" in changes(lake, replace(lake, sources=("a",)))[0]
    assert "now writes to table /new" in changes(lake, replace(lake, target="table /new"))[0]
    assert "now update" in changes(lake, replace(lake, mode="update"))[0]
    counted = replace(lake, operators=("aggregate by [page] of [count(1)]",))
    assert changes(lake, counted) == [], "not known yet is not a change"
    other = replace(lake, operators=("aggregate by [user] of [count(1)]",))
    assert changes(counted, other) == [
        "it had: aggregate by [page] of [count(1)]",
        "it now has: aggregate by [user] of [count(1)]",
    ]
    two = replace(lake, operators=("x", "y"))
    assert "a different order" in changes(two, replace(lake, operators=("y", "x")))[0]


def test_a_changed_query_is_refused_once_it_has_run(tmp_path: Path) -> None:
    spec = read_yaml(PIPELINE.replace("CK", str(tmp_path)), "p.yaml")
    file = ShapeFile(spec.checkpoint)
    shapes = {sink.name: shape_of(spec, sink) for sink in spec.sinks}
    file.check("p.yaml", shapes)
    file.write(shapes)
    changed = {**shapes, "lake": replace(shapes["lake"], sources=("a",))}
    file.check("p.yaml", changed)
    (tmp_path / "lake" / "offsets").mkdir(parents=True)
    (tmp_path / "lake" / "offsets" / "0").touch()
    file.check("p.yaml", shapes)
    with pytest.raises(KlammError, match=r"klamm pipeline reset p\.yaml --sink lake"):
        file.check("p.yaml", changed)
    file.forget(["lake"])
    file.check("p.yaml", changed)
    assert list(file.read()) == ["out"]
    file.path.write_text('{"queries": {"lake": {"sources": 1}}}')
    with pytest.raises(KlammError, match="damaged"):
        file.check("p.yaml", shapes)
