"""`klamm dashboard`: serves the viewer of a live cluster, or of a recorded control log."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.activity import ActivityReader
from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer, absence, parse_address
from klamm.cli.output import bold, fail, note, say
from klamm.client.patience import VIEWER_STATUS

if TYPE_CHECKING:
    from klamm.cli.cluster_state import ClusterStatus
    from klamm.dashboard.fault_drill import FaultDrill
    from klamm.dashboard.serve import DashboardServer
    from klamm.dashboard.web_app import Source

MISSING = "The viewer needs Starlette and uvicorn: pip install 'klamm[dashboard]'."
_MAX_ROWS = 500
AllowChanges = Annotated[
    bool, typer.Option("--allow-changes", help="Let the page produce records and reset consumer groups.")
]


def dashboard(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 picks a free port.")] = 9080,
    allow_host: Annotated[
        list[str],
        typer.Option("--allow-host", metavar="NAME", help="Further host name of the page."),
    ] = [],  # noqa: B006
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Show this control log instead of a live one: one JSON object per line."),
    ] = None,
    allow_changes: AllowChanges = False,
    pipelines: Annotated[
        Path | None,
        typer.Option("--pipelines", metavar="DIR", help="State directory of pipelines; by default KLAMM_STATE_DIR."),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            "--records", min=1, help="Newest records of the control log to keep in memory, by default 200000."
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve a web page that shows a cluster: control plane, topics, groups and more.

    The page reads what any client may read, and the state of pipelines on this machine. It changes nothing unless
    --allow-changes is given. To keep a control log, run
    `klamm consume __klamm_control_log --from-beginning --exit-at-end > FILE`.
    """
    if file is None:
        if (sentence := absence(bootstrap_server)) is not None:
            note(f"{sentence} The page shows the cluster when a broker answers.")
        source = live_source(bootstrap_server, allows_changes=allow_changes, pipelines=pipelines)
        if records is not None:
            source = replace(source, most_records=records)
    else:
        _refuse_with_file(**{"--allow-changes": allow_changes, "--pipelines": pipelines, "--records": records})
        source = file_source(file)
    serve(source, host, port, allow_host)


def _refuse_with_file(**options: object) -> None:
    for option, value in options.items():
        if value:
            fail(f"{option} needs a live cluster, and --file shows a control log that was kept.")


def serve(source: Source, host: str = "127.0.0.1", port: int = 0, names: list[str] = []) -> None:  # noqa: B006
    """Serve until Ctrl-C."""
    server = open_server(source, host, port, names)
    say(f"{bold('dashboard')} {server.address}")
    server.run()


def open_server(
    source: Source,
    host: str = "127.0.0.1",
    port: int = 0,
    names: list[str] = [],  # noqa: B006
    *,
    option: str = "--port",
) -> DashboardServer:
    """`option` is the one that chooses the port."""
    from klamm.dashboard.serve import DashboardServer

    try:
        return DashboardServer(source, host, port, names)
    except OSError as error:
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = f"Choose another {option}; 0 picks a free port." if is_port else "Choose another --host."
        reason = str(error.strerror).partition(" (while")[0]  # asyncio repeats the address
        fail(f"The viewer cannot listen on {host}:{port}: {reason}. {remedy}")


def is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("starlette") is not None and find_spec("uvicorn") is not None


def new_source(**fields: Any) -> Source:
    if not is_installed():
        fail(MISSING)
    from klamm.dashboard.web_app import Source

    return Source(**fields)


def live_source(
    servers: str, *, allows_changes: bool = False, pipelines: Path | None = None, drill: FaultDrill | None = None
) -> Source:
    from klamm.cli.broker_requests import cli_client_config
    from klamm.cli.cluster import look
    from klamm.cli.status_rights import RightsMemory, effect
    from klamm.cli.trace_reading import TraceReader
    from klamm.clock import SystemClock

    addresses = [parse_address(server) for server in servers.split(",")]
    reader = ActivityReader(addresses, VIEWER_STATUS.request_s)

    memory = RightsMemory(SystemClock())

    def status() -> dict[str, Any] | None:
        found = look(addresses, {}, VIEWER_STATUS.request_s, missing_rights=memory.missing)
        activities = reader.read()
        if found is None:
            return None
        memory.keep(found.missing_rights)
        found.problems += [f"The user lacks {right}: {effect(right)}." for right in found.missing_rights]
        shown = {each.broker_id: asdict(each) for each in activities or ()}
        return {**bounded(found), "activity": shown, "requests": [asdict(each) for each in reader.requests]}

    client = cli_client_config(servers, "klamm-dashboard")
    return new_source(
        title=servers,
        client=client,
        status=status,
        traces=TraceReader(addresses, client, VIEWER_STATUS.request_s).read,
        pipelines=_pipelines(pipelines),
        allows_changes=allows_changes,
        drill=drill,
    )


def bounded(found: ClusterStatus) -> dict[str, Any]:
    """Return the status with at most 500 partitions of each kind, and their numbers: a page cannot show thousands."""
    from klamm.cli.cluster_state import document

    counts = {"unwell_count": len(found.unwell_partitions), "moving_count": len(found.moving_partitions)}
    cut = replace(
        found,
        unwell_partitions=found.unwell_partitions[:_MAX_ROWS],
        moving_partitions=found.moving_partitions[:_MAX_ROWS],
        replica_problems=found.replica_problems[:_MAX_ROWS],
        missing_brokers=found.missing_brokers[:_MAX_ROWS],
    )
    return {**document(cut), **counts}


def _pipelines(directory: Path | None) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that reads the published state of the pipelines in a state directory."""

    def read() -> list[dict[str, Any]]:
        from klamm.spark.pipeline.state import runs

        return list(runs(directory))

    return read


def file_source(path: Path) -> Source:
    """Return the records of a file, in the order of their times."""
    records = []
    try:
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if line.strip():
                record = json.loads(line)
                if not isinstance(record, dict) or "kind" not in record or "at_ms" not in record:
                    fail(f"Line {number} of {path} is not a record of the control log.")
                records.append((record["at_ms"], line.strip()))
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}.")
    except ValueError as error:
        fail(f"Line {number} of {path} is not JSON: {error}.")
    if not records:
        fail(f"{path} has no records.")
    records.sort(key=lambda item: item[0])
    return new_source(title=path.name, records=tuple(line for _, line in records))
