"""`klamm top`: the brokers, their throughput and the controller's queues, in the terminal, until Ctrl-C."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.activity import ActivityReader, BrokerActivity
from klamm.cli.broker_resources import BrokerResources
from klamm.cli.client import DEFAULT_BOOTSTRAP, BootstrapServer, parse_address, unreachable
from klamm.cli.output import fail, say, table
from klamm.cli.status_rights import effect

if TYPE_CHECKING:
    from klamm.cli.cluster_state import ClusterStatus

_COLUMNS: Final = (
    *("BROKER", "ROLE", "IN/S", "OUT/S", "RECORDS/S", "REQUESTS/S", "LEADERS", "UNDER-REPLICATED"),
    *("QUEUE", "EVENTS", "CONNECTIONS", "BEHIND", "UNACKNOWLEDGED", "CPU", "MEMORY", "DISK"),
)
_CLEAR: Final = "\x1b[H\x1b[J"


def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.2, help="Seconds between two readings.")] = 1.0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many readings.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for each broker.")] = 3.0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object per reading.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the control plane and the throughput of each broker, continuously.

    \b
    IN/S, OUT/S     bytes of clients per second
    QUEUE           requests that wait for a handler
    EVENTS          events that wait in the controller's queue
    BEHIND          partitions whose state differs from the controller's
    UNACKNOWLEDGED  requests of the controller without a response
    CPU, MEMORY     of the broker's process; 100% is one busy core
    DISK            used share of the fullest disk with log directories

    Rates need two readings, and the brokers' metrics (klamm.metrics.port). A narrow terminal shows the columns in
    several tables. Output that is not a terminal is not cleared between readings.
    """
    from klamm.cli.cluster import look
    from klamm.cli.cluster_state import document

    addresses = [parse_address(server) for server in bootstrap_server.split(",")]
    reader = ActivityReader(addresses, timeout)
    shown = 0
    missing = None
    try:
        while count is None or shown < count:
            activities, status = reader.read(), look(addresses, {}, timeout, missing_rights=missing)
            if activities is None or status is None:
                fail(unreachable(bootstrap_server))
            missing = status.missing_rights
            if json_:
                say(json.dumps({"status": document(status), "activity": [asdict(each) for each in activities]}))
            else:
                _show(activities, status)
            shown += 1
            if count is None or shown < count:
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def _show(activities: Sequence[BrokerActivity], status: ClusterStatus) -> None:
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    controller = f"broker {status.controller_id}" if status.controller_problem is None else "none"
    epoch = "" if status.controller_epoch is None else f", epoch {status.controller_epoch}"
    unhealthy = f"{status.offline_partitions} offline, {status.under_replicated_partitions} under-replicated"
    say(f"{time.strftime('%H:%M:%S')}  controller {controller}{epoch}; {status.partitions} partitions: {unhealthy}")
    for right in status.missing_rights:
        say(f"The user lacks {right}: {effect(right)}.")
    known = {broker.id: broker for broker in status.brokers}
    rows: list[list[object]] = []
    for each in activities:
        broker = known.get(each.broker_id)
        rows.append(
            [
                *(each.broker_id, "controller" if each.broker_id == status.controller_id else None),
                *(bytes_text(each.bytes_in), bytes_text(each.bytes_out), whole(each.messages_in), whole(each.requests)),
                *(each.leaders, each.under_replicated, each.request_queue, each.event_queue, each.connections),
                *((None, None) if broker is None else (broker.partitions_behind, broker.unacknowledged_requests)),
                *(percent(each.cpu_ms, 1000), bytes_text(each.resources.memory_bytes), _disk(each.resources)),
            ]
        )
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for chosen in fitting(_COLUMNS, rows, width):
        table([_COLUMNS[index] for index in chosen], [[row[index] for index in chosen] for row in rows])


def fitting(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int | None) -> list[list[int]]:
    """Divide the columns into tables that are not wider than the terminal. Each begins with the first column."""
    if width is None:
        return [list(range(len(columns)))]
    widths = [max([len(name), *(len(str(row[index])) for row in rows)]) + 2 for index, name in enumerate(columns)]
    tables = [[0]]
    for index in range(1, len(columns)):
        if len(tables[-1]) > 1 and sum(widths[each] for each in tables[-1]) + widths[index] - 2 > width:
            tables.append([0])
        tables[-1].append(index)
    return tables


def percent(value: float | None, whole: float | None) -> str | None:
    return None if value is None or not whole else f"{value / whole:.0%}"


def _disk(of: BrokerResources) -> str | None:
    used = None if of.disk_total is None or of.disk_usable is None else of.disk_total - of.disk_usable
    return percent(used, of.disk_total)


def whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def bytes_text(value: float | None) -> str | None:
    """Format bytes with a unit: `12.5 MB`."""
    if value is None:
        return None
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
