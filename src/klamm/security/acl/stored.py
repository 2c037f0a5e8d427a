"""The entries of a resource and the notices of changes as Kafka keeps them in ZooKeeper, without I/O.

A literal resource is `/kafka-acl/<Type>/<name>`, a prefixed one `/kafka-acl-extended/prefixed/<Type>/<name>`. Invalid
content raises ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from klamm.security.acl.bindings import (
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    is_principal,
    of_name,
)
from klamm.security.acl.rules import Entries

_VERSION: Final = 1


def encode_acl(entries: Iterable[AclEntry]) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission.title,
            "operation": entry.operation.title,
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return json.dumps({"version": _VERSION, "acls": acls}, separators=(",", ":"), ensure_ascii=False).encode()


def decode_acl(data: bytes | None, *, skip_unknown: bool = False) -> Entries:
    """Return the entries. `skip_unknown` leaves out those of operations that only a newer Kafka has.

    Without it they raise ValueError, so that they are not lost when the others are written again.
    """
    if not data:
        return frozenset()
    content = _from_json(data)
    if not isinstance(content, dict) or content.get("version") != _VERSION or not isinstance(content.get("acls"), list):
        raise ValueError("expected an object with version 1 and a list of acls")
    entries = frozenset(_entry(acl) for acl in content["acls"])
    known = frozenset(entry for entry in entries if not entry.operation.is_unknown)
    if len(known) < len(entries) and not skip_unknown:
        raise ValueError("an acl has an operation that this version does not know")
    return known


def _from_json(data: bytes) -> Any:
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("the content is nested too deeply") from None
    if b"\\u" in data:  # An escape may be half of a surrogate pair, which no message can contain.
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _entry(acl: object) -> AclEntry:
    if not isinstance(acl, dict):
        raise ValueError("an acl is not an object")
    values = [acl.get(key) for key in ("principal", "host", "operation", "permissionType")]
    principal, host, operation_name, permission_name = (value if isinstance(value, str) else "" for value in values)
    operation, permission = of_name(AclOperation, operation_name), of_name(Permission, permission_name)
    is_complete = is_principal(principal) and host and operation_name and operation != AclOperation.ANY
    if not is_complete or permission < Permission.DENY:
        raise ValueError(f"an acl is not complete: {json.dumps(acl)[:200]}")
    return AclEntry(principal, host, operation, permission)


def encode_acl_change(resource: ResourcePattern) -> bytes:
    """Return the notice that the entries of a resource have changed."""
    if resource.pattern == PatternType.LITERAL:
        return f"{resource.type.name}:{resource.name}".encode()
    notice = {
        "version": _VERSION,
        "resourceType": resource.type.name,
        "name": resource.name,
        "patternType": resource.pattern.name,
    }
    return json.dumps(notice, separators=(",", ":"), ensure_ascii=False).encode()


def decode_acl_change(data: bytes | None, *, is_extended: bool) -> ResourcePattern:
    text = (data or b"").decode()
    if not is_extended:
        kind, separator, name = text.partition(":")
        resource = ResourcePattern(of_name(ResourceType, kind), name)
    else:
        notice = _from_json(text.encode())
        if not isinstance(notice, dict) or not isinstance(notice.get("name"), str):
            raise ValueError("expected an object that names a resource")
        name = notice["name"]
        separator = name
        resource = ResourcePattern(
            of_name(ResourceType, str(notice.get("resourceType"))),
            name,
            of_name(PatternType, str(notice.get("patternType"))),
        )
    if not separator or resource.type < ResourceType.TOPIC or resource.pattern < PatternType.LITERAL:
        raise ValueError(f"{text[:200]!r} does not name a resource")
    return resource
