"""The embedded server and a real ZooKeeper 3.9 answer the same random operations in the same way.

Two kazoo clients work on each server. After every step the results, error codes, stats and watch events of both clients
must be equal, in the order in which they came over the wire. Zxids are compared by rank, session ids by their owner,
times not at all. Programs are random by seed, so a failure repeats; `KLAMM_ZK_EXAMPLES` sets how many are tried.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.serialization import GetACL, GetChildren, SetACL, Sync, Watch
from kazoo.security import ACL, Id

from klamm.zk.client.client_requests import Multi, MultiRead, SetWatches
from klamm.zk.client.zk_session import SessionListener, SessionState, ZkSession
from klamm.zk.model import ops
from klamm.zk.model.ops import Code, Stat
from klamm.zk.server.main import EmbeddedZooKeeperThread
from tests.support.kazoo_connection import KazooConnection, request
from tests.support.real_zookeeper import RealZooKeeper
from tests.support.zk_registration import register_ephemeral

EXAMPLES = int(os.environ.get("KLAMM_ZK_EXAMPLES", "30"))
ANSWER_TIMEOUT_S = 120
STEPS = 150
FIRST_NAMES = ["", "/a", "/b", "/a/a", "/a/b"]
NAMES = [*FIRST_NAMES, "/c", "/c/a"]


class Client:
    """A kazoo session whose replies and watch events are kept in the order in which they arrived."""

    def __init__(self, address: str) -> None:
        self._connected: queue.Queue[str] = queue.Queue()
        self._answers: queue.Queue[object] = queue.Queue()
        self._arrived: list[object] = []
        self._kazoo = KazooConnection(address, 30_000, self._connected.put, self._on_event)
        self._kazoo.start()
        assert self._connected.get(timeout=ANSWER_TIMEOUT_S) == "CONNECTED"

    @property
    def session_id(self) -> int:
        return self._kazoo.session_id

    @property
    def last_zxid(self) -> int:
        return self._kazoo.last_zxid

    def _on_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self._arrived.append(("event", event.type, event.state, event.path))

    def set(self, value: object) -> None:
        self._arrived.append(value)
        self._answers.put(value)

    def set_exception(self, exception: BaseException) -> None:
        self.set(("error", getattr(exception, "code", repr(exception))))

    def ask(self, message: Any) -> list[object]:
        """The reply, behind everything that came before it."""
        self._kazoo.submit(message, self)
        self._answers.get(timeout=ANSWER_TIMEOUT_S)
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        self._kazoo.stop()


@dataclass
class Side:
    """One server with its two clients, and what of its numbers must be translated before they can be compared."""

    address: str
    clients: list[Client] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    session_count: int = 0

    def open(self, index: int) -> None:
        client = Client(self.address)
        self.session_count += 1
        self.names[client.session_id] = f"session {self.session_count}"
        self.clients[index : index + 1] = [client]

    def run(self, root: str, step: Step) -> list[list[object]]:
        """Everything that both clients received until the step and what it caused was over, and all znodes after it."""
        index = step.client
        if step.kind == "reopen":
            self.clients[index].close()
            self.open(index)
            received: list[list[object]] = [[], []]
        else:
            received = [[], []]
            received[index] += self.clients[index].ask(step.message(root, self))
        for position, client in enumerate(self.clients):
            received[position] += client.ask(Sync(root))
        received[index] += self.clients[index].ask(MultiRead([root + name for name in NAMES]))
        self.marks.append(self.clients[index].last_zxid)
        return received


@dataclass(frozen=True)
class Step:
    kind: str
    client: int
    args: tuple[Any, ...] = ()

    def message(self, root: str, side: Side) -> Any:
        match self.kind, self.args:
            case "op", (op, watch):
                return request(_at(root, op), (lambda event: None) if watch else None)
            case "multi", (operations,):
                return Multi([_at(root, op) for op in operations])
            case "multi_read", (names,):
                return MultiRead([root + name for name in names])
            case "children", (name, watch):
                return GetChildren(root + name, (lambda event: None) if watch else None)
            case "get_acl", (name,):
                return GetACL(root + name)
            case "set_acl", (name, rules, version):
                return SetACL(root + name, [ACL(a.perms, Id(a.scheme, a.id)) for a in rules], version)
            case "set_watches", (back, data, exist, child):
                mark = side.marks[-1 - back % len(side.marks)] if side.marks else 0
                return SetWatches(mark, *([root + name for name in names] for names in (data, exist, child)))
        raise AssertionError(self)


def _at(root: str, op: Any) -> Any:
    return type(op)(**{**{f: getattr(op, f) for f in op.__slots__}, "path": root + op.path})


# --- random programs -------------------------------------------------------------------------------------------------

ODD_NAMES = ["/", "//a", "/a/", "/./a", "/a/..", "/\x01", "/\ue000", "/a//b", "/ä€", "/..."]
CONTENTS = [None, b"", b"x", b"longer data"]
VERSIONS = [-1, -1, -1, 0, 0, 1, 2]
ODD_RULES: list[tuple[ops.Acl, ...]] = [
    (ops.Acl(1, "world", "anyone"),),
    (ops.Acl(30, "world", "anyone"), ops.Acl(1, "ip", "127.0.0.1")),
    (ops.Acl(31, "digest", "u:h"),),
    (ops.Acl(31, "auth", ""),),
    (ops.Acl(31, "world", "somebody"),),
    (ops.Acl(31, "unheard-of", "x"),),
    (),
]
PARTIAL_RULES = [(ops.Acl(31 - missing, "world", "anyone"),) for missing in (0, 0, 1, 2, 4, 8)]


class Programs:
    """Random steps of one seed. Most of them make sense, so that trees grow and shrink; some do not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def steps(self, count: int) -> Iterator[Step]:
        kinds = ["op"] * 20 + ["multi"] * 6 + ["multi_read", "children", "set_watches", "set_watches", "reopen"]
        for _ in range(count):
            kind = self._random.choice([*kinds, "get_acl", "set_acl", "set_acl"])
            yield Step(kind, self._random.randrange(2), self._args(kind))

    def _args(self, kind: str) -> tuple[Any, ...]:
        choice = self._random.choice
        match kind:
            case "op":
                return (self._write() if choice((True, True, False)) else self._read(), choice((True, False)))
            case "multi":
                return ([self._write_in_multi() for _ in range(self._random.randrange(5))],)
            case "multi_read":
                return ([*self._names(), choice(ODD_NAMES)],)
            case "children":
                return (self._name(), choice((True, False)))
            case "get_acl":
                return (choice(NAMES),)
            case "set_acl":
                return (self._name(), choice([*PARTIAL_RULES, self._rules()]), choice(VERSIONS))
            case "set_watches":
                return (self._random.randrange(20), self._names(), self._names(), self._names())
        return ()

    def _name(self) -> str:
        return self._random.choice(ODD_NAMES if self._random.random() < 0.05 else NAMES)

    def _names(self) -> list[str]:
        return self._random.sample(NAMES, self._random.randrange(4))

    def _rules(self) -> tuple[ops.Acl, ...]:
        return self._random.choice(ODD_RULES) if self._random.random() < 0.12 else ops.OPEN_ACL

    def _read(self) -> ops.ReadOp:
        return self._random.choice((ops.GetData, ops.Exists, ops.GetChildren))(self._name())

    def _write(self) -> ops.WriteOp:
        chance, choice = self._random.random(), self._random.choice
        if chance < 0.5:
            ephemeral, sequential = self._random.random() < 0.35, self._random.random() < 0.25
            return ops.Create(self._name(), choice(CONTENTS), ephemeral, sequential, self._rules())
        if chance < 0.75:
            return ops.SetData(self._name(), choice(CONTENTS), choice(VERSIONS))
        return ops.Delete(self._name(), choice(VERSIONS))

    def _write_in_multi(self) -> ops.WriteOp:
        """Mostly operations that succeed: otherwise no multi of several operations would."""
        chance = self._random.random()
        if chance < 0.4:
            return ops.SetData(self._random.choice(NAMES[:3]), b"in a multi")
        if chance < 0.6:
            return ops.Create(self._random.choice(NAMES[:3]) + "/n-", None, chance < 0.45, True)
        return ops.Check(self._name(), self._random.choice(VERSIONS)) if chance < 0.7 else self._write()


# --- comparison ------------------------------------------------------------------------------------------------------


def _comparable(value: Any, side: Side, zxids: list[int]) -> Any:
    """Zxids go to `zxids` and leave their place in it behind; session ids become names; times go."""
    if isinstance(value, tuple) and len(value) == len(Stat._fields) and not isinstance(value[0], str):
        stat = Stat._make(value)
        zxids += (stat.czxid, stat.mzxid, stat.pzxid)
        owner = side.names.get(stat.ephemeral_owner, stat.ephemeral_owner)
        return stat._replace(czxid=0, mzxid=0, pzxid=0, ctime=0, mtime=0)._asdict() | {"ephemeral_owner": owner}
    if isinstance(value, Code):
        return int(value)
    if isinstance(value, ACL):
        return (value.perms, value.id.scheme, value.id.id)
    if isinstance(value, ops.SetDataResult):
        return ("set", _comparable(value.stat, side, zxids))
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [_comparable(item, side, zxids) for item in value]
    return value


def _ranks(zxids: Sequence[int]) -> list[int]:
    order = {zxid: rank for rank, zxid in enumerate(sorted(set(zxids)))}
    return [order[zxid] for zxid in zxids]


def _sorted_events(received: list[list[object]]) -> list[list[object]]:
    """A session's ephemeral znodes go in no particular order."""
    return [sorted(items, key=repr) for items in received]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    embedded = EmbeddedZooKeeperThread(tmp_path_factory.mktemp("embedded"), fsync=False).start()
    with RealZooKeeper(tmp_path_factory.mktemp("real")) as real:
        both = (Side(embedded.address), Side(real.address))
        for side, index in itertools.product(both, (0, 1)):
            side.open(index)
        yield both
        for side in both:
            for client in side.clients:
                client.close()
    embedded.stop()


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_same_answers_as_zookeeper(sides: tuple[Side, Side], seed: int) -> None:
    root = f"/root-{seed}"
    zxids: tuple[list[int], list[int]] = ([], [])
    done = [Step("op", 0, (ops.Create(name, b"at first"), False)) for name in FIRST_NAMES]
    for position, step in enumerate([*done, *Programs(seed).steps(STEPS)]):
        embedded, real = (side.run(root, step) for side in sides)
        if step.kind == "reopen":
            embedded, real = _sorted_events(embedded), _sorted_events(real)
        ours, theirs = (_comparable(r, s, z) for r, s, z in zip((embedded, real), sides, zxids, strict=True))
        assert ours == theirs, f"step {position}: {step}"
        assert _ranks(zxids[0]) == _ranks(zxids[1]), f"step {position}: {step}"


def test_an_untouched_root_looks_the_same(tmp_path: Path) -> None:
    (tmp_path / "embedded").mkdir()
    (tmp_path / "real").mkdir()
    embedded = EmbeddedZooKeeperThread(tmp_path / "embedded", fsync=False).start()
    with RealZooKeeper(tmp_path / "real") as real:
        both = (Side(embedded.address), Side(real.address))
        answers = []
        for side in both:
            side.open(0)
            asked = [
                request(op(path), None)
                for op in (ops.GetData, ops.Exists, ops.GetChildren)
                for path in ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config", "/none")
            ]
            asked += [request(ops.Delete(path), None) for path in ("/", "/zookeeper", "/zookeeper/config", "/none/x")]
            asked += [GetACL(path) for path in ("/", "/zookeeper", "/zookeeper/config")]
            answers.append([_comparable(side.clients[0].ask(message), side, []) for message in asked])
            side.clients[0].close()
        assert answers[0] == answers[1]
    embedded.stop()


@pytest.mark.parametrize("kind", ["embedded", "real"])
def test_our_session_works_with_both(sides: tuple[Side, Side], kind: str) -> None:
    """Operations that only `ZkSession` has: multiRead, watches set again after a lost connection, registration."""
    address = sides[("embedded", "real").index(kind)].address

    async def scenario() -> None:
        zk = await ZkSession(f"{address}/chroot-{kind}", 30_000).start()
        other = await ZkSession(f"{address}/chroot-{kind}", 30_000).start()
        await zk.multi([ops.Create(f"/{n}", b"%d" % n) for n in range(600)])
        found = await zk.read_many([f"/{n}" for n in range(601)])
        assert [f and f[0] for f in found] == [*(b"%d" % n for n in range(600)), None]
        with pytest.raises(ops.MultiFailed, match="operation 1 of the multi failed: BAD_VERSION /0"):
            await zk.multi([ops.Create("/new"), ops.Check("/0", 5), ops.Create("/newer")])
        notices: asyncio.Queue[ops.WatchEvent] = asyncio.Queue()
        suspended = asyncio.Event()
        zk.add_listener(SessionListener(on_state=lambda s: suspended.set() if s is SessionState.SUSPENDED else None))
        for path in ("/0", "/1", "/2", "/missing"):
            zk.on_change(path, notices.put_nowait)
            await zk.read(ops.Exists(path, watch=True))
        session_id = zk.session_id
        zk.drop_connection()
        await suspended.wait()
        await other.multi([ops.SetData("/0", b""), ops.Delete("/1"), ops.Create("/missing")])
        events = [await notices.get() for _ in range(3)]
        assert {(e.type, e.path) for e in events} == {
            (ops.EventType.DATA_CHANGED, "/0"),
            (ops.EventType.DELETED, "/1"),
            (ops.EventType.CREATED, "/missing"),
        }
        await other.set(ops.SetData("/2", b""))
        assert await notices.get() == ops.WatchEvent(ops.EventType.DATA_CHANGED, "/2")
        stat = await register_ephemeral(zk, "/id", b"me")
        assert (stat.version, stat.ephemeral_owner) == (1, session_id)
        with pytest.raises(ops.NodeExists, match="another broker"):
            await register_ephemeral(other, "/id", b"not me")
        await zk.close()
        assert (await other.read(ops.Exists("/id"))).stat is None
        await other.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
