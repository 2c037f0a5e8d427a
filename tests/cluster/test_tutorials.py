"""The tutorials of docs/tutorials, done step by step; that of the pipeline is in tests/spark/pipeline."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.cli.client import BOOTSTRAP_VARIABLE
from tests.support.tutorial import Block, blocks

WAIT_S = 300


def environment(**more: str) -> dict[str, str]:
    """With `klamm` and `pytest` of this environment first, as after `. .venv/bin/activate`."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **more}


def save(block: Block, directory: Path) -> None:
    assert block.title is not None
    (directory / block.title).write_text(block.text)


def run(text: str, directory: Path, env: dict[str, str]) -> str:
    done = subprocess.run(["bash", "-euc", text], cwd=directory, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.long
def test_first_test(tmp_path: Path) -> None:
    found = blocks("first-test.md")
    assert [block.title for block in found if block.title] == ["shop.py", "test_shop.py", "test_shop_failover.py"]
    (command,) = [block.text for block in found if block.language == "sh" and block.role is None]
    for block in found:
        if block.title:
            save(block, tmp_path)
    assert "2 passed" in run(f"{command.strip()} -p no:cacheprovider", tmp_path, environment())


@pytest.mark.long
def test_break_a_cluster(tmp_path: Path) -> None:
    found = [block for block in blocks("break-a-cluster.md") if block.language == "sh"]
    assert [block.role for block in found if block.role] == ["up", "background"]
    up, *rest = found
    assert up.text == "klamm up --brokers 3\n"
    outputs: list[str] = []
    with started(f"{up.text.strip()} --port 0", tmp_path, environment()) as process:
        env = environment(**{BOOTSTRAP_VARIABLE: servers(process)})
        for block in rest:
            if block.role == "background":
                process_by_hand = started(block.text.strip(), tmp_path, env)
                process_by_hand.__enter__()
                continue
            outputs.append(run(block.text, tmp_path, env))
        process_by_hand.__exit__(None, None, None)
    everything = "".join(outputs)
    assert "before the crash" in everything and "after the crash" in everything
    assert "Missing" in everything and '"kind":"election"' in everything


@contextmanager
def started(command: str, directory: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A command in a terminal of its own; Ctrl-C ends it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        shlex.split(command), cwd=directory, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_S)
        finally:
            process.kill()


def servers(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"bootstrap servers\W+(\S+)", line):
            return found.group(1)
    raise AssertionError("klamm up has ended")
