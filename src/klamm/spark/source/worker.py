"""State that Spark's Python worker processes keep between tasks: connections and a frozen heap.

Spark's daemon runs a full garbage collection after every task. With pyarrow and numba loaded, that is most of the cost
of a small task, so all objects that existed after the last module load are frozen.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from klamm.client.cluster_client import ClusterClient
from klamm.spark.source.client_options import task_client
from klamm.spark.source.read_options import ReadOptions

_MAX_KEPT = 8
_kept: dict[tuple[object, ...], list[ClusterClient]] = {}
_frozen_modules = 0


def prepare() -> None:
    """Freezes the heap, if modules were loaded since it was last frozen.

    Call it at the end of a task, and in short tasks at the beginning: numba loads more modules when a kernel is first
    called.
    """
    global _frozen_modules
    if len(sys.modules) != _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@contextmanager
def borrowed_client(options: ReadOptions) -> Iterator[ClusterClient]:
    """Lend a client to one user at a time. Its connections stay open for the next task unless something failed."""
    key = (options.bootstrap_servers, *sorted(options.client.items()))
    free = _kept.setdefault(key, [])
    client = free.pop() if free else task_client(options.bootstrap_servers, options.client)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    if sum(map(len, _kept.values())) < _MAX_KEPT:
        free.append(client)
    else:
        client.close()


@atexit.register
def close_kept() -> None:
    """Close kept connections at exit, in processes that end by themselves; Spark kills its workers."""
    for free in _kept.values():
        while free:
            free.pop().close()
