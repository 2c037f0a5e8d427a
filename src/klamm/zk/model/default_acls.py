"""The access rules of znodes under `zookeeper.set.acl`, as in Kafka: the creator may do all, others may read most."""

from __future__ import annotations

from typing import Final

from klamm.zk.model import paths
from klamm.zk.model.ops import OPEN_ACL, Acl, Perms

_CREATOR: Final = Acl(Perms.ALL, "auth", "")
SENSITIVE_ACL: Final = (_CREATOR,)
READABLE_ACL: Final = (_CREATOR, Acl(Perms.READ, "world", "anyone"))
SENSITIVE_ROOTS: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens", paths.PEER_SECRET)
"""Credentials and settings with secrets: only brokers may read them. The last one is klamm's own."""


def default_acl(path: str) -> tuple[Acl, ...]:
    """Return the rules of a new znode. /consumers stays open, because consumers of the old kind write below it."""
    if path == paths.CONSUMERS:
        return OPEN_ACL
    return SENSITIVE_ACL if path.startswith(SENSITIVE_ROOTS) else READABLE_ACL


def is_sensitive(full_path: str) -> bool:
    """Whether a znode holds credentials or settings with secrets, below any chroot."""
    return any(root in full_path for root in SENSITIVE_ROOTS)
