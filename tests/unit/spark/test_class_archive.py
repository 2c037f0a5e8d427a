"""The archive of the JVM's classes: its location, and the precedence of the user's options."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from klamm.spark.cluster.class_archive import VARIABLE, archive_path, keep, recording, using_archive
from klamm.spark.cluster.session import _temporary_environment


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def written(environment: dict[str, str]) -> Path:
    path = archive_path(environment)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes")
    return path


def test_without_an_archive_nothing_is_set(environment: dict[str, str]) -> None:
    assert using_archive({}, environment) is None


def test_the_user_s_options_follow_and_so_win(environment: dict[str, str]) -> None:
    path = written(environment)
    environment[VARIABLE] = "-Xint -Dname=value"
    chosen = using_archive({}, environment)
    assert chosen is not None
    assert chosen.startswith(f"-XX:SharedArchiveFile={path} ") and chosen.endswith(" -Xint -Dname=value")


@pytest.mark.parametrize("option", ["-Xshare:off", "-XX:SharedArchiveFile=/mine", "-XX:ArchiveClassesAtExit=/mine"])
def test_a_user_who_chose_an_archive_keeps_it(environment: dict[str, str], tmp_path: Path, option: str) -> None:
    """The JVM does not start if two of these options contradict each other."""
    written(environment)
    assert using_archive({"spark.driver.extraJavaOptions": "-Dname=value"}, environment) is not None
    for name in (VARIABLE, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        assert using_archive({}, {**environment, name: option}) is None, name
    for name in ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"):
        assert using_archive({name: f"-Dname=value {option}"}, environment) is None, name
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {option}\n")
    assert using_archive({}, {**environment, "SPARK_CONF_DIR": str(tmp_path)}) is None


def test_another_java_has_another_archive(environment: dict[str, str], tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("")
    other = archive_path({**environment, "JAVA_HOME": str(tmp_path / "java")})
    assert other is not None and other != archive_path(environment)
    assert archive_path({**environment, "JAVA_HOME": str(tmp_path / "missing")}) is None


def test_a_directory_with_spaces_is_not_used(environment: dict[str, str]) -> None:
    assert archive_path({**environment, "HOME": "/a place with spaces"}) is None
    assert archive_path({"PATH": environment["PATH"]}) is None


def test_keeping_an_archive_removes_those_of_other_versions(environment: dict[str, str], tmp_path: Path) -> None:
    path = written(environment)
    old, other = path.with_name("spark-classes-old.jsa"), path.with_name("bytecode")
    old.write_bytes(b"old")
    other.write_bytes(b"kept")
    new = tmp_path / "new.jsa"
    new.write_bytes(b"new")
    keep(new, path)
    assert path.read_bytes() == b"new" and other.exists() and not old.exists() and not new.exists()


def test_a_damaged_archive_neither_stops_the_jvm_nor_prints_anything(environment: dict[str, str]) -> None:
    written(environment)
    options = shlex.split(using_archive({}, environment) or "")
    done = subprocess.run(["java", *options, "-version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_variables_are_restored_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLAMM_TEST_ONE", "1")
    with _temporary_environment({"KLAMM_TEST_ONE": "2", "KLAMM_TEST_TWO": "2"}):
        assert (os.environ["KLAMM_TEST_ONE"], os.environ["KLAMM_TEST_TWO"]) == ("2", "2")
    assert os.environ["KLAMM_TEST_ONE"] == "1" and "KLAMM_TEST_TWO" not in os.environ


def test_recording_keeps_the_user_s_options(environment: dict[str, str]) -> None:
    assert recording(Path("/a.jsa"), {**environment, VARIABLE: "-Xint"}).startswith(
        "-Xint -XX:ArchiveClassesAtExit=/a.jsa "
    )
