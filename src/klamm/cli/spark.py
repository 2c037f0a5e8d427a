"""`klamm spark doctor|shell|submit|warmup|cluster`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.client import AsJson, parse_pairs
from klamm.cli.output import fail, green, json_rows, note, red, say, table, yellow
from klamm.cli.spark_session import Conf, Master, Ship, require_spark, shipped, spark_session, waiting

if TYPE_CHECKING:
    from klamm.spark.cluster.doctor import Finding

app = typer.Typer(help="Spark with klamm's settings: check, shell, submit, cluster.", no_args_is_help=True)
cluster = typer.Typer(help="A standalone Spark cluster on this machine.", no_args_is_help=True)
app.add_typer(cluster, name="cluster")

Directory = Annotated[Path, typer.Option("--dir", "-d", help="Directory for logs and work files.")]
DEFAULT_DIRECTORY: Final = Path("klamm-spark")
_SETTINGS: Final = ("Setting", "Value", "Why")


@app.command()
def doctor(master: Master = "local[*]", as_json: AsJson = False) -> None:
    """Check whether Spark can run here, and show klamm's settings with reasons."""
    from klamm.spark.cluster import doctor as checks

    found = list(checks.findings())
    if as_json:
        checked = [{"what": it.what, "state": it.state, "found": it.found, "advice": it.advice} for it in found]
        say(json.dumps({"checks": checked, "settings": json_rows(_SETTINGS, _settings(master))}, indent=2))
    else:
        _show_findings(found)
        say()
        say(f"klamm.spark.session({master!r}) sets:")
        table(_SETTINGS, _settings(master))
    failed = sum(finding.state == "failed" for finding in found)
    if failed:
        fail(f"{failed} of {len(found)} checks failed.")


def _settings(master: str) -> list[tuple[str, str, str | None]]:
    from klamm.spark.cluster.session import WHY, settings

    return [(name, value, WHY.get(name)) for name, value in settings(master).items()]


def _show_findings(found: Sequence[Finding]) -> None:
    colour: dict[str, Callable[[str], str]] = {"ok": green, "warning": yellow, "failed": red}
    width = max(len(finding.what) for finding in found)
    for finding in found:
        say(f"{colour[finding.state](f'{finding.state:7}')}  {finding.what:{width}}  {finding.found}")
        if finding.advice:
            say(f"{'':7}  {'':{width}}  {finding.advice}")


@app.command()
def shell(master: Master = "local[*]", conf: Conf = []) -> None:  # noqa: B006
    """Open a Python prompt with `spark` and `ks` (klamm.spark)."""
    import code

    with spark_session(master, "klamm shell", parse_pairs(conf, "--conf")) as spark:
        import klamm.spark as ks

        banner = f"Spark {spark.version} on {master}. `spark` is the session, `ks` is klamm.spark."
        code.interact(banner=banner, local={"spark": spark, "ks": ks}, exitmsg="")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def submit(
    context: typer.Context,
    program: Annotated[Path, typer.Argument(metavar="APP.py")],
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
    ship: Ship = False,
) -> None:
    """Run a program with spark-submit and klamm's settings. Arguments after APP.py are passed to it."""
    require_spark()
    if not program.exists():
        fail(f"{program}: No such file.")
    import pyspark

    from klamm.spark.cluster.session import settings

    chosen = {**settings(master), **(shipped() if ship else {}), **parse_pairs(conf, "--conf")}
    # The directory of sockets is this process's, which spark-submit becomes.
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", chosen.pop("spark.master")]
    for name, value in chosen.items():
        command += ["--conf", f"{name}={value}"]
    if sockets := chosen.get("spark.python.unix.domain.socket.dir"):
        Path(sockets).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.execve(command[0], [*command, str(program), *context.args], {**os.environ, "PYSPARK_PYTHON": sys.executable})


@app.command()
def warmup(
    classes: Annotated[bool, typer.Option(help="Archive the classes of Spark's JVM too (about 170 MB).")] = True,
) -> None:
    """Compile the decoding kernels and archive the classes of Spark's JVM, so that Spark starts faster."""
    require_spark()
    from klamm.spark.cluster.warmup import warmup as compile_kernels

    begun = time.monotonic()
    waiting("Compiling the decoding kernels ...")
    compile_kernels()
    say(f"The kernels are compiled and cached ({time.monotonic() - begun:.1f} s).")
    if not classes:
        return
    from klamm.cli.spark_warmup import archive_classes

    begun = time.monotonic()
    note("Running two queries on Spark to archive the classes they load; this takes about a minute ...")
    path = archive_classes()
    say(f"Archived the classes in {path}, {path.stat().st_size >> 20} MiB ({time.monotonic() - begun:.1f} s).")


@cluster.command("up")
def cluster_up(
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, max=64, help="Number of workers.")] = 2,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores of each worker.")] = 1,
    memory: Annotated[str, typer.Option("--memory", help="Memory of each worker.")] = "2g",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the master; 0 picks a free port.")
    ] = 7077,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Start a master and workers in the background, on loopback."""
    require_spark()
    from klamm.spark.cluster.standalone import up

    made = up(directory.absolute(), workers, cores, memory, port)
    say(f"Spark runs on {made.master} with {workers} workers of {cores} cores; its pages are on {made.web}.")
    say(f"Try: klamm pipeline run FILE --master {made.master}")


@cluster.command("down")
def cluster_down(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Stop the master and its workers."""
    from klamm.spark.cluster.standalone import down

    nodes = down(directory.absolute())
    say(f"Stopped {len(nodes)} processes.")


@cluster.command("status")
def cluster_status(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Show the master, its workers and the applications that run on them."""
    from klamm.spark.cluster.standalone import master_state, read

    found = read(directory.absolute())
    if found is None:
        fail(f"There is no Spark cluster in {directory}.")
    alive = {node.role for node in found.alive()}
    processes = [(node.role, node.pid, "running" if node.role in alive else "ended") for node in found.nodes]
    state = master_state(found) if alive else None
    if as_json:
        shown = {"processes": json_rows(("Role", "Process", "State"), processes), "master": state}
        say(json.dumps(shown, indent=2))
    else:
        table(("Role", "Process", "State"), processes)
    if state is None:
        fail(f"The master at {found.master} does not answer.")
    if as_json:
        return
    say()
    table(
        ("Worker", "State", "Cores", "Used", "Memory MB"),
        [(w["id"], w["state"], w["cores"], w["coresused"], w["memory"]) for w in state["workers"]],
    )
    if state["activeapps"]:
        say()
        table(
            ("Application", "Name", "Cores", "State"),
            [(a["id"], a["name"], a["cores"], a["state"]) for a in state["activeapps"]],
        )
