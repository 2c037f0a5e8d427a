"""A real ZooKeeper 3.9 from the jars inside the pyspark package, for tests that compare with it."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from klamm.local.ports import ReservedPort

NEEDED_JARS = ("zookeeper-", "netty-", "slf4j-api-", "metrics-core-", "snappy-java-", "commons-io-")
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
START_TIMEOUT_S = 60


class RealZooKeeper:
    """`with RealZooKeeper(directory) as zookeeper: ... zookeeper.address`. Says why when it cannot start."""

    def __init__(self, directory: Path, *, min_session_timeout_ms: int = 500, tick_time_ms: int = 3000) -> None:
        self._directory = directory
        self._min_session_timeout_ms = min_session_timeout_ms
        self._tick_time_ms = tick_time_ms
        self._reserved = ReservedPort()
        self.port = self._reserved.number

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> RealZooKeeper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._reserved.close()

    def start(self) -> None:
        """At first, and again after `stop`: on the same port and the same data."""
        java = shutil.which("java")
        if java is None:
            raise AssertionError("This test compares with a real ZooKeeper and finds no java: install Java 17.")
        self._log = self._directory / "zookeeper.log"
        with self._log.open("ab") as log:
            command = [java, "-Xmx64m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no", "-cp", _classpath()]
            command += [MAIN_CLASS, str(self._write_config())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._await_start()

    def stop(self, *, kill: bool = True) -> None:
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait()

    def _write_config(self) -> Path:
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        config = self._directory / "zoo.cfg"
        config.write_text(
            f"dataDir={data}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            f"4lw.commands.whitelist=*\nminSessionTimeout={self._min_session_timeout_ms}\nmaxClientCnxns=0\n"
            f"tickTime={self._tick_time_ms}\n"
        )
        return config

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ok():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"ZooKeeper did not start:\n{self._log.read_text()[-2_000:]}")
            time.sleep(0.05)

    def _is_ok(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


def _classpath() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise AssertionError(
            "This test takes ZooKeeper's jars from pyspark, which is not installed: use the test extra."
        )
    jars = sorted((Path(spec.submodule_search_locations[0]) / "jars").glob("*.jar"))
    return ":".join(str(jar) for jar in jars if jar.name.startswith(NEEDED_JARS))
