"""`klamm broker --config FILE` and `python -m klamm.server`, run as a person or a service manager runs them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.raw_client import TIMEOUT_S, RawClient


def write_properties(path: Path, properties: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def refuse_to_start(config: Path, *overrides: str, options: Sequence[str] = ()) -> str:
    """Return the output of a broker that does not start; it must end with code 1 and without a traceback."""
    command = [sys.executable, "-m", "klamm.server", "--config", str(config), *options]
    command += [argument for override in overrides for argument in ("--override", override)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


class BrokerProcess:
    """A single broker without LocalCluster; `ready` is the content of its ready file. `program` runs instead of it."""

    def __init__(
        self, config: Path, *, through_cli: bool = False, program: Sequence[str] = (), options: Sequence[str] = ()
    ) -> None:
        self._program = program
        self._options = options
        self._config = config
        self._ready_file = config.with_name(config.name + ".ready")
        self._log = config.with_name(config.name + ".log")
        self._through_cli = through_cli
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> BrokerProcess:
        self.launch()
        self.await_ready()
        return self

    @contextlib.contextmanager
    def launched(self) -> Iterator[None]:
        """Without waiting until it answers; ended in the end."""
        self.launch()
        try:
            yield
        finally:
            self.__exit__(None, None, None)

    def launch(self) -> None:
        """Starts the process and waits for nothing."""
        self._ready_file.unlink(missing_ok=True)
        module = ["klamm.cli.main", "broker"] if self._through_cli else ["klamm.server"]
        command = [sys.executable, *(self._program or ["-m", *module]), "--config", str(self._config), *self._options]
        if not self._through_cli:
            command += ["--ready-file", str(self._ready_file)]
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def await_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"the broker did not start:\n{self.log}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        if self._through_cli:
            return " answers on PLAINTEXT://" in self.log
        if not self._ready_file.exists():
            return False
        self.ready = json.loads(self._ready_file.read_text())
        return True

    @property
    def log(self) -> str:
        """The output of this run so far."""
        return self._log.read_bytes()[self._log_start :].decode()

    def client(self, listener: str = "PLAINTEXT") -> RawClient:
        return RawClient(self.ready["listeners"][listener])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)
