"""A loss of acknowledged records stays in ZooKeeper and in the cluster's status until an operator confirms it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.loss_confirmation import confirm
from klamm.cli.lost_records import SHOWN, read_losses, sentences
from klamm.cli.output import Failure
from klamm.model import ReplicaAssignment, TopicPartition
from klamm.server.loss_notes import LossNotes
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.zk_security import UNSECURED, Login, ZkSecurity
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, CreateResult, Delete, SessionExpired
from klamm.zk.model.znodes import LostRecords, TopicZnode, encode_topic
from klamm.zk.server.server import EmbeddedZooKeeper, ServerOptions
from klamm.zk.server.shared_secret import Gate
from tests.support.raw_client import TIMEOUT_S

IDS = {"t": UUID(int=7), "u": UUID(int=8)}


def lost(topic: str, partition: int, start: int, end: int) -> LostRecords:
    return LostRecords(TopicPartition(topic, partition), IDS[topic], start, end, broker_id=2)


async def write(zk: ZkSession, *losses: LostRecords) -> None:
    tasks: list[asyncio.Task[None]] = []
    notes = LossNotes(zk, lambda coroutine: tasks.append(asyncio.ensure_future(coroutine)))
    for each in losses:
        notes.add(each)
    (task,) = tasks
    await task


class ExpiringSession(ZkSession):
    """Its session expires when the parent of the notes is created."""

    has_expired = False

    async def create(self, op: Create) -> CreateResult:
        if op.path == paths.LOST_RECORDS and not self.has_expired:
            self.has_expired = True
            raise SessionExpired(op.path)
        return await super().create(op)


class FailingSession(ZkSession):
    """Its first note meets a bug."""

    has_failed = False

    async def create(self, op: Create) -> CreateResult:
        if op.path.startswith(f"{paths.LOST_RECORDS}/") and not self.has_failed:
            self.has_failed = True
            raise KeyError("a bug")
        return await super().create(op)


def run(
    tmp_path: Path,
    check: Callable[[str], None],
    *losses: LostRecords,
    security: ZkSecurity = UNSECURED,
    options: ServerOptions | None = None,
    session: type[ZkSession] = ZkSession,
    times: int = 2,
) -> None:
    """Report losses as a broker does, again and again, and check what an operator sees."""

    async def scenario() -> None:
        server = await EmbeddedZooKeeper(tmp_path, fsync=False, options=options).start()
        zk = await session(server.address, 30_000, security=security).start()
        try:
            await zk.ensure_paths([paths.TOPICS])
            for topic, topic_id in IDS.items():
                znode = TopicZnode({0: ReplicaAssignment((1,))}, topic_id)
                await zk.create(Create(paths.topic_path(topic), encode_topic(znode)))
            for _ in range(times):
                await write(zk, *losses)
            await asyncio.to_thread(check, server.address)
        finally:
            await zk.close()
            await server.stop()

    asyncio.run(scenario())


def seen(hosts: str) -> list[LostRecords]:
    with BlockingSession(hosts, TIMEOUT_S) as session:
        return read_losses(session)


def test_a_refused_note_does_not_stop_the_following(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    huge = LostRecords(TopicPartition("x" * 2_000_000, 0), UUID(int=9), 1, 2, broker_id=2)

    def check(hosts: str) -> None:
        assert seen(hosts) == [lost("t", 0, 15, 20)]

    run(tmp_path, check, huge, lost("t", 0, 15, 20))
    assert "ZooKeeper refused the note of lost records" in caplog.text


def test_the_first_note_survives_the_end_of_a_session(tmp_path: Path) -> None:
    def check(hosts: str) -> None:
        assert seen(hosts) == [lost("t", 0, 15, 20)]

    run(tmp_path, check, lost("t", 0, 15, 20), session=ExpiringSession, times=1)


def test_a_note_replaces_that_of_a_deleted_topic_of_the_same_name(tmp_path: Path) -> None:
    before = LostRecords(TopicPartition("t", 0), UUID(int=9), 15, 20, broker_id=1)

    def check(hosts: str) -> None:
        assert seen(hosts) == [lost("t", 0, 15, 20)]

    run(tmp_path, check, before, lost("t", 0, 15, 20))


def test_a_loss_is_shown_until_it_is_confirmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [lost("t", 0, 15, 20), lost("t", 1, 3, 4), lost("u", 0, 1, 2)]

    def check(hosts: str) -> None:
        assert seen(hosts) == losses
        first = sentences(losses)[0]
        assert first.startswith("t-0: acknowledged records are lost on all replicas, offsets 15 to 19,")
        assert "klamm partition confirm-loss --topic t --partition 0" in first
        confirm(hosts, "t", 0, TIMEOUT_S)
        assert seen(hosts) == losses[1:]
        confirm(hosts, "t", None, TIMEOUT_S)
        assert seen(hosts) == losses[2:]
        confirm(hosts, "t", None, TIMEOUT_S)

    run(tmp_path, check, *losses)
    reported = capsys.readouterr()
    assert "Confirmed: t-0, offsets 15 to 19." in reported.out and "No losses of t are known." in reported.err


@pytest.mark.parametrize("is_gated", [False, True])
def test_the_credentials_of_a_broker_confirm_a_loss(tmp_path: Path, is_gated: bool) -> None:
    """With `zookeeper.set.acl` only brokers may write; the embedded ZooKeeper lets nobody else read either."""
    path = tmp_path / "broker.toml"
    options = ServerOptions(gate=Gate("klamm:secret")) if is_gated else None

    def check(hosts: str) -> None:
        lines = [f'"zookeeper.connect" = "{hosts}"', '"zookeeper.set.acl" = true', '"klamm.zookeeper.digest" =']
        path.write_text("\n".join(lines) + ' "klamm:secret"\n')
        arguments = ["partition", "confirm-loss", "--topic", "t", "--partition", "0"]
        with pytest.raises(Failure, match="Pass --broker-config"):
            confirm(hosts, "t", 0, TIMEOUT_S)
        done = CliRunner().invoke(app, [*arguments, "--broker-config", str(path)])
        assert done.exit_code == 0 and done.stdout == "Confirmed: t-0, offsets 15 to 19.\n", done.output

    security = ZkSecurity(digest=Login("klamm", "secret"), set_acl=True)
    run(tmp_path / "zookeeper", check, lost("t", 0, 15, 20), security=security, options=options)


def test_losses_of_topics_that_were_deleted_are_not_shown(tmp_path: Path) -> None:
    def check(hosts: str) -> None:
        with BlockingSession(hosts, TIMEOUT_S) as session:
            session.write([Delete(paths.topic_path("t")), Delete(paths.topic_path("u"))])
            again = TopicZnode({0: ReplicaAssignment((1,))}, UUID(int=9))
            session.write([Create(paths.topic_path("u"), encode_topic(again))])
        assert seen(hosts) == []

    run(tmp_path, check, lost("t", 0, 15, 20), lost("u", 0, 1, 2))


def test_very_many_losses_are_counted() -> None:
    reported = sentences([lost("t", number, 1, 2) for number in range(SHOWN + 5)])
    assert len(reported) == SHOWN + 1 and reported[-1].startswith("5 more losses of acknowledged records")


def test_a_bug_does_not_keep_the_next_losses_unwritten(tmp_path: Path) -> None:
    def check(hosts: str) -> None:
        assert seen(hosts) == [lost("t", 1, 5, 9)]

    run(tmp_path, check, lost("t", 0, 3, 7), lost("t", 1, 5, 9), session=FailingSession, times=1)
