"""The script that starts Python for Spark without Spark's zip files."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from klamm.spark.cluster.python_launcher import unneeded_zips, write_launcher

REPORTS = "import json, pyspark, sys; print(json.dumps([sys.path, pyspark.__file__, sys.argv, sys.executable]))"


def run(launcher: Path, path: list[str], *arguments: str) -> list[list[str]]:
    command = [str(launcher), "-c", REPORTS, *arguments]
    env = {**os.environ, "PYTHONPATH": ":".join(path)}
    found: list[list[str]] = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    return found


def test_spark_s_zip_files_are_taken_from_the_path_and_nothing_else(tmp_path: Path) -> None:
    """Spark names them twice for a source that it finds by itself."""
    directory = tmp_path / "it's a place"
    directory.mkdir()
    launcher = write_launcher(directory)
    zips = unneeded_zips()
    assert launcher is not None and any(Path(name).name == "pyspark.zip" for name in zips)
    path, pyspark, arguments, _ = run(launcher, [*zips, "/a b", *zips, "/jars/*.jar", zips[0]], "two words", "$HOME")
    assert path[1:3] == ["/a b", "/jars/*.jar"] and not set(zips) & set(path)
    assert ".zip" not in str(pyspark)
    assert arguments == ["-c", "two words", "$HOME"]


def test_a_path_without_them_stays(tmp_path: Path) -> None:
    launcher = write_launcher(tmp_path)
    assert launcher is not None
    assert run(launcher, ["/one", "/two"])[0][1:3] == ["/one", "/two"]


def test_the_zip_files_of_another_spark_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert unneeded_zips() == [] and write_launcher(tmp_path) is None


def test_a_pyspark_that_is_not_installed_for_every_process_stays_in_its_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", list)
    assert unneeded_zips() == []
