"""Transactions: producers with a transactional id, and the partitions that take part in their transactions.

The rules (`transaction_rules`, `end_rules`) are plain functions of (transaction, input, now); `TransactionStateManager`
owns the transactions of every partition of `__transaction_state` and writes them there; `TransactionMarkers` decides
which markers go to which broker. API handlers call `TransactionCoordinator`. Nothing in these awaits:
`transaction_shell` connects them to an event loop, and `marker_sender` sends the markers.
"""
