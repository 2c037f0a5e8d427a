"""`python -m klamm.zk.server.main`, and the embedded server in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from klamm import allocator
from klamm.model import is_loopback
from klamm.zk.model.limits import MAX_CONNECTIONS
from klamm.zk.server.server import EmbeddedZooKeeper, ServerOptions
from klamm.zk.server.shared_secret import OPEN_GATE, Gate
from klamm.zk.server.txnlog import DataDirError

_OWN_FILES: Final = 64
_MIN_CONNECTIONS: Final = 16


class EmbeddedZooKeeperThread:
    """The server in a thread with its own loop, for a broker that runs its own ZooKeeper.

    Takes the arguments of `EmbeddedZooKeeper`. `start` returns when clients can connect, or raises what stopped it.
    `on_failure` is called in the thread when the disk fails later: then the server has ended and does not come back.
    """

    def __init__(
        self,
        data_dir: Path | str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        on_failure: Callable[[OSError], None] | None = None,
        **options: Any,
    ) -> None:
        self._arguments = (data_dir, host, port)
        self._on_failure = on_failure
        self._options = options
        self._started: Future[EmbeddedZooKeeper] = Future()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="embedded-zookeeper", daemon=True)

    def start(self) -> EmbeddedZooKeeperThread:
        self._thread.start()
        server = self._started.result()
        self.host, self.port, self.address = server.host, server.port, server.address
        return self

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await EmbeddedZooKeeper(*self._arguments, **self._options).start()
        except (OSError, DataDirError) as error:
            self._started.set_exception(error)
            return
        self._started.set_result(server)
        await _until(self._stop, server.failed)
        if server.failure is not None and self._on_failure is not None:
            self._on_failure(server.failure)
        await server.stop()


async def _until(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def main(arguments: list[str] | None = None) -> int:
    import argparse

    parser = argparse.ArgumentParser("klamm.zk.server.main", description="A ZooKeeper server for klamm's brokers.")
    parser.add_argument("--data-dir", type=Path, required=True, help="where the log and snapshots are kept")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=2181, help="0 takes a free one")
    parser.add_argument("--port-file", type=Path, help="where the bound port is written once clients can connect")
    parser.add_argument("--min-session-timeout-ms", type=int, default=4_000)
    parser.add_argument("--max-session-timeout-ms", type=int, default=40_000)
    parser.add_argument("--secret-file", type=Path, help="file with user:password that every client must present")
    parser.add_argument(
        "--open-znodes",
        action="store_true",
        help="with --secret-file: remove the access rules for the secret from all znodes, and add none to new ones",
    )
    parser.add_argument("--no-fsync", action="store_true", help="for tests: do not wait for the disk")
    options = parser.parse_args(arguments)
    if options.secret_file is None and not is_loopback(options.host):
        parser.error(f"--host {options.host} requires --secret-file: other machines can connect to it")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    gc.set_threshold(100_000, 50, 100)  # a large tree is not garbage: collect rarely
    allocator.install()  # otherwise the memory of large answers is not returned to the system
    try:
        return asyncio.run(_serve(options))
    except (OSError, DataDirError) as error:
        print(f"The ZooKeeper server cannot start: {error}", file=sys.stderr)
        return 1


def _secret(path: Path) -> str:
    """Read the secret from a file, because others can read the arguments of a process."""
    return path.read_text().strip()


def _max_connections() -> int:
    """Return how many connections this process can have and still open its own files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(_MIN_CONNECTIONS, min(limit - _OWN_FILES, MAX_CONNECTIONS))


async def _serve(options: Any) -> int:
    server = EmbeddedZooKeeper(
        options.data_dir,
        options.host,
        options.port,
        min_session_timeout_ms=options.min_session_timeout_ms,
        max_session_timeout_ms=options.max_session_timeout_ms,
        fsync=not options.no_fsync,
        options=ServerOptions(
            max_connections=_max_connections(),
            gate=OPEN_GATE if options.secret_file is None else Gate(_secret(options.secret_file)),
            guards_znodes=not options.open_znodes,
        ),
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    if options.port_file is not None:
        temporary = options.port_file.with_name(options.port_file.name + ".tmp")
        temporary.write_text(f"{server.port}\n")
        temporary.rename(options.port_file)
    print(f"listening on {server.address}", flush=True)
    await _until(stop, server.failed)
    await server.stop()
    return 1 if server.failed.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
