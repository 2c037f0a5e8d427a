"""Entities of client quotas in requests: a user, a client id or both, with null for a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from klamm.apis.zookeeper_waits import ApiError
from klamm.config.client_quotas import DEFAULT, QuotaEntity
from klamm.errors import ErrorCode

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
MAX_PARTS: Final = 100
"""There are two types of parts. A request that repeats them very often is refused before each one is read."""


def check_length(parts: Sequence[object]) -> None:
    """Raise ApiError if an entity has more parts than a request of moderate size can name."""
    if len(parts) > MAX_PARTS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"A client quota entity has at most {MAX_PARTS} parts.")


def entity_of(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity that a request names. Raises ApiError if it is not a user, a client id or both."""
    if not parts:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity: name a user or a client id.")
    for kind, name in parts.items():
        check_kind(kind)
        if name == "":
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported: null names the default.")
    names = {kind: DEFAULT if name is None else name for kind, name in parts.items()}
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID))


def check_kind(kind: str) -> None:
    if kind == IP:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "Quotas on new connections of an address (ip) are not supported.")
    if kind not in (USER, CLIENT_ID):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind!r}.")


def parts_of(entity: QuotaEntity) -> dict[str, str | None]:
    """Return the entity as a response names it."""
    names = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return {kind: None if name == DEFAULT else name for kind, name in names if name is not None}
