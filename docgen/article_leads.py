"""The subjects of the articles and where klamm has them. `docgen/articles.py` checks and renders them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Lead:
    subject: str
    code: tuple[tuple[str, str], ...]
    """(class, function or `Class.method`, package that contains it)."""
    metrics: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    remarks: str = ""


@dataclass(frozen=True)
class Article:
    title: str
    summary: str
    leads: tuple[Lead, ...]


_LOOPS: Final = "[decision 0001](adr/0001-event-loops-not-threads.md)"
_MERGED: Final = "[decision 0023](adr/0023-waiting-control-requests-are-merged.md)"
_TRACE: Final = "klamm trace --on 1"

CHANNEL_MANAGER: Final = Article(
    "ControllerChannelManager: how the controller sends requests",
    "The controller keeps one queue and one sender per broker. Only LeaderAndIsr, UpdateMetadata and StopReplica take this way.",
    (
        Lead(
            "ControllerChannelManager: queues and senders of all brokers",
            (("ControllerChannelManager", "controller"),),
            ("kafka_controller_controllerchannelmanager_totalqueuesize",),
            commands=("klamm cluster status",),
        ),
        Lead(
            "RequestSendThread: one sender per broker",
            (("RequestSender", "controller"),),
            (
                "kafka_controller_controllerchannelmanager_requestrateandqueuetimems",
                "kafka_server_controller_channel_metrics_request_total",
            ),
            ("request_sent",),
            remarks=f"A task of the control loop instead of a thread: {_LOOPS}.",
        ),
        Lead(
            "QueueItem: a request with its time in the queue",
            (("QueueItem", "controller"),),
            ("kafka_controller_controllerchannelmanager_oldestitemagems",),
            ("request_queued",),
            remarks="The response becomes an event of the controller instead of a callback. An item that waits may be merged "
            f"with a later one: {_MERGED}.",
        ),
        Lead(
            "The queue of a broker (LinkedBlockingQueue)",
            (("SendQueue", "controller"),),
            (
                "kafka_controller_controllerchannelmanager_queuesize",
                "kafka_controller_controllerchannelmanager_coalescedrequestcount",
            ),
            ("request_coalesced",),
            remarks="Waiting requests are merged, so the queue of a slow broker stays short. Kafka's queue is an unbounded "
            f"FIFO: {_MERGED}.",
        ),
        Lead(
            "Retry until the broker answers or is gone",
            (("RequestSender", "controller"),),
            ("klamm_controller_controllerchannelmanager_metadatalag",),
            ("request_sent", "request_acknowledged"),
            ("klamm cluster status",),
            "`UNACKNOWLEDGED` in the status is the number of requests without an answer.",
        ),
        Lead(
            "doWork: an unexpected response, an unexpected error",
            (("RequestSender", "controller"), ("decode_response", "controller")),
            (),
            ("request_acknowledged",),
            remarks="A response is decoded as the answer to its request, so there is no check of its API key. If a request "
            "cannot be encoded, or its answer cannot be decoded, the sender closes the connection and counts the request "
            "as answered with UNKNOWN_SERVER_ERROR: later requests must not wait for it.",
        ),
        Lead(
            "startup, addBroker, removeBroker",
            (("AddChannel", "controller"), ("CloseChannel", "controller")),
            remarks="Effects that the controller's core yields; the event manager carries them out. There is no startup(): "
            "a new controller yields one AddChannel per live broker, and the sender starts with it.",
        ),
    ),
)

EVENT_MANAGER: Final = Article(
    "ControllerEventManager: the single-threaded controller",
    "All inputs of the controller are events in one queue. One event is processed to its end before the next one starts.",
    (
        Lead(
            "ControllerEventManager and its queue",
            (("ControllerEventManager", "controller"),),
            ("kafka_controller_controllereventmanager_eventqueuesize",),
            ("event_queued",),
            ("klamm consume __klamm_control_log",),
        ),
        Lead(
            "QueuedEvent: an event with its time in the queue",
            (("QueuedEvent", "controller"),),
            ("kafka_controller_controllereventmanager_eventqueuetimems",),
            ("event_started",),
        ),
        Lead(
            "ControllerEventProcessor.process",
            (("KafkaController", "controller"),),
            (),
            ("event_done",),
            ("klamm simulate --seed 7 --transcript",),
            "`process(event)` is a generator of effects without I/O, so the simulator runs the same code.",
        ),
        Lead(
            "preempt: clear the queue when the role ends",
            (("QueuedEvent", "controller"),),
            (),
            ("event_done",),
            remarks="Callers of discarded events receive a refusal; the record has the outcome `refused`.",
        ),
        Lead(
            "ControllerState: what the controller is busy with",
            (("ControllerState", "controller"),),
            ("kafka_controller_kafkacontroller_controllerstate",),
            remarks="The table of events below has all states.",
        ),
        Lead(
            "The controller's thread",
            (("ControllerRunner", "controller"),),
            ("kafka_controller_kafkacontroller_activecontrollercount",),
            ("controller_changed",),
            ("klamm cluster status",),
            f"An event loop in its own thread: {_LOOPS}.",
        ),
    ),
)

REQUEST_BATCH: Final = Article(
    "ControllerBrokerRequestBatch: one batch per event",
    "The state machines collect what each broker must learn, and send it as few requests.",
    (
        Lead(
            "ControllerBrokerRequestBatch",
            (("ControllerBrokerRequestBatch", "controller"),),
            (),
            ("request_queued",),
            remarks="A frozen value that is built in one step instead of newBatch, add... and sendRequestsToBrokers. A batch that fails sends nothing.",
        ),
        Lead(
            "LeaderAndIsr: to the replicas of the partitions",
            (("LeaderAndIsrRequest", "controller"), ("LeaderAndIsrPartition", "controller")),
            (),
            ("role_changed", "leader_change"),
            ("klamm topic describe orders",),
        ),
        Lead(
            "UpdateMetadata: to all live brokers",
            (("UpdateMetadataRequest", "controller"), ("UpdateMetadataPartition", "controller")),
            ("klamm_server_metadatacache_updatecount",),
            ("metadata_applied",),
            ("klamm cluster status",),
            "Only partitions that an event changed are sent, as in later versions of Kafka.",
        ),
        Lead(
            "StopReplica: to the brokers that lose a replica",
            (("StopReplicaRequest", "controller"),),
            (),
            ("request_sent", "role_changed"),
            remarks="One request with a flag per partition (v3); two requests for older protocols.",
        ),
        Lead(
            "PartitionStateMachine, ReplicaStateMachine: who fills the batch",
            (("PartitionState", "controller"), ("ReplicaState", "controller")),
            ("kafka_controller_kafkacontroller_offlinepartitionscount",),
            ("election", "isr_change"),
            ("klamm partition elect --preferred",),
        ),
        Lead(
            "Sending: from the batch to the queue of each broker",
            (("ControllerBrokerRequestBatch", "controller"), ("ControllerChannelManager", "controller")),
            ("kafka_controller_controllerchannelmanager_queuesize",),
            ("request_queued",),
        ),
    ),
)

SOCKET_SERVER: Final = Article(
    "SocketServer, RequestChannel, KafkaRequestHandlerPool: the way of a request",
    "Acceptor, processor, request queue, handler, purgatory, response: each phase of a request has a metric. `klamm trace` "
    "prints the phases of single requests as waterfalls, from the [request log](reference/request-log.md).",
    (
        Lead(
            "SocketServer with data plane and control plane",
            (("SocketServer", "network"),),
            ("kafka_network_socketserver_networkprocessoravgidlepercent",),
            commands=("klamm up --brokers 3 --control-plane", f"{_TRACE} --json"),
            remarks="`control.plane.listener.name` adds a listener for the control plane. The queue of control requests is "
            "always separate; `plane` and `listener` of a trace name both: "
            "[decision 0025](adr/0025-the-control-plane-has-its-own-queue.md).",
        ),
        Lead(
            "Acceptor",
            (("Acceptor", "network"), ("ConnectionQuotas", "network")),
            ("kafka_network_acceptor_acceptorblockedpercent_count",),
            commands=(f"{_TRACE} --json",),
            remarks="`connection_id` and `listener` of a trace name the connection that the acceptor accepted.",
        ),
        Lead(
            "Processor: reads requests, writes responses",
            (("Processor", "network"), ("Connection", "network")),
            ("kafka_network_processor_idlepercent", "kafka_server_socket_server_metrics_connection_count"),
            commands=(_TRACE,),
            remarks=f"One per listener; the six steps of its loop are callbacks of the event loop: {_LOOPS}. The next rows have them.",
        ),
        Lead(
            "Processor.configureNewConnections",
            (("Acceptor._admit", "network"), ("Processor.add", "network")),
            remarks="There is no queue between them: the acceptor adds a connection that the quotas admit to its processor.",
        ),
        Lead(
            "Processor.processNewResponses",
            (("Connection.complete", "network"), ("Connection.flush", "network")),
            remarks="`complete` encodes the response; `flush` writes the responses whose turn has come.",
        ),
        Lead(
            "Processor.poll",
            (("Connection.buffer_updated", "network"),),
            remarks="The event loop polls all sockets of the broker, and calls this method with the bytes that it read.",
        ),
        Lead(
            "Processor.processCompletedReceives",
            (("Connection._process", "network"), ("RequestPipeline.next_request", "network")),
            remarks="Complete frames become requests in the RequestChannel.",
        ),
        Lead(
            "Processor.processCompletedSends",
            (("Connection._after_write", "network"), ("Connection.resume_writing", "network")),
            remarks="`resume_writing` if the socket did not accept all bytes at once.",
        ),
        Lead(
            "Processor.processDisconnected",
            (("Connection.connection_lost", "network"), ("Processor.remove", "network")),
        ),
        Lead(
            "RequestChannel: the request queue",
            (("RequestChannel", "network"),),
            (
                "kafka_network_requestchannel_requestqueuesize",
                "kafka_network_requestmetrics_requestqueuetimems",
            ),
            commands=(_TRACE, "klamm top"),
            remarks="Connections take turns: [decision 0016](adr/0016-clients-share-the-loop.md).",
        ),
        Lead(
            "KafkaRequestHandlerPool, KafkaRequestHandler",
            (("KafkaRequestHandlerPool", "network"),),
            (
                "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
                "kafka_network_requestmetrics_localtimems",
            ),
            commands=(_TRACE, "klamm top"),
            remarks="`num.io.threads` is the number of requests per turn of the event loop. There are no handler threads, so "
            f"nothing has a name such as `data-plane-kafka-request-handler-0`: {_LOOPS}.",
        ),
        Lead(
            "KafkaApis: one handler per API",
            (("Api", "apis"),),
            ("kafka_network_requestmetrics_requests_total", "kafka_network_requestmetrics_errors_total"),
            commands=(f"{_TRACE} --api Metadata",),
            remarks="One file per API: [APIs](reference/apis.md).",
        ),
        Lead(
            "Errors: an unexpected one in a handler, FatalExitError",
            (("KafkaRequestHandlerPool", "network"),),
            ("kafka_network_requestmetrics_errors_total",),
            ("request_failed",),
            ("klamm consume __klamm_control_log",),
            "The connection is closed; no error in a handler ends the process: "
            "[decision 0026](adr/0026-an-error-ends-a-connection.md).",
        ),
        Lead(
            "BrokerTopicMetrics",
            (("BrokerTopicMetrics", "metrics"),),
            (
                "kafka_server_brokertopicmetrics_messagesin_total",
                "kafka_server_brokertopicmetrics_bytesout_total",
                "kafka_server_brokertopicmetrics_producemessageconversions_total",
                "kafka_network_requestmetrics_messageconversionstimems",
            ),
            commands=("klamm top",),
            remarks="There is no MessagesOutPerSec, as in Kafka: a Fetch sends batches without counting their records.",
        ),
        Lead(
            "Purgatory: requests that wait",
            (("DelayedOperationPurgatory", ""),),
            (
                "kafka_server_delayedoperationpurgatory_numdelayedoperations",
                "kafka_network_requestmetrics_remotetimems",
            ),
            commands=(f"{_TRACE} --slower-than 20",),
            remarks="A trace names the purgatory of each wait, and the request that ended the wait.",
        ),
        Lead(
            "Responses back to the client",
            (("Connection", "network"),),
            (
                "kafka_network_requestchannel_responsequeuesize",
                "kafka_network_requestmetrics_responseordertimems",
                "kafka_network_requestmetrics_responsequeuetimems",
                "kafka_network_requestmetrics_responsesendtimems",
            ),
            commands=(_TRACE,),
            remarks="Several requests of a connection are in progress; the wait for earlier responses is measured by "
            "ResponseOrderTimeMs: [decision 0006](adr/0006-several-requests-of-a-connection.md). A response waits in its "
            "connection, not in a queue of the processor; ResponseQueueSize counts the waiting ones per processor. There are "
            "no classes such as SendResponse and NoOpResponse: a handler returns a message, or None if the client expects no "
            "answer; closing and throttling are methods of the connection.",
        ),
    ),
)

METADATA_CACHE: Final = Article(
    "MetadataCache: how brokers learn of changes",
    "Each broker answers Metadata requests from its own copy of the cluster's state, which the controller updates asynchronously.",
    (
        Lead(
            "MetadataCache and MetadataSnapshot",
            (("MetadataCache", "metadata"), ("MetadataSnapshot", "metadata")),
            ("klamm_server_metadatacache_partitioncount", "klamm_server_metadatacache_updatecount"),
            ("metadata_applied",),
            ("klamm cluster metadata --broker 1 --all",),
        ),
        Lead(
            "aliveBrokers, aliveNodes: the live brokers",
            (("BrokerEndPoints", ""), ("MetadataSnapshot", "metadata")),
            commands=("klamm cluster metadata --broker 1",),
            remarks="One map instead of two: a BrokerEndPoints has the address of the broker for each listener.",
        ),
        Lead(
            "UpdateMetadataPartitionState: what the cache keeps of a partition",
            (("PartitionState", "metadata"),),
            commands=("klamm cluster metadata --broker 1 --all",),
            remarks="All fields but the controller epoch of the partition's znode, which does not order states. The controller "
            "epoch of the request and the broker's own epoch are kept instead.",
        ),
        Lead(
            "updateMetadata: apply an UpdateMetadata request",
            (("MetadataUpdate", "metadata"), ("TopicUpdate", "metadata")),
            ("klamm_server_metadatacache_lastupdateagems",),
            ("metadata_applied",),
            (f"{_TRACE} --api UpdateMetadata", "klamm cluster metadata --broker 1"),
            "An older state does not replace a newer one, ordered by controller, broker, leader and partition epoch: "
            "[decision 0025](adr/0025-the-control-plane-has-its-own-queue.md).",
        ),
        Lead(
            "partitionMetadataLock",
            (("TrieMap", "metadata"),),
            remarks=f"No lock: a snapshot is immutable and shares structure with the previous one: {_LOOPS}.",
        ),
        Lead(
            "Stale brokers: metadata that lags",
            (("ControllerChannelManager", "controller"),),
            ("klamm_controller_controllerchannelmanager_metadatalag", "klamm_server_metadatacache_controllerepoch"),
            ("request_acknowledged",),
            ("klamm cluster status", "klamm cluster metadata --broker 1"),
            "`BEHIND` in the status is the number of partitions that differ from the controller's view.",
        ),
        Lead(
            "The first update after a start",
            (("Starting", "server"), ("SocketServer.open_data_plane", "network")),
            remarks="Clients wait until it has arrived: [decision 0010](adr/0010-clients-wait-for-the-first-update.md).",
        ),
    ),
)

ARTICLES: Final = (CHANNEL_MANAGER, EVENT_MANAGER, REQUEST_BATCH, SOCKET_SERVER, METADATA_CACHE)
