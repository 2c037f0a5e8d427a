"""Spark's JVM ends with the command that started it, also if the command is interrupted while Spark starts.

PySpark does not expose its process, and a JVM whose start was interrupted would wait for a connection for ever.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseServer
from subprocess import Popen, TimeoutExpired
from types import FrameType
from typing import Any, Final

END_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


class Terminated(SystemExit):
    """SIGTERM was received."""


class Jvm:
    """The process that PySpark starts within `launching`, if it starts one."""

    def __init__(self) -> None:
        self._processes: list[Popen[bytes]] = []

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Capture the process that is started in this block, and end it if the block raises."""
        from pyspark import java_gateway

        gateway: Any = java_gateway
        before = gateway.Popen
        gateway.Popen = self._launched
        try:
            yield
        except BaseException:
            self.end()
            raise
        finally:
            gateway.Popen = before

    def _launched(self, *args: Any, **kwargs: Any) -> Popen[bytes]:
        kwargs["preexec_fn"] = _ends_with_us(kwargs.get("preexec_fn"))
        process: Popen[bytes] = Popen(*args, **kwargs)
        self._processes.append(process)
        return process

    def ended(self, wait_s: float = 0.0) -> str | None:
        """Return in words how the process ended by itself; None if it runs or was never started."""
        for process in self._processes:
            with suppress(TimeoutExpired):
                return _describe_exit(process.wait(wait_s), process.pid)
        return None

    def end(self) -> None:
        """Kill the process at once."""
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            try:
                process.wait(END_S)
            except TimeoutExpired:
                process.kill()
                process.wait()


def _describe_exit(code: int, pid: int) -> str:
    if code >= 0:
        return f"Spark's JVM (process {pid}) ended with code {code}."
    name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
    reason = ", perhaps because memory ran out" if name == "SIGKILL" else ""
    return f"Spark's JVM (process {pid}) was ended by {name}{reason}."


def _ends_with_us(first: Callable[[], object] | None) -> Callable[[], None]:
    """Runs in the new process. Linux sends it SIGTERM when this process has ended, for whatever reason."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        if first is not None:
            first()
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return prepare


@contextmanager
def sigterm_ends() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that it ends the processes that it has started."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Terminated(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def silence_py4j() -> None:
    """Silence Py4J, which logs a page about every interrupted call. The commands print one line."""
    logging.getLogger("py4j").propagate = False
    root = logging.getLogger()
    if _is_not_of_py4j not in root.filters:
        root.addFilter(_is_not_of_py4j)
    _silence_accumulators()


def _silence_accumulators() -> None:
    """Silence PySpark's accumulator server, which prints a traceback when the JVM ends."""
    from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer

    for kind in (AccumulatorTCPServer, AccumulatorUnixServer):
        kind.handle_error = _report_unless_closed  # type: ignore[method-assign, assignment]


def _report_unless_closed(server: BaseServer, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
        BaseServer.handle_error(server, request, client_address)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname
