"""Every znode of a server with a shared secret carries a rule for it, whatever its clients ask for."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from klamm.zk.model.acl import is_allowed
from klamm.zk.model.ops import OPEN_ACL, Acl, Id, Perms
from klamm.zk.model.tree import SPECIAL_PATHS, ZnodeTree
from klamm.zk.server.log_records import MAGIC, frames
from klamm.zk.server.main import EmbeddedZooKeeperThread
from klamm.zk.server.server import ServerOptions
from klamm.zk.server.shared_secret import Gate, digest_identity
from klamm.zk.server.tree_snapshot import dump_tree
from klamm.zk.server.txnlog import TornEnd, log_path, numbered, recover_tree
from klamm.zk.server.znode_guard import guarded_acl, opened_acl

WAIT_S = 60.0
SECRET = "klamm:s3cret"
OWNER = digest_identity(SECRET.encode())
ALL_OF_OWNER = Acl(Perms.ALL, *OWNER)
WORLD_READS = Acl(Perms.READ, "world", "anyone")
CREDENTIALS = "/kafka/config/users/alice"


@contextmanager
def served(directory: Path, secret: str | None, *, guards: bool = True, **options: Any) -> Iterator[str]:
    gate = Gate(secret)
    server = EmbeddedZooKeeperThread(
        directory, fsync=False, options=ServerOptions(gate=gate, guards_znodes=guards), **options
    ).start()
    try:
        yield server.address
    finally:
        server.stop()


@contextmanager
def connected(address: str, *credentials: str) -> Iterator[KazooClient]:
    client = KazooClient(address, auth_data=[("digest", each) for each in credentials])
    client.start(WAIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def recovered(directory: Path) -> ZnodeTree:
    tree = ZnodeTree()
    recover_tree(directory, tree, TornEnd.SKIP)
    return tree


def rules(directory: Path) -> dict[str, tuple[Acl, ...]]:
    return {path: node.acl for path, node in recovered(directory).nodes.items()}


def check_guarded(found: dict[str, tuple[Acl, ...]], owner: Id = OWNER) -> None:
    """Every znode has the rule of the secret; everybody else may at most read, and not credentials."""
    for path, acl in found.items():
        mine = [rule for rule in acl if (rule.scheme, rule.id) == owner]
        others = [rule for rule in acl if (rule.scheme, rule.id) != owner]
        assert [rule.perms for rule in mine] == [Perms.READ if path == "/zookeeper/config" else Perms.ALL], path
        assert others == ([] if path.startswith("/kafka/config/users") else [WORLD_READS]), path


def fill(client: KazooClient) -> None:
    client.create(CREDENTIALS, b"hash", makepath=True)
    client.create("/consumers", b"", acl=OPEN_ACL_UNSAFE)
    client.create("/brokers/ids/1", b"x", makepath=True)


def test_a_new_directory_is_guarded_from_the_first_znode_on(tmp_path: Path) -> None:
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        assert client.get_children("/") == ["zookeeper"]
        with pytest.raises(NoAuthError):
            client.set("/zookeeper/config", b"x")  # is read-only for everybody, as in ZooKeeper
    found = rules(tmp_path)
    assert found.keys() == SPECIAL_PATHS
    check_guarded(found)


def test_znodes_of_clients_that_ask_for_no_rules(tmp_path: Path) -> None:
    """The server adds its rule before it answers, so no request leaves a znode unprotected."""
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        fill(client)
        client.create("/sequence/n-", b"", makepath=True, sequence=True)
        client.create("/ephemeral", b"", ephemeral=True, acl=[make_acl("ip", "127.0.0.1", all=True)])
        multi = client.transaction()
        multi.create("/a")
        multi.create("/a/b")
        multi.create("/a/gone")
        multi.delete("/a/gone")
        results = multi.commit()
        assert [type(each) for each in results] == [str, str, str, bool]
        client.create("/strangers", b"", acl=[make_digest_acl("mallory", "x", all=True)])
        client.set_acls("/a/b", OPEN_ACL_UNSAFE)
        for path in ("/a", "/a/b", "/ephemeral", "/sequence/n-0000000000", CREDENTIALS):
            assert {rule.id.scheme for rule in client.get_acls(path)[0]} <= {"digest", "world"}
    found = rules(tmp_path)
    hidden = found.pop("/strangers")
    assert hidden == (ALL_OF_OWNER,)
    check_guarded(found)


def test_versions_of_rules_are_those_of_the_answers(tmp_path: Path) -> None:
    """A client that compares versions does not learn of the rules that the server adds, and is not refused by them."""
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        path, created = client.create("/a", b"", include_data=True)
        assert (created.aversion, client.exists(path).aversion) == (0, 0)
        changed = client.set_acls(path, OPEN_ACL_UNSAFE, created.aversion)
        assert (changed.aversion, client.exists(path).aversion) == (1, 1)
        assert client.set_acls(path, OPEN_ACL_UNSAFE, changed.aversion).aversion == 2
    assert recovered(tmp_path).nodes["/a"].aversion == 2
    check_guarded(rules(tmp_path))


def test_a_directory_that_was_used_without_a_secret(tmp_path: Path) -> None:
    with served(tmp_path, None) as address, connected(address) as client:
        fill(client)
        client.set("/brokers/ids/1", b"y")
        before = client.get("/brokers/ids/1")
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        data, stat = client.get("/brokers/ids/1")
        assert (data, stat.version, stat.mzxid) == (b"y", before[1].version, before[1].mzxid)
        client.set(CREDENTIALS, b"other")
    check_guarded(rules(tmp_path))


def test_a_guarded_directory_does_not_change_at_the_next_start(tmp_path: Path) -> None:
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        fill(client)
    before = recovered(tmp_path)
    with served(tmp_path, SECRET):
        pass
    after = recovered(tmp_path)
    assert list(dump_tree(after)) == list(dump_tree(before))


def test_another_secret(tmp_path: Path) -> None:
    """The rules of the old secret are replaced, so that the brokers can still change their znodes."""
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        fill(client)
    with served(tmp_path, "klamm:other") as address, connected(address, "klamm:other") as client:
        client.set(CREDENTIALS, b"changed")
        client.create("/brokers/ids/2")
    check_guarded(rules(tmp_path), digest_identity(b"klamm:other"))


def test_a_guard_that_is_removed(tmp_path: Path) -> None:
    """With the secret but without rules, a start opens the znodes; afterwards the secret can be removed too."""
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        fill(client)
    with served(tmp_path, SECRET, guards=False) as address, connected(address, SECRET) as client:
        client.create("/late", b"")
    found = rules(tmp_path)
    assert found.pop("/zookeeper/config") == (WORLD_READS,)
    assert set(found.values()) == {OPEN_ACL}
    with served(tmp_path, None) as address, connected(address) as client:
        client.set(CREDENTIALS, b"open")


def test_a_server_without_the_secret_opens_nothing(tmp_path: Path) -> None:
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        fill(client)
    with served(tmp_path, None) as address, connected(address) as client:
        with pytest.raises(NoAuthError):
            client.get(CREDENTIALS)
        with pytest.raises(NoAuthError):
            client.create("/new")
    check_guarded(rules(tmp_path))


def test_a_crash_between_any_two_changes_of_the_first_start(tmp_path: Path) -> None:
    """A start that ends early leaves a directory that the next start completes."""
    with served(tmp_path / "whole", None) as address, connected(address) as client:
        fill(client)
    with served(tmp_path / "whole", SECRET):
        pass
    first = numbered(tmp_path / "whole", "log")[-1]
    content = log_path(tmp_path / "whole", first).read_bytes()
    ends = [len(MAGIC), *(end for end, _ in frames(content))]
    assert len(ends) > len(SPECIAL_PATHS)
    for number, end in enumerate(ends):
        directory = tmp_path / f"crash-{number}"
        shutil.copytree(tmp_path / "whole", directory)
        log_path(directory, first).write_bytes(content[:end])
        with served(directory, SECRET):
            pass
        check_guarded(rules(directory))


def test_a_start_that_fails_leaves_the_directory_to_the_next(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(OSError, match="cannot be bound: Address already in use"),
            served(tmp_path, SECRET, port=taken.getsockname()[1]),
        ):
            pass
    with served(tmp_path, SECRET) as address, connected(address, SECRET) as client:
        fill(client)
    check_guarded(rules(tmp_path))


def acls() -> st.SearchStrategy[tuple[Acl, ...]]:
    who = st.sampled_from([("world", "anyone"), ("ip", "127.0.0.1"), ("digest", "mallory:x"), (OWNER.scheme, OWNER.id)])
    rule = st.builds(lambda perms, who: Acl(perms, *who), st.integers(0, Perms.ALL), who)
    return st.lists(rule, min_size=1, max_size=4).map(tuple)


@given(acls(), st.sampled_from(["/", "/controller", "/consumers", CREDENTIALS]))
def test_rules_of_all_kinds(acl: tuple[Acl, ...], path: str) -> None:
    strangers = ((Id("ip", "127.0.0.1"),), (Id("digest", "mallory:x"),))
    guarded = guarded_acl(path, acl, OWNER)
    assert guarded_acl(path, guarded, OWNER) == guarded
    for perm in (Perms.READ, Perms.WRITE, Perms.CREATE, Perms.DELETE, Perms.ADMIN):
        assert is_allowed(guarded, perm, (OWNER,)) == any(rule.perms & perm for rule in acl)
        for stranger in strangers:
            may = perm is Perms.READ and path != CREDENTIALS and is_allowed(acl, perm, ())
            assert is_allowed(guarded, perm, stranger) == may
    opened = opened_acl(guarded, OWNER)
    assert {(rule.scheme, rule.id) for rule in opened} == {("world", "anyone")}
    assert opened_acl(opened, OWNER) is opened


def test_a_znode_without_rules_belongs_to_the_owner() -> None:
    assert ALL_OF_OWNER in guarded_acl("/x", (), OWNER)
