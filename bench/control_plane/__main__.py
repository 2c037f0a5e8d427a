"""`python -m bench.control_plane`: controller, propagation and queues on real processes; part of `make bench`.

Prints every row and writes the section `control-plane` of bench/RESULTS.md. `--quick` has smaller clusters and fewer
changes (below two minutes) and writes nothing; `--only` runs one part and writes nothing either.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from bench import report
from bench.clusters import KlammCluster
from bench.control_plane import (
    broker_death,
    control_log_cost,
    failover,
    one_change,
    peer,
    saturation,
    start_up,
    stopped_broker,
)
from bench.report import Row
from klamm.errors import KlammError

SECTION: Final = "control-plane"
LIMIT_S: Final = 9 * 60.0
"""No part begins after it."""


def life(quick: bool) -> Iterator[Row]:
    with KlammCluster(3, peer.CONFIGS) as cluster:
        yield from peer.whole_life(cluster, quick)


def failovers(quick: bool) -> Iterator[Row]:
    if quick:
        yield from failover.rows(3_000, has_goal=False)
        return
    yield from failover.rows(30_000, has_goal=True)
    yield from failover.rows(100_000, has_goal=False)


PARTS: Final[dict[str, Callable[[bool], Iterable[Row]]]] = {
    "change": lambda quick: one_change.rows(large=10_000 if quick else one_change.LARGE),
    "death": lambda _: broker_death.rows(),
    "failover": failovers,
    "life": life,
    "propagation": lambda quick: saturation.rows(30 if quick else saturation.CHANGES),
    "stopped": lambda quick: stopped_broker.rows(100, 5.0) if quick else stopped_broker.rows(),
    "start": lambda quick: start_up.rows(2_000 if quick else start_up.PARTITIONS),
    "control-log": lambda quick: control_log_cost.rows(50, 1) if quick else control_log_cost.rows(),
}


def run(parts: Iterable[str], quick: bool) -> tuple[list[Row], list[str]]:
    """Return the rows and the failures. A failed part is reported; the others continue."""
    begun = time.monotonic()
    rows: list[Row] = []
    problems: list[str] = []
    for part in parts:
        if time.monotonic() > begun + LIMIT_S:
            problems.append(f"{part}: left out, there was no time")
            continue
        try:
            for row in PARTS[part](quick):
                rows.append(row)
                print(f"  {row.name}: {report.number(row.value)} {row.unit}", flush=True)
        except (KlammError, OSError, RuntimeError) as error:
            problems.append(f"{part}: {str(error).splitlines()[0]}")
            print(f"  {part} failed: {error}", flush=True)
    return rows, problems


def text(rows: Iterable[Row], problems: Iterable[str], load_at_start: float) -> str:
    lines = [(row.name, report.number(row.value), row.unit) for row in rows]
    notes = [f"Not measured: {problem}." for problem in problems]
    return "\n\n".join(
        [
            "## The control plane",
            f"`python -m bench.control_plane`. Machine: {report.machine()}. {report.load_note(load_at_start)} "
            f"At the end it was {os.getloadavg()[0]:.2f}; the load is what others ran on the same two cores.",
            report.table(("", "klamm", "unit"), lines),
            *notes,
            WHAT,
        ]
    )


WHAT: Final = """\
The rows show:
- *Create*, *leader killed*, *moves*, *controller failover of 3,000 partitions*: three real brokers with real logs, seen
  through their Metadata. A death counts from the end of the session in ZooKeeper.
- *Failover of 30,000 and 100,000*: real ZooKeeper (the embedded one) and real controllers, but the partitions' three
  brokers only answer control requests: no logs are made, and the time is the controller's and ZooKeeper's. One of the
  three dies with the old controller, so that a third of all partitions need a leader and the rest a smaller ISR. From
  the deletion of `/controller` until the last of the others has read the last request. The CPU rows are what the new
  controller's process (its own metadata cache and the produce probe included) and ZooKeeper's used meanwhile.
- *Death of a broker with 3,000 partitions*: counted in this process, without sockets. The other two brokers have a
  replica of every partition, and a third of them lose their leader.
- *One partition changed*: in this process, without sockets, in CPU time.
- *Propagation*: from the CreateTopics request until all three brokers' Metadata has the topic.
- *Stopped*: without coalescing the queue is as long as the queue and the coalesced requests together."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.control_plane", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small clusters, few changes, below two minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part, and no section is written")
    options = parser.parse_args()
    load_at_start = os.getloadavg()[0]
    rows, problems = run(options.only or PARTS, options.quick)
    if not options.only and not options.quick:
        report.write_section(SECTION, text(rows, problems, load_at_start))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
