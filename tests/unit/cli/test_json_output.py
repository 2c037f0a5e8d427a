"""Every command that lists something prints JSON on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from klamm.cli.app import app

DO_NOT_LIST = {
    *("broker", "dashboard", "demo", "produce", "simulate", "up"),
    *("config alter", "group delete", "quota remove", "quota set", "schema infer"),
    *("partition confirm-loss", "pipeline reset", "pipeline run", "pipeline stop"),
    *("spark cluster down", "spark cluster up", "spark shell", "spark submit", "spark warmup"),
    *("table compact", "table sync", "table vacuum", "tls init", "tls issue"),
    *("topic alter", "topic create", "topic delete", "txn abort", "user add", "user remove"),
}
"""They run something, change something, or print one text."""


def commands(command: Any, *names: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the leaves of the tree with their options."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from commands(child, *names, name)
    else:
        yield " ".join(names), {option for each in command.params for option in each.opts}


def test_commands_that_list_have_json() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert found.keys() >= DO_NOT_LIST, "these commands do not exist"
    without = {name for name, options in found.items() if not options & {"--json", "--format"}}
    assert without == DO_NOT_LIST
