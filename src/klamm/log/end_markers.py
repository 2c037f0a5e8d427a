"""The control batches that end transactions: what their one record says."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from klamm.errors import ProtocolError
from klamm.protocol.record_batch import RecordBatch, records

_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1


class EndTransactionMarker(NamedTuple):
    is_abort: bool
    coordinator_epoch: int


def parse_marker(batch: RecordBatch) -> EndTransactionMarker | None:
    """Return the end of a transaction that a control batch stands for; None for other control batches."""
    record = next(records(batch), None)
    if record is None or record.key is None or len(record.key) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise ProtocolError("a transaction marker has no coordinator epoch")
    return EndTransactionMarker(kind == _ABORT, _MARKER_VALUE.unpack_from(record.value)[1])


def marker_record_fields(is_abort: bool, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Return the key and the value of the record that ends a transaction."""
    return _MARKER_KEY.pack(0, _ABORT if is_abort else _COMMIT), _MARKER_VALUE.pack(0, coordinator_epoch)
