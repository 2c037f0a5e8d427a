"""`klamm pipeline run|validate|status|stop|reset`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.cli.client import admin_client, cluster_metadata, default_servers, parse_pairs
from klamm.cli.output import fail, note, say, table
from klamm.cli.spark_session import Conf, Master, Ship, require_spark, shipped, spark_session

if TYPE_CHECKING:
    from klamm.spark.pipeline.model import PipelineSpec, Trigger

app = typer.Typer(help="Run pipelines from topics to topics and tables on Spark.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline in YAML or Python.")]
STOP_TIMEOUT_S: Final = 120.0


@app.command()
def run(
    file: File,
    master: Master = "local[*]",
    once: Annotated[bool, typer.Option("--once", help="Process what there is, then end.")] = False,
    every: Annotated[str | None, typer.Option("--every", metavar="5s", help="Start a batch this often.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show a line for every batch.")] = False,
    progress_file: Annotated[
        Path | None, typer.Option("--progress-file", help="Append Spark's progress reports, one JSON object a line.")
    ] = None,
    conf: Conf = [],  # noqa: B006
    ship: Ship = False,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT,...",
            help="Brokers to ask first; wins over the file.",
        ),
    ] = None,
) -> None:
    """Run a pipeline until it is stopped. A query that fails is started again; Ctrl-C stops after the running batch."""
    from klamm.spark.pipeline.run import RunOptions, check_checkpoint
    from klamm.spark.pipeline.run import run as run_pipeline

    spec = _loaded(file)
    trigger = _trigger(spec, once, every)
    settings = {**(shipped() if ship else {}), **parse_pairs(conf, "--conf")}
    check_checkpoint(spec)
    require_spark()
    servers = bootstrap_server or spec.bootstrap_servers or default_servers()
    _check_topics(spec, servers)
    run_pipeline(
        spec,
        RunOptions(
            bootstrap_servers=servers,
            trigger=trigger,
            master=master,
            conf=settings,
            tell=lambda line: note(f"{datetime.now(UTC):%H:%M:%S} {line}"),
            on_progress=_progress_sink(watch, progress_file),
            session=spark_session,
        ),
    )


def _loaded(file: Path) -> PipelineSpec:
    try:
        import yaml  # noqa: F401
    except ImportError:
        fail("Pipelines need the Spark extra: pip install 'klamm[spark]'.")
    from klamm.spark.pipeline.load import load

    return load(file)


def _trigger(spec: PipelineSpec, once: bool, every: str | None) -> Trigger:
    from klamm.spark.pipeline.model import Trigger, duration_ms

    if once and every is not None:
        fail("--once and --every exclude each other.")
    if once:
        return Trigger(available_now=True)
    return spec.trigger if every is None else Trigger(interval_ms=duration_ms(every))


def _check_topics(spec: PipelineSpec, servers: str) -> None:
    """Topics that are missing are told with their lines before Spark starts."""
    from klamm.spark.pipeline.problems import PipelineError, Problem, suggestion

    known = set(cluster_metadata(admin_client(servers), servers).topics)
    wanted = [(source.line, f"source {source.name!r}", source.topic) for source in spec.sources]
    wanted += [(sink.line, f"sink {sink.name!r}", sink.topic) for sink in spec.sinks]
    problems = [
        Problem(line, f"{what}: there is no topic {topic!r}.{suggestion(topic, known)}")
        for line, what, topic in wanted
        if topic is not None and topic not in known
    ]
    if problems:
        raise PipelineError(spec.file, problems)


def _progress_sink(watch: bool, file: Path | None) -> Callable[[str, Mapping[str, Any]], None]:
    from klamm.spark.pipeline.run import summary

    def on_progress(sink: str, progress: Mapping[str, Any]) -> None:
        if watch:
            figures = summary(progress)
            rate = figures["rows_per_second"]
            line = f"{sink}: batch {figures['batch']}, {progress.get('numInputRows', 0)} rows, {rate:g} rows/s"
            line += f", {figures['batch_ms']} ms, lag {figures['lag']}"
            if figures["state_rows"]:
                line += f", state {figures['state_rows']} rows"
            if figures["watermark"]:
                line += f", watermark {figures['watermark']}"
            note(line)
        if file is not None:
            with file.open("a") as stream:
                stream.write(json.dumps({"sink": sink, **progress}, default=str) + "\n")

    return on_progress


@app.command()
def validate(file: File) -> None:
    """Check a pipeline file, and show what it would do. Neither Spark nor a broker is needed."""
    spec = _loaded(file)
    say(f"{spec.file} is a valid pipeline: {spec.name}, {spec.trigger}, checkpoint {spec.checkpoint}.")
    rows: list[tuple[str, str, str]] = []
    for source in spec.sources:
        rows.append(("source", source.name, f"topic {source.reads}{' (static)' if source.static else ''}"))
    for view in spec.views:
        rows.append(("view", view.name, f"reads {', '.join(view.inputs)}"))
    for sink in spec.sinks:
        rows.append(("sink", sink.name, f"{sink.view} to {sink.target}, {sink.mode}"))
    table(("Kind", "Name", "What"), rows)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE]", help="Without it: all pipelines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything that is known, as JSON.")] = False,
) -> None:
    """Show pipelines that run on this machine, and how the last run of the others ended."""
    found = list(_runs(name))
    if as_json:
        say(json.dumps(found, indent=1))
        return
    if name is not None and not found:
        fail(f"Nothing is known of a pipeline {name}.")
    rows = [row for run_ in found for row in _status_rows(run_)]
    table(("Pipeline", "Process", "Sink", "State", "Batch", "Rows/s", "Batch ms", "Lag", "Restarts", "Watermark"), rows)
    for run_ in found:
        for sink, query in run_["queries"].items():
            if query.get("failure"):
                note(f"{run_['name']}, {sink}: {query['failure']}")


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
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for its end.")] = STOP_TIMEOUT_S,
) -> None:
    """Stop a running pipeline after the batch it is in, and wait for its end."""
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
    """Forget how far a pipeline has come, and its state: the next run starts over. What it wrote stays."""
    from klamm.spark.pipeline.problems import suggestion
    from klamm.spark.pipeline.shape import ShapeFile
    from klamm.spark.pipeline.state import local_path, refuse_if_running

    spec = _loaded(file)
    names = [item.name for item in spec.sinks]
    for name in sink:
        if name not in names:
            fail(f"The pipeline has no sink {name!r}.{suggestion(name, names)}")
    refuse_if_running(spec.checkpoint)
    root = local_path(spec.checkpoint)
    if root is None:
        fail(f"The checkpoint {spec.checkpoint} is not on this machine: delete it with the tools of its storage.")
    chosen = list(sink) or names
    if not yes:
        targets = ", ".join(item.target for item in spec.sinks if item.name in chosen)
        note(f"The next run reads everything again and writes it a second time to: {targets}.")
        if not sys.stdin.isatty() or not typer.confirm(f"Delete the checkpoints of {', '.join(chosen)}?", err=True):
            fail("Nothing was deleted; --yes does not ask.")
    for name in chosen:
        shutil.rmtree(root / name, ignore_errors=True)
    ShapeFile(spec.checkpoint).forget(chosen)
    say(f"Reset {', '.join(chosen)}.")
