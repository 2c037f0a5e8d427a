"""Tests that `make test` leaves out are run elsewhere: nothing is marked as long in a directory that CI forgets."""

from __future__ import annotations

import re

from tests.support.source_tree import ROOT

MARKS = re.compile(r"pytest\.mark\.long\b|^from tests\.support\.long_form import", re.MULTILINE)
LONG_FORMS = ROOT / "compat" / "long_forms"


def test_every_directory_with_long_forms_is_run() -> None:
    listed = re.search(r"tests/\{([\w,]+)\}", (LONG_FORMS / "run.sh").read_text())
    assert listed is not None, "compat/long_forms/run.sh names the directories as tests/{...}"
    run = {*listed.group(1).split(","), "sim"}
    tests = ROOT / "tests"
    files = [path.relative_to(tests) for path in tests.rglob("test_*.py") if MARKS.search(path.read_text())]
    marked = {path.parts[0] for path in files if path.name != "test_long_forms.py"}
    assert marked <= run, f"compat/long_forms/run.sh does not run tests/{marked - run}"
    assert run - {"sim"} <= marked, f"tests/{run - marked} has no long form"


def test_ci_runs_the_long_forms() -> None:
    """The quick form has them, and the simulator has its own target."""
    assert not (LONG_FORMS / "not-quick").exists()
    for commands in ((ROOT / ".ci" / "run").read_text(), (ROOT / ".github" / "workflows" / "ci.yml").read_text()):
        assert all(f"make {target}" in commands for target in ("test", "compat QUICK=1", "sim QUICK=1"))


def test_make_runs_the_short_forms_and_sim_all() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert 'SHORT := -m "not long"\n' in makefile
    assert all(f"$(SHORT) $({part})" in makefile for part in ("IN_PROCESS", "WITH_PROCESSES"))
    (sim,) = re.findall(r"^\tKLAMM_SIM=long (.*)$", makefile, re.MULTILINE)
    assert "SHORT" not in sim and "-m" not in sim.split()
