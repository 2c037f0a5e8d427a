"""Runs the simulator with mutants, each in a process that has nothing of the others.

A process that starts from nothing imports for longer than most mutants live. These processes are forks of one that has
imported everything. A mutant that changes more than functions is installed before the first import: the fork forgets
klamm's modules, and keeps those of others.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from typing import NamedTuple

import klamm.sim.cluster_runner
import klamm.sim.guarded.guarded_scenario
import klamm.sim.guarded.proven_scenario
import klamm.sim.runner
import klamm.sim.transactions.txn_scenario  # noqa: F401
from klamm.sim.command import PLAIN, mutants_of, run
from klamm.sim.patching import CannotPatchError, patched

# The command imports the simulator when it needs it. The imports above do it here, once for all forks.
SURVIVED, CAUGHT = 0, 1


class MutantRun(NamedTuple):
    code: int
    """The exit code of the command: `CAUGHT` or `SURVIVED`."""
    shown: str
    """The output of the command."""


class MutantRuns:
    """Starts one process per mutant, one after the other."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, name: str, *, level: int = 2, variant: str = PLAIN) -> MutantRun:
        return self._pool.submit(_run, level, variant, name).result()


@contextmanager
def mutant_runs() -> Iterator[MutantRuns]:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield MutantRuns(pool)


def _run(level: int, variant: str, name: str) -> MutantRun:
    mutant = mutants_of(level, variant)[name]
    try:
        with patched(mutant), redirect_stdout(StringIO()) as shown:
            return MutantRun(run(level, None, None, 3, mutant=name, variant=variant, is_patched=True), shown.getvalue())
    except CannotPatchError:
        return _run_with_new_modules(level, variant, name)


def _run_with_new_modules(level: int, variant: str, name: str) -> MutantRun:
    """The command with klamm imported again: it installs the mutant before. The fork ends afterwards."""
    for module in [module for module in sys.modules if module.partition(".")[0] == "klamm"]:
        del sys.modules[module]
    command = importlib.import_module("klamm.sim.command")
    options = [f"--{variant}"] if variant else []
    with redirect_stdout(StringIO()) as shown:
        code = command.main(["--level", str(level), *options, "--mutant", name])
    return MutantRun(code, shown.getvalue())
