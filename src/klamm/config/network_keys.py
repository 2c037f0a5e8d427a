"""Broker keys of identity, listeners, sockets and request handling."""

from __future__ import annotations

from klamm.config.definition import (
    Importance,
    Support,
    UpdateMode,
    boolean,
    double,
    int16,
    int32,
    int64,
    optional_password,
    optional_string,
    string,
    strings,
)
from klamm.config.values import INT_MAX, at_least, between, not_empty, one_of, release

HIGH, LOW = Importance.HIGH, Importance.LOW
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
NO_EFFECT = Support.NO_EFFECT


class IdentityKeys:
    broker_id = int32("broker.id", -1, "The id of this broker; -1 lets ZooKeeper generate one.", importance=HIGH)
    broker_id_generation_enable = boolean(
        "broker.id.generation.enable", True, "Whether a broker without an id gets one from ZooKeeper."
    )
    reserved_broker_max_id = int32(
        "reserved.broker.max.id", 1000, "Generated broker ids are above this number.", check=at_least(0)
    )
    broker_rack = optional_string("broker.rack", None, "The rack of this broker; replicas are spread over racks.")
    inter_broker_protocol_version = string(
        "inter.broker.protocol.version",
        "3.9-IV0",
        "The version of the requests that brokers send each other.",
        check=release,
    )
    delete_topic_enable = boolean("delete.topic.enable", True, "Whether topics can be deleted.", importance=HIGH)
    auto_create_topics_enable = boolean(
        "auto.create.topics.enable", True, "Whether a request for an unknown topic creates it.", importance=HIGH
    )
    background_threads = int32(
        "background.threads",
        10,
        "Kafka's threads for background work; klamm has a fixed small pool.",
        importance=HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    request_timeout_ms = int32(
        "request.timeout.ms",
        30000,
        "How long this broker waits for the answers to some of its requests: LeaderAndIsr, UpdateMetadata, StopReplica "
        "and queries of log ends, which the controller sends; transaction markers; ApiVersions to other brokers; "
        "CreateTopics on behalf of a client. It also bounds the wait of appended markers for their replicas. Other "
        "requests to the controller, such as AlterPartition, have controller.socket.timeout.ms; fetches have "
        "replica.socket.timeout.ms.",
        importance=HIGH,
    )


class ListenerKeys:
    listeners = string(
        "listeners",
        "PLAINTEXT://localhost:9092",
        "Where this broker listens, as NAME://host:port; port 0 takes a free port, and an empty host means every "
        "address. A listener that other machines can reach needs authentication.",
        importance=HIGH,
        check=not_empty,
    )
    advertised_listeners = optional_string(
        "advertised.listeners",
        None,
        "The addresses that clients use for this broker, if they differ from `listeners`.",
        importance=HIGH,
    )
    listener_security_protocol_map = string(
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The security protocol of each listener name, as NAME:PROTOCOL.",
        importance=LOW,
    )
    control_plane_listener_name = optional_string(
        "control.plane.listener.name",
        None,
        "The listener of the control plane, with its own acceptor. It accepts control requests only.",
        importance=HIGH,
    )
    inter_broker_listener_name = optional_string(
        "inter.broker.listener.name", None, "The listener for requests between brokers."
    )
    security_inter_broker_protocol = string(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "The security protocol between brokers, when no inter-broker listener is named.",
        check=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )


class SocketKeys:
    socket_send_buffer_bytes = int32(
        "socket.send.buffer.bytes", -1, "SO_SNDBUF of client sockets; -1 leaves it to the system.", importance=HIGH
    )
    socket_receive_buffer_bytes = int32(
        "socket.receive.buffer.bytes",
        -1,
        "SO_RCVBUF of client sockets; -1 leaves it to the system.",
        importance=HIGH,
    )
    socket_request_max_bytes = int32(
        "socket.request.max.bytes",
        104857600,
        "A request larger than this closes its connection.",
        importance=HIGH,
        check=at_least(1),
    )
    socket_listen_backlog_size = int32(
        "socket.listen.backlog.size",
        1024,
        "Connections that may wait to be accepted. Kafka's 50 overflows if hundreds of clients reconnect; each of them"
        " then waits for a second.",
        check=at_least(1),
    )
    socket_connection_setup_timeout_ms = int64(
        "socket.connection.setup.timeout.ms",
        10000,
        "How long this broker tries to connect to another one.",
        support=NO_EFFECT,
    )
    socket_connection_setup_timeout_max_ms = int64(
        "socket.connection.setup.timeout.max.ms",
        30000,
        "The upper bound of Kafka's growing connection timeout.",
        support=NO_EFFECT,
    )
    max_connections_per_ip = int32(
        "max.connections.per.ip",
        INT_MAX,
        "Connections accepted from one address. 0 requires max.connections.per.ip.overrides and is refused while the"
        " broker runs.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides = string(
        "max.connections.per.ip.overrides",
        "",
        "Other limits for some addresses, as address:limit,address:limit.",
        update=CLUSTER_WIDE,
    )
    max_connections = int32(
        "max.connections",
        INT_MAX,
        "Connections that this broker accepts. It reserves more for other brokers.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    )
    max_connection_creation_rate = int32(
        "max.connection.creation.rate",
        INT_MAX,
        "Connections accepted per second.",
        check=at_least(0),
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    connections_max_idle_ms = int64(
        "connections.max.idle.ms", 600000, "A connection without requests for this long is closed."
    )


class RequestKeys:
    num_network_threads = int32(
        "num.network.threads",
        3,
        "Kafka's network threads per listener; klamm's event loop needs none.",
        importance=HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    num_io_threads = int32(
        "num.io.threads",
        8,
        "Requests that a turn of the event loop handles before it polls the sockets again. A turn handles more in its "
        "first millisecond, and none after its fourth.",
        importance=HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    )
    queued_max_requests = int32(
        "queued.max.requests",
        500,
        "Requests that may wait for a handler before sockets are no longer read.",
        importance=HIGH,
        check=at_least(1),
    )
    queued_max_request_bytes = int64(
        "queued.max.request.bytes",
        536870912,
        "Bytes of requests that may wait for a handler; -1, Kafka's default, sets no limit.",
    )
    max_incremental_fetch_session_cache_slots = int32(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "Maximum number of incremental fetch sessions.",
        check=at_least(0),
    )
    fetch_max_bytes = int32(
        "fetch.max.bytes",
        4194304,
        "Maximum size of a Fetch response in bytes. Kafka's default is 57671680; large responses hold the loop.",
        check=at_least(1024),
    )
    max_request_partition_size_limit = int32(
        "max.request.partition.size.limit",
        2000,
        "Maximum number of partitions in a DescribeTopicPartitions response.",
        check=at_least(1),
        support=NO_EFFECT,
    )
    fetch_purgatory_purge_interval_requests = int32(
        "fetch.purgatory.purge.interval.requests",
        1000,
        "When Kafka cleans its fetch purgatory; klamm's needs no cleaning.",
        support=NO_EFFECT,
    )
    producer_purgatory_purge_interval_requests = int32(
        "producer.purgatory.purge.interval.requests",
        1000,
        "When Kafka cleans its produce purgatory; klamm's needs no cleaning.",
        support=NO_EFFECT,
    )
    delete_records_purgatory_purge_interval_requests = int32(
        "delete.records.purgatory.purge.interval.requests",
        1,
        "When Kafka cleans its DeleteRecords purgatory; klamm's needs no cleaning.",
        support=NO_EFFECT,
    )


class MetricsAndQuotaKeys:
    metric_reporters = strings(
        "metric.reporters",
        (),
        "Java classes that report metrics; klamm exports Prometheus text instead.",
        importance=LOW,
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    metrics_num_samples = int32(
        "metrics.num.samples",
        2,
        "Samples kept to compute a metric.",
        importance=LOW,
        check=at_least(1),
        support=NO_EFFECT,
    )
    metrics_sample_window_ms = int64(
        "metrics.sample.window.ms",
        30000,
        "The window of one metric sample.",
        importance=LOW,
        check=at_least(1),
        support=NO_EFFECT,
    )
    metrics_recording_level = string(
        "metrics.recording.level",
        "INFO",
        "The detail of Kafka's metrics.",
        importance=LOW,
        check=one_of("INFO", "DEBUG", "TRACE"),
        support=NO_EFFECT,
    )
    quota_window_num = int32(
        "quota.window.num", 11, "Windows over which client quotas are measured.", importance=LOW, check=at_least(1)
    )
    quota_window_size_seconds = int32(
        "quota.window.size.seconds",
        1,
        "The length of one window of client quotas.",
        importance=LOW,
        check=at_least(1),
    )


def _user_and_password(value: object) -> str | None:
    user, colon, password = str(value).partition(":")
    return None if user and colon and password else "user:password, both not empty"


class KlammKeys:
    """Keys that Kafka does not have."""

    klamm_metrics_port = int32(
        "klamm.metrics.port",
        -1,
        "The port of the Prometheus endpoint /metrics; 0 takes a free port, -1 switches it off.",
        check=between(-1, 65535),
    )
    klamm_metrics_host = string(
        "klamm.metrics.host",
        "127.0.0.1",
        "The address that the Prometheus endpoint listens on. An address other than loopback requires TLS and a "
        "password.",
    )
    klamm_metrics_ssl_enable = boolean(
        "klamm.metrics.ssl.enable", False, "Whether the Prometheus endpoint uses TLS, with the broker's ssl.keystore."
    )
    klamm_metrics_basic_auth = optional_password(
        "klamm.metrics.basic.auth",
        None,
        "The user:password that a reader of the Prometheus endpoint must send.",
        check=_user_and_password,
    )
    klamm_allow_unauthenticated_listeners = boolean(
        "klamm.allow.unauthenticated.listeners",
        False,
        "Whether listeners without authentication, and metrics without a password, may be reachable from other "
        "machines.",
    )
    klamm_unclean_replica_wait_ms = int64(
        "klamm.unclean.replica.wait.ms",
        300_000,
        "How long a partition stays without a leader when the live in-sync replicas were not shut down cleanly and "
        "others are missing. Then the longest log of the newest leader epoch leads.",
        check=at_least(0),
    )
    klamm_control_log_enable = boolean(
        "klamm.control.log.enable",
        True,
        "Whether decisions of the controller and their effects on this broker are recorded in __klamm_control_log.",
    )
    klamm_control_log_retention_ms = int64(
        "klamm.control.log.retention.ms",
        86_400_000,
        "How long the records of __klamm_control_log are kept, at its creation.",
        check=at_least(1_000),
    )
    klamm_control_log_replication_factor = int16(
        "klamm.control.log.replication.factor",
        3,
        "Replicas of __klamm_control_log; a cluster that stays smaller has one on each broker.",
        check=at_least(1),
    )
    klamm_control_log_buffer_records = int32(
        "klamm.control.log.buffer.records",
        20_000,
        "Records of the control log that wait to be written, for each of a broker's two loops; the oldest are dropped.",
        importance=LOW,
        check=between(1, 1_000_000),
    )
    klamm_switch_interval_seconds = double(
        "klamm.switch.interval.seconds",
        0.0001,
        "How often CPython may switch between the broker loop and the control loop.",
        importance=LOW,
        check=between(0.000001, 1.0),
    )
