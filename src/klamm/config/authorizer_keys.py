"""Broker keys of authorization: the authorizer and its super users."""

from __future__ import annotations

from typing import Final

from klamm.config.definition import Importance, boolean, string
from klamm.config.values import one_of

HIGH, LOW = Importance.HIGH, Importance.LOW
ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"


def super_users(text: str) -> frozenset[str]:
    """Return the principals of `super.users`. Raises ValueError if one is not a type and a name."""
    principals = frozenset(part.strip() for part in text.split(";") if part.strip())
    for principal in principals:
        kind, _, name = principal.partition(":")
        if not kind or not name:
            raise ValueError(f"principals such as User:alice, separated by semicolons; {principal!r} is not one")
    return principals


def _principals(value: object) -> str | None:
    super_users(str(value))
    return None


class AuthorizerKeys:
    authorizer_class_name = string(
        "authorizer.class.name",
        "",
        f"The authorizer: `{ACL_AUTHORIZER}`, which keeps access control lists in ZooKeeper, or empty for none.",
        importance=LOW,
        check=one_of("", ACL_AUTHORIZER),
    )
    super_users = string(
        "super.users",
        "",
        "Principals that may do everything, separated by semicolons: `User:admin;User:broker`. Requires "
        "`authorizer.class.name`. The principal of the brokers is usually among them.",
        check=_principals,
    )
    allow_everyone_if_no_acl_found = boolean(
        "allow.everyone.if.no.acl.found",
        False,
        "Whether every principal may use a resource for which no access control entry exists.",
    )
