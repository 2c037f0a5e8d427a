"""`klamm user add|list|remove`: users with SCRAM credentials, through the brokers or, before their start, ZooKeeper."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer
from klamm.cli.command_config import current as command_config
from klamm.cli.output import Failure, fail, note, say, table, yellow
from klamm.cli.principals import refuse_type
from klamm.errors import ErrorCode
from klamm.local.security_choice import ADMIN, BROKER
from klamm.security.sasl.mechanisms import PLAIN

if TYPE_CHECKING:
    from klamm.cli.login_settings import LoginSettings
    from klamm.protocol.messages.alter_user_scram_credentials import ScramCredentialDeletion, ScramCredentialUpsertion
    from klamm.zk.client.blocking import BlockingSession

app = typer.Typer(help="Add, list and remove users with SCRAM passwords.", no_args_is_help=True)

_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final = {number: name for name, number in _NUMBERS.items()}
_DEFAULT: Final = "SCRAM-SHA-512"
_ZOOKEEPER_S: Final = 10.0
_ENABLED: Final = "sasl.enabled.mechanisms"
_PLAIN_USERS: Final = (
    'users of SASL PLAIN are in sasl.jaas.config of every broker, as user_NAME="PASSWORD" in '
    "listener.name.LISTENER.plain.sasl.jaas.config, and brokers read it when they start. `klamm up` takes them from "
    "DATA_DIR/security/users.json."
)
_USERS_OF_UP: Final = {
    BROKER: "a broker that restarts cannot join",
    ADMIN: "administrators can no longer log in",
}

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user, without User:.")]
Mechanism = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism",
        "-m",
        metavar="NAME",
        help="SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated. By default `add` takes those that the brokers enable "
        "(SCRAM-SHA-512 if no listener uses SASL), and `remove` takes all.",
    ),
]
BrokerConfig = Annotated[
    Path | None,
    typer.Option(
        "--broker-config",
        metavar="FILE",
        help="Use the ZooKeeper that this configuration of a broker names, instead of the brokers: for the first users "
        "of a cluster, with which its brokers log in.",
    ),
]


@app.callback()
def user() -> None:
    """Add, list and remove users with SCRAM passwords."""


@app.command()
def add(
    name: Name,
    mechanism: Mechanism = None,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="File whose first line is the password."),
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=4096, max=16384, help="Rounds of the hash.")] = 4096,
    broker_config: BrokerConfig = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Add a user, or change the password of one.

    The password comes from a prompt, from standard input or from --password-file. There is no option for it, because
    others can read the arguments of a process. The brokers receive a salted hash only.

    Users of SASL PLAIN are in sasl.jaas.config of the brokers, and users with certificates (`klamm tls issue`) need no
    password: this command adds neither.
    """
    refuse_type(name)
    chosen = _chosen(mechanism)
    settings = _settings(broker_config, bootstrap_server)
    mechanisms = chosen or _usual(settings)
    password = _password(password_file, name)
    if broker_config is not None:
        from klamm.security.sasl.new_credential import scram_text
        from klamm.zk.client.user_config import alter_user_settings

        with _zookeeper(broker_config) as session:
            alter_user_settings(session, name, {each: scram_text(each, password, iterations) for each in mechanisms})
    else:
        _upsert(bootstrap_server, name, password, mechanisms, iterations)
    note(_outcome(name, mechanisms, settings))


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    broker_config: BrokerConfig = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the users and their mechanisms."""
    found = _from_zookeeper(broker_config) if broker_config is not None else _from_brokers(bootstrap_server)
    if as_json:
        documents = [{"user": name, "mechanism": how, "iterations": rounds} for name, how, rounds in found]
        say(json.dumps(documents, indent=2))
    else:
        table(("USER", "MECHANISM", "ITERATIONS"), found)


@app.command()
def remove(
    name: Name,
    mechanism: Mechanism = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask, also if brokers or administrators need the user.")
    ] = False,
    broker_config: BrokerConfig = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove a user's password for all mechanisms, or for --mechanism. Its open connections stay.

    For a super user, for the user of the brokers and for your own user, the command asks first. If it cannot read the
    settings of the brokers, it asks before it removes `broker` or `admin`, the users that `klamm up` makes.
    """
    found = _from_zookeeper(broker_config) if broker_config is not None else _from_brokers(bootstrap_server)
    there = [how for owner, how, _ in found if owner == name]
    chosen = _chosen(mechanism)
    missing = [each for each in chosen if each not in there]
    if not there:
        refuse_type(name)
    if not there or missing:
        fail(f"User {name} has no password{f' for {missing[0]}' if missing else ''}.")
    mechanisms = chosen or there
    if not yes:
        _confirm_removal(name, _settings(broker_config, bootstrap_server))
    if broker_config is not None:
        from klamm.zk.client.user_config import alter_user_settings

        with _zookeeper(broker_config) as session:
            alter_user_settings(session, name, dict.fromkeys(mechanisms))
    else:
        _delete(bootstrap_server, name, mechanisms)
    note(f"User {name} can no longer log in with {' or '.join(mechanisms)}.")


def _chosen(mechanisms: list[str] | None) -> list[str]:
    chosen = list(dict.fromkeys(each.upper() for each in mechanisms or []))
    for each in chosen:
        if each == PLAIN:
            fail(f"--mechanism {PLAIN}: {_PLAIN_USERS}")
        if each not in _NUMBERS:
            fail(f"--mechanism {each!r} is not one of {', '.join(_NUMBERS)}.")
    return chosen


def _settings(broker_config: Path | None, servers: str) -> LoginSettings | None:
    from klamm.cli import login_settings
    from klamm.config import KafkaConfig

    if broker_config is not None:
        return login_settings.of_config(KafkaConfig.from_file(broker_config))
    return login_settings.of_brokers(servers)


def _usual(settings: LoginSettings | None) -> list[str]:
    """Return the mechanisms for a user without --mechanism."""
    if settings is None or not settings.mechanisms:
        return [_DEFAULT]
    if not settings.scram:
        others = ", ".join(settings.mechanisms)
        more = f" {_PLAIN_USERS}" if PLAIN in settings.mechanisms else ""
        fail(
            f"The brokers enable {others} only, so a user with a SCRAM password could not log in.{more} To prepare a "
            f"change to SCRAM, pass --mechanism {_DEFAULT}."
        )
    return settings.scram


def _outcome(name: str, mechanisms: list[str], settings: LoginSettings | None) -> str:
    stored = f"The password of {name} for {' and '.join(mechanisms)} is stored."
    warning = yellow("Warning:", sys.stderr)
    if settings is None:
        return f"{stored} {warning} the settings of the brokers cannot be read: compare {_ENABLED}."
    if not settings.mechanisms:
        return f"{stored} {warning} no listener of the brokers uses SASL, so nobody logs in with a password."
    if missing := [each for each in mechanisms if each not in settings.mechanisms]:
        enabled = ", ".join(settings.mechanisms)
        return f"{stored} {warning} the brokers do not enable {' and '.join(missing)}: {_ENABLED} is {enabled}."
    return f"User {name} can log in with {' and '.join(mechanisms)}."


def _confirm_removal(name: str, settings: LoginSettings | None) -> None:
    """Ask if brokers or administrators need the user."""
    if (harm := _harm(name, settings)) is None:
        return
    note(f"{yellow('Warning:', sys.stderr)} {harm}")
    if not sys.stdin.isatty() or not typer.confirm(f"Remove the password of {name}?", err=True):
        fail("Nothing was removed. Pass --yes to skip the question.")


def _harm(name: str, settings: LoginSettings | None) -> str | None:
    if settings is not None and settings.between_brokers in _NUMBERS:
        brokers = f"the brokers log in to each other as {name}. Without its password, a broker that restarts cannot "
        if name == settings.brokers_user:
            return f"{brokers}join the cluster."
        if settings.brokers_user is None and name == BROKER:
            return f"perhaps {brokers}join the cluster: those of `klamm up` use this name."
    if settings is not None and name in settings.super_users:
        return f"{name} is a super user. Without its password, administrators who use it can no longer log in."
    if name == _own_user():
        return f"this command logs in as {name}. Without its password, it can no longer do so."
    if settings is None and name in _USERS_OF_UP:
        return (
            f"the settings of the brokers cannot be read, so it is unknown who needs {name}. In clusters of "
            f"`klamm up`, {_USERS_OF_UP[name]} without its password."
        )
    return None


def _own_user() -> str | None:
    login = command_config.security.sasl
    return None if login is None else login.username


def _password(path: Path | None, name: str) -> str:
    if path is not None:
        text = path.read_text(encoding="utf-8")
    elif sys.stdin.isatty():
        text = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.readline()
    password = text.splitlines()[0] if text.splitlines() else ""
    if not password:
        fail("The password is empty.")
    return password


# --- through the brokers ---------------------------------------------------------------------------------------------


def _upsert(servers: str, name: str, password: str, mechanisms: list[str], iterations: int) -> None:
    from klamm.protocol.messages.alter_user_scram_credentials import ScramCredentialUpsertion
    from klamm.security.sasl.scram_credential import SALT_BYTES, salted_password

    upsertions = []
    for each in mechanisms:
        salt = os.urandom(SALT_BYTES)
        salted = salted_password(each, password, salt, iterations)
        upsertions.append(
            ScramCredentialUpsertion(
                name=name, mechanism=_NUMBERS[each], iterations=iterations, salt=salt, salted_password=salted
            )
        )
    _alter(servers, [], upsertions)


def _delete(servers: str, name: str, mechanisms: list[str]) -> None:
    from klamm.protocol.messages.alter_user_scram_credentials import ScramCredentialDeletion

    _alter(servers, [ScramCredentialDeletion(name=name, mechanism=_NUMBERS[each]) for each in mechanisms], [])


def _alter(servers: str, deletions: list[ScramCredentialDeletion], upsertions: list[ScramCredentialUpsertion]) -> None:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
    )

    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    for result in ask_any(servers, request, 0, AlterUserScramCredentialsResponse).results:
        _refuse(result.error_code, result.error_message)


def _from_brokers(servers: str) -> list[tuple[str, str, int]]:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
    )

    request = DescribeUserScramCredentialsRequest(users=None)
    answer = ask_any(servers, request, 0, DescribeUserScramCredentialsResponse)
    _refuse(answer.error_code, answer.error_message)
    return sorted(
        (result.user, _NAMES.get(info.mechanism, str(info.mechanism)), info.iterations)
        for result in answer.results
        for info in result.credential_infos
    )


def _refuse(code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        name = ErrorCode(code).name
        raise Failure(f"{name}: {message}" if message else f"{name}.")


# --- through ZooKeeper -----------------------------------------------------------------------------------------------


@contextmanager
def _zookeeper(broker_config: Path) -> Iterator[BlockingSession]:
    from klamm.config import KafkaConfig
    from klamm.server import zookeeper_security
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.model.ops import AuthFailed, MultiFailed, NoAuth, ZkError

    config = KafkaConfig.from_file(broker_config)
    if not config.zookeeper_connect:
        fail(f"{broker_config} has no zookeeper.connect: start the broker, whose ZooKeeper is its own, and use it.")
    # The error that ends the command has the reason, which the client also logs.
    logging.getLogger("klamm.zk").addHandler(logging.NullHandler())
    hosts = config.zookeeper_connect
    try:
        with BlockingSession(hosts, _ZOOKEEPER_S, None, zookeeper_security.client(config)) as session:
            yield session
    except ZkError as error:
        cause = error.error if isinstance(error, MultiFailed) else error
        if isinstance(cause, NoAuth | AuthFailed):
            fail(f"ZooKeeper at {hosts} refuses the login of {broker_config}: compare klamm.zookeeper.digest.")
        where = "" if "ZooKeeper" in str(error) else f"ZooKeeper at {hosts}: "
        fail(f"{broker_config}: {where}{str(error).rstrip('.')}.")


def _from_zookeeper(broker_config: Path) -> list[tuple[str, str, int]]:
    from klamm.security.sasl.scram_credential import parse_credential
    from klamm.zk.client.user_config import user_settings, users

    with _zookeeper(broker_config) as session:
        found = {name: user_settings(session, name) or {} for name in users(session)}
    return [
        (name, each, parse_credential(settings[each]).iterations)
        for name, settings in found.items()
        for each in _NUMBERS
        if each in settings
    ]
