"""`klamm sql "select ... from orders"`: topics as tables, once or at a prompt."""

from __future__ import annotations

import csv
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer, admin_client, cluster_metadata, parse_pairs
from klamm.cli.command_config import current as command_config
from klamm.cli.output import dim, fail, note, red, say, table
from klamm.cli.spark_session import Conf, Master, require_spark, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from klamm.spark.sql.topic_tables import TopicTables

TABLE_ROWS: Final = 1000
_BAR_WIDTH: Final = 30


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def sql(
    query: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="Query to run; by default a prompt, or queries from standard input."),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.TABLE,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", "-n", min=1, help=f"Maximum rows to print; {TABLE_ROWS} for a table.")
    ] = None,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Query topics with SQL. Fields of JSON values are columns, beside key, value, _partition, _offset, _timestamp."""
    settings = parse_pairs(conf, "--conf")
    require_spark()
    admin = admin_client(bootstrap_server)
    limit = max_rows or (TABLE_ROWS if format_ is Format.TABLE else None)

    def topics() -> list[str]:
        return sorted(cluster_metadata(admin, bootstrap_server).topics)

    if query is not None:
        _check_first(query, topics)
    with spark_session(master, "klamm sql", settings) as spark:
        shell = _Shell(spark, _tables(spark, bootstrap_server, topics), topics, format_, limit)
        if query is not None:
            for statement in _statements(query):
                shell.answer(statement)
        elif sys.stdin.isatty():
            shell.prompt()
        else:
            for statement in _statements(sys.stdin.read()):
                shell.answer(statement)


def _check_first(query: str, topics: Callable[[], list[str]]) -> None:
    """Report names that cannot be topics before Spark starts, unless the text creates views."""
    from klamm.spark.sql.table_names import SqlTextError, relations, tokens
    from klamm.spark.sql.topic_tables import refuse_files_of_tables, unknown_topic
    from klamm.spark.tables.read import open_table

    try:
        if any(word.keyword == "CREATE" for word in tokens(query)):
            return
        named = relations(query)
    except SqlTextError as error:
        fail(f"Line {error.line} of the query: {error}")
    refuse_files_of_tables(named)
    for relation in named:
        if relation.is_delta:
            open_table(relation.parts[1])
    wanted = [relation for relation in named if not (relation.is_file or relation.is_delta)]
    known = set(topics()) if wanted else set()
    for relation in wanted:
        if len(relation.parts) > 1 or relation.name not in known:
            fail(unknown_topic(relation, known))


def _tables(spark: SparkSession, servers: str, topics: Callable[[], list[str]]) -> TopicTables:
    from klamm.spark.sql.topic_tables import TopicTables

    security = {f"kafka.{name}": value for name, value in command_config.for_spark.items()}
    return TopicTables(spark, servers, topics, security)


def _statements(text: str) -> list[str]:
    from klamm.spark.sql.table_names import statements

    done, rest = statements(text)
    return [*done, rest] if rest.strip() else done


class _Shell:
    """Run statements; at a prompt, report an error and wait for the next statement."""

    def __init__(
        self,
        spark: SparkSession,
        tables: TopicTables,
        topics: Callable[[], list[str]],
        format_: Format,
        limit: int | None,
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._topics = topics
        self._format = format_
        self._limit = limit

    def answer(self, statement: str) -> None:
        from pyspark.errors import PySparkException

        from klamm.spark.pipeline.failures import spark_sentence

        if statement.strip().lower() in ("show tables", "show topics"):
            table(("Topic",), [(name,) for name in self._topics() if not name.startswith("__")])
            return
        try:
            with _progress(self._spark):
                rows = self._rows(self._tables.query(statement))
            self._print(*rows)
        except PySparkException as error:
            fail(spark_sentence(error))

    def prompt(self) -> None:
        import contextlib

        from klamm.errors import KlammError

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401
        note(dim("Statements end with a semicolon; `show topics;` lists tables; Ctrl-D ends.", sys.stderr))
        for statement in _typed():
            try:
                self.answer(statement)
            except KlammError as error:
                note(f"{red('Error:', sys.stderr)} {error}")
            except KeyboardInterrupt:
                note("Cancelled.")

    def _rows(self, frame: DataFrame) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Print names and rows. A table is computed as a whole, JSON and CSV partition by partition."""
        from klamm.spark.sql.topic_tables import as_json, as_text

        chosen = frame if self._limit is None else frame.limit(self._limit + (self._format is Format.TABLE))
        text = as_json(chosen) if self._format is Format.JSON else as_text(chosen)
        rows = text.toLocalIterator() if self._limit is None else iter(text.collect())
        return frame.columns, (tuple(row) for row in rows)

    def _print(self, names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
        if self._format is Format.JSON:
            for (line,) in rows:
                say(line)
        elif self._format is Format.CSV:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(rows)
            sys.stdout.flush()
        elif names:
            self._print_table(names, list(rows))

    def _print_table(self, names: list[str], rows: list[tuple[Any, ...]]) -> None:
        assert self._limit is not None
        table(names, [[_one_line(value) for value in row] for row in rows[: self._limit]])
        if len(rows) > self._limit:
            note(f"Only the first {self._limit} rows; --max-rows shows more.")


def _one_line(value: Any) -> Any:
    return value.replace("\n", "\\n").replace("\t", "\\t") if isinstance(value, str) else value


def _typed() -> Iterator[str]:
    """Yield the statements that are typed, each over one or more lines."""
    from klamm.spark.sql.table_names import statements

    rest = ""
    while True:
        try:
            line = input("   -> " if rest.strip() else "klamm> ")
        except EOFError:
            say()
            return
        except KeyboardInterrupt:
            say()
            rest = ""
            continue
        if not rest.strip() and line.strip().rstrip(";").lower() in ("exit", "quit", "\\q"):
            return
        done, rest = statements(f"{rest}\n{line}" if rest.strip() else line)
        yield from done


@contextmanager
def _progress(spark: SparkSession) -> Iterator[None]:
    """Show a progress bar of the tasks, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    bar = threading.Thread(target=_draw, args=(spark, done), daemon=True)
    bar.start()
    try:
        yield
    finally:
        done.set()
        bar.join()


def _draw(spark: SparkSession, done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    drawn = False
    while not done.wait(0.3):
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        total = sum(stage.numTasks for stage in stages)
        if total:
            finished = sum(stage.numCompletedTasks for stage in stages)
            filled = _BAR_WIDTH * finished // total
            bar = "#" * filled + "." * (_BAR_WIDTH - filled)
            print(f"\r[{bar}] {finished}/{total} tasks", end="", file=sys.stderr, flush=True)
            drawn = True
    if drawn:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
