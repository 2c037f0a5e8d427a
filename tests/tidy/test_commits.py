"""Subjects of commits: at most 72 characters, and no full stop at the end. The imperative is for reviewers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

LAST_FREE = "28104a5336b9cb7927f75cbf07a8ed4e91546ffb"
"""The rule holds for the commits after this one."""
LONGEST = 72


def git(tree: Path, *arguments: str) -> str | None:
    """Return the output of git; None if it fails, as outside of a repository."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook sets GIT_DIR
    try:
        done = subprocess.run(["git", *arguments], cwd=tree, env=env, capture_output=True, text=True, errors="replace")
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def subjects(tree: Path, last_free: str) -> list[str]:
    """The subjects after a commit; all that there are if the history does not reach back to it (a shallow clone)."""
    reaches_back = git(tree, "merge-base", "--is-ancestor", last_free, "HEAD") is not None
    listed = git(tree, "log", "--format=%s", f"{last_free}..HEAD" if reaches_back else "HEAD")
    return [] if listed is None else listed.splitlines()


def wrong(found: list[str]) -> list[str]:
    return [subject for subject in found if not subject or len(subject) > LONGEST or subject.endswith(".")]


def test_subjects_of_commits() -> None:
    assert wrong(subjects(ROOT, LAST_FREE)) == []


def test_long_and_punctuated_subjects_are_found() -> None:
    assert wrong(["a" * 72, "a" * 73, "zk: end.", "zk: end"]) == ["a" * 73, "zk: end."]


def test_a_history_without_the_commit_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    assert subjects(tmp_path / "missing", LAST_FREE) == []
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir()
    commit = [
        "-c",
        "user.name=n",
        "-c",
        "user.email=n@localhost",
        "-c",
        "commit.gpgsign=false",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
    ]
    assert git(whole, "init", "-q") is not None
    for subject in ("the oldest.", "one", "two"):
        assert git(whole, *commit, subject) is not None
    oldest = (git(whole, "rev-parse", "HEAD~2") or "").strip()
    assert subjects(whole, oldest) == ["two", "one"]
    if git(tmp_path, "clone", "-q", "--depth", "2", whole.as_uri(), str(part)) is None:
        pytest.fail("git cannot make a shallow clone")
    assert subjects(part, oldest) == ["two", "one"]
    assert subjects(whole, LAST_FREE) == ["two", "one", "the oldest."]
