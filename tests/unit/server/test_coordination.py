"""The session file of a broker, and the handling of its predecessor's file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.server.coordination import SESSION_FILE, Coordination, embedded_dir
from klamm.zk.client import predecessor
from klamm.zk.client.client_connection import SessionCredentials
from klamm.zk.model.ops import Create
from klamm.zk.server.server import EmbeddedZooKeeper, ServerOptions
from klamm.zk.server.server_connection import Connection
from klamm.zk.server.shared_secret import Gate

SAVE = """
import sys
from pathlib import Path
from klamm.zk.client import predecessor
from klamm.zk.client.client_connection import SessionCredentials
predecessor.save(Path(sys.argv[1]), SessionCredentials(int(sys.argv[2]), bytes.fromhex(sys.argv[3])))
"""


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


@asynccontextmanager
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedZooKeeper]:
    zookeeper = await EmbeddedZooKeeper(tmp_path / "zookeeper", fsync=False).start()
    try:
        yield zookeeper
    finally:
        await zookeeper.stop()


def save_in_another_process(path: Path, left: SessionCredentials) -> None:
    subprocess.run([sys.executable, "-c", SAVE, str(path), str(left.session_id), left.password.hex()], check=True)


def coordination(zookeeper: EmbeddedZooKeeper) -> Coordination:
    times = {"zookeeper.session.timeout.ms": 30_000, "zookeeper.connection.timeout.ms": 50_000}
    return Coordination(KafkaConfig({"zookeeper.connect": zookeeper.address, **times}))


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_the_file_goes_only_with_the_session(tmp_path: Path, is_confirmed: bool) -> None:
    """A server that dies before it has closed the session leaves it to the next one: the file is still needed."""

    async def scenario() -> None:
        async with server(tmp_path) as zookeeper:
            mine = coordination(zookeeper)
            await mine.start()
            assert not await mine.take_over([tmp_path])
            credentials = mine.zk.credentials
            assert predecessor.load(tmp_path / SESSION_FILE) == credentials
            if not is_confirmed:
                zookeeper.on_frame = lambda connection, frame: connection.abort()  # type: ignore[method-assign]
            await mine.stop()
            assert (predecessor.load(tmp_path / SESSION_FILE) == credentials) is not is_confirmed
            assert (credentials.session_id in zookeeper.tree.sessions) is not is_confirmed

    run(scenario)


def test_a_connection_that_is_lost_at_the_end_leaves_no_session(tmp_path: Path) -> None:
    """The cluster would count the broker as alive for as long as its session may last."""

    async def scenario() -> None:
        async with server(tmp_path) as zookeeper:
            mine = coordination(zookeeper)
            await mine.start()
            await mine.take_over([tmp_path])
            credentials, answer = mine.zk.credentials, zookeeper.on_frame

            def lose_one(connection: Connection, frame: bytes) -> None:
                zookeeper.on_frame = answer  # type: ignore[method-assign]
                connection.abort()

            zookeeper.on_frame = lose_one  # type: ignore[method-assign]
            await mine.stop()
            assert zookeeper.on_frame == answer, "nothing was lost"
            assert credentials.session_id not in zookeeper.tree.sessions
            assert not (tmp_path / SESSION_FILE).exists()

    run(scenario)


def test_a_session_that_cannot_be_ended_stays_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with server(tmp_path) as zookeeper:
            dead, mine = coordination(zookeeper), coordination(zookeeper)
            await dead.start()
            await dead.zk.create(Create("/registration", ephemeral=True))
            left, file = dead.zk.credentials, tmp_path / SESSION_FILE
            await asyncio.to_thread(save_in_another_process, file, left)
            await mine.start()
            with monkeypatch.context() as patch:
                patch.setattr(predecessor, "end_session", lambda *_: False)
                # as long as any connection may take at a start, however short sessions are
                with pytest.raises(KlammError, match=r"did not answer at .* within 50000 ms while the session of this"):
                    await mine.take_over([tmp_path])
            assert predecessor.load(file) == left and "/registration" in zookeeper.tree.nodes
            assert await mine.take_over([tmp_path])
            assert predecessor.load(file) == mine.zk.credentials and "/registration" not in zookeeper.tree.nodes
            await mine.stop()
            await dead.stop()

    run(scenario)


@pytest.mark.parametrize(
    ("log_dirs", "expected"), [("/data/a", "/data/a-zookeeper"), ("/data/b/,/data/a", "/data/b-zookeeper")]
)
def test_every_log_directory_has_an_embedded_zookeeper_of_its_own(log_dirs: str, expected: str) -> None:
    """Brokers under one parent directory must not join each other's cluster if ZooKeeper's address is missing."""
    assert embedded_dir(KafkaConfig({"log.dirs": log_dirs})) == Path(expected)
    assert embedded_dir(KafkaConfig({"log.dirs": log_dirs, "klamm.zookeeper.embedded.dir": "/zk"})) == Path("/zk")
    assert embedded_dir(KafkaConfig({})) == Path("/tmp/kafka-logs-zookeeper")


def test_a_broker_with_another_digest_names_the_setting(tmp_path: Path) -> None:
    async def failure(address: str, timeout_ms: int) -> str:
        settings = {"zookeeper.connect": address, "klamm.zookeeper.digest": "klamm:wrong"}
        starting = Coordination(KafkaConfig({**settings, "zookeeper.connection.timeout.ms": timeout_ms}))
        with pytest.raises(KlammError) as failed:
            await starting.start()
        await starting.stop()
        return str(failed.value)

    async def scenario() -> None:
        options = ServerOptions(gate=Gate("klamm:right"))
        zookeeper = await EmbeddedZooKeeper(tmp_path / "zookeeper", fsync=False, options=options).start()
        try:
            timeout_ms = 100
            while "did not answer" in (reason := await failure(zookeeper.address, timeout_ms)):
                timeout_ms *= 2  # a slow machine: no answer yet, also no refusal
            assert reason.startswith(f"ZooKeeper refuses this broker at {zookeeper.address}: the scheme digest")
            assert "klamm.zookeeper.digest" in reason
        finally:
            await zookeeper.stop()

    run(scenario)
