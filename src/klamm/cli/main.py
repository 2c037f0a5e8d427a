"""The command `klamm`. Errors are one sentence and exit code 1; nobody sees a traceback."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from klamm import __version__
from klamm.cli import config, group, log, topic
from klamm.cli.consume import consume
from klamm.cli.demo import demo
from klamm.cli.doctor import doctor
from klamm.cli.output import red
from klamm.cli.produce import produce
from klamm.cli.simulate import simulate
from klamm.cli.up import broker, up
from klamm.errors import KlammError

app = typer.Typer(
    name="klamm",
    help="An event-streaming cluster that speaks Kafka's protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"klamm {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """An event-streaming cluster that speaks Kafka's protocol."""


app.command()(up)
app.command()(broker)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.command()(produce)
app.command()(consume)
app.add_typer(config.app, name="config")
app.add_typer(log.app, name="log")
app.command()(doctor)
app.command()(simulate)
app.command()(demo)


def main() -> None:
    try:
        app()
    except KlammError as error:
        print(f"{red('Error:', sys.stderr)} {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say, not even when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
