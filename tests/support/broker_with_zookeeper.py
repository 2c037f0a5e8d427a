"""A broker without a network, with a tree of its own in an embedded ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.one_broker import OneBroker


@contextmanager
def embedded_zookeeper(directory: Path) -> Iterator[str]:
    """The address of a server that several brokers may share."""
    server = EmbeddedZooKeeperThread(directory, fsync=False, min_session_timeout_ms=100).start()
    yield server.address
    server.stop()


@contextmanager
def broker_with_zookeeper(
    directory: Path, zookeeper: str, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[OneBroker, ZkSession]]:
    """The name of `directory` is that of the broker's tree."""
    broker = OneBroker(directory, settings)
    session = ZkSession(f"{zookeeper}/{directory.name}", 30_000)

    async def connect() -> None:
        await session.start()
        await session.ensure_paths(paths.PERSISTENT_PATHS)

    broker.loop.run_until_complete(connect())
    broker.give(zk=session)
    yield broker, session
    broker.loop.run_until_complete(session.close())
    broker.close()
