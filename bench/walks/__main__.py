"""The cost of one event, request or periodic task with very many partitions.

    python -m bench.walks [--partitions 20000] [--only metrics] [--bound-ms 1] [--samples]

Exit code 1 if a turn of the broker loop, or a step of a small event of the controller, takes longer than the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import sys
import tempfile
from collections.abc import Iterable

import uvloop

from bench import report
from bench.loop_holds.account import Account
from bench.walks import broker_turns, controller_events
from bench.walks.turn_samples import SampledAccount
from klamm import allocator
from klamm.server import collector


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.walks", description=__doc__)
    parser.add_argument("--partitions", type=int, default=20_000)
    parser.add_argument("--only", default="", help="rows whose name matches this regular expression")
    parser.add_argument("--bound-ms", type=float, default=1.0)
    parser.add_argument("--samples", action="store_true", help="print stacks of the longest turn of each row")
    args = parser.parse_args()
    chosen = re.compile(args.only, re.IGNORECASE).search
    gc.freeze()
    allocator.install()
    collector.install()
    account = SampledAccount() if args.samples else Account()
    account.install()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        turns = runner.run(broker_turns.serve(folder, account, args.partitions, chosen))
    print(report.table(("broker loop", "longest turn ms"), [(name, f"{hold_ms:.1f}") for name, hold_ms in turns]))
    events = [row for row in controller_events.rows(args.partitions) if chosen(row[0])]
    print_steps("controller", events)
    if chosen(title := controller_events.EVENTS_OF_BROKERS):
        print_steps(title, controller_events.events_of_brokers(args.partitions))
    return int(any(row[1] > args.bound_ms for row in (*turns, *events)))


def print_steps(title: str, rows: Iterable[tuple[str, float, float]]) -> None:
    lines = [(name, f"{step_ms:.2f}", f"{total_ms:.2f}") for name, step_ms, total_ms in rows]
    print(report.table((title, "longest step ms", "CPU ms"), lines))


if __name__ == "__main__":
    sys.exit(main())
