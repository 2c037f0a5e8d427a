"""`klamm table create|sync|compact|vacuum|history`: topics as Delta tables."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.client import BOOTSTRAP_NAMES, DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, parse_pairs
from klamm.cli.command_config import current as command_config
from klamm.cli.completion import topic_names
from klamm.cli.output import fail, note, say, table
from klamm.cli.schema import SAMPLE, Sample, infer_topic
from klamm.cli.spark_session import AppendToExisting, Conf, Master, require_spark, spark_session, waiting

if TYPE_CHECKING:
    from klamm.spark.query.progress import Progress
    from klamm.spark.tables.table_definition import TableDefinition

app = typer.Typer(help="Maintain topics as Delta tables: typed columns, exactly once.", no_args_is_help=True)

Place = Annotated[Path, typer.Argument(metavar="PATH", help="The directory of the table.")]


class Format(StrEnum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    STRING = "string"
    RAW = "raw"


@app.command()
def create(
    path: Place,
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            "-t",
            help="The topic that becomes a table.",
            autocompletion=topic_names,
        ),
    ],
    format_: Annotated[Format, typer.Option("--format", "-f", help="Format of the values.")] = Format.JSON,
    schema: Annotated[
        str | None,
        typer.Option("--schema", help="DDL of the JSON columns, or an Avro schema; by default inferred once."),
    ] = None,
    schema_file: Annotated[
        Path | None, typer.Option("--schema-file", help="A file with the schema: DDL, StructType, .avsc, .desc.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", help="The Protobuf message, such as shop.Order.")] = None,
    partition_by_date: Annotated[
        str | None,
        typer.Option(
            "--partition-by-date", help="Partition by the day of this timestamp column, for example _timestamp."
        ),
    ] = None,
    bad_records: Annotated[
        str | None, typer.Option("--bad-records", help="Table of bad records; default: <PATH>_bad.")
    ] = None,
    starting_offsets: Annotated[
        str, typer.Option("--starting-offsets", help="Where the first sync begins: earliest, latest, or JSON.")
    ] = "earliest",
    sample: Sample = SAMPLE,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Create an empty table for a topic, or add the columns of a longer schema. The schema is stored."""
    _require_tables()
    from klamm.spark.decode.value_schema import load
    from klamm.spark.tables.table_definition import TableDefinition, create_table
    from klamm.spark.tables.table_paths import local_path

    if format_ is Format.JSON and schema is None and schema_file is None:
        schema = infer_topic(bootstrap_server, topic, sample).schema.json()
    text = load(format_.value, schema=schema, file=schema_file, message=message).text or None
    path = path.absolute()
    definition = TableDefinition(
        topic=topic,
        bootstrap_servers=bootstrap_server,
        format=format_.value,
        schema=text,
        message=message,
        partition_by_date=partition_by_date,
        bad_records=bad_records and str(local_path(bad_records)),
        starting_offsets=starting_offsets,
    )
    existed = (path / "_delta_log").exists()
    added = create_table(path, definition)
    _report_columns(path, definition, added, existed)


def _report_columns(path: Path, definition: TableDefinition, added: list[str], existed: bool) -> None:
    if existed:
        say(f"Table {path}: added {', '.join(added)}." if added else f"Table {path}: nothing has changed.")
        return
    say(f"Created table {path}: {', '.join(definition.columns().names)}.")
    note(f"Fill it: klamm table sync {path}")


@app.command()
def sync(
    path: Place,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", help="Run until stopped, with one batch per interval such as 10s or 1m; by default once."
        ),
    ] = None,
    max_offsets: Annotated[
        int | None, typer.Option("--max-offsets-per-trigger", min=1, help="Maximum records per batch.")
    ] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            *BOOTSTRAP_NAMES,
            metavar="HOST:PORT,...",
            help="Brokers to use instead of those that `create` stored.",
        ),
    ] = None,
    append_to_existing: AppendToExisting = False,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
) -> None:
    """Write the new records of the topic to the table, each exactly once."""
    require_spark()
    _require_tables()
    from klamm.clock import SystemClock
    from klamm.spark.pipeline.state import CheckpointLock
    from klamm.spark.query.triggers import trigger_arguments
    from klamm.spark.tables.read import row_count
    from klamm.spark.tables.table_definition import checkpoint_of, load_definition

    settings = parse_pairs(conf, "--conf")
    path = path.absolute()
    tables = (path, _bad_path(path, load_definition(path)))
    trigger = trigger_arguments(every or "available_now")
    options: dict[str, object] = {f"kafka.{name}": value for name, value in command_config.for_spark.items()}
    options |= {} if max_offsets is None else {"maxOffsetsPerTrigger": max_offsets}
    lock = CheckpointLock(str(checkpoint_of(path)), f"sync of {path.name}", SystemClock().now_ms())
    with lock, spark_session(master, "klamm table sync", settings) as spark:
        from klamm.spark.tables.sync import sync

        before = [row_count(table) for table in tables]
        waiting(f"Planning the query from topic {load_definition(path).topic} ...")
        query = sync(
            spark,
            path,
            bootstrap_servers=bootstrap_server,
            trigger=trigger,
            append_to_existing=append_to_existing,
            options=options,
        )
        waiting("Waiting for the first batch: Spark starts Python processes ...")
        read = _follow(query)
        good, bad = (_more(*counts) for counts in zip(before, map(row_count, tables), strict=True))
    also = f", {bad} bad ones into {tables[1]}" if bad else ""
    note(f"{read - (bad or 0) if good is None else good} records into {path}{also}.")


def _bad_path(path: Path, definition: TableDefinition) -> Path:
    from klamm.spark.tables.delta import parse_options

    return parse_options({"path": str(path), "badRecords": definition.bad_records or ""}).bad_path


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _follow(query: Any) -> int:
    """Show the progress of the query until it ends. Ctrl-C and SIGTERM stop it. Return the number of records read."""
    import signal
    import sys

    from klamm.spark.query.progress import parse_progress
    from klamm.spark.query.progress_sinks import TerminalTable
    from klamm.spark.query.watch import watch

    counter = _Counter()
    signals: list[int] = []
    # The handler must not raise: an exception in the middle of a call leaves the connection with the JVM unusable.
    before = {
        number: signal.signal(number, lambda n, _: signals.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        watch(query, [counter, *([TerminalTable()] if sys.stdout.isatty() else [])], lambda: bool(signals))
        if signals:
            query.stop()
            for report in query.recentProgress:  # batches that were not counted yet
                counter.progress(parse_progress(report))
    except Exception as error:
        fail(_reason(error))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return counter.rows


class _Counter:
    """Return the number of records that the batches read, each batch counted once."""

    def __init__(self) -> None:
        self.rows = 0
        self._last = (-1, "")

    def progress(self, progress: Progress) -> None:
        this = (progress.batch_id, progress.timestamp)
        if this > self._last:
            self._last = this
            self.rows += progress.input_rows

    def ended(self, query_id: str, reason: str | None) -> None: ...

    def close(self) -> None: ...


def _reason(error: Exception) -> str:
    """Return the line of Spark's error message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.partition(": ")[2] for line in lines if line.startswith("klamm.") and ": " in line]
    return own[-1] if own else (lines[0] if lines else type(error).__name__)


@app.command()
def compact(
    path: Place,
    target_size: Annotated[
        int | None, typer.Option("--target-mb", min=1, help="Merge files up to this size; by default Delta's 100 MB.")
    ] = None,
) -> None:
    """Merge the small files of a table. Readers are not affected; the old files stay until vacuum."""
    _require_tables()
    from klamm.spark.tables.maintenance import compact

    done = compact(path, target_size * 1_000_000 if target_size is not None else None)
    say(f"{done.removed} files became {done.added}." if done.removed else "There were no files to merge.")


@app.command()
def vacuum(
    path: Place,
    retention_hours: Annotated[
        int, typer.Option("--retention-hours", min=0, help="Keep the files of versions younger than this.")
    ] = 168,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Allow less than 168 hours; only safe if nobody uses the table.")
    ] = False,
) -> None:
    """Remove files that no version needs, and files of killed tasks."""
    _require_tables()
    from klamm.spark.tables.maintenance import vacuum

    removed = vacuum(path, retention_hours=retention_hours, dry_run=dry_run, force=force)
    if dry_run:
        for name in removed:
            say(name)
    note(f"{len(removed)} files {'would be' if dry_run else 'were'} removed.")


@app.command()
def history(
    path: Place,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of the newest commits.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a table, the newest first."""
    _require_tables()
    from klamm.spark.tables.maintenance import history

    table(
        ("Version", "Time", "Operation", "Batch", "Query"),
        [
            (
                commit["version"],
                datetime.fromtimestamp(commit["timestamp"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                commit["operation"],
                commit.get("klamm.batch.id"),
                commit.get("klamm.query.id"),
            )
            for commit in history(path, limit)
        ],
        as_json=as_json,
    )


def _require_tables() -> None:
    """Fail with one sentence if the extra is not installed."""
    try:
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError:
        fail("Tables need the Spark part: pip install 'klamm[spark]'.")
