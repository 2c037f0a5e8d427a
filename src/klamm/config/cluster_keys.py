"""Broker keys of replication, the controller, consumer groups, offsets and producers."""

from __future__ import annotations

from klamm.config.definition import (
    Importance,
    Support,
    UpdateMode,
    boolean,
    int16,
    int32,
    int64,
    optional_int32,
    optional_string,
    strings,
)
from klamm.config.values import INT_MAX, LONG_MAX, at_least, between, one_of

HIGH, LOW = Importance.HIGH, Importance.LOW
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
NO_EFFECT = Support.NO_EFFECT
REPLICA_SELECTORS = (
    "org.apache.kafka.common.replica.LeaderSelector",
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
)


class TopicDefaultKeys:
    num_partitions = int32(
        "num.partitions", 1, "Partitions of a topic that is created without a partition count.", check=at_least(1)
    )
    default_replication_factor = int32(
        "default.replication.factor",
        1,
        "Replicas of a topic that is created without a replication factor.",
        check=at_least(1),
    )
    min_insync_replicas = int32(
        "min.insync.replicas",
        1,
        "In-sync replicas that a produce request with acks=all needs.",
        importance=HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is not in sync may become leader, losing records, if no other is left.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    )


class ReplicaKeys:
    replica_lag_time_max_ms = int64(
        "replica.lag.time.max.ms",
        30000,
        "A follower that has not caught up for this long leaves the in-sync replicas.",
        importance=HIGH,
    )
    replica_socket_timeout_ms = int32(
        "replica.socket.timeout.ms",
        30000,
        "How long a follower waits for a Fetch response.",
        importance=HIGH,
    )
    replica_socket_receive_buffer_bytes = int32(
        "replica.socket.receive.buffer.bytes",
        65536,
        "SO_RCVBUF of a follower's connection.",
        importance=HIGH,
        support=NO_EFFECT,
    )
    replica_fetch_max_bytes = int32(
        "replica.fetch.max.bytes",
        1048576,
        "Bytes that a follower requests per partition.",
        check=at_least(0),
    )
    replica_fetch_wait_max_ms = int32(
        "replica.fetch.wait.max.ms", 500, "How long a leader may hold back a follower's Fetch.", importance=HIGH
    )
    replica_fetch_backoff_ms = int32(
        "replica.fetch.backoff.ms",
        1000,
        "Pause of a follower after an error.",
        check=at_least(0),
    )
    replica_fetch_min_bytes = int32(
        "replica.fetch.min.bytes", 1, "Bytes that a follower's Fetch waits for.", importance=HIGH
    )
    replica_fetch_response_max_bytes = int32(
        "replica.fetch.response.max.bytes",
        10485760,
        "Bytes that a follower requests in one Fetch.",
        check=at_least(0),
    )
    num_replica_fetchers = int32(
        "num.replica.fetchers",
        1,
        "Tasks that fetch from one leader; they share its partitions.",
        importance=HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    )
    num_replica_alter_log_dirs_threads = optional_int32(
        "num.replica.alter.log.dirs.threads",
        None,
        "Kafka's threads that move replicas between directories.",
        importance=HIGH,
        support=NO_EFFECT,
    )
    replica_high_watermark_checkpoint_interval_ms = int64(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        "How often high watermarks are written.",
        importance=HIGH,
    )
    replica_alter_log_dirs_io_max_bytes_per_second = int64(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG_MAX,
        "Bytes per second that this broker copies from one of its log directories to another.",
        check=at_least(0),
        update=UpdateMode.PER_BROKER,
    )
    leader_replication_throttled_rate = int64(
        "leader.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second that this broker sends to replicas in `leader.replication.throttled.replicas` of their topic "
        "while they are not in sync.",
        check=at_least(0),
        update=UpdateMode.PER_BROKER,
    )
    follower_replication_throttled_rate = int64(
        "follower.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second that this broker copies for its replicas in `follower.replication.throttled.replicas` of "
        "their topic while they have not caught up.",
        check=at_least(0),
        update=UpdateMode.PER_BROKER,
    )
    replication_quota_window_num = int32(
        "replication.quota.window.num",
        11,
        "Windows over which the rate of throttled replication is measured.",
        importance=LOW,
        check=at_least(1),
    )
    replication_quota_window_size_seconds = int32(
        "replication.quota.window.size.seconds",
        1,
        "The length of such a window.",
        importance=LOW,
        check=at_least(1),
    )
    replica_selector_class = optional_string(
        "replica.selector.class",
        None,
        "The rule that chooses the replica for a consumer: Kafka's LeaderSelector (as without a value) or "
        "RackAwareReplicaSelector, which sends consumers to an in-sync follower in their `client.rack`.",
        check=one_of(*REPLICA_SELECTORS),
    )


class ControllerKeys:
    controller_socket_timeout_ms = int32(
        "controller.socket.timeout.ms",
        30000,
        "How long the controller waits for a connection to a broker, and a broker for the controller's answer.",
    )
    auto_leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether the controller returns leadership to preferred replicas.",
        importance=HIGH,
    )
    leader_imbalance_per_broker_percentage = int32(
        "leader.imbalance.per.broker.percentage",
        10,
        "The percentage of partitions not led by their preferred broker above which leadership is returned to it.",
        importance=HIGH,
    )
    leader_imbalance_check_interval_seconds = int64(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often the controller checks whether leaders are balanced.",
        importance=HIGH,
        check=at_least(1),
    )
    controlled_shutdown_enable = boolean(
        "controlled.shutdown.enable", True, "Whether a stopping broker hands its leaderships over first."
    )
    controlled_shutdown_max_retries = int32(
        "controlled.shutdown.max.retries", 3, "How many times a stopping broker retries to hand its leaderships over."
    )
    controlled_shutdown_retry_backoff_ms = int64(
        "controlled.shutdown.retry.backoff.ms", 5000, "Pause before a stopping broker retries."
    )
    controller_quota_window_num = int32(
        "controller.quota.window.num",
        11,
        "Number of windows of controller mutation quotas. A client may use the quota of all of them at once.",
        importance=LOW,
        check=at_least(1),
    )
    controller_quota_window_size_seconds = int32(
        "controller.quota.window.size.seconds",
        1,
        "The length of one window of controller mutation quotas.",
        importance=LOW,
        check=at_least(1),
    )


class GroupKeys:
    group_min_session_timeout_ms = int32(
        "group.min.session.timeout.ms", 6000, "The shortest session timeout that a group member may request."
    )
    group_max_session_timeout_ms = int32(
        "group.max.session.timeout.ms", 1800000, "The longest session timeout that a group member may request."
    )
    group_initial_rebalance_delay_ms = int32(
        "group.initial.rebalance.delay.ms", 3000, "How long an empty group waits for more members to join."
    )
    group_max_size = int32("group.max.size", INT_MAX, "Maximum number of members of a group.", check=at_least(1))
    group_coordinator_rebalance_protocols = strings(
        "group.coordinator.rebalance.protocols",
        ("classic",),
        "The group protocols of this broker.",
        check=one_of("classic"),
        support=Support.ONLY_DEFAULT,
    )


class OffsetKeys:
    offset_metadata_max_bytes = int32(
        "offset.metadata.max.bytes", 4096, "Maximum length of the metadata text of a committed offset.", importance=HIGH
    )
    offsets_load_buffer_size = int32(
        "offsets.load.buffer.size",
        5242880,
        "Bytes read at once when offsets are loaded.",
        importance=HIGH,
        check=at_least(1),
    )
    offsets_topic_replication_factor = int16(
        "offsets.topic.replication.factor",
        3,
        "Replicas of __consumer_offsets; it is created once there are that many brokers.",
        importance=HIGH,
        check=at_least(1),
    )
    offsets_topic_num_partitions = int32(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets.",
        importance=HIGH,
        check=at_least(1),
    )
    offsets_topic_segment_bytes = int32(
        "offsets.topic.segment.bytes",
        104857600,
        "The segment size of __consumer_offsets.",
        importance=HIGH,
        check=at_least(1),
    )
    offsets_topic_compression_codec = int32(
        "offsets.topic.compression.codec",
        0,
        "The compression codec of __consumer_offsets.",
        importance=HIGH,
        check=between(0, 4),
    )
    offsets_retention_minutes = int32(
        "offsets.retention.minutes",
        10080,
        "How long the offsets of a group without members are kept.",
        importance=HIGH,
        check=at_least(1),
    )
    offsets_retention_check_interval_ms = int64(
        "offsets.retention.check.interval.ms",
        600000,
        "How often expired offsets are removed.",
        importance=HIGH,
        check=at_least(1),
    )
    offsets_commit_timeout_ms = int32(
        "offsets.commit.timeout.ms",
        5000,
        "How long an offset commit waits for the replicas.",
        importance=HIGH,
        check=at_least(1),
    )
    offsets_commit_required_acks = int16(
        "offsets.commit.required.acks",
        -1,
        "The acks of an offset commit.",
        importance=HIGH,
        support=NO_EFFECT,
    )


class ProducerKeys:
    producer_id_expiration_ms = int32(
        "producer.id.expiration.ms",
        86400000,
        "How long a partition remembers an idempotent producer that is silent.",
        importance=LOW,
        check=at_least(1),
        update=CLUSTER_WIDE,
    )
    producer_id_expiration_check_interval_ms = int32(
        "producer.id.expiration.check.interval.ms",
        600000,
        "How often silent producers are removed.",
        importance=LOW,
        check=at_least(1),
    )
    transaction_partition_verification_enable = boolean(
        "transaction.partition.verification.enable",
        True,
        "Whether a leader asks the coordinator before the first batch of a transaction.",
        importance=LOW,
        update=CLUSTER_WIDE,
    )
    add_partitions_to_txn_retry_backoff_ms = int32(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "The pause before a leader asks the coordinator again while the previous transaction completes.",
        importance=LOW,
        check=at_least(1),
    )
    add_partitions_to_txn_retry_backoff_max_ms = int32(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "How long a leader or a coordinator waits for the end of the previous transaction. After that the answer is "
        "CONCURRENT_TRANSACTIONS.",
        importance=LOW,
        check=at_least(0),
    )
