"""Access rules of znodes: what a create may carry, and whether a connection's identities allow an operation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from klamm.zk.model.ops import OPEN_ACL, Acl, Id, InvalidAcl, NoAuth, Perms

SUPER: Final = (Id("super", ""),)
"""Passes every check: the tree's own user, such as the simulator or the replay of the log."""
SERVER: Final = (Id("super", "server"),)
"""The server itself. Its changes of rules belong to a request, so the version of the rules does not count them."""
_MAX_NETWORK_CHARS: Final = 256
"""Maximum length: longer than any address with a scope and a prefix length. The cache never drops parsed texts."""


def resolve_acl(acl: Sequence[Acl], auth: Sequence[Id], path: str) -> tuple[Acl, ...]:
    """Return the list as it is stored: without duplicates, and with `auth` replaced by the connection's identities.

    Raises InvalidAcl for an empty list, an unknown scheme or a malformed id.
    """
    if acl == OPEN_ACL:
        return OPEN_ACL
    resolved: list[Acl] = []
    for entry in dict.fromkeys(acl):
        resolved += _resolve_entry(entry, auth, path)
    if not resolved:
        raise InvalidAcl(path)
    return tuple(resolved)


def _resolve_entry(entry: Acl, auth: Sequence[Id], path: str) -> list[Acl]:
    if entry.scheme == "auth":
        proven = [Acl(entry.perms, who.scheme, who.id) for who in auth if who.scheme == "digest"]
        if not proven:
            raise InvalidAcl(path)
        return proven
    if not _is_valid(entry):
        raise InvalidAcl(path)
    return [entry]


def _is_valid(entry: Acl) -> bool:
    if entry.scheme == "world":
        return entry.id == "anyone"
    if entry.scheme == "digest":
        return len([part for part in entry.id.split(":") if part]) == 2
    return entry.scheme == "ip" and _network(entry.id) is not None


def check_acl(acl: tuple[Acl, ...], perms: int, auth: Sequence[Id], path: str) -> None:
    """Raise NoAuth unless a rule grants one of `perms` to one of the identities in `auth`."""
    if acl is not OPEN_ACL and not is_allowed(acl, perms, auth):
        raise NoAuth(path)


def is_allowed(acl: tuple[Acl, ...], perms: int, auth: Sequence[Id]) -> bool:
    if acl is OPEN_ACL or any(who.scheme == "super" for who in auth):
        return True
    return any(
        entry.perms & perms and (entry.scheme == "world" or any(_matches(entry, who) for who in auth)) for entry in acl
    )


def _matches(entry: Acl, who: Id) -> bool:
    if entry.scheme != who.scheme:
        return False
    if entry.scheme != "ip" or entry.id == who.id:
        return entry.id == who.id
    network, address = _network(entry.id), _network(who.id)
    return network is not None and address is not None and _covers(network, address)


def _network(text: str) -> tuple[bytes, int] | None:
    """Return address bytes and prefix length of `address[/bits]`, or None for other texts."""
    return _parse_network(text) if len(text) <= _MAX_NETWORK_CHARS else None


@lru_cache(4_096)  # called for every operation on a znode with such rules; parsing takes longer than the operation
def _parse_network(text: str) -> tuple[bytes, int] | None:
    import ipaddress  # only access rules by address need it

    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    return network.network_address.packed, network.prefixlen


def _covers(network: tuple[bytes, int], address: tuple[bytes, int]) -> bool:
    (base, bits), (host, _) = network, address
    shift = len(base) * 8 - bits
    return len(base) == len(host) and int.from_bytes(base, "big") >> shift == int.from_bytes(host, "big") >> shift


READ_ACL_PERMS: Final = Perms.READ | Perms.ADMIN
