"""The answers of the transaction coordinator, as values."""

from __future__ import annotations

from klamm.coordinator.transaction.transaction_metadata import TransactionValue
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


@lazy_dataclass(frozen=True, slots=True)
class InitProducerIdResult:
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@lazy_dataclass(frozen=True, slots=True)
class EndTxnResult:
    """The id and epoch are those that the producer uses from now on."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@lazy_dataclass(frozen=True, slots=True)
class TransactionDescription:
    error: ErrorCode
    value: TransactionValue | None = None


@lazy_dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    state: str


@lazy_dataclass(frozen=True, slots=True)
class TransactionListing:
    """The transactional ids of a broker that match a filter; `unknown_states` are names that no state has."""

    error: ErrorCode
    transactions: tuple[ListedTransaction, ...] = ()
    unknown_states: tuple[str, ...] = ()
