"""The tree of commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from klamm import __version__
from klamm.cli import (
    acl,
    cluster,
    command_config,
    config,
    group,
    log,
    partition,
    perf,
    pipeline,
    quota,
    schema,
    spark,
    table,
    tls,
    topic,
    txn,
    user,
    zk,
)
from klamm.cli.cluster_metadata import metadata
from klamm.cli.cluster_why import why
from klamm.cli.consume import consume
from klamm.cli.dashboard import dashboard
from klamm.cli.demo import demo
from klamm.cli.doctor import doctor
from klamm.cli.output import OutputGone
from klamm.cli.produce import produce
from klamm.cli.simulate import simulate
from klamm.cli.sql import sql
from klamm.cli.top import top
from klamm.cli.trace import trace
from klamm.cli.up import broker, up


class _Commands(TyperGroup):
    """Marks that the reader of the output is gone. Typer would report the original exception as an error."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        command_config.add_option(self)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        command_config.current.use(None)
        with _output_gone():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _output_gone():
            return super().invoke(ctx)


@contextmanager
def _output_gone() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise OutputGone from None


app = typer.Typer(
    name="klamm",
    help="An event-streaming cluster that speaks Kafka's protocol.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=_Commands,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"klamm {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """An event-streaming cluster that speaks Kafka's protocol."""


app.command()(up)
app.command()(broker)
cluster.app.command()(metadata)
cluster.app.command()(why)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topic.app, name="topic")
app.add_typer(partition.app, name="partition")
app.add_typer(group.app, name="group")
app.add_typer(txn.app, name="txn")
app.command()(produce)
app.command()(consume)
app.add_typer(perf.app, name="perf")
app.add_typer(config.app, name="config")
app.add_typer(quota.app, name="quota")
app.add_typer(tls.app, name="tls")
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")
app.add_typer(log.app, name="log")
app.add_typer(zk.app, name="zk")
app.command()(sql)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(table.app, name="table")
app.add_typer(schema.app, name="schema")
app.add_typer(spark.app, name="spark")
app.command()(dashboard)
app.command()(top)
app.command()(trace)
app.command()(doctor)
app.command()(simulate)
app.command()(demo)
