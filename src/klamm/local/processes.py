"""ChildProcess: a broker or ZooKeeper process that is started, watched, stopped and never left behind."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from klamm.errors import KlammError
from klamm.local.child import PARENT_VARIABLE

_POLL_S: Final = 0.005
_TAIL_LINES: Final = 25


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, even if it exists with other permissions."""
    fd = os.open(path, flags, 0o600)
    with contextlib.suppress(PermissionError):
        os.fchmod(fd, 0o600)
    return fd


class _Spawner:
    """One thread that starts all children: Linux ties a child's life to the thread that started it."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._orders = queue.SimpleQueue()
        self._pid = -1

    def spawn(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=self._run, name="klamm-spawner", daemon=True).start()
        done: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((start, done))
        return done.result()

    def _run(self) -> None:
        while True:
            start, done = self._orders.get()
            try:
                done.set_result(start())
            except OSError as error:
                done.set_exception(error)


_SPAWNER: Final = _Spawner()


class ChildProcess:
    """A klamm process. `ready` returns whether it answers; its output goes to `log_path`."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], log_path: Path, ready: Callable[[], bool]
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._command = [sys.executable, "-m", "klamm.local.child", module, *arguments]
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def pid(self) -> int:
        if self._process is None:
            raise KlammError(f"{self.name} is not running.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def has_crashed(self) -> bool:
        """Whether it has exited without being stopped or killed."""
        return self._process is not None and self._process.poll() is not None

    def spawn(self) -> None:
        if self.is_running:
            raise KlammError(f"{self.name} is {'paused: use resume()' if self._paused else 'running already'}.")
        self.log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        env = {**with_bytecode_cache(os.environ), PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}

        def start() -> subprocess.Popen[bytes]:
            with open(self.log_path, "ab", opener=open_private) as output:
                return subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=env,
                    # A separate group keeps Ctrl-C away from the child. A separate session would do so too, but
                    # Linux shares the cores between sessions: on two busy cores a broker then waits up to 2 s for one.
                    process_group=0,
                )

        self._process = _SPAWNER.spawn(start)
        self._paused = False

    def wait_ready(self, deadline: float, needed: ChildProcess | None = None) -> None:
        """Wait until it is ready. Raises KlammError if it, or a process that it needs, exits, or at the deadline."""
        while not self._ready():
            if needed is not None:
                needed.must_not_have_ended()
            self.must_not_have_ended()
            if time.monotonic() > deadline:
                raise KlammError(f"{self.name} did not become ready in time.\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def must_not_have_ended(self) -> None:
        if not self.is_running:
            code = self._process.returncode if self._process is not None else None
            raise KlammError(f"{self.name} ended with code {code} while starting.\n{self.log_tail()}")

    def log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join([f"The end of {self.log_path}:", *(f"  {line}" for line in lines[-_TAIL_LINES:])])

    def kill(self) -> None:
        """Send SIGKILL: the process flushes nothing."""
        self.must_run()
        self._signal(signal.SIGKILL)
        self._reap(timeout_s=None)

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM for a controlled shutdown. Kill the process and raise KlammError if it does not end in time."""
        if not self.is_running:
            self._reap(timeout_s=None)
            return
        if self._paused:
            self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._reap(timeout_s)
        except subprocess.TimeoutExpired:
            self.discard()
            raise KlammError(f"{self.name} did not stop within {timeout_s:g} s.\n{self.log_tail()}") from None

    def discard(self) -> None:
        """Kill it, whatever its state."""
        if self.is_running:
            self._signal(signal.SIGKILL)
        self._reap(timeout_s=None)

    def must_run(self) -> None:
        """Raise KlammError unless it is running."""
        if self.has_crashed:
            raise KlammError(f"{self.name} is not running: it has exited on its own.\n{self.log_tail()}")
        if not self.is_running:
            raise KlammError(f"{self.name} is not running.")

    def pause(self) -> None:
        """Send SIGSTOP; return when the process has stopped. A paused process stays paused."""
        self.must_run()
        if self._paused:
            return
        self._signal(signal.SIGSTOP)
        self._paused = True
        while self.is_running and os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is None:
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """Send SIGCONT to a paused process."""
        self.must_run()
        if not self._paused:
            raise KlammError(f"{self.name} is not paused.")
        self._signal(signal.SIGCONT)
        self._paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _reap(self, timeout_s: float | None) -> None:
        if self._process is not None:
            self._process.wait(timeout_s)
            self._process = None


def with_bytecode_cache(env: Mapping[str, str]) -> dict[str, str]:
    """Send bytecode to the user's cache directory if it may not be written beside the source.

    Without a cache, a broker compiles all of klamm at every start, which takes most of its starting time.
    """
    if "PYTHONDONTWRITEBYTECODE" not in env or "PYTHONPYCACHEPREFIX" in env:
        return dict(env)
    home = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "/nonexistent")) / ".cache")
    cache = Path(home) / "klamm" / "bytecode"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return dict(env)
    kept = {name: value for name, value in env.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(cache)}
