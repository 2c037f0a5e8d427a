"""`klamm doctor`: checks whether this machine can run klamm, with remedies."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from klamm.cli.client import AsJson
from klamm.cli.output import fail, green, red, say, yellow

_GIB: Final = 1 << 30
_MIN_OPEN_FILES: Final = 4096


class State(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: State
    found: str
    advice: str = ""


def doctor(
    data_dir: Annotated[Path, typer.Option("--data-dir", "-d", help="Data directory to check.")] = Path("klamm-data"),
    port: Annotated[int, typer.Option("--port", "-p", help="Port to check.")] = 9092,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine has what klamm needs."""
    findings = [*check_python(), *check_packages(), check_java(), check_port(port), check_disk(data_dir), check_files()]
    findings += [check_data_dir(data_dir), check_loopback()]
    if as_json:
        say(json.dumps([{**asdict(finding), "state": finding.state.value} for finding in findings], indent=2))
    else:
        _show(findings)
    failed = sum(finding.state is State.FAILED for finding in findings)
    if failed:
        fail(f"{failed} of {len(findings)} checks failed.")


def _show(findings: Sequence[Finding]) -> None:
    colour: dict[State, Callable[[str], str]] = {State.OK: green, State.WARNING: yellow, State.FAILED: red}
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        say(f"{colour[finding.state](f'{finding.state.value:7}')}  {finding.what:{width}}  {finding.found}")
        if finding.advice:
            say(f"{'':7}  {'':{width}}  {finding.advice}")


def check_python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    advice = "" if good else "Install Python 3.11 or newer."
    yield Finding("Python", State.OK if good else State.FAILED, platform.python_version(), advice)


def check_packages() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    for name in ("uvloop", "crc32c", "cramjam", "confluent-kafka"):
        try:
            yield Finding(name, State.OK, version(name))
        except PackageNotFoundError:
            yield Finding(name, State.FAILED, "missing", f"Install it: {sys.executable} -m pip install {name}")


def check_java() -> Finding:
    """Check Java, which only Spark and the tests with Java clients need."""
    java = shutil.which("java")
    if java is None:
        return Finding("Java", State.WARNING, "missing", "Only Spark needs it: apt-get install openjdk-17-jre-headless")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return Finding(
            "Java", State.WARNING, f"{java} does not run", "Only Spark needs it: install a Java 17 or newer."
        )
    version = said[0].split('"')[1] if said and '"' in said[0] else "?"
    major = int(version.split(".")[0]) if version.split(".")[0].isdecimal() else 0
    advice = "" if major >= 17 else "Spark needs Java 17: apt-get install openjdk-17-jre-headless"
    return Finding("Java", State.OK if major >= 17 else State.WARNING, version, advice)


def check_port(port: int) -> Finding:
    what = f"port {port}"
    try:
        with socket.create_server(("127.0.0.1", port)):
            return Finding(what, State.OK, "free")
    except OverflowError:
        return Finding(what, State.FAILED, "not a port", "Choose a port from 0 to 65535.")
    except OSError as error:
        advice = f"Stop what listens there, or choose another: klamm up --port {port + 1}"
        return Finding(what, State.WARNING, (error.strerror or "not usable").lower(), advice)


def check_disk(directory: Path) -> Finding:
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.lexists(path))
    if problem := _write_problem(existing):
        return Finding("disk", State.FAILED, f"{existing} {problem}", "Choose another --data-dir.")
    free = shutil.disk_usage(existing).free
    good = free >= _GIB
    advice = "" if good else "Free some space, or choose another --data-dir."
    return Finding("disk", State.OK if good else State.WARNING, f"{free / _GIB:.1f} GiB free for {directory}", advice)


def _write_problem(directory: Path) -> str:
    """Check by writing a temporary file: permissions do not show that a disk is mounted read-only."""
    if not directory.is_dir():
        return "is not a directory"
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"klamm")
            file.flush()
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return ""


def check_data_dir(directory: Path) -> Finding:
    """Check whether a running klamm uses the directory. Changes nothing."""
    import fcntl

    what, path = "data dir", directory / ".lock"
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = file.read().strip()
                found = f"{directory} is in use by another klamm{f' (process {owner})' if owner else ''}"
                return Finding(what, State.WARNING, found, "Stop that one, or choose another --data-dir.")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        advice = "Choose another --data-dir."
        return Finding(what, State.FAILED, f"{path} cannot be read: {error.strerror}", advice)
    return Finding(what, State.OK, f"{directory} is not in use")


def check_files() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = soft >= _MIN_OPEN_FILES or soft == resource.RLIM_INFINITY
    advice = "" if good else f"Every partition and connection needs some: ulimit -n {min(hard, 65536)}"
    return Finding("open files", State.OK if good else State.WARNING, str(soft), advice)


def check_loopback() -> Finding:
    try:
        address = socket.gethostbyname("localhost")
    except OSError:
        return Finding("localhost", State.FAILED, "has no address", "Add `127.0.0.1 localhost` to /etc/hosts.")
    good = address.startswith("127.")
    advice = "" if good else "Let localhost be 127.0.0.1 in /etc/hosts."
    return Finding("localhost", State.OK if good else State.WARNING, address, advice)
