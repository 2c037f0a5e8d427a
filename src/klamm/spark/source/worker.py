"""What a Python worker process of Spark keeps between tasks: connections, and a heap that is not walked again.

Spark's daemon runs a full garbage collection after every task. With pyarrow and numba loaded that is most of what a
small task costs, so everything that was there when modules were last loaded is frozen.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from klamm.spark.client import ClusterClient
from klamm.spark.source.read_options import ReadOptions

_MAX_KEPT = 8
_kept: dict[tuple[object, ...], list[ClusterClient]] = {}
_frozen_modules = 0


def prepare() -> None:
    """Freezes the heap, if modules were loaded since it was last frozen.

    To be called at the end of a task, and by short ones at the beginning: numba fills its tables, and loads more of
    itself, when a kernel is first called.
    """
    global _frozen_modules
    if len(sys.modules) != _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@contextmanager
def borrowed_client(options: ReadOptions) -> Iterator[ClusterClient]:
    """A client that nobody else uses meanwhile; its connections stay for the next task unless something failed."""
    key = (options.bootstrap_servers, *sorted(options.client.items()))
    free = _kept.setdefault(key, [])
    client = free.pop() if free else ClusterClient(options.bootstrap_servers, options.client)
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
    """For processes that end by themselves, such as one that reads without Spark; Spark's workers are just ended."""
    for free in _kept.values():
        while free:
            free.pop().close()
