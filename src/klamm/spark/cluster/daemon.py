"""Spark's Python worker daemon, with the modules of klamm's tasks preloaded: `spark.python.daemon.module`.

The daemon forks a worker per task slot. Without it, every worker imports pyarrow, numba and klamm and loads the
compiled decoders: more than four seconds of CPU each. A worker forked from this daemon has them.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from importlib import import_module
from typing import Final

PRELOADED: Final = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.pandas.types",
    "klamm.spark.decode.formats_json",
    "klamm.spark.source.reader",
    "klamm.spark.source.range_fetch",
    "klamm.spark.source.direct_read",
    "klamm.spark.tables.delta",
    "klamm.spark.sink.writer",
)
_NO_THREADS: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "ARROW_IO_THREADS": "1",
}
"""A thread does not survive a fork, and a lock that it holds is never released: numpy and Arrow must not start any."""


def preload() -> None:
    """Load the modules, and freeze them so that workers do not collect them."""
    for variable, value in _NO_THREADS.items():
        os.environ.setdefault(variable, value)
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    with suppress(Exception):  # a worker that needs the decoders reports why they cannot be compiled
        from klamm.spark.cluster.warmup import warmup

        warmup()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    preload()
    manager()
