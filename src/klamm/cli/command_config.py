"""`--command-config FILE`: the security of every command that connects to brokers, from a Kafka client's properties.

The option belongs to each command with `--bootstrap-server`. A process runs one command at a time, and its settings are
kept here until it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.main

from klamm.cli.output import note, yellow

if TYPE_CHECKING:
    from ssl import SSLContext

    from klamm.security.client_security import ClientSecurity

OPTION: Final = "--command-config"
VARIABLE: Final = "KLAMM_COMMAND_CONFIG"
METRICS_LOGIN: Final = "klamm.metrics.basic.auth"


class CommandConfig:
    """Owns the settings of the current command. Files and passwords are read when a connection needs them."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._properties: Mapping[str, str] | None = None
        self._security: ClientSecurity | None = None

    def use(self, path: Path | None) -> None:
        self._path, self._properties, self._security = path, None, None

    def forget(self) -> None:
        self.use(None)

    @property
    def properties(self) -> Mapping[str, str]:
        """The settings of the file; empty without one. Raises ConfigError."""
        if self._properties is None:
            self._properties = {} if self._path is None else _load(self._path)
        return self._properties

    @property
    def security(self) -> ClientSecurity:
        """Raises ConfigError."""
        if self._security is None:
            from klamm.security.client_security import ClientSecurity

            self._security = ClientSecurity.from_properties(self.properties)
        return self._security

    @property
    def bootstrap_servers(self) -> str | None:
        """The brokers that the file names. Raises ConfigError."""
        return self.properties.get("bootstrap.servers")

    @property
    def metrics_login(self) -> str | None:
        """The `USER:PASSWORD` of the brokers' metrics. Raises ConfigError."""
        return self.properties.get(METRICS_LOGIN)

    @property
    def metrics_context(self) -> SSLContext:
        """The TLS context for the brokers' metrics, also if the brokers themselves are used without TLS.

        Raises ConfigError.
        """
        from klamm.security.client_security import ClientSecurity
        from klamm.security.tls.contexts import client_context

        tls = ClientSecurity.from_properties({**self.properties, "security.protocol": "SSL"}).tls
        assert tls is not None
        return client_context(tls)

    @property
    def librdkafka(self) -> dict[str, Any]:
        """Raises ConfigError."""
        if not self.properties:
            return {}
        from klamm.security.librdkafka import librdkafka_settings

        return librdkafka_settings(self.security)

    @property
    def for_spark(self) -> dict[str, str]:
        """The settings of security, for the options of sources and sinks. Raises ConfigError."""
        from klamm.security.client_security import PROPERTIES

        self.security  # noqa: B018  # report a mistake before Spark starts
        return {name: value for name, value in self.properties.items() if name in PROPERTIES}


current: Final = CommandConfig()


def _load(path: Path) -> dict[str, str]:
    from klamm.config.load import load_file
    from klamm.security.client_security import SECRET_PROPERTIES

    found = {name: str(value) for name, value in load_file(path)[0].items()}
    if (SECRET_PROPERTIES | {METRICS_LOGIN}) & found.keys() and path.stat().st_mode & 0o077:
        note(f"{yellow('Warning:', sys.stderr)} {path} has passwords, and others may read it. Run: chmod 600 {path}")
    return found


def _use(ctx: typer.Context, value: str | None) -> None:
    current.use(Path(value) if value else None)
    ctx.call_on_close(current.forget)


def _command(
    command_config: Annotated[
        str | None,
        typer.Option(
            OPTION,
            envvar=VARIABLE,
            metavar="FILE",
            callback=_use,
            expose_value=False,
            is_eager=True,  # before --bootstrap-server, for which the file may have the value
            help="Properties file of a Kafka client with the security settings, such as client.properties; without "
            "--bootstrap-server, also with bootstrap.servers.",
        ),
    ] = None,
) -> None:
    """A command that has only the option."""


def add_option(group: Any) -> None:
    """Give the option to every command of a group that connects to brokers."""
    made = typer.Typer()
    made.command()(_command)
    option = next(each for each in typer.main.get_command(made).params if each.name == "command_config")
    _add(group, option)


def _add(command: Any, option: Any) -> None:
    for child in getattr(command, "commands", {}).values():
        _add(child, option)
    names = [param.name for param in command.params]
    if "bootstrap_server" in names and option.name not in names:
        command.params.insert(names.index("bootstrap_server") + 1, option)
