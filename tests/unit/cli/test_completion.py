"""Completion in bash, zsh and fish: the scripts that are installed, and the answers to them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.wire import Message
from tests.support.scripted_broker import scripted_broker, view

SHELLS = ("bash", "zsh", "fish")


def complete(shell: str, line: str, servers: str = "127.0.0.1:1") -> str:
    """Return the answer to the shell's script when the user presses TAB at the end of the line."""
    env = {
        "_KLAMM_COMPLETE": f"complete_{shell}",
        "KLAMM_BOOTSTRAP_SERVERS": servers,
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    return CliRunner().invoke(app, env=env, prog_name="klamm").output


@pytest.fixture
def servers() -> Iterator[str]:
    """A broker with two topics and an internal one."""
    addresses: list[tuple[str, int]] = []

    def answer(request: Message) -> Message:
        if isinstance(request, ApiVersionsRequest):
            keys = [
                ApiVersion(api_key=each.KEY, min_version=each.VERSIONS[0], max_version=each.VERSIONS[-1])
                for each in (MetadataRequest, ApiVersionsRequest)
            ]
            return ApiVersionsResponse(error_code=0, api_keys=keys)
        return view({1: addresses[0]}, 1, {"orders": (1,), "offers": (1,), "__consumer_offsets": (1,)})

    with scripted_broker(answer) as address:
        addresses.append(address)
        yield f"{address[0]}:{address[1]}"


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_options(shell: str) -> None:
    found = complete(shell, "klamm topic d")
    assert "describe" in found and "delete" in found and "create" not in found
    assert "--bootstrap-servers" in complete(shell, "klamm dashboard --boot")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", ["klamm consume o", "klamm config describe --topic o"])
def test_topics(shell: str, line: str, servers: str) -> None:
    found = complete(shell, line, servers)
    assert "orders" in found and "offers" in found and "__consumer_offsets" not in found


def test_internal_topics_need_their_first_letter(servers: str) -> None:
    assert complete("bash", "klamm topic describe _", servers).split() == ["__consumer_offsets"]


def test_without_a_cluster_nothing_is_suggested() -> None:
    assert complete("bash", "klamm consume o").strip() == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell(shell: str) -> None:
    env = {"_KLAMM_COMPLETE": f"source_{shell}"}
    script = CliRunner().invoke(app, env=env, prog_name="klamm").output
    assert f"_KLAMM_COMPLETE=complete_{shell}" in script


def test_bash_runs_its_script() -> None:
    """From the script to the suggestions: the shell itself starts the command."""
    klamm = Path(sys.executable).with_name("klamm")
    words = 'COMP_WORDS=(klamm topic d); COMP_CWORD=2; _klamm_completion klamm; echo "${COMPREPLY[@]}"'
    script = f'eval "$(_KLAMM_COMPLETE=source_bash klamm)"; {words}'
    env = {**os.environ, "PATH": f"{klamm.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["describe", "delete"]
