"""Error codes of transactions as clients understand them."""

from __future__ import annotations

from typing import Final

from klamm.errors import ErrorCode
from klamm.sim.clients import RETRIABLE

CERTAINLY_NOTHING: Final = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT}
)
"""Retriable, and the request had no effect."""
RETRIED: Final = (
    RETRIABLE
    | CERTAINLY_NOTHING
    | {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION}
)
FENCING: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""The producer is replaced by a new one."""
ABORTING: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""The transaction must be aborted."""


class TransactionFailed(Exception):
    """The transaction cannot continue. `is_certain` means that its last request had no effect."""

    def __init__(self, text: str, *, is_certain: bool) -> None:
        super().__init__(text)
        self.is_certain = is_certain


class Fenced(TransactionFailed):
    """Another producer has the transactional id, or the coordinator aborted the transaction."""


class Refused(TransactionFailed):
    """The transaction must be aborted."""


class GaveUp(TransactionFailed):
    """There was no definite answer for too long."""
