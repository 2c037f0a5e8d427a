"""Typer builds all commands of the CLI at every call, which takes longer than most of the commands do."""

from __future__ import annotations

from functools import cache

import pytest
import typer.main
import typer.testing


def build_once(patch: pytest.MonkeyPatch) -> None:
    """Let all later calls of an app in this process use the commands that the first one has built."""
    built = cache(typer.main.get_command)
    patch.setattr("typer.main.get_command", built)
    patch.setattr("typer.testing._get_command", built)
