"""The embedded server and a real ZooKeeper 3.9 answer the same random operations in the same way.

Two kazoo clients work on each server. After every step the results, error codes, stats and watch events of both clients
must be equal, in the order in which they came over the wire. Zxids are compared by rank, session ids by their owner,
times not at all. `KLAMM_ZK_EXAMPLES` sets how many programs are tried.
"""

from __future__ import annotations

import itertools
import os
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.protocol.serialization import GetACL, GetChildren, SetACL, Sync, Watch
from kazoo.security import ACL, Id

from klamm.zk import ops
from klamm.zk.kazoo_client import KazooConnection, Multi, MultiRead, SetWatches, request
from klamm.zk.main import EmbeddedZooKeeperThread
from klamm.zk.ops import Code, Stat
from tests.support.real_zookeeper import RealZooKeeper

EXAMPLES = int(os.environ.get("KLAMM_ZK_EXAMPLES", "80"))
ANSWER_TIMEOUT_S = 30


class Client:
    """A kazoo session whose replies and watch events are kept in the order in which they arrived."""

    def __init__(self, address: str) -> None:
        self._connected: queue.Queue[str] = queue.Queue()
        self._answers: queue.Queue[object] = queue.Queue()
        self._arrived: list[object] = []
        self._kazoo = KazooConnection(address, 30_000, self._connected.put)
        self._kazoo._client._connection._read_watch_event = self._on_event
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
        """What both clients received until the step and everything it caused was over."""
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

names = st.sampled_from(["", "/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a"])
odd_names = st.sampled_from(["/", "//a", "/a/", "/./a", "/a/..", "/\x01", "/\ue000", "/a//b", "/ä€", "/..."])
any_name = st.one_of(names, names, names, names, odd_names)
contents = st.sampled_from([None, b"", b"x", b"longer data"])
versions = st.sampled_from([-1, -1, -1, 0, 0, 1, 2])
rules = st.sampled_from(
    [ops.OPEN_ACL] * 6
    + [
        (ops.Acl(1, "world", "anyone"),),
        (ops.Acl(30, "world", "anyone"), ops.Acl(1, "ip", "127.0.0.1")),
        (ops.Acl(31, "digest", "u:h"),),
        (ops.Acl(31, "auth", ""),),
        (ops.Acl(31, "world", "somebody"),),
        (ops.Acl(31, "unheard-of", "x"),),
        (),
    ]
)
creates = st.builds(ops.Create, any_name, contents, st.booleans(), st.booleans(), rules)
plain_creates = st.builds(ops.Create, names, contents)
sets = st.builds(ops.SetData, any_name, contents, versions)
deletes = st.builds(ops.Delete, any_name, versions)
checks = st.builds(ops.Check, any_name, versions)
single = st.one_of(
    creates,
    plain_creates,
    plain_creates,
    sets,
    deletes,
    st.builds(ops.GetData, any_name),
    st.builds(ops.Exists, any_name),
    st.builds(ops.GetChildren, any_name),
)
who = st.integers(0, 1)
lists = st.lists(names, max_size=4)
steps = st.one_of(
    st.builds(Step, st.just("op"), who, st.tuples(single, st.booleans())),
    st.builds(Step, st.just("op"), who, st.tuples(single, st.booleans())),
    st.builds(Step, st.just("op"), who, st.tuples(single, st.booleans())),
    st.builds(
        Step,
        st.just("multi"),
        who,
        st.tuples(st.lists(st.one_of(creates, plain_creates, plain_creates, sets, deletes, checks), max_size=5)),
    ),
    st.builds(Step, st.just("multi_read"), who, st.tuples(st.lists(any_name, max_size=6))),
    st.builds(Step, st.just("children"), who, st.tuples(any_name, st.booleans())),
    st.builds(Step, st.just("get_acl"), who, st.tuples(names)),
    st.builds(Step, st.just("set_acl"), who, st.tuples(any_name, rules, versions)),
    st.builds(Step, st.just("set_watches"), who, st.tuples(st.integers(0, 30), lists, lists, lists)),
    st.builds(Step, st.just("reopen"), who),
)

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


roots = (f"/root-{number}" for number in itertools.count())


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(program=st.lists(steps, min_size=1, max_size=40))
def test_same_answers_as_zookeeper(sides: tuple[Side, Side], program: list[Step]) -> None:
    root = next(roots)
    zxids: tuple[list[int], list[int]] = ([], [])
    first = Step("op", 0, (ops.Create("", b"root"), False))
    for position, step in enumerate([first, *program]):
        embedded, real = (side.run(root, step) for side in sides)
        if step.kind == "reopen":
            embedded, real = _sorted_events(embedded), _sorted_events(real)
        ours, theirs = (_comparable(r, s, z) for r, s, z in zip((embedded, real), sides, zxids, strict=True))
        assert ours == theirs, f"step {position} {step}: the embedded server answers {ours}, ZooKeeper {theirs}"
        assert _ranks(zxids[0]) == _ranks(zxids[1]), f"step {position} {step}: zxids {zxids[0]} and {zxids[1]}"


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
