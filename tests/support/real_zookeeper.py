"""A real ZooKeeper 3.9 from the jars inside the pyspark package, for tests that compare with it."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from klamm.local.ports import ReservedPort
from klamm.security.certificates.certificate_store import CertificateStore

NEEDED_JARS = ("zookeeper-", "netty-", "slf4j-api-", "metrics-core-", "snappy-java-", "commons-io-")
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
START_TIMEOUT_S = 60


class RealZooKeeper:
    """`with RealZooKeeper(directory) as zookeeper: ... zookeeper.address`. Says why when it cannot start."""

    def __init__(
        self,
        directory: Path,
        *,
        min_session_timeout_ms: int = 500,
        tick_time_ms: int = 3000,
        users: Mapping[str, str] | None = None,
        certificates: CertificateStore | None = None,
    ) -> None:
        """With `users`, they may log in by SASL DIGEST-MD5. With `certificates`, there is a port with TLS for clients
        that have one of them; the server's is called `server`.
        """
        self._directory = directory
        self._users = users
        self._certificates = certificates
        self._reserved_secure = None if certificates is None else ReservedPort()
        self._min_session_timeout_ms = min_session_timeout_ms
        self._tick_time_ms = tick_time_ms
        self._reserved = ReservedPort()
        self.port = self._reserved.number

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_address(self) -> str:
        assert self._reserved_secure is not None, "start it with certificates"
        return f"localhost:{self._reserved_secure.number}"

    def __enter__(self) -> RealZooKeeper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._reserved.close()
        if self._reserved_secure is not None:
            self._reserved_secure.close()

    def start(self) -> None:
        """At first, and again after `stop`: on the same port and the same data."""
        java = shutil.which("java")
        if java is None:
            raise AssertionError("This test compares with a real ZooKeeper and finds no java: install Java 17.")
        self._log = self._directory / "zookeeper.log"
        with self._log.open("ab") as log:
            command = [java, "-Xmx64m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]
            command += [*self._security_options(), "-cp", _classpath()]
            command += [MAIN_CLASS, str(self._write_config())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._await_start()

    def stop(self, *, kill: bool = True) -> None:
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log_tail(self) -> str:
        return self._log.read_text()[-2_000:]

    def _security_options(self) -> list[str]:
        options = []
        if self._users is not None:
            jaas = self._directory / "jaas.conf"
            users = "\n".join(f'user_{name}="{password}"' for name, password in self._users.items())
            jaas.write_text(f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required {users}; }};\n")
            provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            options += [f"-Djava.security.auth.login.config={jaas}", f"-Dzookeeper.authProvider.1={provider}"]
        if self._certificates is not None:
            options.append("-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
        return options

    def _secure_lines(self) -> str:
        if self._certificates is None or self._reserved_secure is None:
            return ""
        store = self._certificates
        return (
            f"secureClientPort={self._reserved_secure.number}\nsecureClientPortAddress=127.0.0.1\n"
            f"ssl.keyStore.location={store.directory / 'server.p12'}\nssl.keyStore.password={store.password}\n"
            f"ssl.trustStore.location={store.truststore_path}\nssl.trustStore.password={store.password}\n"
        )

    def _write_config(self) -> Path:
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        config = self._directory / "zoo.cfg"
        config.write_text(
            f"dataDir={data}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            f"4lw.commands.whitelist=*\nminSessionTimeout={self._min_session_timeout_ms}\nmaxClientCnxns=0\n"
            f"tickTime={self._tick_time_ms}\n{self._secure_lines()}"
        )
        return config

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ok():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"ZooKeeper did not start:\n{self.log_tail()}")
            time.sleep(0.05)

    def _is_ok(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok" and self._is_secure_ok()
        except OSError:
            return False

    def _is_secure_ok(self) -> bool:
        if self._reserved_secure is None:
            return True
        with socket.create_connection(("127.0.0.1", self._reserved_secure.number), timeout=5):
            return True


def _classpath() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise AssertionError(
            "This test takes ZooKeeper's jars from pyspark, which is not installed: use the test extra."
        )
    jars = sorted((Path(spec.submodule_search_locations[0]) / "jars").glob("*.jar"))
    return ":".join(str(jar) for jar in jars if jar.name.startswith(NEEDED_JARS))
