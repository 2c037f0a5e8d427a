"""The rules of ZooKeeper's data model that the controller relies on."""

from __future__ import annotations

import pytest

from klamm.zk.model.nodes import is_valid_path
from klamm.zk.model.ops import (
    Acl,
    BadArguments,
    BadVersion,
    Check,
    CheckResult,
    Code,
    Create,
    CreateResult,
    Delete,
    DeleteResult,
    ErrorResult,
    EventType,
    Exists,
    ExistsResult,
    GetAcl,
    GetChildren,
    GetData,
    Id,
    InvalidAcl,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Perms,
    SessionExpired,
    SetAcl,
    SetData,
    SetDataResult,
    WatchEvent,
    WriteOp,
    multi_failure,
)
from klamm.zk.model.tree import ZnodeTree

S1, S2 = 0x101, 0x102


@pytest.fixture
def tree() -> ZnodeTree:
    tree = ZnodeTree()
    tree.create_session(S1, 1_000, 0)
    tree.create_session(S2, 3_000, 0)
    return tree


def data(tree: ZnodeTree, path: str) -> bytes | None:
    return tree.read(GetData(path)).data


def children(tree: ZnodeTree, path: str) -> list[str]:
    return sorted(tree.read(GetChildren(path)).children)


def test_create_then_read(tree: ZnodeTree) -> None:
    result = tree.write(S1, Create("/a", b"x"), 7)
    stat = result.stat
    assert result.path == "/a" and stat is not None
    assert (stat.czxid, stat.mzxid, stat.pzxid) == (tree.last_zxid,) * 3
    assert (stat.ctime, stat.mtime, stat.version, stat.cversion, stat.data_length) == (7, 7, 0, 0, 1)
    assert tree.read(GetData("/a")).stat == stat


def test_null_data_is_not_empty_data(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/null"), 0)
    tree.write(S1, Create("/empty", b""), 0)
    assert data(tree, "/null") is None
    assert data(tree, "/empty") == b""
    stat = tree.stat("/null")
    assert stat is not None and stat.data_length == 0


def test_root_starts_as_zookeepers(tree: ZnodeTree) -> None:
    root, proc = tree.stat("/"), tree.stat("/zookeeper")
    assert root is not None and (root.cversion, root.num_children, root.czxid) == (-1, 1, 0)
    assert proc is not None and (proc.cversion, proc.num_children) == (-2, 2)


def test_refused_creates(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a"), 0)
    tree.write(S1, Create("/e", ephemeral=True), 0)
    before = tree.last_zxid
    for op, error in (
        (Create("/a"), NodeExists),
        (Create("/"), NodeExists),
        (Create("/x/y"), NoNode),
        (Create("/e/c"), NoChildrenForEphemerals),
        (Create("a"), BadArguments),
        (Create("/a/"), BadArguments),
        (Create("/a//b"), NoNode),
        (Create("/a/../b"), NoNode),
        (Create("/b", acl=()), InvalidAcl),
    ):
        with pytest.raises(error):
            tree.write(S1, op, 0)
    assert tree.last_zxid == before


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/...", "/a.b", "/.a", "/ä", "/a b"])
def test_valid_paths(path: str) -> None:
    assert is_valid_path(path)


@pytest.mark.parametrize("path", ["", "a", "//", "/a/", "/./a", "/a/..", "/a\x00", "/a\x1fb", "/\ue000", "/😀", "/a\n"])
def test_invalid_paths(path: str) -> None:
    assert not is_valid_path(path)


def test_sequence_counts_creations_of_any_child(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/q"), 0)
    tree.write(S1, Create("/q/other"), 0)
    tree.write(S1, Delete("/q/other"), 0)
    first = tree.write(S1, Create("/q/n_", sequential=True), 0)
    bare = tree.write(S1, Create("/q/", sequential=True), 0)
    assert (first.path, bare.path) == ("/q/n_0000000001", "/q/0000000002")


def test_cversion_counts_creations_and_deletions(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a"), 0)
    tree.write(S1, Create("/a/b"), 0)
    tree.write(S1, Create("/a/c"), 0)
    tree.write(S1, Delete("/a/b"), 0)
    stat = tree.stat("/a")
    assert stat is not None
    assert (stat.cversion, stat.num_children, stat.pzxid, stat.version) == (3, 1, tree.last_zxid, 0)
    assert stat.mzxid == stat.czxid


def test_versions_guard_changes(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a", b"0"), 0)
    assert tree.write(S1, SetData("/a", b"1", 0), 5).stat.version == 1
    with pytest.raises(BadVersion):
        tree.write(S1, SetData("/a", b"2", 0), 6)
    with pytest.raises(BadVersion):
        tree.write(S1, Delete("/a", 0), 6)
    assert data(tree, "/a") == b"1"
    tree.write(S1, Delete("/a", 1), 6)
    with pytest.raises(NoNode):
        tree.read(GetData("/a"))


def test_delete_rules(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a"), 0)
    tree.write(S1, Create("/a/b"), 0)
    for op, error in (
        (Delete("/a"), NotEmpty),
        (Delete("/"), BadArguments),
        (Delete("/zookeeper"), BadArguments),
        (Delete("/none"), NoNode),
    ):
        with pytest.raises(error):
            tree.write(S1, op, 0)


def test_multi_is_atomic_and_has_one_zxid(tree: ZnodeTree) -> None:
    before = tree.last_zxid
    results = tree.multi(S1, [Create("/a"), SetData("/a", b"x", 0), Create("/a/b"), Check("/a", 1), Delete("/a/b")], 3)
    assert [type(r) for r in results] == [CreateResult, SetDataResult, CreateResult, CheckResult, DeleteResult]
    assert tree.last_zxid == before + 1
    stat = tree.stat("/a")
    assert stat is not None and (stat.czxid, stat.mzxid, stat.pzxid) == (before + 1,) * 3
    assert stat.version == 1 and data(tree, "/a") == b"x"


def test_failed_multi_changes_nothing(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a", b"old"), 0)
    tree.write(S1, Create("/a/k"), 0)
    tree.write(S1, Create("/e", ephemeral=True), 0)
    tree.read(GetData("/a", watch=True), watcher=1)
    before = (tree.last_zxid, tree.stat("/"), tree.stat("/a"), children(tree, "/"))
    ops: list[WriteOp] = [
        SetData("/a", b"new"),
        Create("/n", ephemeral=True),
        Delete("/e"),
        Delete("/a/k"),
        Check("/a", 9),
        Create("/z"),
    ]
    results = tree.multi(S1, ops, 1)
    assert results == (
        *[ErrorResult(Code.OK)] * 4,
        ErrorResult(Code.BAD_VERSION),
        ErrorResult(Code.RUNTIME_INCONSISTENCY),
    )
    failure = multi_failure(ops, results)
    assert failure is not None and failure.index == 4 and failure.error == BadVersion("/a")
    assert before == (tree.last_zxid, tree.stat("/"), tree.stat("/a"), children(tree, "/"))
    assert data(tree, "/a") == b"old" and list(tree.sessions[S1].ephemerals) == ["/e"]
    assert tree.take_events() == []
    tree.write(S1, SetData("/a", b"later"), 2)
    assert tree.take_events() == [(1, WatchEvent(EventType.DATA_CHANGED, "/a"))]


def test_session_end_removes_its_ephemerals_under_one_zxid(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/ids"), 0)
    tree.write(S1, Create("/ids/1", ephemeral=True), 0)
    tree.write(S1, Create("/ids/2", ephemeral=True), 0)
    tree.write(S2, Create("/ids/3", ephemeral=True), 0)
    before = tree.last_zxid
    tree.close_session(S1, 10)
    assert children(tree, "/ids") == ["3"]
    assert tree.last_zxid == before + 1
    with pytest.raises(SessionExpired):
        tree.write(S1, Create("/late"), 10)
    with pytest.raises(SessionExpired):
        tree.multi(S1, [Create("/late")], 10)


def expire_sessions(tree: ZnodeTree, now_ms: int) -> list[int]:
    """End overdue sessions as the server does, but at once."""
    overdue = tree.overdue_sessions(now_ms)
    for session_id in overdue:
        tree.close_session(session_id, now_ms)
    return overdue


def test_sessions_expire_in_order_unless_touched(tree: ZnodeTree) -> None:
    assert expire_sessions(tree, 999) == []
    assert tree.touch_session(S1, 999)
    assert expire_sessions(tree, 1_998) == []
    assert expire_sessions(tree, 5_000) == [S1, S2]
    assert not tree.touch_session(S1, 5_000)


def test_expiry_is_rounded_up_to_a_tick() -> None:
    tree = ZnodeTree(tick_ms=500)
    tree.create_session(S1, 1_000, 1)
    assert expire_sessions(tree, 1_499) == []
    assert expire_sessions(tree, 1_500) == [S1]


def test_watches_fire_once_and_in_order(tree: ZnodeTree) -> None:
    tree.read(Exists("/a", watch=True), watcher=1)
    tree.read(GetChildren("/", watch=True), watcher=2)
    tree.write(S1, Create("/a"), 0)
    tree.write(S1, SetData("/a", b""), 0)
    assert tree.take_events() == [
        (1, WatchEvent(EventType.CREATED, "/a")),
        (2, WatchEvent(EventType.CHILDREN_CHANGED, "/")),
    ]


def test_deletion_notifies_a_watcher_of_data_and_children_once(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a"), 0)
    tree.read(GetData("/a", watch=True), watcher=1)
    tree.read(GetChildren("/a", watch=True), watcher=1)
    tree.read(GetChildren("/a", watch=True), watcher=2)
    tree.write(S1, Delete("/a"), 0)
    assert tree.take_events() == [(w, WatchEvent(EventType.DELETED, "/a")) for w in (1, 2)]
    assert len(tree.watches.data) == len(tree.watches.child) == 0


def test_reads_of_a_missing_node_set_no_watch_but_exists_does(tree: ZnodeTree) -> None:
    for op in (GetData("/a", watch=True), GetChildren("/a", watch=True)):
        with pytest.raises(NoNode):
            tree.read(op, watcher=1)
    assert len(tree.watches.data) + len(tree.watches.child) == 0
    assert tree.read(Exists("/a", watch=True), watcher=1) == ExistsResult(None)
    assert len(tree.watches.data) == 1
    tree.remove_watcher(1)
    assert len(tree.watches.data) == 0


def test_multi_reports_every_step(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a"), 0)
    tree.read(GetData("/a", watch=True), watcher=1)
    tree.read(GetChildren("/a", watch=True), watcher=1)
    tree.multi(S1, [SetData("/a", b"1"), Create("/a/b"), Create("/a/c")], 0)
    assert [e.type for _, e in tree.take_events()] == [EventType.DATA_CHANGED, EventType.CHILDREN_CHANGED]


def test_set_watches_reports_missed_changes(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/same"), 0)
    tree.write(S1, Create("/changed"), 0)
    seen = tree.last_zxid
    tree.write(S1, SetData("/changed", b"x"), 0)
    tree.write(S1, Create("/new"), 0)
    tree.set_watches(1, seen, ["/same", "/changed", "/gone"], ["/new", "/never"], ["/", "/same", "/gone"])
    assert tree.take_events() == [
        (1, WatchEvent(EventType.DATA_CHANGED, "/changed")),
        (1, WatchEvent(EventType.DELETED, "/gone")),
        (1, WatchEvent(EventType.CREATED, "/new")),
        (1, WatchEvent(EventType.CHILDREN_CHANGED, "/")),
        (1, WatchEvent(EventType.DELETED, "/gone")),
    ]
    assert (len(tree.watches.data), len(tree.watches.child)) == (2, 1)


def test_multi_read_answers_each(tree: ZnodeTree) -> None:
    tree.write(S1, Create("/a", b"x"), 0)
    got = tree.multi_read([GetData("/a"), GetData("/b"), GetChildren("/a")])
    assert got[0] == tree.read(GetData("/a")) and got[1] == ErrorResult(Code.NO_NODE)
    assert got[2] == tree.read(GetChildren("/a"))


def test_rules_are_enforced(tree: ZnodeTree) -> None:
    me, other = (Id("digest", "me:hash"),), (Id("digest", "other:hash"), Id("ip", "10.1.2.3"))
    tree.write(S1, Create("/mine", acl=(Acl(Perms.ALL, "auth", ""),)), 0, me)
    assert tree.get_acl(GetAcl("/mine"), me).acl == (Acl(Perms.ALL, "digest", "me:hash"),)
    with pytest.raises(NoAuth):
        tree.read(GetData("/mine"), auth=other)
    with pytest.raises(NoAuth):
        tree.write(S1, Create("/mine/x"), 0, other)
    stat = tree.write(S1, SetAcl("/mine", (Acl(Perms.READ, "ip", "10.0.0.0/8"),), 0), 0, me).stat
    assert stat.aversion == 1
    assert tree.read(GetData("/mine"), auth=other).data is None
    with pytest.raises(InvalidAcl):
        tree.write(S1, Create("/bad", acl=(Acl(Perms.ALL, "nonsense", "x"),)), 0, me)
