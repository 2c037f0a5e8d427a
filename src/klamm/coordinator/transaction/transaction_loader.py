"""Rebuilds transactional ids from the records of one partition of `__transaction_state`, in the order of the log.

A record that cannot be read is skipped with a warning: one bad record must not take the partition's other
transactions away.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from klamm.coordinator.transaction.transaction_metadata import TransactionValue
from klamm.coordinator.transaction.transaction_records import (
    UnknownTransactionKey,
    decode_transaction_key,
    decode_transaction_value,
)
from klamm.errors import ProtocolError
from klamm.protocol.record_batch import Record, RecordBatch, records

_log = logging.getLogger("klamm.coordinator.transaction")


@dataclass(slots=True)
class TransactionLoader:
    partition: int
    values: dict[str, TransactionValue] = field(default_factory=dict)

    def add(self, batch: RecordBatch) -> None:
        if batch.is_control:
            return
        try:
            for record in records(batch):
                self._add_record(record)
        except ProtocolError as error:
            _log.warning("__transaction_state-%d: skipping %s: %s", self.partition, batch, error)

    def _add_record(self, record: Record) -> None:
        try:
            key = decode_transaction_key(record.key or b"")
            if isinstance(key, UnknownTransactionKey):
                _log.warning("__transaction_state-%d: key version %d is unknown", self.partition, key.version)
            elif record.value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = decode_transaction_value(record.value)
        except ProtocolError as error:
            _log.warning("__transaction_state-%d: skipping record %d: %s", self.partition, record.offset, error)
