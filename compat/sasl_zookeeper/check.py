"""klamm and Apache Kafka on one real ZooKeeper with SASL and `zookeeper.set.acl`.

`before` runs with a controller of klamm, `after` with one of Kafka.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Final

from compat.mixed_cluster.check import Checks
from compat.mixed_cluster.cluster import Kind, MixedCluster
from compat.mixed_cluster.zookeepers import USER as ZOOKEEPER_USER
from compat.mixed_cluster.zookeepers import SaslZooKeeper
from compat.secured_mixed_cluster.check import SECURITY, SETTINGS, USER, SecurityChecks
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from klamm.errors import KlammError
from klamm.zk.model.default_acls import SENSITIVE_ACL, default_acl
from klamm.zk.model.ops import OPEN_ACL, Perms

TIMEOUT_S: Final = 60.0
_ANYONE: Final = ("world", "anyone")
_OPEN: Final = {(int(Perms.ALL), *_ANYONE)}
_OF_BROKERS: Final = {(int(Perms.ALL), "sasl", ZOOKEEPER_USER)}
_READABLE: Final = _OF_BROKERS | {(int(Perms.READ), *_ANYONE)}
_MUST_EXIST: Final = {
    "/brokers/ids/1",
    "/brokers/topics/mixed",
    "/config/topics/mixed",
    "/controller",
    "/controller_epoch",
    "/kafka-acl/Topic/mixed",
    "/config/users",
    "/config/brokers",
}


class Stranger:
    """A session of ZooKeeper without a login."""

    def __init__(self, cluster: MixedCluster) -> None:
        self._cluster = cluster
        self._zk = KazooClient(cluster.zookeeper.connect)

    def check_rules(self) -> None:
        """Every znode has the rules of its path. Those that a stranger may not read count as such."""
        self._zk.start(TIMEOUT_S)
        try:
            found = dict(self._rules("/"))
        finally:
            self._zk.stop()
        for path, rules in found.items():
            wanted = default_acl(path)
            expected = None if wanted is SENSITIVE_ACL else _OPEN if wanted is OPEN_ACL else _READABLE
            if rules != expected:
                raise KlammError(f"{path} has the rules {rules}, expected {expected}")
        if missing := _MUST_EXIST - found.keys():
            raise KlammError(f"the znodes {sorted(missing)} were not found")

    def _rules(self, path: str) -> Iterator[tuple[str, set[tuple[int, str, str]] | None]]:
        """Walk the tree; None stands for rules that are hidden. A znode that disappears is left out."""
        try:
            rules = self._zk.get_acls(path)[0]
            children = self._zk.get_children(path)
        except NoAuthError:
            yield path, None
            return
        except NoNodeError:
            return
        yield path, {(rule.perms, rule.id.scheme, rule.id.id) for rule in rules}
        for child in children:
            yield from self._rules(f"{path.rstrip('/')}/{child}")

    def change_nothing(self) -> None:
        self._zk.start(TIMEOUT_S)
        zk = self._zk
        try:
            for what, act in {
                "registered a broker": partial(zk.create, "/brokers/ids/9", b"{}", ephemeral=True),
                "removed a broker": partial(zk.delete, "/brokers/ids/1"),
                "deposed the controller": partial(zk.delete, "/controller"),
                "raised the controller epoch": partial(zk.set, "/controller_epoch", b"99"),
                "read users": partial(zk.get_children, "/config/users"),
                "read a password": partial(zk.get, f"/config/users/{USER}"),
                "read settings of brokers": partial(zk.get_children, "/config/brokers"),
                "added a user": partial(zk.create, "/config/users/mallory", b"{}"),
                "added an entry": partial(zk.create, "/kafka-acl/Topic/x", b"{}"),
                "announced a change": partial(zk.create, "/config/changes/config_change_", b"{}", sequence=True),
                "deleted a topic": partial(zk.create, "/admin/delete_topics/mixed", b""),
                "changed rules": partial(zk.set_acls, "/brokers", OPEN_ACL_UNSAFE),
            }.items():
                _refuse(what, act)
        finally:
            zk.stop()


def _refuse(what: str, act: partial[object]) -> None:
    try:
        act()
    except NoAuthError:
        return
    raise KlammError(f"a session without a login has {what}")


def run(controller: Kind) -> None:
    other: Kind = "kafka" if controller == "klamm" else "klamm"
    kinds: dict[int, Kind] = {1: controller, 2: "klamm", 3: other}
    with MixedCluster(kinds, configs=SETTINGS, security=SECURITY, zookeeper=SaslZooKeeper) as cluster:
        guard, stranger = SecurityChecks(cluster), Stranger(cluster)
        cluster.security.add_user(USER)
        checks = Checks(cluster, controller, USER)
        cluster.start(1)
        cluster.start(2, 3)
        checks.check("topic created and grown", checks.create)
        checks.check("first user and its entries", guard.prepare)
        checks.check("users of either kind", guard.follow_users)
        checks.check("entries of either kind", guard.follow_entries)
        checks.check("every znode has its rules", stranger.check_rules)
        checks.check("a session without a login changes nothing", stranger.change_nothing)
        checks.check(f"the controller is {controller}", lambda: checks.move_controller(controller))
        checks.check("kill -9 of a klamm broker", lambda: checks.kill(2))
        checks.check("consumer group", checks.group)
        checks.check(f"controlled shutdown, {other} to {controller}", lambda: checks.become(3, controller))
        checks.check(f"controlled shutdown, {controller} to {other}", lambda: checks.become(3, other))
        checks.check(f"kill -9 of the {controller} controller", lambda: checks.kill(cluster.controller()))
        checks.check("every znode still has its rules", stranger.check_rules)


if __name__ == "__main__":
    run("klamm" if sys.argv[1] == "before" else "kafka")
