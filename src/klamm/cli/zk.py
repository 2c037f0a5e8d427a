"""`klamm zk check` and `klamm zk repair`: the files of the embedded ZooKeeper."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.client import AsJson
from klamm.cli.output import fail, say, table
from klamm.cli.progress_line import ProgressLine

if TYPE_CHECKING:
    from klamm.zk.server.inspection import Choice, Report

DAMAGED: Final = 3
START_FAILS: Final = 4

app = typer.Typer(help="Check and repair the files of the embedded ZooKeeper.", no_args_is_help=True)


@app.callback()
def zk() -> None:
    """Check and repair the files of the embedded ZooKeeper."""


DirectoryArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="The data directory: klamm.zookeeper.embedded.dir of the broker, or DATA/zookeeper of `klamm up`.",
    ),
]


@app.command()
def check(directory: DirectoryArgument, as_json: AsJson = False) -> None:
    """Show the state of snapshots and logs, and what a start would recover. Changes nothing.

    Exit codes: 0 when no file is damaged, 3 when a file is damaged but a start loses nothing, 4 when a start fails,
    1 when DIR cannot be read.
    """
    report = _inspect(directory)
    if as_json:
        _print_json(report)
    else:
        _show(directory, report)
    if report.recovered is None:
        if not as_json:
            say(f"`klamm zk repair {directory}` shows the states that can be recovered.")
        raise typer.Exit(START_FAILS)
    if report.is_damaged:
        raise typer.Exit(DAMAGED)


@app.command()
def repair(
    directory: DirectoryArgument,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ZXID", help="Set DIR to the state after this change, one of those shown."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the states that can be recovered from the files; with --to, set DIR to one of them.

    Every file is kept in a new directory DIR/backup-N. Changes after the chosen one are lost. Stop all brokers
    first, and start them afterwards. Refused while a server uses DIR.

    Exit codes: 0 when nothing needs a repair or it was made, 4 when a repair is needed and --to is missing, 1 when it
    is refused.
    """
    from klamm.clock import SystemClock
    from klamm.zk.server.inspection import repair as repair_directory
    from klamm.zk.server.txnlog import DataDirError

    if as_json and to is not None:
        fail("--json cannot be combined with --to.")
    report = _inspect(directory)
    if report.is_in_use:
        fail(f"{directory} is in use by a server: stop it first.")
    if to is None:
        _show_states(directory, report, as_json)
        if report.recovered is not None:
            return
        raise typer.Exit(START_FAILS)
    try:
        zxid = int(to, 16)
    except ValueError:
        fail(f"--to takes the number of a change, such as 0x1a: not {to!r}.")
    try:
        with ProgressLine() as line:
            repaired = repair_directory(directory, zxid, SystemClock().now_ms(), line.count("steps"))
    except (DataDirError, OSError) as error:
        fail(f"The repair failed: {error}.")
    say(f"{directory} is now in the state after change {zxid:#x}. {_lost(report, zxid)}.")
    say(f"The old files are in {repaired.backup}. New changes start at {repaired.last_zxid + 1:#x}.")
    say("Leader epochs and producer ids continue beyond those that lost changes may have used. Start all brokers.")


def _inspect(directory: Path) -> Report:
    from klamm.zk.server.inspection import inspect
    from klamm.zk.server.txnlog import DataDirError

    try:
        with ProgressLine() as line:
            return inspect(directory, line.count("steps"))
    except DataDirError as error:
        fail(f"{error}.")
    except OSError as error:
        fail(f"{error.filename or directory} cannot be read: {error.strerror}.")


def _show_states(directory: Path, report: Report, as_json: bool) -> None:
    if as_json:
        _print_json(report)
        return
    _show(directory, report)
    if report.recovered is not None:
        say("No repair is needed.")
    else:
        _show_choices(directory, report)


def _print_json(report: Report) -> None:
    """Numbers of changes are hexadecimal, as in the names of the files and for --to."""
    found = {
        "is_in_use": report.is_in_use,
        "is_damaged": report.is_damaged,
        "recovered": _hexadecimal(report.recovered),
        "problem": None if report.recovered is not None else str(report.problem),
        "files": [
            {
                "name": file.name,
                "state": file.state.value,
                "first": _hexadecimal(file.first),
                "last": _hexadecimal(file.last),
                "size_bytes": file.size_bytes,
                "damaged_at": file.damaged_at,
            }
            for file in report.files
        ],
        "choices": [
            {
                "zxid": _hexadecimal(choice.zxid),
                "snapshot": _hexadecimal(choice.snapshot or None),
                "time_ms": choice.time_ms or None,
                "lost_changes": report.highest - choice.zxid,
            }
            for choice in report.choices
        ],
    }
    say(json.dumps(found, indent=2))


def _hexadecimal(number: int | None) -> str | None:
    return None if number is None else f"{number:#x}"


def _show(directory: Path, report: Report) -> None:
    rows = [
        (
            file.name,
            file.state.value,
            _hexadecimal(file.first),
            _hexadecimal(file.last),
            file.size_bytes,
            file.damaged_at,
        )
        for file in report.files
    ]
    table(("FILE", "STATE", "FIRST", "LAST", "BYTES", "DAMAGED AT"), rows)
    say()
    if report.is_in_use:
        say("A server uses this directory: the end of its last log may be in the middle of a write.")
    if report.recovered is None:
        say(f"A start fails: {report.problem}.")
    else:
        say(f"A start recovers everything up to change {report.recovered:#x}.")
        if report.is_damaged:
            say("It does not need the damaged files: three snapshots and their logs are kept for this case.")
        for file in report.files:
            if file.state.value == "unfinished":
                say(f"It cuts off the last record of {file.name}, whose write was not finished.")


def _show_choices(directory: Path, report: Report) -> None:
    if not report.choices:
        say("No state can be recovered from these files: restore the directory from a copy.")
        return
    say("States that can be recovered:")
    for choice in report.choices:
        say(f"  {choice.zxid:#x}  {_source(choice)}. {_lost(report, choice.zxid)}.")
    say(f"Nothing was changed. To choose one: klamm zk repair {directory} --to {report.choices[0].zxid:#x}")


def _source(choice: Choice) -> str:
    base = f"snapshot.{choice.snapshot:016x} and the logs after it" if choice.snapshot else "the logs"
    if not choice.time_ms:
        return f"from {base}"
    return f"from {base}, last change at {datetime.fromtimestamp(choice.time_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _lost(report: Report, zxid: int) -> str:
    """The number of lost changes, as far as the files show: some may be in bytes that cannot be read."""
    count = report.highest - zxid
    parts = [f"{count} changes, {zxid + 1:#x} to {report.highest:#x}"] if count > 1 else []
    if count == 1:
        parts.append(f"change {report.highest:#x}")
    if report.unreadable_end:
        parts.append(f"all changes in the last {report.unreadable_end} bytes of {report.files[-1].name}")
    return f"Lost: {' and '.join(parts) or 'nothing'}"
