"""The wheel that `make dist` builds, installed into an empty environment of every Python that this machine has."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from functools import cache
from pathlib import Path

import pytest

import klamm
from tests.support.source_tree import ROOT

OLDEST = (3, 11)
WAIT_S = 300
CLASSIFIER = "Programming Language :: Python :: 3."


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=clean_environment(), **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    return str(done.stdout)


def clean_environment() -> dict[str, str]:
    """Without the variables that would let the checkout's source stand in for the wheel."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


@cache
def interpreters() -> dict[str, Path]:
    """One interpreter per minor version from 3.11 on: `{"3.11": ...}`. The one that runs the tests is always there."""
    names = [f"python3.{minor}" for minor in range(OLDEST[1], 30)]
    directories = [*map(Path, os.environ.get("PATH", "").split(os.pathsep)), Path("/usr/bin"), Path("/usr/local/bin")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    directories += sorted(pyenv.glob("versions/*/bin"))
    found = {version_of(Path(sys.executable)): Path(sys.executable)}
    for path in (directory / name for directory in directories for name in names):
        # pyenv's shims are scripts that fail for versions that are not selected: their targets are found above.
        if path.is_file() and "shims" not in path.parts and (version := version_of(path)):
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: int(item[0].partition(".")[2])))


def version_of(python: Path) -> str:
    """`3.12`; empty if the interpreter does not start or cannot make environments, which no wheel can be blamed for."""
    program = "import sys, venv, ssl; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the command that a release uses."""
    if shutil.which("make") is None:
        pytest.fail("make is missing: the wheel is built by `make dist`. Install it, for example apt-get install make.")
    out = tmp_path_factory.mktemp("dist")
    run("make", "dist", f"DIST={out}", f"PYTHON={sys.executable}", cwd=ROOT)
    assert len(list(out.glob("*.tar.gz"))) == 1
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.long
def test_the_metadata_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
        licences = [name for name in archive.namelist() if name.endswith("dist-info/licenses/LICENSE")]
        assert archive.read(licences[0]) == (ROOT / "LICENSE").read_bytes()
        assert {"klamm/py.typed", "klamm/cli/main.py"} <= set(archive.namelist())
    assert metadata["Version"] == klamm.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "The klamm developers"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Keywords"] and metadata["Summary"]
    named = {line.removeprefix(CLASSIFIER) for line in metadata.get_all("Classifier", []) if CLASSIFIER in line}
    assert named == {"11", "12", "13", "14"}


def test_the_version_is_stated_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and project["dynamic"] == ["version"]


@pytest.mark.long
@pytest.mark.parametrize("version", interpreters())
def test_produce_and_consume_with_an_installed_wheel(version: str, wheel: Path, tmp_path: Path) -> None:
    """Dependencies come from the wheel's metadata, their versions from core.lock."""
    environment = tmp_path / "environment"
    run(interpreters()[version], "-m", "venv", "--without-pip", environment)
    constraint = ROOT / "requirements" / "core.lock"
    inside = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", inside)
    # Only the modules that are used get compiled, at their first import.
    run(*pip, "install", "--quiet", "--no-compile", "--constraint", constraint, wheel)
    klamm_command = environment / "bin" / "klamm"
    assert run(klamm_command, "--version", cwd=tmp_path) == f"klamm {klamm.__version__}\n"
    where = run(inside, "-c", "import klamm; print(klamm.__file__)", cwd=tmp_path)
    assert where.startswith(str(environment)), "the wheel is tested, not the checkout"
    with klamm_up(klamm_command, tmp_path) as servers:
        option = ("--bootstrap-server", servers)
        run(klamm_command, "topic", "create", "first", *option, cwd=tmp_path)
        run(klamm_command, "produce", "first", *option, input="hello from the wheel\n", cwd=tmp_path)
        read = run(klamm_command, "consume", "first", "--from-beginning", "-n", "1", *option, cwd=tmp_path)
    assert "hello from the wheel" in read


@contextmanager
def klamm_up(command: Path, directory: Path) -> Iterator[str]:
    """One broker on a free port; its address. Ctrl-C ends it, and it must end well."""
    process = subprocess.Popen(
        [command, "up", "--port", "0", "--data-dir", directory / "data"],
        cwd=directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = ""
        while (servers := re.search(r"bootstrap servers\W+(127\.0\.0\.1:\d+)", said)) is None:
            line = process.stdout.readline()
            assert line, f"klamm up has ended: {said}"
            said += line
        yield servers.group(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0, process.stdout.read()
    finally:
        process.kill()
        process.communicate()
