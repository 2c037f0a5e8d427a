"""The broker's way to ZooKeeper: a real ensemble, or the embedded server in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.zk import predecessor
from klamm.zk.ops import ConnectionLoss
from klamm.zk.session import SessionListener, SessionState, ZkSession

if TYPE_CHECKING:
    from klamm.zk.main import EmbeddedZooKeeperThread

log = logging.getLogger(__name__)

SESSION_FILE: Final = "zookeeper.session"


class Coordination:
    """Owner of the session and, without `zookeeper.connect`, of the embedded server."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._embedded: EmbeddedZooKeeperThread | None = None
        self._session_file: Path | None = None
        self._zk: ZkSession | None = None

    @property
    def zk(self) -> ZkSession:
        assert self._zk is not None, "coordination is not started"
        return self._zk

    async def start(self) -> ZkSession:
        """A connected session. Raises KlammError when ZooKeeper does not answer within its time."""
        config = self._config
        hosts = config.zookeeper_connect or await self._start_embedded()
        self._zk = ZkSession(hosts, config.zookeeper_session_timeout_ms)
        timeout_ms = config.zookeeper_connection_timeout_ms or config.zookeeper_session_timeout_ms
        try:
            return await self._zk.start(timeout_ms)
        except ConnectionLoss:
            raise KlammError(
                f"ZooKeeper did not answer at {hosts} within {timeout_ms} ms: start it, or correct zookeeper.connect."
            ) from None

    async def _start_embedded(self) -> str:
        # Most brokers have zookeeper.connect and must not pay for importing a server.
        from klamm.zk.main import EmbeddedZooKeeperThread
        from klamm.zk.txnlog import DataDirError

        config = self._config
        folder = config.klamm_zookeeper_embedded_dir
        path = Path(folder) if folder is not None else config.log_directories[0].parent / "zookeeper"
        embedded = EmbeddedZooKeeperThread(path, port=config.klamm_zookeeper_embedded_port)
        try:
            await asyncio.get_running_loop().run_in_executor(None, embedded.start)
        except (DataDirError, OSError) as error:
            raise KlammError(f"The embedded ZooKeeper cannot start in {path}: {error}") from None
        self._embedded = embedded
        log.info("The embedded ZooKeeper keeps its data in %s and answers on %s", path, embedded.address)
        return str(embedded.address)

    async def take_over(self, log_dir: Path) -> None:
        """Ends the session of the broker that held `log_dir` before; call it with the directory's lock held."""
        self._session_file = log_dir / SESSION_FILE
        dead = predecessor.load(self._session_file)
        if dead is not None and dead.session_id != self.zk.session_id:
            timeout_ms = self._config.zookeeper_session_timeout_ms
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, predecessor.end_session, self.zk.hosts, dead, timeout_ms)
            log.info("Ended the session %#x of this broker's last run, which was not stopped cleanly", dead.session_id)
        self._remember()
        self.zk.add_listener(SessionListener(after_new_session=self._remember))

    def _remember(self) -> None:
        assert self._session_file is not None
        try:
            predecessor.save(self._session_file, self.zk.credentials)
        except OSError as error:
            log.warning(
                "%s cannot be written: %s. After a crash this broker waits for its old session to end",
                self._session_file,
                error.strerror,
            )

    async def end_session(self) -> None:
        """Whoever waits for ZooKeeper hears that there is no more answer.

        Without a connection the session lives on until its time is over: the next start has to find and end it.
        """
        if self._zk is None or self._zk.state is SessionState.CLOSED:
            return
        is_connected = self._zk.state is SessionState.CONNECTED
        await self._zk.close()
        if is_connected and self._session_file is not None:
            with contextlib.suppress(OSError):  # of a disk that failed; the session it names has ended
                self._session_file.unlink()

    async def stop(self) -> None:
        await self.end_session()
        if self._embedded is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._embedded.stop)
