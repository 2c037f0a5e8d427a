"""The published state of running pipelines: one file per run, and the lock on its checkpoint."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from klamm.errors import KlammError
from klamm.spark.source.checkpoint_locations import local_path
from klamm.state_directory import state_directory

_LOCK: Final = ".klamm-lock"
_TRIES: Final = 5
_WAIT_S: Final = 0.02


def home_of(checkpoint: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of klamm's own files about a checkpoint: in it, or in the state directory if it is
    remote."""
    if (path := local_path(checkpoint)) is not None:
        return path.absolute()
    return state_directory(environment) / "checkpoints" / _digest(checkpoint)


def identity(checkpoint: str) -> str:
    """Return a unique name for a checkpoint, independent of its spelling."""
    path = local_path(checkpoint)
    return str(path.absolute()) if path is not None else checkpoint


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class CheckpointLock:
    """One run per checkpoint. The kernel releases the lock when the process ends."""

    def __init__(self, checkpoint: str, pipeline: str, started_ms: int) -> None:
        self._checkpoint = checkpoint
        self._holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "user": _user(),
            "pipeline": pipeline,
            "started_ms": started_ms,
        }
        self._file: IO[str] | None = None

    def __enter__(self) -> CheckpointLock:
        home = home_of(self._checkpoint)
        home.mkdir(parents=True, exist_ok=True)
        file = (home / _LOCK).open("a+")
        for left in range(_TRIES - 1, -1, -1):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    with file:
                        raise KlammError(_in_use(self._checkpoint, _read_holder(file))) from None
                time.sleep(_WAIT_S)  # the other process may only be checking, as `holder` does
        file.truncate(0)
        file.write(json.dumps(self._holder))
        file.flush()
        self._file = file
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None


def holder(checkpoint: str) -> dict[str, Any] | None:
    """Return the run that holds this checkpoint, or None."""
    try:
        with (home_of(checkpoint) / _LOCK).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_holder(file)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return None


def refuse_if_running(checkpoint: str) -> None:
    if (found := holder(checkpoint)) is not None:
        raise KlammError(_in_use(checkpoint, found))


def _read_holder(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    with contextlib.suppress(ValueError):
        found = json.loads(file.read())
        if isinstance(found, dict):
            return found
    return {}


def _in_use(checkpoint: str, found: Mapping[str, Any]) -> str:
    who = ""
    if found:
        who = f": pipeline {found.get('pipeline')} runs as process {found.get('pid')} of {found.get('user')}"
        who += f" on {found.get('host')}"
    advice = "Stop it, a pipeline with `klamm pipeline stop`, or use another checkpoint."
    return f"The checkpoint {checkpoint} is in use{who}. {advice}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class RunFile:
    """The state of one run, replaced atomically, so that a reader never sees a partial file."""

    def __init__(self, name: str, checkpoint: str, directory: Path | None = None) -> None:
        folder = (directory or state_directory()) / "pipelines"
        stem = re.sub(r"\W", "_", name)
        self.path = folder / f"{stem}-{_digest(identity(checkpoint))}.json"
        self._written = ""

    def write(self, state: Mapping[str, Any]) -> None:
        text = json.dumps(state, indent=1, sort_keys=True)
        if text == self._written:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(text)
        temporary.replace(self.path)
        self._written = text

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def runs(directory: Path | None = None) -> Iterator[dict[str, Any]]:
    """Return the published state of every run, by name; `alive` means that its checkpoint is locked now."""
    folder = (directory or state_directory()) / "pipelines"
    for path in sorted(folder.glob("*.json")):
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(state, dict) and isinstance(state.get("checkpoint"), str):
            yield {**state, "alive": holder(state["checkpoint"]) is not None, "path": str(path)}


def forget_moved(name: str, file: str, checkpoint: str, directory: Path | None = None) -> None:
    """Remove the state of earlier runs of this file on another checkpoint, which was moved or abandoned."""
    for run in runs(directory):
        is_same = (run.get("name"), run.get("file")) == (name, file)
        if is_same and run["checkpoint"] != checkpoint and not run["alive"]:
            Path(run["path"]).unlink(missing_ok=True)
