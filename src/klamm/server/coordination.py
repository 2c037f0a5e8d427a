"""The broker's connection to ZooKeeper: a real ensemble, or the embedded server in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.server import zookeeper_security
from klamm.zk.client import predecessor
from klamm.zk.client.client_connection import SessionCredentials
from klamm.zk.client.zk_security import ZkSecurity
from klamm.zk.client.zk_session import SessionListener, SessionState, ZkSession
from klamm.zk.model.ops import ConnectionLoss

if TYPE_CHECKING:
    from klamm.zk.server.main import EmbeddedZooKeeperThread

log = logging.getLogger(__name__)

SESSION_FILE: Final = "zookeeper.session"
GOODBYE_MS: Final = 1_000
"""Time that a stopping broker without a connection tries to reach a server to close its session."""


def embedded_dir(config: KafkaConfig) -> Path:
    """Return the directory: by default next to the first log directory, so that no two brokers share it."""
    if config.klamm_zookeeper_embedded_dir is not None:
        return Path(config.klamm_zookeeper_embedded_dir)
    first = config.log_directories[0].absolute()
    return first.parent / f"{first.name}-zookeeper"


class Coordination:
    """Owns the session and, without `zookeeper.connect`, the embedded server.

    `on_failure` is called on the loop of `start` with the reason if the embedded server ends by itself.
    """

    def __init__(self, config: KafkaConfig, on_failure: Callable[[str], None] | None = None) -> None:
        self._config = config
        self._on_failure = on_failure
        self._embedded: EmbeddedZooKeeperThread | None = None
        self._session_files: list[Path] = []
        self._zk: ZkSession | None = None

    @property
    def zk(self) -> ZkSession:
        assert self._zk is not None, "coordination is not started"
        return self._zk

    async def start(self) -> ZkSession:
        """Return a connected session. Raises KlammError if ZooKeeper does not answer in time."""
        hosts = self._config.zookeeper_connect or await self._start_embedded()
        self._zk = self._open_session(hosts)
        timeout_ms = self._connection_timeout_ms
        log.info("zookeeper: connecting to %s, for at most %d ms", hosts, timeout_ms)
        try:
            return await self._zk.start(timeout_ms)
        except ConnectionLoss:
            if (refusal := self._zk.refusal) is not None:
                raise KlammError(f"ZooKeeper refuses this broker at {refusal}.") from None
            raise KlammError(
                f"ZooKeeper did not answer at {hosts} within {timeout_ms} ms: start it, or correct zookeeper.connect."
            ) from None

    @property
    def _connection_timeout_ms(self) -> int:
        """Return the connection timeout of a starting broker: zookeeper.session.timeout.ms unless configured."""
        return self._config.zookeeper_connection_timeout_ms or self._config.zookeeper_session_timeout_ms

    @cached_property
    def _security(self) -> ZkSecurity:
        return zookeeper_security.client(self._config)

    def _open_session(self, hosts: str) -> ZkSession:
        return ZkSession(hosts, self._config.zookeeper_session_timeout_ms, security=self._security)

    async def _start_embedded(self) -> str:
        # Most brokers set zookeeper.connect and must not pay for importing a server.
        from klamm.zk.server.main import EmbeddedZooKeeperThread
        from klamm.zk.server.txnlog import DataDirError, DataDirInUseError

        config = self._config
        path = embedded_dir(config)
        loop = asyncio.get_running_loop()

        def on_failure(error: OSError) -> None:
            if self._on_failure is not None:
                sentence = (
                    f"The embedded ZooKeeper cannot write to {path}: {error.strerror}. Without it the cluster cannot "
                    "change. Free the disk and start the broker again."
                )
                loop.call_soon_threadsafe(self._on_failure, sentence)

        host, port = config.klamm_zookeeper_embedded_host, config.klamm_zookeeper_embedded_port
        options = zookeeper_security.embedded_server(config)
        embedded = EmbeddedZooKeeperThread(path, host, port, on_failure=on_failure, options=options)
        try:
            await loop.run_in_executor(None, embedded.start)
        except (DataDirError, OSError) as error:
            advice = (
                "; set klamm.zookeeper.embedded.dir to a directory of this broker, or zookeeper.connect to that server"
                if isinstance(error, DataDirInUseError)
                else ""
            )
            raise KlammError(f"The embedded ZooKeeper cannot start in {path}: {error}{advice}.") from None
        self._embedded = embedded
        log.info("the embedded ZooKeeper keeps its data in %s and answers on %s", path, embedded.address)
        return str(embedded.address)

    async def take_over(self, log_dirs: Sequence[Path]) -> bool:
        """End the session of the previous broker of `log_dirs`; call it with the directories' locks held.

        Returns True if the previous broker was not stopped cleanly: its registration may still exist, because its
        session must time out or because the directories are a copy.
        """
        self._session_files = [path / SESSION_FILE for path in log_dirs]
        found = [(path, dead) for path in self._session_files if (dead := predecessor.load(path)) is not None]
        for dead in dict.fromkeys(dead for path, dead in found if predecessor.is_of_dead_process(path)):
            await self._end_dead_session(dead)
        self._remember()
        self.zk.add_listener(SessionListener(after_new_session=self._remember))
        return bool(found)

    async def _end_dead_session(self, dead: SessionCredentials) -> None:
        timeout_ms = self._connection_timeout_ms
        end = functools.partial(predecessor.end_session, self.zk.hosts, dead, timeout_ms, self._security)
        if not await asyncio.get_running_loop().run_in_executor(None, end):
            # Keep the file: the next start needs it to find that session.
            raise KlammError(
                f"ZooKeeper did not answer at {self.zk.hosts} within {timeout_ms} ms while the session of this "
                "broker's last run was ended: start the broker again when it does."
            )
        log.info("session %#x of this broker's last run was ended: that run was not stopped cleanly", dead.session_id)

    def _remember(self) -> None:
        """Save the session in every directory, because any of them may be the only one left after a failure."""
        problems = [problem for path in self._session_files if (problem := self._note_session(path)) is not None]
        if len(problems) == len(self._session_files):
            log.warning("%s. After a crash this broker waits for its old session to end", "; ".join(problems))

    def _note_session(self, path: Path) -> str | None:
        try:
            predecessor.save(path, self.zk.credentials)
        except OSError as error:
            return f"{path} cannot be written: {error.strerror}"
        return None

    async def end_session(self) -> None:
        """Fail all pending requests to ZooKeeper.

        Without a connection, try another one briefly, because the cluster counts this broker as alive while its session
        lives. Otherwise the session lives until it times out, and the next start must end it.
        """
        if self._zk is None or self._zk.state is SessionState.CLOSED:
            return
        mine = self._zk.credentials
        if not await self._zk.close() and not (mine.session_id and await self._end_by_another_connection(mine)):
            return
        for path in self._session_files:
            with contextlib.suppress(OSError):  # on a failed disk; the session that it names has ended
                path.unlink()

    async def _end_by_another_connection(self, mine: SessionCredentials) -> bool:
        end = functools.partial(predecessor.end_session, self.zk.hosts, mine, GOODBYE_MS, self._security)
        return await asyncio.get_running_loop().run_in_executor(None, end)

    async def stop(self) -> None:
        await self.end_session()
        if self._embedded is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._embedded.stop)
