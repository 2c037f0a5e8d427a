"""Client quotas in ZooKeeper, as Kafka stores them: `/config/users/<user>[/clients/<id>]` and `/config/clients/<id>`.

Names are percent-encoded; `<default>` is the default. A change writes the znode and a notification in one transaction.
A znode whose last setting is removed is deleted, with parents that nothing else needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from klamm.config.client_quotas import DEFAULT, QuotaEntity
from klamm.zk.model import paths, znodes
from klamm.zk.model.ops import (
    BadVersion,
    ConnectionLoss,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    Stat,
    WriteOp,
)

if TYPE_CHECKING:
    from klamm.zk.client.zk_session import ZkSession

USERS: Final = "users"
CLIENTS: Final = "clients"
_AT_ONCE: Final = 50
"""Users whose client ids are listed at a time."""

Properties = dict[str, str]
Found = tuple[bytes | None, Stat] | None

log = logging.getLogger(__name__)


def entity_path(entity: QuotaEntity) -> str:
    """Return the path of an entity below /config, such as `users/alice/clients/%3Aone`."""
    user, client_id = entity
    if user is None:
        assert client_id is not None, "an entity has a user or a client id"
        return f"{CLIENTS}/{_znode(client_id)}"
    return f"{USERS}/{_znode(user)}" if client_id is None else f"{USERS}/{_znode(user)}/{CLIENTS}/{_znode(client_id)}"


def entity_of(path: str) -> QuotaEntity | None:
    """Return the entity of a path below /config; None if the path is not that of a quota."""
    parts = path.split("/")
    try:
        match parts:
            case ["users", user]:
                return QuotaEntity(user=_name(user))
            case ["users", user, "clients", client_id]:
                return QuotaEntity(_name(user), _name(client_id))
            case ["clients", client_id]:
                return QuotaEntity(client_id=_name(client_id))
    except UnicodeDecodeError:
        log.warning("ignoring the quotas of /config/%s: the name is not valid UTF-8", path)
    return None


def _znode(name: str) -> str:
    return paths.DEFAULT_ENTITY if name == DEFAULT else paths.sanitize(name)


def _name(znode: str) -> str:
    return DEFAULT if znode == paths.DEFAULT_ENTITY else paths.desanitize(znode)


async def read_entities(zk: ZkSession, entities: Sequence[QuotaEntity]) -> dict[QuotaEntity, Properties]:
    """Read the settings of entities; an entity without a znode has none."""
    wanted = [paths.config_path_of(entity_path(entity)) for entity in entities]
    found = await zk.read_many(wanted)
    return {entity: _decode(path, each) for entity, path, each in zip(entities, wanted, found, strict=True)}


async def read_all(zk: ZkSession) -> dict[QuotaEntity, Properties]:
    """Read the settings of all users, client ids and pairs of both."""
    users = await _children(zk, USERS)
    user_paths = [paths.config_entity_path(USERS, name) for name in users]
    found = await zk.read_many(user_paths)
    result: dict[QuotaEntity, Properties] = {}
    with_clients: list[str] = []
    for name, path, each in zip(users, user_paths, found, strict=True):
        if (entity := entity_of(f"{USERS}/{name}")) is not None:
            result[entity] = _decode(path, each)
        if each is not None and each[1].num_children:
            with_clients.append(name)
    entities: list[QuotaEntity] = []
    for start in range(0, len(with_clients), _AT_ONCE):
        some = with_clients[start : start + _AT_ONCE]
        lists = await asyncio.gather(*(_children(zk, f"{USERS}/{name}/{CLIENTS}") for name in some))
        for name, client_ids in zip(some, lists, strict=True):
            entities += _entities(f"{USERS}/{name}/{CLIENTS}", client_ids)
    entities += _entities(CLIENTS, await _children(zk, CLIENTS))
    return result | await read_entities(zk, entities)


async def _children(zk: ZkSession, below_config: str) -> tuple[str, ...]:
    try:
        return await zk.get_children(paths.config_path_of(below_config))
    except NoNode:
        return ()


def _entities(parent: str, names: Sequence[str]) -> list[QuotaEntity]:
    found = (entity_of(f"{parent}/{name}") for name in names)
    return [entity for entity in found if entity is not None]


async def change_quota(zk: ZkSession, entity: QuotaEntity, change: Callable[[Properties], Properties]) -> Properties:
    """Read, change and write the settings of one entity with a notification; return the new settings.

    After a concurrent write, `change` is called again with the new content. If `change` raises, nothing is written.
    """
    path = paths.config_path_of(entity_path(entity))
    while True:
        found = (await zk.read_many([path]))[0]
        before = _decode(path, found)
        after = change(dict(before))
        if after == before:
            return after
        operations = await (_writes(zk, entity, found, after) if after else _removals(zk, entity, found))
        notification = znodes.encode_config_change(entity_path(entity))
        try:
            await zk.multi([*operations, Create(paths.config_change_path(), notification, sequential=True)])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if not isinstance(failed.error, BadVersion | NodeExists | NoNode | NotEmpty):
                raise failed.error from None
            continue
        return after


async def _writes(zk: ZkSession, entity: QuotaEntity, found: Found, after: Properties) -> list[WriteOp]:
    path, data = paths.config_path_of(entity_path(entity)), znodes.encode_config(after)
    if found is not None:
        return [SetData(path, data, found[1].version)]
    parents = _parents(entity)
    missing = [parent for parent, each in zip(parents, await zk.read_many(parents), strict=True) if each is None]
    return [*(Create(parent) for parent in missing), Create(path, data)]


async def _removals(zk: ZkSession, entity: QuotaEntity, found: Found) -> list[WriteOp]:
    """Delete the znode, and the user's if it has only this client id; a user with client ids keeps an empty znode."""
    path = paths.config_path_of(entity_path(entity))
    assert found is not None, "there is something to remove"
    if found[1].num_children:
        return [SetData(path, znodes.encode_config({}), found[1].version)]
    operations: list[WriteOp] = [Delete(path, found[1].version)]
    parents = _parents(entity)
    if not parents:
        return operations
    user_path, clients_path = parents
    user, clients = await zk.read_many(parents)
    if clients is not None and clients[1].num_children == 1:
        operations.append(Delete(clients_path))
        if user is not None and user[1].num_children == 1 and not _decode(user_path, user):
            operations.append(Delete(user_path, user[1].version))
    return operations


def _parents(entity: QuotaEntity) -> list[str]:
    """The znodes between /config/users and a pair of user and client id, outermost first."""
    if entity.user is None or entity.client_id is None:
        return []
    user_path = paths.config_path_of(entity_path(QuotaEntity(user=entity.user)))
    return [user_path, f"{user_path}/{CLIENTS}"]


def _decode(path: str, found: Found) -> Properties:
    """An undecodable znode is logged and counts as empty, as for other configurations."""
    if found is None:
        return {}
    try:
        return znodes.decode_config(path, found[0])
    except znodes.ZnodeFormatError as error:
        log.warning("ignoring quotas in ZooKeeper: %s", error)
        return {}
