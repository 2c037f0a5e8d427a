"""ZkSecurity: how a client proves itself to ZooKeeper, whether it encrypts, and which rules it gives to znodes."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import lazy_dataclass
from klamm.zk.model.default_acls import default_acl
from klamm.zk.model.ops import OPEN_ACL, Acl

if TYPE_CHECKING:
    from ssl import SSLContext


@lazy_dataclass(frozen=True, slots=True)
class Login:
    """A user name with its password."""

    username: str
    password: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Login:
        """Parse `user:password`. Raises ValueError, without the text."""
        username, colon, password = text.partition(":")
        if not (colon and username and password):
            raise ValueError("user:password")
        return cls(username, password)


@lazy_dataclass(frozen=True, slots=True)
class ZkSecurity:
    """`digest` is ZooKeeper's scheme of that name; `sasl` is DIGEST-MD5. A certificate of `tls` is an identity too."""

    tls: SSLContext | None = None
    digest: Login | None = None
    sasl: Login | None = None
    set_acl: bool = False

    def acl_of(self, path: str) -> tuple[Acl, ...]:
        """Return the access rules of a new znode."""
        return default_acl(path) if self.set_acl else OPEN_ACL


UNSECURED: Final = ZkSecurity()
