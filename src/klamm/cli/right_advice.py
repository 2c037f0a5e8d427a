"""Sentences about rights that the user of a command lacks, with the command that grants them and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from klamm.cli.command_config import current as command_config
from klamm.cli.output import fail
from klamm.errors import ConfigError

if TYPE_CHECKING:
    from klamm.client.missing_rights import MissingRight

_UNKNOWN: Final = "User:NAME"
_EVERYBODY: Final = "*"
_REFUSED: Final = "_AUTHORIZATION_FAILED"


def on_topic(operation: str) -> Callable[[str], MissingRight]:
    """Return a function from the name of a topic to the right that the operation on it needs."""
    return lambda name: _right(operation, "TOPIC", name)


def on_group(operation: str) -> Callable[[str], MissingRight]:
    return lambda name: _right(operation, "GROUP", name)


def on_transactional_id(operation: str) -> Callable[[str], MissingRight]:
    return lambda name: _right(operation, "TRANSACTIONAL_ID", name)


def on_cluster(operation: str) -> MissingRight:
    return _right(operation, "CLUSTER", "kafka-cluster")


def _right(operation: str, kind: str, name: str) -> MissingRight:
    from klamm.client.missing_rights import MissingRight
    from klamm.security.acl.bindings import AclOperation, ResourceType

    return MissingRight(AclOperation[operation], ResourceType[kind], name)


def principal() -> str:
    """Return the principal of this command; User:NAME if only the brokers know it, or if an entry for it means all."""
    try:
        sasl = command_config.security.sasl
    except ConfigError:  # a command that connects reports it
        return _UNKNOWN
    is_known = sasl is not None and sasl.username not in ("", _EVERYBODY)
    return f"User:{sasl.username}" if sasl is not None and is_known else _UNKNOWN


def remedy(missing: Sequence[MissingRight]) -> str:
    """Return the commands by which an administrator grants the rights, and a hint at entries that deny them.

    A denied operation looks to its user like one without an entry.
    """
    from klamm.client.missing_rights import grants

    commands = " and ".join(f"`{each}`" for each in grants(missing, principal()))
    pronoun = "it" if len(missing) == 1 else "them"
    return f"An administrator grants {pronoun} with {commands}; Deny entries in `klamm acl list` take precedence."


def with_remedy(problem: str, needed: MissingRight) -> str:
    """Return the sentence about a failed request. If the brokers refused it, also the right that the user lacks."""
    return f"{problem} The user lacks {needed}. {remedy([needed])}" if _REFUSED in problem else problem


@contextmanager
def needs(right: MissingRight) -> Iterator[None]:
    """If the brokers refuse the requests inside, add the right that they need, and how to grant it, to the error."""
    from klamm.client.client_errors import ClientError

    try:
        yield
    except ClientError as error:
        if (sentence := with_remedy(str(error), right)) == str(error):
            raise
        fail(sentence)
