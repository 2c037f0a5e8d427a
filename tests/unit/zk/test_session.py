"""ZkSession against the embedded server: reads, writes, watches, lost connections, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from klamm.local.ports import ReservedPort
from klamm.zk.client.batches import MAX_BATCH_BYTES, levels_of, path_batches
from klamm.zk.client.chroot import Chroot, split_hosts
from klamm.zk.client.client_connection import Result
from klamm.zk.client.client_requests import Request
from klamm.zk.client.zk_session import SessionListener, SessionState, ZkSession
from klamm.zk.model import limits, paths
from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import (
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    CreateResult,
    Delete,
    EventType,
    Exists,
    GetChildren,
    GetData,
    MarshallingError,
    MultiFailed,
    NodeExists,
    NoNode,
    SessionExpired,
    SetData,
    SetDataResult,
    WatchEvent,
)
from klamm.zk.server.main import EmbeddedZooKeeperThread
from klamm.zk.server.request_processor import _READS
from klamm.zk.server.server import EmbeddedZooKeeper
from tests.support.zk_registration import register_ephemeral


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


@asynccontextmanager
async def server_and_session(
    tmp_path: Path, chroot: str = "", timeout_ms: int = 30_000
) -> AsyncIterator[tuple[EmbeddedZooKeeper, ZkSession]]:
    server = await EmbeddedZooKeeper(tmp_path, fsync=False, min_session_timeout_ms=200).start()
    session = await ZkSession(server.address + chroot, timeout_ms).start()
    try:
        yield server, session
    finally:
        await session.close()
        await server.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until something holds; `run` bounds the wait."""
    while not condition():  # noqa: ASYNC110 - the condition is the test's, and no event reports it
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("chroot", ["", "/kafka/a"])
def test_reads_and_writes(tmp_path: Path, chroot: str) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path, chroot) as (server, zk):
            created = await zk.create(Create("/a", b"x"))
            assert created.path == "/a" and created.stat is not None and created.stat.version == 0
            assert f"{chroot}/a" in server.tree.nodes
            assert (await zk.set(SetData("/a", b"y", 0))).stat.version == 1
            assert (await zk.read(GetData("/a"))).data == b"y"
            assert await zk.get_children("/") == (("a",) if chroot else ("zookeeper", "a"))
            numbered = await zk.create(Create("/a/n_", sequential=True))
            assert numbered.path == "/a/n_0000000000"
            with pytest.raises(BadVersion, match=r"/a$"):
                await zk.set(SetData("/a", b"z", 0))
            with pytest.raises(NoNode, match=r"NO_NODE /none$"):
                await zk.read(GetData("/none"))
            assert (await zk.read(Exists("/none"))).stat is None
            await zk.delete(Delete(numbered.path))

    run(scenario)


def test_multi_names_the_operation_that_failed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path, "/k") as (_, zk):
            done = await zk.multi([Create("/a"), SetData("/a", b"1", 0), Check("/a", 1), Delete("/a", 1), Create("/b")])
            assert done[0] == CreateResult("/a") and isinstance(done[1], SetDataResult)
            with pytest.raises(MultiFailed) as caught:
                await zk.multi([Create("/c"), Check("/b", 7), Create("/d")])
            assert (caught.value.index, caught.value.op) == (1, Check("/b", 7))
            assert caught.value.error == BadVersion("/b")
            assert await zk.get_children("/") == ("b",)

    run(scenario)


def test_read_many_in_batches_and_without_multi_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path, "/k") as (_, zk):
            await zk.multi([Create(f"/{n}", b"%d" % n) for n in range(1_200)])
            wanted = [f"/{n}" for n in range(1_201)]
            found = await zk.read_many(wanted)
            assert [None if f is None else f[0] for f in found] == [*(b"%d" % n for n in range(1_200)), None]
            monkeypatch.delitem(_READS, OpCode.MULTI_READ)
            assert await zk.read_many(wanted) == found
            assert await zk.read_many([]) == []

    run(scenario)


def test_answers_beyond_the_limit_are_asked_for_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ANSWER_BYTES", 10_000)

    async def scenario() -> None:
        async with server_and_session(tmp_path) as (_, zk):
            await zk.multi([Create(f"/{n}", b"x" * 900) for n in range(50)])
            found = await zk.read_many([f"/{n}" for n in range(51)], watch=True)
            assert [None if f is None else f[0] for f in found] == [b"x" * 900] * 50 + [None]
            await zk.set(SetData("/7", b"x" * 10_001))
            with pytest.raises(MarshallingError):
                await zk.read_many([f"/{n}" for n in range(51)])

    run(scenario)


def test_batches_stay_below_the_limit() -> None:
    wanted = ["/" + "ü" * 5_000 + str(n) for n in range(100)]
    batches = path_batches(wanted)
    assert [path for batch in batches for path in batch] == wanted
    assert all(sum(len(path.encode()) + 14 for path in batch) <= MAX_BATCH_BYTES for batch in batches)


def test_connect_strings() -> None:
    assert split_hosts("a:1,b:2/kafka/x/") == ("a:1,b:2", "/kafka/x")
    assert split_hosts("a:1") == ("a:1", "")
    assert Chroot("/kafka/x").levels() == ["/kafka", "/kafka/x"]
    for bad in ("", "/kafka", "a:1//x", ",", " , /x"):
        with pytest.raises(ValueError, match=r"zookeeper\.connect"):
            split_hosts(bad)


def test_ensure_paths(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path) as (server, zk):
            await zk.ensure_paths(paths.PERSISTENT_PATHS)
            await zk.ensure_paths(paths.PERSISTENT_PATHS)
            assert set(levels_of(paths.PERSISTENT_PATHS)) <= set(server.tree.nodes)

    run(scenario)


def test_a_handler_receives_only_events_that_a_read_armed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path, "/k") as (_, zk):
            received: list[WatchEvent] = []
            zk.on_change("/a", received.append)
            zk.on_children("/", received.append)
            await zk.read(Exists("/a"))
            await zk.create(Create("/a"))
            await zk.read(Exists("/a", watch=True))
            await zk.read(GetChildren("/", watch=True))
            assert received == []
            await zk.set(SetData("/a", b"1"))
            assert received == [WatchEvent(EventType.DATA_CHANGED, "/a")]
            await zk.set(SetData("/a", b"2"))
            await zk.delete(Delete("/a"))
            assert received[1:] == [WatchEvent(EventType.CHILDREN_CHANGED, "/")]
            await zk.read(Exists("/a", watch=True))
            zk.forget_change("/a")
            await zk.create(Create("/a"))
            assert len(received) == 2

    run(scenario)


def test_watches_survive_a_reconnect(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path, "/k") as (server, zk):
            other = await ZkSession(server.address + "/k").start()
            received: list[WatchEvent] = []
            states: list[SessionState] = []
            zk.add_listener(SessionListener(on_state=states.append))
            for path in ("/changed", "/later", "/gone"):
                await zk.create(Create(path))
            for path in ("/changed", "/later", "/gone", "/new"):
                zk.on_change(path, received.append)
                await zk.read(Exists(path, watch=True))
            zk.on_children("/", received.append)
            await zk.read(GetChildren("/", watch=True))
            session_id = zk.session_id
            zk.drop_connection()
            await until(lambda: SessionState.SUSPENDED in states)
            await other.set(SetData("/changed", b""))
            await other.delete(Delete("/gone"))
            await other.create(Create("/new"))
            await until(lambda: len(received) == 4)
            assert sorted(received, key=lambda e: e.path) == [
                WatchEvent(EventType.CHILDREN_CHANGED, "/"),
                WatchEvent(EventType.DATA_CHANGED, "/changed"),
                WatchEvent(EventType.DELETED, "/gone"),
                WatchEvent(EventType.CREATED, "/new"),
            ]
            assert zk.session_id == session_id and states[-1] is SessionState.CONNECTED
            await other.set(SetData("/later", b""))
            await until(lambda: len(received) == 5)
            await other.close()

    run(scenario)


@pytest.mark.parametrize("chroot", ["", "/k"])
def test_many_are_watched_from_before_they_are_read(tmp_path: Path, chroot: str) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path, chroot) as (_, zk):
            received: list[WatchEvent] = []
            names = [f"/n{number:04d}" for number in range(1_200)]
            for start in range(0, len(names), 400):
                await zk.multi([Create(name, name.encode()) for name in names[start : start + 400]])
            for name in (*names, "/missing"):
                zk.on_change(name, received.append)
            found = await zk.read_many([*names, "/missing"], watch=True)
            assert [each and each[0] for each in found] == [*(name.encode() for name in names), None]
            await zk.set(SetData(names[7], b"new"))
            await zk.set(SetData(names[7], b"newer"))
            await zk.delete(Delete(names[1_100]))
            await zk.create(Create("/missing"))
            await zk.read(GetData("/"))
            assert received == [
                WatchEvent(EventType.DATA_CHANGED, names[7]),
                WatchEvent(EventType.DELETED, names[1_100]),
            ], "one event a watch, and none for what was not there"

    run(scenario)


def test_many_watches_survive_a_reconnect(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path) as (server, zk):
            other = await ZkSession(server.address).start()
            received: list[WatchEvent] = []
            states: list[SessionState] = []
            zk.add_listener(SessionListener(on_state=states.append))
            names = [f"/n{number}" for number in range(600)]
            await other.multi([Create(name) for name in names])
            for name in names:
                zk.on_change(name, received.append)
            reading = asyncio.ensure_future(zk.read_many(names, watch=True))
            await asyncio.sleep(0)
            zk.drop_connection()
            assert all(await reading)
            await until(lambda: SessionState.SUSPENDED in states and states[-1] is SessionState.CONNECTED)
            states.clear()
            zk.drop_connection()
            await until(lambda: SessionState.SUSPENDED in states)
            await other.multi([SetData(name, b"x") for name in names])
            await until(lambda: len(received) >= len(names))
            assert {event.path: event.type for event in received} == dict.fromkeys(names, EventType.DATA_CHANGED)
            assert len(received) == len(names)
            await other.close()

    run(scenario)


def test_reads_wait_for_the_connection_and_writes_report_its_loss(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = ReservedPort()
        server = await EmbeddedZooKeeper(tmp_path, port=port.number, fsync=False).start()
        zk = await ZkSession(server.address, 30_000).start()
        await zk.create(Create("/a", b"x"))
        session_id = zk.session_id
        await server.stop()
        await until(lambda: zk.state is SessionState.SUSPENDED)
        reading = asyncio.ensure_future(zk.read(GetData("/a")))
        server = await EmbeddedZooKeeper(tmp_path, port=port.number, fsync=False).start()
        assert (await reading).data == b"x"
        assert zk.session_id == session_id
        writing = asyncio.ensure_future(zk.set(SetData("/a", b"y")))
        await asyncio.sleep(0)  # it is written, and the server, which has the same loop, cannot have read it
        zk.drop_connection()
        with pytest.raises(ConnectionLoss):
            await writing
        await zk.close()
        await server.stop()
        port.close()

    run(scenario)


def test_expiry_notifies_before_and_after_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path) as (server, zk):
            reported: list[str] = []

            async def before() -> None:
                with pytest.raises(SessionExpired):
                    await zk.read(GetData("/"))
                reported.append(f"before, connections {len(server.connections)}")

            async def after() -> None:
                reported.append(f"after, data {(await zk.read(GetData('/a'))).data!r}")

            zk.add_listener(SessionListener(lambda s: reported.append(s.value), before, after))
            await zk.create(Create("/a", b"x"))
            await zk.create(Create("/e", ephemeral=True))
            old = zk.session_id
            server.expire_session(old)
            await until(lambda: len(reported) == 5)
            assert reported == ["suspended", "expired", "before, connections 0", "connected", "after, data b'x'"]
            assert zk.previous_session_id == old != zk.session_id
            assert "/e" not in server.tree.nodes

    run(scenario)


def test_registration_of_a_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server_and_session(tmp_path) as (server, zk):
            await zk.ensure_paths([paths.BROKER_IDS])
            stat = await register_ephemeral(zk, "/brokers/ids/1", b"{}")
            assert stat.version == 1 and stat.ephemeral_owner == zk.session_id
            assert (await register_ephemeral(zk, "/brokers/ids/1", b"{}")).czxid == stat.czxid
            other = await ZkSession(server.address).start()
            with pytest.raises(NodeExists, match="belongs to the session"):
                await register_ephemeral(other, "/brokers/ids/1", b"{}")
            other.previous_session_id = zk.session_id
            again = await register_ephemeral(other, "/brokers/ids/1", b"{}")
            assert again.czxid > stat.czxid and again.ephemeral_owner == other.session_id
            await other.close()

    run(scenario)


def test_two_loops_share_a_session(tmp_path: Path) -> None:
    server = EmbeddedZooKeeperThread(tmp_path, fsync=False).start()

    async def scenario() -> None:
        zk = await ZkSession(server.address).start()

        async def elsewhere() -> bytes | None:
            await zk.create(Create("/from-another-loop", b"x"))
            return (await zk.read(GetData("/from-another-loop"))).data

        assert await asyncio.to_thread(asyncio.run, elsewhere()) == b"x"
        await zk.close()

    run(scenario)
    server.stop()


def test_a_handler_that_fails_holds_up_no_reply(tmp_path: Path) -> None:
    """The event and the replies behind it come to the loop together."""

    async def scenario() -> None:
        async with server_and_session(tmp_path) as (_, zk):
            reported: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

            def fail(event: WatchEvent) -> None:
                raise RuntimeError(event.path)

            inbox = zk._inbox(asyncio.get_running_loop())
            later = asyncio.get_running_loop().create_future()
            inbox.post(fail, WatchEvent(EventType.CREATED, "/a"))
            inbox.post(later.set_result, "reply")
            async with asyncio.timeout(20):
                assert await later == "reply"
            assert list(map(str, reported)) == ["/a"]

    run(scenario)


def test_closed_while_the_chroot_cannot_be_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = await EmbeddedZooKeeper(tmp_path, fsync=False).start()
        zk = ZkSession(server.address + "/k", 30_000)
        submit, asked = zk._connection.submit, 0

        def lose(request: Request, result: Result) -> None:
            nonlocal asked
            asked += 1
            assert asked < 1_000, "it asks for ever"
            if zk.state is SessionState.CLOSED:
                submit(request, result)
            else:
                result.set_exception(ConnectionLoss())

        zk._connection.submit = lose  # type: ignore[method-assign]
        starting = asyncio.ensure_future(zk.start())
        await until(lambda: asked > 0)
        await zk.close()
        with pytest.raises(ConnectionLoss):
            await starting
        await server.stop()

    run(scenario)


def test_no_server_at_the_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionLoss, match="no ZooKeeper answers at 127"):
            await ZkSession("127.0.0.1:1").start(timeout_ms=100)

    run(scenario)
