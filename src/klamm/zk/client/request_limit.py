"""The size limit of a request to ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.zk.model.ops import RequestTooLarge, WriteOp, request_size

MAX_REQUEST_BYTES: Final = 1_000_000
"""Below jute.maxbuffer (1 MB unless configured): a server answers a larger request by closing the connection."""


def check_size(operations: Sequence[WriteOp]) -> None:
    """Raise RequestTooLarge if the operations do not fit into one request."""
    size = sum(map(request_size, operations))
    if size > MAX_REQUEST_BYTES:
        largest = max(operations, key=request_size)
        message = f"a request of {size} bytes is too large for ZooKeeper; the largest part is {largest.path}"
        raise RequestTooLarge(largest.path, message)
