"""Every metric of a broker with its meaning. A new metric needs a row here: a test says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from klamm.client.connection_totals import GAUGES
from klamm.controller.states import ControllerState
from klamm.coordinator.group_metadata import GroupState
from klamm.coordinator.transaction.transaction_metadata import TransactionState

Kind = Literal["meter", "gauge", "histogram", "timer", "percent"]


@dataclass(frozen=True)
class Described:
    group: str
    type: str
    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    when: str = ""
    """Under which condition the metric exists, if it does not always exist."""


def _rows(
    group: str, type_: str, *rows: tuple[str, Kind, str] | tuple[str, Kind, str, str], when: str = ""
) -> list[Described]:
    """Rows of (name, kind, meaning[, labels separated by commas])."""
    found = []
    for name, kind, meaning, *labels in rows:
        listed = tuple(labels[0].split(",")) if labels else ()
        found.append(Described(group, type_, name, kind, listed, meaning, when))
    return found


def _client_quotas() -> list[Described]:
    rates = {
        "Produce": (("byte-rate", "Bytes per second of a client's Produce requests."),),
        "Fetch": (("byte-rate", "Bytes per second of records sent to a client."),),
        "Request": (("request-time", "Share of the loop's time that a client's requests take, in percent."),),
        "ControllerMutation": (
            ("tokens", "Partitions that a client may still create or delete; below 0 it is throttled."),
            ("mutation-rate", "Partitions per second that a client creates and deletes."),
        ),
    }
    labels = ("user", "client_id")
    found: list[Described] = []
    for type_, per_client in rates.items():
        for name, meaning in (*per_client, ("throttle-time", "Average throttle time of a client in milliseconds.")):
            found.append(Described("kafka.server", type_, name, "gauge", labels, meaning, "for clients with a quota"))
        found += _rows("kafka.server", type_, ("queue-size", "gauge", "Requests whose throttle time is not over."))
        if type_ == "Request":
            exempt = "Share of the loop's time that requests of brokers and Produce with acks=0 take, in percent."
            found += _rows("kafka.server", type_, ("exempt-request-time", "gauge", exempt))
    return found


def _connections(group: str, type_: str, labels: str, of: str) -> list[Described]:
    """The metrics of outgoing connections: one row per name in `GAUGES`."""
    meanings = {
        "connection-count": "open connections to the broker.",
        "connection-creation-total": "connections opened to the broker.",
        "connection-close-total": "connections to the broker that ended.",
        "connection-failure-total": "attempts to connect or to authenticate that failed.",
        "request-total": "requests sent to the broker, retries included.",
        "response-total": "responses of the broker.",
        "request-failure-total": "requests without a response: the connection ended, or the time was over.",
        "requests-in-flight": "requests that wait for their response now.",
        "outgoing-byte-total": "bytes sent to the broker.",
        "incoming-byte-total": "bytes received from the broker.",
        "request-latency-avg": "time from a request to its response in milliseconds, average of the last 256.",
        "request-latency-max": "the longest of these times.",
    }
    assert meanings.keys() == GAUGES.keys()
    rows: list[tuple[str, Kind, str, str]] = []
    for name, meaning in meanings.items():
        text = of + meaning
        rows.append((name, "gauge", text[0].upper() + text[1:], labels))
    return _rows(group, type_, *rows)


def _topic_meters() -> list[Described]:
    meanings = {
        "MessagesInPerSec": "Records appended.",
        "BytesInPerSec": "Bytes appended by producers.",
        "BytesOutPerSec": "Bytes sent to consumers.",
        "BytesRejectedPerSec": "Bytes of rejected batches.",
        "FailedProduceRequestsPerSec": "Partitions of Produce requests that failed.",
        "FailedFetchRequestsPerSec": "Partitions of Fetch requests that failed.",
        "TotalProduceRequestsPerSec": "Partitions of Produce requests.",
        "TotalFetchRequestsPerSec": "Partitions that Fetch requests inspected. Kafka also counts unchanged partitions of a session.",
        "FetchMessageConversionsPerSec": "Records converted to an old message format for a Fetch.",
        "ProduceMessageConversionsPerSec": "Records converted from an old message format for a Produce.",
        "NoKeyCompactedTopicRecordsPerSec": "Records without a key that a compacted topic rejected.",
        "InvalidMagicNumberRecordsPerSec": "Batches rejected for their magic number.",
        "InvalidMessageCrcRecordsPerSec": "Batches rejected for their checksum.",
        "InvalidOffsetOrSequenceRecordsPerSec": "Batches rejected for their offsets or sequence numbers.",
    }
    brokerwide = {
        "ReplicationBytesInPerSec": "Bytes that this broker fetched as a follower.",
        "ReplicationBytesOutPerSec": "Bytes that this broker sent to followers.",
        "ReassignmentBytesInPerSec": "Bytes fetched for partitions that are being reassigned to this broker.",
        "ReassignmentBytesOutPerSec": "Bytes sent to followers that a reassignment adds.",
    }
    place = ("kafka.server", "BrokerTopicMetrics")
    per_topic = [
        Described(*place, name, "meter", ("topic",), f"{text} Without the label: all topics.")
        for name, text in meanings.items()
    ]
    return per_topic + [Described(*place, name, "meter", (), text) for name, text in brokerwide.items()]


def _controller_timers() -> list[Described]:
    return [
        Described(
            "kafka.controller",
            "ControllerStats",
            state.timer_name,
            "timer",
            (),
            f"Rate and duration of events in the state {state.name} ({int(state)}).",
        )
        for state in ControllerState
        if state.timer_name is not None
    ]


METRICS: Final = (
    *_rows(
        "kafka.controller",
        "KafkaController",
        (
            "ActiveControllerCount",
            "gauge",
            "1 on the active controller, 0 elsewhere. The sum over all brokers must be 1.",
        ),
        (
            "ControllerState",
            "gauge",
            "The state of the event in progress: [articles](../articles.md) has the table. 0 is idle.",
        ),
        ("OfflinePartitionsCount", "gauge", "Partitions without a leader. Controller only."),
        (
            "PreferredReplicaImbalanceCount",
            "gauge",
            "Partitions whose leader is not the preferred replica. Controller only.",
        ),
        ("GlobalTopicCount", "gauge", "Topics of the cluster. Controller only."),
        ("GlobalPartitionCount", "gauge", "Partitions of the cluster. Controller only."),
        ("TopicsToDeleteCount", "gauge", "Topics whose deletion is in progress. Controller only."),
        (
            "TopicsIneligibleToDeleteCount",
            "gauge",
            "Topics whose deletion waits, for example for a dead broker. Controller only.",
        ),
        ("ReplicasToDeleteCount", "gauge", "Replicas of the topics to delete. Controller only."),
        ("ReplicasIneligibleToDeleteCount", "gauge", "Replicas whose deletion waits. Controller only."),
        ("ActiveBrokerCount", "gauge", "Live brokers, including those that are shutting down. Controller only."),
        ("FencedBrokerCount", "gauge", "Always 0: brokers of a ZooKeeper cluster are not fenced."),
    ),
    *_rows(
        "kafka.controller",
        "ControllerEventManager",
        ("EventQueueSize", "gauge", "Events that wait in the controller's queue."),
        ("EventQueueTimeMs", "histogram", "Time that an event waited in the queue."),
    ),
    *_controller_timers(),
    *_rows(
        "kafka.controller",
        "ControllerStats",
        ("UncleanLeaderElectionsPerSec", "meter", "Elections of a replica that was not in sync."),
    ),
    *_rows(
        "kafka.controller",
        "ControllerChannelManager",
        ("TotalQueueSize", "gauge", "Requests that wait in all queues."),
        ("QueueSize", "gauge", "Requests that wait for the broker.", "broker_id"),
        (
            "RequestRateAndQueueTimeMs",
            "timer",
            "Rate of requests to the broker and their time in the queue.",
            "broker_id",
        ),
        ("OldestItemAgeMs", "gauge", "Age of the oldest waiting or unacknowledged request.", "broker_id"),
        ("CoalescedRequestCount", "gauge", "Requests that were merged into a waiting one.", "broker_id"),
        when="on the active controller",
    ),
    *_rows(
        "klamm.controller",
        "ControllerChannelManager",
        ("LastQueuedRequest", "gauge", "Number of the last request that was queued for the broker.", "broker_id"),
        ("LastAcknowledgedRequest", "gauge", "Number of the last request that the broker acknowledged.", "broker_id"),
        ("MetadataLag", "gauge", "Queued requests minus acknowledged ones: how far the broker lags.", "broker_id"),
        ("QueueSizeMax", "gauge", "Largest QueueSize of the last minute.", "broker_id"),
        when="on the active controller",
    ),
    *_rows(
        "klamm.controller",
        "ControllerEventManager",
        ("EventQueueSizeMax", "gauge", "Largest EventQueueSize of the last minute."),
    ),
    *_rows(
        "klamm.server",
        "EventLoop",
        (
            "IdlePercent",
            "gauge",
            "Share of the last minute in which the loop's thread used no CPU, from 0 to 1.",
            "loop",
        ),
        (
            "TurnTimeMs",
            "histogram",
            "Duration of a turn without the wait for events. Sampled: four turns per second, of the control loop one.",
            "loop",
        ),
        ("LagMs", "histogram", "How much later than due a timer fires. Sampled as often.", "loop"),
        ("LagMsMax", "gauge", "Largest LagMs of the last minute.", "loop"),
    ),
    *_rows(
        "klamm.server",
        "Process",
        ("CpuMsPerSec", "meter", "CPU time of the broker's process in milliseconds: a rate of 1000 is one busy core."),
        ("ResidentBytes", "gauge", "Memory of the process in RAM. Elsewhere than on Linux, the most that it ever had."),
    ),
    *_rows(
        "kafka.log",
        "LogManager",
        ("OfflineLogDirectoryCount", "gauge", "Log directories that have failed."),
        ("LogDirectoryOffline", "gauge", "1 if the log directory has failed.", "logDirectory"),
    ),
    *_rows(
        "klamm.log",
        "LogManager",
        (
            "DiskTotalBytes",
            "gauge",
            "Size of the disk that holds the log directory; -1 if the disk does not report it.",
            "logDirectory",
        ),
        (
            "DiskUsableBytes",
            "gauge",
            "Bytes of that disk that the broker can still use; -1 if the disk does not report them.",
            "logDirectory",
        ),
    ),
    *_rows(
        "klamm.server",
        "MetadataCache",
        ("ControllerId", "gauge", "The controller in this broker's metadata."),
        ("ControllerEpoch", "gauge", "The controller epoch of this broker's metadata."),
        ("UpdateCount", "gauge", "Updates applied since the start."),
        ("PartitionCount", "gauge", "Partitions in the cache."),
        (
            "LastUpdateAgeMs",
            "gauge",
            "Time since the last update; -1 before the first one. Grows while nothing changes.",
        ),
    ),
    *_rows(
        "kafka.network",
        "RequestMetrics",
        ("RequestsPerSec", "meter", "Requests per API and version.", "request,version"),
        ("ErrorsPerSec", "meter", "Error codes in responses, NONE included.", "request,error"),
        ("RequestQueueTimeMs", "histogram", "Time in the request queue.", "request"),
        ("LocalTimeMs", "histogram", "Time in the handler.", "request"),
        (
            "RemoteTimeMs",
            "histogram",
            "Time in which the request waited for a condition: replication, the controller, a timeout.",
            "request",
        ),
        ("ThrottleTimeMs", "histogram", "Throttle time in the response.", "request"),
        (
            "ResponseOrderTimeMs",
            "histogram",
            "Wait for the responses to earlier requests of the connection.",
            "request",
        ),
        ("ResponseQueueTimeMs", "histogram", "Time after that until the response was written.", "request"),
        ("ResponseSendTimeMs", "histogram", "Time to write the response to the socket.", "request"),
        ("TotalTimeMs", "histogram", "Total time.", "request"),
        ("RequestBytes", "histogram", "Size of the request.", "request"),
        (
            "MessageConversionsTimeMs",
            "histogram",
            "Time to convert message formats, for requests that needed it. Only for Produce and Fetch.",
            "request",
        ),
        (
            "TemporaryMemoryBytes",
            "histogram",
            "Memory for the conversion of message formats, for requests that needed it. Only for Produce and Fetch.",
            "request",
        ),
    ),
    *_rows(
        "kafka.network",
        "RequestChannel",
        ("RequestQueueSize", "gauge", "Data requests that wait for a handler."),
        ("ControlPlaneRequestQueueSize", "gauge", "Control requests that wait for a handler."),
        (
            "ResponseQueueSize",
            "gauge",
            "Responses that wait to be written. Without the label: all processors.",
            "processor",
        ),
        ("ControlPlaneResponseQueueSize", "gauge", "Responses of the control plane that wait to be written."),
    ),
    *_rows(
        "klamm.network",
        "RequestChannel",
        ("RequestQueueSizeMax", "gauge", "Largest RequestQueueSize of the last minute."),
        ("ControlPlaneRequestQueueSizeMax", "gauge", "Largest ControlPlaneRequestQueueSize of the last minute."),
    ),
    *_rows(
        "klamm.network",
        "SocketServer",
        (
            "MutedConnections",
            "gauge",
            "Connections that the broker does not read, by reason: `not-admitted`, `queue-full`, `in-flight` (10 requests "
            "of the connection are in the broker), `throttled`, `unread-responses`, `memory`, `closing` or "
            "`authentication`. A connection with several reasons counts under each.",
            "reason",
        ),
    ),
    *_rows(
        "kafka.network",
        "SocketServer",
        ("NetworkProcessorAvgIdlePercent", "gauge", "Share of time in which the data plane's sockets had no work."),
        ("ControlPlaneNetworkProcessorAvgIdlePercent", "gauge", "The same for the control plane."),
        ("ExpiredConnectionsKilledCount", "gauge", "Connections closed because their authentication expired."),
        ("ControlPlaneExpiredConnectionsKilledCount", "gauge", "The same for the control plane."),
        ("MemoryPoolAvailable", "gauge", "Bytes of `queued.max.request.bytes` that are free."),
        ("MemoryPoolUsed", "gauge", "Bytes of `queued.max.request.bytes` in use."),
    ),
    *_rows("kafka.network", "Processor", ("IdlePercent", "gauge", "Idle share of one processor.", "networkProcessor")),
    *_rows(
        "kafka.network",
        "Acceptor",
        ("AcceptorBlockedPercent", "percent", "Time in which the acceptor did not accept connections.", "listener"),
    ),
    *_rows(
        "kafka.network",
        "Acceptor",
        ("ControlPlaneAcceptorBlockedPercent", "percent", "The same for the control plane.", "listener"),
        when="with `control.plane.listener.name`",
    ),
    *_rows(
        "kafka.server",
        "socket-server-metrics",
        ("connection-count", "gauge", "Open connections.", "listener,networkProcessor"),
        ("connection-creation-total", "gauge", "Connections opened since the start.", "listener,networkProcessor"),
        ("connection-close-total", "gauge", "Connections closed since the start.", "listener,networkProcessor"),
        ("incoming-byte-total", "gauge", "Bytes received.", "listener,networkProcessor"),
        ("outgoing-byte-total", "gauge", "Bytes sent.", "listener,networkProcessor"),
        ("successful-authentication-total", "gauge", "Connections that authenticated.", "listener,networkProcessor"),
        (
            "failed-authentication-total",
            "gauge",
            "Connections whose authentication failed.",
            "listener,networkProcessor",
        ),
        (
            "successful-reauthentication-total",
            "gauge",
            "Sessions that were renewed on their connection.",
            "listener,networkProcessor",
        ),
        ("failed-reauthentication-total", "gauge", "Sessions whose renewal failed.", "listener,networkProcessor"),
        (
            "successful-authentication-no-reauth-total",
            "gauge",
            "Authentications of clients that cannot renew a session.",
            "listener,networkProcessor",
        ),
        (
            "expired-connections-killed-count",
            "gauge",
            "Connections closed because their authentication expired.",
            "listener,networkProcessor",
        ),
    ),
    *_connections("kafka.server", "controller-channel-metrics", "broker_id", "The controller's connections: "),
    *_connections("klamm.server", "outgoing-connection-metrics", "channel,broker_id", ""),
    *_rows(
        "kafka.server",
        "KafkaRequestHandlerPool",
        ("RequestHandlerAvgIdlePercent", "percent", "Share of time in which no data request was handled."),
        (
            "ControlPlaneRequestHandlerAvgIdlePercent",
            "percent",
            "The same for control requests. Both are shares of one event loop.",
        ),
    ),
    *_topic_meters(),
    *_rows(
        "kafka.server",
        "ReplicaManager",
        ("LeaderCount", "gauge", "Partitions that this broker leads."),
        ("PartitionCount", "gauge", "Replicas on this broker."),
        ("OfflineReplicaCount", "gauge", "Replicas in failed log directories."),
        ("UnderReplicatedPartitions", "gauge", "Led partitions with replicas that are not in sync."),
        (
            "UnderMinIsrPartitionCount",
            "gauge",
            "Led partitions with fewer in-sync replicas than `min.insync.replicas`.",
        ),
        ("AtMinIsrPartitionCount", "gauge", "Led partitions with exactly `min.insync.replicas` in-sync replicas."),
        ("ReassigningPartitions", "gauge", "Led partitions that are being reassigned."),
        (
            "PartitionsWithLateTransactionsCount",
            "gauge",
            "Led partitions with a transaction that is silent for longer than `transaction.max.timeout.ms` and 5 minutes.",
        ),
        ("ProducerIdCount", "gauge", "Producers that the logs of this broker remember; counted every 10 s."),
        ("IsrExpandsPerSec", "meter", "Replicas that joined an ISR."),
        ("IsrShrinksPerSec", "meter", "Replicas that left an ISR."),
        ("FailedIsrUpdatesPerSec", "meter", "ISR changes that failed."),
    ),
    *_rows(
        "klamm.server",
        "ReplicaManager",
        (
            "ReplicaProblem",
            "gauge",
            "1 per replica that needs an operator; `klamm cluster status` shows the remedy.",
            "topic,partition,problem",
        ),
        when="while a replica has a problem",
    ),
    *_rows(
        "kafka.server",
        "DelayedOperationPurgatory",
        ("PurgatorySize", "gauge", "Watched keys of delayed operations.", "delayedOperation"),
        ("NumDelayedOperations", "gauge", "Delayed operations.", "delayedOperation"),
    ),
    *_rows(
        "klamm.server",
        "DelayedOperationPurgatory",
        (
            "CompletedOperationsPerSec",
            "meter",
            "Operations that waited and ended because their condition held.",
            "delayedOperation",
        ),
        (
            "ExpiredOperationsPerSec",
            "meter",
            "Operations that waited until their deadline. For Fetch this is usual: nothing new was written.",
            "delayedOperation",
        ),
    ),
    *_rows(
        "kafka.server",
        "FetchSessionCache",
        ("NumIncrementalFetchSessions", "gauge", "Fetch sessions."),
        ("NumIncrementalFetchPartitionsCached", "gauge", "Partitions of all fetch sessions."),
        ("IncrementalFetchSessionEvictionsPerSec", "meter", "Evicted fetch sessions."),
    ),
    *_rows(
        "kafka.server",
        "ReplicaFetcherManager",
        ("MaxLag", "gauge", "Largest lag, in records, of a partition that this broker follows.", "clientId"),
        ("MinFetchRate", "gauge", "Lowest rate of requests of a fetcher.", "clientId"),
        ("FailedPartitionsCount", "gauge", "Partitions that are no longer fetched because of an error.", "clientId"),
        ("DeadThreadCount", "gauge", "Fetchers that crashed.", "clientId"),
    ),
    *_rows(
        "kafka.server",
        "FetcherStats",
        ("RequestsPerSec", "meter", "Fetch requests of one fetcher.", "clientId"),
        ("BytesPerSec", "meter", "Bytes fetched by one fetcher.", "clientId"),
        when="on a follower",
    ),
    *_rows(
        "kafka.server",
        "AddPartitionsToTxnManager",
        (
            "VerificationFailureRate",
            "meter",
            "Partitions for which a transaction's coordinator refused the first batch, or could not be asked.",
        ),
        ("VerificationTimeMs", "histogram", "Milliseconds until the coordinator answered."),
    ),
    *_rows(
        "kafka.server",
        "FetcherLagMetrics",
        ("ConsumerLag", "gauge", "Records by which the follower lags; -1 while unknown.", "clientId,topic,partition"),
        when="on a follower",
    ),
    *_client_quotas(),
    *_rows("kafka.server", "LeaderReplication", ("byte-rate", "gauge", "Bytes per second to throttled followers.")),
    *_rows("kafka.server", "FollowerReplication", ("byte-rate", "gauge", "Bytes per second of throttled fetches.")),
    *_rows("klamm.server", "LeaderReplication", ("ThrottledBytesPerSec", "meter", "Bytes that a throttle delayed.")),
    *_rows("klamm.server", "FollowerReplication", ("ThrottledBytesPerSec", "meter", "Bytes that a throttle delayed.")),
    *_rows(
        "kafka.cluster",
        "Partition",
        (
            "UnderReplicated",
            "gauge",
            "1 if replicas are not in sync. 0 on followers, as are the others.",
            "topic,partition",
        ),
        ("UnderMinIsr", "gauge", "1 if fewer replicas are in sync than `min.insync.replicas`.", "topic,partition"),
        ("AtMinIsr", "gauge", "1 if exactly `min.insync.replicas` are in sync.", "topic,partition"),
        ("InSyncReplicasCount", "gauge", "Size of the ISR.", "topic,partition"),
        ("ReplicasCount", "gauge", "Number of replicas.", "topic,partition"),
        ("LastStableOffsetLag", "gauge", "High watermark minus last stable offset.", "topic,partition"),
    ),
    *_rows(
        "kafka.coordinator.group",
        "GroupMetadataManager",
        ("NumGroups", "gauge", "Consumer groups of this coordinator."),
        ("NumOffsets", "gauge", "Committed offsets of these groups."),
        *((f"NumGroups{state.value}", "gauge", f"Groups in the state {state.value}.") for state in GroupState),
    ),
    *_rows(
        "kafka.coordinator.transaction",
        "TransactionStateManager",
        *(
            (f"NumTransactions{state.title}", "gauge", f"Transactional ids in the state {state.title}.")
            for state in TransactionState
            if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
        ),
    ),
    *_rows(
        "kafka.coordinator.transaction",
        "TransactionMarkerChannelManager",
        ("UnknownDestinationQueueSize", "gauge", "Markers that wait for their partition to have a leader."),
        ("LogAppendRetryQueueSize", "gauge", "Completed transactions whose end could not be stored yet."),
    ),
    *_rows(
        "kafka.coordinator.transaction",
        "TransactionCoordinator",
        (
            "RefusedLateRequestsPerSec",
            "meter",
            "Transactional requests on connections that their client had given up; the connections were closed.",
        ),
    ),
    *_rows(
        "kafka.server",
        "transaction-coordinator-metrics",
        ("partition-load-time", "histogram", "Milliseconds that loading a partition of `__transaction_state` took."),
    ),
    *_rows(
        "kafka.server",
        "group-coordinator-metrics",
        ("offset-commit-count", "meter", "Committed offsets."),
        ("offset-expiration-count", "meter", "Expired offsets."),
        ("offset-deletion-count", "meter", "Deleted offsets."),
        ("group-completed-rebalance-count", "meter", "Completed rebalances."),
        ("partition-load-time", "histogram", "Time to load a partition of `__consumer_offsets`."),
    ),
    *_rows(
        "klamm.server",
        "ControlLog",
        ("BufferedRecordCount", "gauge", "Records of the [control log](control-log.md) that wait to be written."),
        ("DroppedRecordCount", "gauge", "Records that were dropped because the buffer was full."),
        when="with `klamm.control.log.enable`",
    ),
    *_rows(
        "klamm.server",
        "RequestLog",
        (
            "RecordedRequestCount",
            "gauge",
            "[Traced requests](request-log.md) since the start that the filters admitted.",
        ),
        ("BufferedRecordCount", "gauge", "Traces that wait to be written to `__klamm_request_log`."),
        ("DroppedRecordCount", "gauge", "Traces that were dropped because the buffer was full."),
    ),
)
