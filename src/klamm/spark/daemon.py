"""Spark's daemon of Python workers, with everything loaded that klamm's tasks need: `spark.python.daemon.module`.

The daemon forks a worker per task slot. Without this every worker imports pyarrow, numba and klamm by itself, and loads
the compiled decoders, which takes more than four seconds of CPU each; forked from here, it has them.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module
from typing import Final

PRELOADED: Final = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.pandas.types",
    "klamm.spark.formats_json",
    "klamm.spark.reader",
    "klamm.spark.fetch",
    "klamm.spark.direct",
    "klamm.spark.tables.delta",
    "klamm.spark.writer",
)
"""None of them starts a thread when it is loaded: a thread would not survive the fork."""


def preload() -> None:
    """Loads the modules, and keeps the collector from walking through them in every worker."""
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    with suppress(Exception):  # a worker that needs the decoders tells why they cannot be compiled
        from klamm.spark.warmup import warmup

        warmup()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    preload()
    manager()
