"""The ZooKeeper of a mixed cluster: klamm's embedded server, or a real one that requires SASL to change anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Literal, Protocol

from klamm.local.launch import zookeeper_process
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.security.certificates.private_files import write_private
from klamm.zk.client.zk_security import UNSECURED, Login, ZkSecurity
from tests.support.real_zookeeper import RealZooKeeper

TIMEOUT_S: Final = 120.0
USER: Final = "brokers"
_PASSWORD: Final = "a secret of the brokers"
_CHROOT: Final = "/mixed/cluster"
_LOGIN: Final = "org.apache.zookeeper.server.auth.DigestLoginModule required"


class ZooKeeper(Protocol):
    @property
    def connect(self) -> str: ...
    @property
    def security(self) -> ZkSecurity:
        """The login of the brokers, for sessions of klamm."""

    def start(self) -> None: ...
    def close(self) -> None: ...
    def keys(self, kind: Literal["klamm", "kafka"]) -> dict[str, object]:
        """The keys of a broker of this kind."""

    @property
    def jvm_options(self) -> list[str]:
        """The options of a Kafka broker."""

    def problem(self) -> str | None:
        """Why it has ended by itself; None while it runs."""


class EmbeddedZooKeeper:
    """klamm's server, which everyone on this machine may use."""

    security: Final = UNSECURED

    def __init__(self, folder: Path) -> None:
        self._port = ReservedPort()
        self._process = zookeeper_process(folder, self._port.number, is_temporary=True)

    @property
    def connect(self) -> str:
        return f"{LOOPBACK}:{self._port.number}"

    def start(self) -> None:
        self._process.spawn()
        self._process.wait_ready(time.monotonic() + TIMEOUT_S)

    def close(self) -> None:
        self._process.discard()
        self._port.close()

    def keys(self, kind: Literal["klamm", "kafka"]) -> dict[str, object]:
        return {}

    @property
    def jvm_options(self) -> list[str]:
        return []

    def problem(self) -> str | None:
        return f"ZooKeeper has ended by itself.\n{self._process.log_tail()}" if self._process.has_crashed else None


class SaslZooKeeper:
    """A real ZooKeeper 3.9 with SASL DIGEST-MD5; all brokers log in as one user and set access rules."""

    security: Final = ZkSecurity(sasl=Login(USER, _PASSWORD), set_acl=True)

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "zookeeper"
        self._server = RealZooKeeper(self._folder, users={USER: _PASSWORD})

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def connect(self) -> str:
        return f"{self._server.address}{_CHROOT}"

    def start(self) -> None:
        self._folder.mkdir()
        self._server.__enter__()
        login = f'{_LOGIN} username="{USER}" password="{_PASSWORD}"'
        write_private(self._folder / "client-jaas.conf", f"Client {{ {login}; }};\n".encode())

    def close(self) -> None:
        if self._folder.exists():
            self._server.__exit__(None, None, None)

    def keys(self, kind: Literal["klamm", "kafka"]) -> dict[str, object]:
        """Kafka reads its login from the file of the JVM."""
        login = f'{_LOGIN} username="{USER}" password="{_PASSWORD}";'
        return {"zookeeper.set.acl": True} | ({"klamm.zookeeper.sasl.jaas.config": login} if kind == "klamm" else {})

    @property
    def jvm_options(self) -> list[str]:
        return [f"-Djava.security.auth.login.config={self._folder / 'client-jaas.conf'}"]

    def problem(self) -> str | None:
        return None if self._server.is_running else f"ZooKeeper has ended by itself.\n{self._server.log_tail()}"
