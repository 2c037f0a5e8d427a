"""Broker keys of transactions."""

from __future__ import annotations

from klamm.config.definition import Importance, int16, int32
from klamm.config.values import at_least, between

HIGH, LOW = Importance.HIGH, Importance.LOW


class TransactionKeys:
    transactional_id_expiration_ms = int32(
        "transactional.id.expiration.ms",
        604800000,
        "How long an unused transactional id is remembered.",
        importance=HIGH,
        check=at_least(1),
    )
    transaction_max_timeout_ms = int32(
        "transaction.max.timeout.ms",
        900000,
        "The longest timeout that a producer may request for its transactions.",
        importance=HIGH,
        check=at_least(1),
    )
    transaction_state_log_replication_factor = int16(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of __transaction_state. If the key is not set, a smaller cluster creates the topic with as many "
        "replicas as it has brokers.",
        importance=HIGH,
        check=at_least(1),
    )
    transaction_state_log_num_partitions = int32(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state.",
        importance=HIGH,
        check=at_least(1),
    )
    transaction_state_log_min_isr = int32(
        "transaction.state.log.min.isr",
        2,
        "In-sync replicas that __transaction_state needs. If the key is not set, a topic with one or two replicas "
        "needs one.",
        importance=HIGH,
        check=at_least(1),
    )
    transaction_state_log_segment_bytes = int32(
        "transaction.state.log.segment.bytes",
        104857600,
        "The segment size of __transaction_state.",
        importance=HIGH,
        check=at_least(1),
    )
    transaction_state_log_load_buffer_size = int32(
        "transaction.state.log.load.buffer.size",
        5242880,
        "Bytes read at once when transactions are loaded.",
        importance=HIGH,
        check=at_least(1),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = int32(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        "How often transactions that have timed out are aborted.",
        importance=LOW,
        check=at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = int32(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        "How often expired transactional ids are removed.",
        importance=LOW,
        check=at_least(1),
    )
    klamm_transaction_version = int32(
        "klamm.transaction.version",
        2,
        "The highest `transaction.version` that this broker announces: 2 is KIP-890 part 2, which is used while every "
        "broker of the cluster supports it.",
        importance=LOW,
        check=between(0, 2),
    )
