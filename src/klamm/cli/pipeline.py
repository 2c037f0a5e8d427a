"""`klamm pipeline run|validate|status|stop|reset`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import BOOTSTRAP_NAMES, admin_client, cluster_metadata, default_servers, parse_pairs
from klamm.cli.command_config import current as command_config
from klamm.cli.output import fail, note, say, table
from klamm.cli.spark_session import (
    AppendToExisting,
    Conf,
    Master,
    Ship,
    require_spark,
    shipped,
    spark_log,
    spark_session,
)

if TYPE_CHECKING:
    from klamm.spark.pipeline.pipeline_model import PipelineSpec, Trigger
    from klamm.spark.query.progress import Progress, Sink

app = typer.Typer(help="Run pipelines from topics to topics and tables on Spark.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline in YAML or Python.")]
STOP_TIMEOUT_S: Final = 120.0
_FOR_STATES: Final = ("yaml",)
_FOR_FILES: Final = ("yaml", "sqlglot", "pyarrow", "pyspark")
"""Modules of the extra that these commands import."""


@app.command()
def run(
    file: File,
    master: Master = "local[*]",
    once: Annotated[bool, typer.Option("--once", help="Process the available records, then stop.")] = False,
    every: Annotated[str | None, typer.Option("--every", metavar="5s", help="Start a batch this often.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the progress of every query.")] = False,
    progress_file: Annotated[
        Path | None, typer.Option("--progress-file", help="Append one JSON object per batch to this file.")
    ] = None,
    prometheus_port: Annotated[
        int | None,
        typer.Option(
            "--prometheus-port", min=0, max=65535, help="Serve metrics on this loopback port; 0 picks a free port."
        ),
    ] = None,
    conf: Conf = [],  # noqa: B006
    ship: Ship = False,
    append_to_existing: AppendToExisting = False,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            *BOOTSTRAP_NAMES,
            metavar="HOST:PORT,...",
            help="Initial brokers; overrides the file, which overrides KLAMM_BOOTSTRAP_SERVERS.",
        ),
    ] = None,
) -> None:
    """Run a pipeline until it is stopped. A failed query is restarted. Ctrl-C stops after the current batch."""
    spec = _loaded(file)
    trigger = _trigger(spec, once, every)
    require_spark()
    from klamm.spark.pipeline.run import RunOptions, check_checkpoint
    from klamm.spark.pipeline.run import run as run_pipeline

    settings = {**(shipped() if ship else {}), **parse_pairs(conf, "--conf")}
    check_checkpoint(spec, append_to_existing)
    servers = bootstrap_server or spec.bootstrap_servers or default_servers()
    _check_topics(spec, servers)
    with _progress(watch, progress_file, prometheus_port) as sinks:
        log = str(spark_log(f"klamm pipeline {spec.name}"))
        options = RunOptions(
            servers,
            trigger,
            master,
            conf=settings,
            report=_report,
            progress=sinks,
            session=spark_session,
            log=log,
            append_to_existing=append_to_existing,
            client=command_config.for_spark,
        )
        run_pipeline(spec, options)


def _report(line: str) -> None:
    note(f"{datetime.now(UTC):%H:%M:%S} {line}")


def _loaded(file: Path) -> PipelineSpec:
    _require(*_FOR_FILES)
    from klamm.spark.pipeline.load_file import load

    return load(file)


def _require(*modules: str) -> None:
    """Fail with one sentence if a module of the extra is not installed."""
    try:
        for name in modules:
            import_module(name)
    except ImportError:
        fail("Pipelines need the Spark extra: pip install 'klamm[spark]'.")


def _trigger(spec: PipelineSpec, once: bool, every: str | None) -> Trigger:
    from klamm.spark.pipeline.pipeline_model import Trigger, duration_ms

    if once and every is not None:
        fail("--once and --every exclude each other.")
    if once:
        return Trigger(available_now=True)
    return spec.trigger if every is None else Trigger(interval_ms=duration_ms(every))


def _check_topics(spec: PipelineSpec, servers: str) -> None:
    """Report missing topics with their lines before Spark starts."""
    from klamm.spark.pipeline.pipeline_problems import PipelineError, Problem

    known = set(cluster_metadata(admin_client(servers), servers).topics)
    wanted = [(source.line, f"source {source.name!r}", source.topic) for source in spec.sources]
    wanted += [(sink.line, f"sink {sink.name!r}", sink.topic) for sink in spec.sinks]
    problems = [
        Problem(line, f"{what}: there is no topic {topic!r}.{missing_topic(topic, known)}")
        for line, what, topic in wanted
        if topic is not None and topic not in known
    ]
    if problems:
        raise PipelineError(spec.file, problems)


def missing_topic(name: str, known: Iterable[str]) -> str:
    """Return the remedy: a similar name, or the command that creates the topic."""
    from klamm.spark.suggestion import suggestion

    close = suggestion(name, [other for other in known if not other.startswith("__")])
    return f"{close if 'Did you mean' in close else ''} `klamm topic create {name}` makes it."


class _Lines:
    """Print progress without a terminal: one line per batch."""

    def progress(self, progress: Progress) -> None:
        line = f"{progress.name}: batch {progress.batch_id}, {progress.input_rows} rows"
        line += f", {progress.processed_rows_per_second:.0f} rows/s, {progress.batch_ms} ms, lag {progress.total_lag}"
        if progress.state_rows:
            line += f", state {progress.state_rows} rows"
        note(f"{line}, watermark {progress.watermark}" if progress.watermark else line)

    def ended(self, query_id: str, reason: str | None) -> None: ...

    def close(self) -> None: ...


@contextmanager
def _progress(watch: bool, file: Path | None, prometheus_port: int | None) -> Iterator[list[Sink]]:
    from klamm.spark.query.progress_sinks import JsonLines, PrometheusEndpoint, TerminalTable

    with ExitStack() as stack:
        sinks: list[Sink] = []
        if watch:
            sinks.append(TerminalTable() if sys.stdout.isatty() else _Lines())
        if file is not None:
            sinks.append(JsonLines(stack.enter_context(file.open("a"))))
        if prometheus_port is not None:
            endpoint = PrometheusEndpoint(prometheus_port)
            note(f"Metrics for Prometheus are on http://127.0.0.1:{endpoint.port}/metrics")
            sinks.append(endpoint)
        for sink in sinks:
            stack.callback(sink.close)
        yield sinks


@app.command()
def validate(
    file: File, as_json: Annotated[bool, typer.Option("--json", help="Print the parts as JSON.")] = False
) -> None:
    """Check a pipeline file, and show what it would do. Neither Spark nor a broker is needed."""
    spec = _loaded(file)
    if not as_json:
        say(f"{spec.file} is a valid pipeline: {spec.name}, {spec.trigger}, checkpoint {spec.checkpoint}.")
    rows: list[tuple[str, str, str]] = []
    for source in spec.sources:
        rows.append(("source", source.name, f"topic {source.reads}{' (static)' if source.static else ''}"))
    for view in spec.views:
        rows.append(("view", view.name, f"reads {', '.join(view.inputs)}"))
    for sink in spec.sinks:
        rows.append(("sink", sink.name, f"{sink.view} to {sink.target}, {sink.mode}, {sink.written}"))
    table(("Kind", "Name", "What"), rows, as_json=as_json)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE]", help="Pipeline to show; by default all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all details as JSON.")] = False,
) -> None:
    """Show the running pipelines of this machine, and the result of the last run of the others."""
    _require(*_FOR_STATES)
    from klamm.spark.source.checkpoint_locations import local_path

    found = list(_runs(name))
    if as_json:
        say(json.dumps(found, indent=1))
        return
    if name is not None and not found:
        fail(f"There is no pipeline {name}: `klamm pipeline status` lists the known ones.")
    rows = [row for run_ in found for row in _status_rows(run_)]
    table(("Pipeline", "Process", "Sink", "State", "Batch", "Rows/s", "Batch ms", "Lag", "Restarts", "Watermark"), rows)
    for run_ in found:
        if (place := local_path(run_["checkpoint"])) is not None and not place.exists():
            note(f"{run_['name']}: the checkpoint {place} is no longer there. The state is that of its last run.")
        for sink, query in run_["queries"].items():
            if query.get("failure"):
                note(f"{run_['name']}, {sink}: {query['failure']}")
        if run_.get("log") and any(query.get("failure") for query in run_["queries"].values()):
            note(f"Spark's log of {run_['name']} is {run_['log']}.")


def _status_rows(run_: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for sink, query in run_["queries"].items():
        state = query["state"]
        if not run_["alive"] and state not in ("stopped", "finished", "failed"):
            state = "died"
        figures = [query.get(key) for key in ("batch", "rows_per_second", "batch_ms", "lag")]
        process = run_["pid"] if run_["alive"] else None
        yield run_["name"], process, sink, state, *figures, query["restarts"], query.get("watermark")


def _runs(name: str | None) -> Iterator[dict[str, Any]]:
    from klamm.spark.pipeline.state import runs

    wanted = None
    if name is not None and Path(name).suffix in (".yaml", ".yml", ".py"):
        wanted = os.path.abspath(name)
    for run_ in runs():
        if name is None or name == run_.get("name") or (wanted is not None and wanted == run_.get("file")):
            yield run_


@app.command()
def stop(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE")],
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Maximum seconds to wait.")] = STOP_TIMEOUT_S,
) -> None:
    """Stop a running pipeline after its current batch, and wait until it has ended."""
    _require(*_FOR_STATES)
    from klamm.spark.pipeline.state import holder

    running = [run_ for run_ in _runs(name) if run_["alive"]]
    if not running:
        fail(f"No pipeline {name} runs on this machine.")
    for run_ in running:
        found = holder(run_["checkpoint"])
        if found is None:
            continue
        if found.get("host") != socket.gethostname() or not isinstance(found.get("pid"), int):
            fail(f"Pipeline {name} runs on {found.get('host')}: stop it there.")
        os.kill(found["pid"], signal.SIGTERM)
        _wait_for_end(run_["checkpoint"], timeout, name)
        say(f"Stopped pipeline {run_['name']} (process {found['pid']}).")


def _wait_for_end(checkpoint: str, timeout: float, name: str) -> None:
    from klamm.spark.pipeline.state import holder

    deadline = time.monotonic() + timeout
    while holder(checkpoint) is not None:
        if time.monotonic() > deadline:
            fail(f"Pipeline {name} still runs after {timeout:g} s.")
        time.sleep(0.1)


@app.command()
def reset(
    file: File,
    sink: Annotated[list[str], typer.Option("--sink", "-s", help="Only this sink's query; may be repeated.")] = [],  # noqa: B006
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the progress and the state of a pipeline: the next run starts over. Existing output stays.

    `klamm pipeline status` no longer lists a pipeline that was reset completely.
    """
    _require(*_FOR_FILES)
    from klamm.spark.pipeline.shape import ShapeFile
    from klamm.spark.pipeline.state import RunFile, refuse_if_running
    from klamm.spark.source.checkpoint_locations import local_path
    from klamm.spark.suggestion import suggestion
    from klamm.spark.tables.existing import allow_append, is_reset

    spec = _loaded(file)
    names = [item.name for item in spec.sinks]
    for name in sink:
        if name not in names:
            fail(f"The pipeline has no sink {name!r}.{suggestion(name, names)}")
    refuse_if_running(spec.checkpoint)
    root = local_path(spec.checkpoint)
    if root is None:
        fail(f"The checkpoint {spec.checkpoint} is not on this machine: delete it with the tools of its storage.")
    chosen = [name for name in list(sink) or names if (root / name).exists() and not is_reset(root / name)]
    run_file = RunFile(spec.name, spec.checkpoint)
    if not chosen:
        if not sink:
            run_file.remove()
        say(f"There is nothing to reset: {', '.join(sink) or spec.name} has no checkpoint in {root}.")
        return
    if not yes:
        targets = ", ".join(item.target for item in spec.sinks if item.name in chosen)
        note(f"The next run reads everything again and writes it a second time to: {targets}.")
        if not sys.stdin.isatty() or not typer.confirm(f"Delete the checkpoints of {', '.join(chosen)}?", err=True):
            fail("Nothing was deleted. Pass --yes to skip the question.")
    for name in chosen:
        shutil.rmtree(root / name, ignore_errors=True)
    for item in spec.sinks:
        if item.name in chosen and item.table is not None:
            allow_append(root / item.name)  # the person has agreed to it just now
    ShapeFile(spec.checkpoint).forget(chosen)
    if not sink:
        run_file.remove()
    say(f"Reset {', '.join(chosen)}.")
