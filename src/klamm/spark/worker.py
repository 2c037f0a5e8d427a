"""What a Python worker process of Spark keeps between tasks: connections, and a heap that is not walked again.

Spark's daemon runs a full garbage collection after every task. With pyarrow and numba loaded that is most of what a
small task costs, so everything that is there after the first imports is frozen once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from klamm.spark.client import ClusterClient
from klamm.spark.options import ReadOptions

_MAX_KEPT = 8
_kept: dict[tuple[object, ...], list[ClusterClient]] = {}
_is_prepared = False


def prepare() -> None:
    """Freezes the heap, once a process."""
    global _is_prepared
    if not _is_prepared:
        _is_prepared = True
        gc.collect()
        gc.freeze()


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
