"""The settings of the transaction coordinator, under the names and with the defaults of Kafka's configuration."""

from __future__ import annotations

from klamm.config import KafkaConfig
from klamm.coordinator.transaction.transaction_metadata import MAX_PRODUCER_EPOCH
from klamm.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class TransactionConfig:
    """All durations in milliseconds; one field for each key that `from_kafka` reads."""

    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    max_timeout_ms: int = 15 * 60 * 1000
    num_partitions: int = 50
    load_buffer_size: int = 5 * 1024 * 1024
    abort_timed_out_interval_ms: int = 10_000
    remove_expired_interval_ms: int = 60 * 60 * 1000
    request_timeout_ms: int = 30_000
    transactions_max_bytes: int = 512 * 1024 * 1024
    """Memory limit of all transactional ids, without the partitions of open transactions."""
    max_wait_ms: int = 100
    """The longest wait of a producer's request for the end of the previous transaction."""
    max_producer_epoch: int = MAX_PRODUCER_EPOCH
    """Smaller in tests, so that epochs are used up."""

    @classmethod
    def from_kafka(cls, config: KafkaConfig) -> TransactionConfig:
        return cls(
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            max_timeout_ms=config.transaction_max_timeout_ms,
            num_partitions=config.transaction_state_log_num_partitions,
            load_buffer_size=config.transaction_state_log_load_buffer_size,
            abort_timed_out_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            remove_expired_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
            request_timeout_ms=config.request_timeout_ms,
            max_wait_ms=config.add_partitions_to_txn_retry_backoff_max_ms,
        )
