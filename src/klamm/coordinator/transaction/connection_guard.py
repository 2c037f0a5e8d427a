"""The protection of producers whose protocol does not bump the epoch with each transaction.

A client that gives up a connection may have requests on it that arrive later, during its next transaction, and these
have the same producer id and epoch. So the coordinator remembers, per transactional id, producer id and epoch, the
youngest connection that acted, and refuses requests on older ones. While none has acted, a connection that was accepted
before this broker became the coordinator is refused: its requests may belong to a transaction that ended at another
coordinator.
"""

from __future__ import annotations

from klamm.coordinator.transaction.transaction_metadata import TransactionMetadata
from klamm.model import ConnectionOrder, ProducerIdAndEpoch


def admits(
    txn: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    origin: ConnectionOrder | None,
    *,
    last_before_election: ConnectionOrder,
) -> bool:
    """Whether the request may act; if so, its connection is the youngest from now on.

    `origin` None: the request does not come from the producer. Another epoch is refused by the rules themselves.
    """
    if origin is None or producer != txn.value.identity:
        return True
    oldest = txn.youngest_connection if txn.actor == producer else last_before_election + 1
    if origin < oldest:
        return False
    txn.actor, txn.youngest_connection = producer, origin
    return True


def begin_epoch(txn: TransactionMetadata, origin: ConnectionOrder | None) -> None:
    """The producer at `origin` received the current epoch. Of its repeated requests, an older one may arrive last."""
    identity = txn.value.identity
    youngest = txn.youngest_connection if txn.actor == identity else 0
    txn.actor, txn.youngest_connection, txn.answered_on = identity, max(youngest, origin or 0), None
