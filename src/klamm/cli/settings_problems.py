"""Damaged settings in ZooKeeper: of topics, brokers, users, client ids and addresses, and access control entries.

Brokers start in spite of them, so the sentences say which rule applies meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klamm.zk.client.blocking import BlockingSession

from klamm.cli.znode_checks import RESTORE, Check, children

_IGNORED: Final = (
    f"{RESTORE} the settings. Until then brokers do not change those in force, and ignore them at a start."
)
_QUOTAS: Final = f"{RESTORE} quotas or SCRAM credentials, which do not apply until then."
_ENTRIES: Final = f"{RESTORE} access control entries. Until then all access to the resource is denied."


def check_topic_settings(name: str, path: str, data: bytes | None) -> None:
    """Raise ZnodeFormatError if the settings of a topic cannot be decoded or are invalid."""
    from klamm.config.topic_config import SAFE_VALUES, invalid_overrides
    from klamm.zk.model import znodes

    try:
        settings = znodes.decode_config(path, data)
    except znodes.ZnodeFormatError as error:
        remedy = f"{RESTORE} the settings. Until then brokers use the former ones, or delete no records."
        raise znodes.ZnodeFormatError(path, f"{error.reason}. {remedy}") from None
    invalid = invalid_overrides(settings)
    if not invalid:
        return
    rules = [f"{key}={value}" for bad in invalid for key, value in SAFE_VALUES.get(bad, {}).items()]
    meanwhile = f" Until then the topic uses {', '.join(rules)}, so that no records are deleted." if rules else ""
    command = f"klamm topic alter {name} --config {next(iter(invalid))}=..."
    raise znodes.ZnodeFormatError(path, f"{' '.join(invalid.values())} Set a valid value with `{command}`.{meanwhile}")


def setting_checks(session: BlockingSession) -> Iterator[Check]:
    """Yield the checks of all settings except those of topics."""
    from klamm.zk.model import paths

    for name in children(session, paths.config_entity_type_path("brokers")):
        path = paths.config_entity_path("brokers", name)
        yield path, partial(_check_broker, path), _IGNORED
    entities = [*_below(session, "users"), *_below(session, "clients"), *_below(session, "ips")]
    for user in _below(session, "users"):
        entities += _below(session, f"{user}/clients")
    for entity in entities:
        path = paths.config_path_of(entity)
        yield path, partial(_check_quotas, path), _QUOTAS


def access_checks(session: BlockingSession) -> Iterator[Check]:
    """Yield the checks of all access control entries."""
    from klamm.zk.model import paths

    for root in (paths.ACL, paths.ACL_EXTENDED):
        for kind in children(session, root):
            for name in children(session, f"{root}/{kind}"):
                path = f"{root}/{kind}/{name}"
                yield path, partial(_check_entries, path), _ENTRIES


def _below(session: BlockingSession, entity_type: str) -> list[str]:
    from klamm.zk.model import paths

    return [f"{entity_type}/{name}" for name in children(session, paths.config_path_of(entity_type))]


def _check_broker(path: str, data: bytes | None) -> None:
    from klamm.config.kafka_config import broker_key
    from klamm.errors import ConfigError
    from klamm.zk.model import znodes

    for name, text in znodes.decode_config(path, data).items():
        key = broker_key(name)
        if key is None or key.is_sensitive:
            continue
        try:
            key.parse(text)
        except ConfigError as error:
            raise znodes.ZnodeFormatError(path, str(error).rstrip(".")) from None


def _check_quotas(path: str, data: bytes | None) -> None:
    """Check quotas and credentials. The credentials are secrets, and are not shown."""
    from klamm.config.client_quotas import invalid_quotas
    from klamm.config.user_credentials import SCRAM_MECHANISMS
    from klamm.security.sasl.scram_credential import parse_credential
    from klamm.zk.model import znodes

    properties = znodes.decode_config(path, data)
    for key, problem in invalid_quotas(properties).items():
        raise znodes.ZnodeFormatError(path, f"{key}: {problem}")
    for mechanism in SCRAM_MECHANISMS:
        try:
            if mechanism in properties:
                parse_credential(properties[mechanism])
        except ValueError:
            raise znodes.ZnodeFormatError(path, f"the credential of {mechanism} cannot be decoded") from None


def _check_entries(path: str, data: bytes | None) -> None:
    from klamm.security.acl import stored
    from klamm.zk.model.znodes import ZnodeFormatError

    try:
        stored.decode_acl(data, skip_unknown=True)
    except ValueError as error:
        raise ZnodeFormatError(path, str(error)) from None
