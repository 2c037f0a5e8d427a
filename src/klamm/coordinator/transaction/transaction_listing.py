"""The listing of transactional ids: which ones a request selects."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from klamm.coordinator.transaction.transaction_metadata import TransactionMetadata, TransactionState
from klamm.coordinator.transaction.transaction_results import ListedTransaction, TransactionListing
from klamm.coordinator.transaction.transaction_state_manager import TRANSACTIONS_PER_SLICE
from klamm.errors import ErrorCode
from klamm.protocol.chunked import CHUNK, pieces


def list_transactions(
    transactions: Iterable[TransactionMetadata],
    states: Sequence[str],
    producer_ids: Sequence[int],
    latest_start_ms: int | None,
) -> Generator[None, None, TransactionListing]:
    """Select by state, by producer id, and by the start of the last transaction, in slices."""
    wanted: set[TransactionState | None] = set()
    unknown: list[str] = []
    for names in pieces(states):
        wanted.update(map(TransactionState.of_title, names))
        unknown.extend(name for name in names if TransactionState.of_title(name) is None)
        if len(names) == CHUNK:
            yield
    ids: set[int] = set()
    for some_ids in pieces(producer_ids):
        ids.update(some_ids)
        if len(some_ids) == CHUNK:
            yield
    listed: list[ListedTransaction] = []
    for number, txn in enumerate(transactions):
        if number % TRANSACTIONS_PER_SLICE == TRANSACTIONS_PER_SLICE - 1:
            yield
        value = txn.value
        is_young = latest_start_ms is not None and value.start_timestamp_ms >= latest_start_ms
        is_wanted = (not states or value.state in wanted) and (not ids or value.producer_id in ids)
        if is_wanted and not is_young and not txn.is_ending:
            listed.append(ListedTransaction(txn.transactional_id, value.producer_id, value.state.title))
    return TransactionListing(ErrorCode.NONE, tuple(listed), tuple(unknown))
