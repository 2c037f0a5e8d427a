"""Settings of a user in ZooKeeper, such as SCRAM credentials, written without a broker: for the start of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.zk.client.blocking import BlockingSession
from klamm.zk.model import paths, znodes
from klamm.zk.model.ops import BadVersion, Create, MultiFailed, NodeExists, NoNode, SetData, WriteOp

USERS: Final = "users"
_ATTEMPTS: Final = 20
"""Brokers that start at the same time create the same znodes."""


def user_settings(session: BlockingSession, user: str) -> dict[str, str] | None:
    """Return the settings of a user; None if it has none. Raises ZkError and ZnodeFormatError."""
    path = paths.config_entity_path(USERS, paths.sanitize(user))
    try:
        data = session.get(path)
    except NoNode:
        return None
    return znodes.decode_config(path, data)


def users(session: BlockingSession) -> list[str]:
    """Return the names of all users with settings."""
    try:
        return sorted(map(paths.desanitize, session.get_children(paths.config_entity_type_path(USERS))))
    except NoNode:
        return []


def alter_user_settings(session: BlockingSession, user: str, changes: Mapping[str, str | None]) -> None:
    """Change settings, None removes one, and notify running brokers. Raises ZkError if the change is impossible."""
    path = paths.config_entity_path(USERS, paths.sanitize(user))
    session.create_chroot()
    for _ in range(_ATTEMPTS):
        before, version = session.get_with_version(path)
        settings = znodes.decode_config(path, before)
        settings |= {name: value for name, value in changes.items() if value is not None}
        kept = {name: value for name, value in settings.items() if name not in changes or changes[name] is not None}
        data = znodes.encode_config(kept)
        write: WriteOp = Create(path, data) if before is None else SetData(path, data, version)
        note = znodes.encode_config_change(f"{USERS}/{paths.sanitize(user)}")
        try:
            for parent in (paths.CONFIG, paths.config_entity_type_path(USERS), paths.CONFIG_CHANGES):
                _ensure(session, parent)
            session.write([write, Create(paths.config_change_path(), note, sequential=True)])
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists | BadVersion | NoNode):
                raise failed.error from None
            continue
        return
    raise BadVersion(path, f"{path} changed {_ATTEMPTS} times meanwhile")


def _ensure(session: BlockingSession, path: str) -> None:
    if session.exists(path):
        return
    try:
        session.write([Create(path)])
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExists):
            raise failed.error from None
