"""`python -m bench.spark`: topics in Spark beside Spark's own Kafka connector; part of `make bench`.

Prints every row and writes the section `spark` of bench/RESULTS.md. `--quick` has fewer rows and rounds (about two
minutes) and writes nothing; `--only` runs one part and writes nothing either.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from bench import report
from bench.clusters import KlammCluster
from bench.spark import memory, reading, sparks, streams, writing
from bench.spark.figures import HEADER, Figure
from klamm.errors import KlammError

SECTION: Final = "spark"
ROUNDS: Final = 5
QUICK_ROUNDS: Final = 1
QUICK_SCALE: Final = 10
LIMIT_S: Final = 14 * 60.0
"""No part begins after it."""

PARTS: Final[dict[str, Callable[[sparks.Bench], Iterator[Figure]]]] = {
    "read": reading.figures,
    "write": writing.figures,
    "stream": streams.figures,
    "memory": memory.figures,
}


def run(parts: Iterable[str], bench: sparks.Bench) -> tuple[list[Figure], list[str]]:
    """Return the figures and the failures. A failed part is reported; the others continue."""
    from pyspark.errors import PySparkException

    begun = time.monotonic()
    figures: list[Figure] = []
    problems: list[str] = []
    for part in parts:
        if time.monotonic() > begun + LIMIT_S:
            problems.append(f"{part}: left out, there was no time")
            continue
        try:
            for figure in PARTS[part](bench):
                figures.append(figure)
                print("  " + " | ".join(figure.cells()), flush=True)
        except (KlammError, OSError, RuntimeError, PySparkException) as error:
            problems.append(f"{part}: {str(error).splitlines()[0]}")
            print(f"  {part} failed: {error}", flush=True)
        print(f"  ({part}: after {time.monotonic() - begun:.0f} s)", flush=True)
    return figures, problems


def text(figures: Iterable[Figure], problems: Iterable[str], load_at_start: float) -> str:
    notes = [f"Not measured: {problem}." for problem in problems]
    return "\n\n".join(
        [
            "## Spark",
            f"`python -m bench.spark`. Machine: {report.machine()}. {report.load_note(load_at_start)} "
            f"At the end it was {os.getloadavg()[0]:.2f}, with what the bench itself runs.",
            report.table(HEADER, [figure.cells() for figure in figures]),
            *notes,
            WHAT,
        ]
    )


WHAT: Final = f"""\
The rows show:
- One klamm broker, `local[{sparks.CORES}]`, `ks.session` as it is, every option at its default on both sides; broker,
  JVM and Python workers share the cores. *connector* is Spark's own `format("kafka")` on the same topic in the same
  session, in turn: version 4.2.0, because 4.3.0 is not on Maven Central; it runs on PySpark 4.3.0. Medians of 5
  rounds (writes and all columns 3) after a warm-up; the spread is (largest - smallest) / median, klamm's / the
  connector's.
- *Read*: `SELECT count(*), sum(length(value))` over 6 partitions, from the action to its result; keys of 12 bytes,
  values that do not repeat, batches of 16 KiB, not compressed. MiB of keys and values. *All columns* goes into
  Spark's noop sink; *columns=value* is klamm's option, the default is every column. *CPU* is one more read each way,
  by the CPU time of the processes: where the time goes. *A query over nothing* is load and count of an empty topic.
- *Into Parquet* is Spark's own writer and *into Delta* klamm's sink on both sides, so that only the source differs;
  *typed* is `valueFormat=json` beside `from_json`. *Into a topic* is klamm's sink beside the connector's. Streams run
  with AvailableNow; their rates are by the time of their batches (`triggerExecution`), without the start of the
  query.
- *Micro-batch*: the median of `triggerExecution` of 60 batches without the first third. The *Python sink* is a bare
  Arrow writer.
- *From produce*: the age of a record (its CreateTime) when its row reaches `write` of the Python sink; trigger as
  soon as possible, no limit.
- *Memory*: three reads of 3 million rows in a process of its own; the kernel's peaks, and for all Python processes of
  Spark (workers, daemons, planners) their proportional shares added. The JVM is driver and executor in one, with
  Spark's default heap of 1 GiB."""


def measured(parts: Iterable[str], *, is_quick: bool) -> tuple[list[Figure], list[str]]:
    problems: list[str] = []
    jars: list[Path] = []
    try:
        jars = sparks.connector_jars()
    except KlammError as error:
        problems.append(f"the connector: {str(error).splitlines()[0]}")
    spark = sparks.session(jars)
    try:
        with tempfile.TemporaryDirectory(prefix="klamm-bench-") as scratch, KlammCluster(1) as cluster:
            rounds, scale = (QUICK_ROUNDS, QUICK_SCALE) if is_quick else (ROUNDS, 1)
            bench = sparks.Bench(spark, cluster, Path(scratch), rounds, scale, bool(jars))
            figures, failed = run(parts, bench)
            return figures, problems + failed
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds, about two minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part, and no section is written")
    options = parser.parse_args()
    load_at_start = report.load_average()
    figures, problems = measured(options.only or PARTS, is_quick=options.quick)
    if not options.only and not options.quick:
        report.write_section(SECTION, text(figures, problems, load_at_start))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
