"""Runs the command `klamm` in forks of one process that has imported it: a new process imports for most of its life.

A fork has its own standard streams, environment and working directory. For tests of the output and the exit code; those
of the start itself, or of signals, start `python -m klamm.cli.main`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import typer.main

from klamm.cli.app import app
from klamm.cli.main import main
from tests.support.command_tree import build_once

TIMEOUT_S = 100

# Here, so that the process that is forked has it.
build_once(pytest.MonkeyPatch())
typer.main.get_command(app)


def run_klamm(*arguments: str, stdin: str = "") -> CompletedProcess[str]:
    """Return the exit code and the output, as `subprocess.run` does."""
    with tempfile.TemporaryDirectory() as directory:
        streams = [Path(directory, name) for name in ("stdin", "stdout", "stderr")]
        for path in streams:
            path.write_text(stdin if path.name == "stdin" else "")
        running = _pool().submit(_run, arguments, dict(os.environ), os.getcwd(), tuple(map(str, streams)))
        code = running.result(TIMEOUT_S)
        return CompletedProcess(arguments, code, streams[1].read_text(), streams[2].read_text())


@cache
def _pool() -> ProcessPoolExecutor:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1)


def _run(arguments: tuple[str, ...], environment: dict[str, str], directory: str, streams: tuple[str, ...]) -> int:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["klamm", *arguments]
    try:
        main()
    except SystemExit as ended:
        return _flushed(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    return _flushed(0)


def _flushed(code: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return code
