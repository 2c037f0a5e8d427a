"""Guided scenarios: the controller's start, its queue and its senders."""

from __future__ import annotations

from typing import Final

from klamm.sim.scenario import BATCH, CHANNEL, EVENTS, Scenario, Step, plan

START: Final = Scenario(
    "start",
    "Three brokers elect a controller",
    EVENTS,
    plan(600),
    "",
    (
        Step(
            "Each broker opens a session",
            "Three brokers start at the same moment. Each opens a session with ZooKeeper. "
            "All its ephemeral znodes live exactly as long as this session.",
            {"kind": "session", "state": "opened"},
        ),
        Step(
            "Each broker registers",
            "The broker creates /brokers/ids/N. ZooKeeper's transaction number of this znode is the broker epoch: "
            "it identifies this incarnation of the broker.",
            {"kind": "znodes_written", "event": "Startup", "error": "NONE"},
        ),
        Step(
            "One wins",
            "All three try to create /controller and to raise /controller_epoch, in one transaction. "
            "One succeeds, and is the controller of epoch 1.",
            {"kind": "controller_changed", "controller_epoch": 1},
        ),
        Step(
            "The others are refused",
            "The losers' transactions fail as a whole: NodeExists. They read /controller instead, and watch it.",
            {"kind": "znodes_written", "error": "NodeExists", "refused_path": "/controller"},
        ),
        Step(
            "The first UpdateMetadata",
            "The new controller reads the whole state of the cluster from ZooKeeper. "
            "Then it sends every broker the list of live brokers. A broker answers no client before it has this list.",
            {"kind": "metadata_applied"},
        ),
    ),
)

BIRTH: Final = Scenario(
    "create",
    "A topic is created",
    BATCH,
    plan(1_000, "300.create.orders.3"),
    "orders-0",
    (
        Step(
            "The request becomes an event",
            "A client asks for topic orders with three partitions. The request waits as a CreateTopics event in the "
            "controller's only queue.",
            {"kind": "event_queued", "event": "CreateTopics"},
        ),
        Step(
            "One fenced transaction",
            "Assignment, configuration and the state of each partition are written in one transaction. "
            "Its first operation checks the version of /controller_epoch. A deposed controller fails there.",
            {"kind": "znodes_written", "event": "CreateTopics", "error": "NONE"},
        ),
        Step(
            "Leaders are elected",
            "The first replica of each partition leads, in leader epoch 0. The whole assignment is the ISR.",
            {"kind": "election", "topic": "orders", "partition": 0},
        ),
        Step(
            "One LeaderAndIsr per broker",
            "The batch collects what each broker must learn. "
            "Each broker gets one LeaderAndIsr with all three partitions, not one per partition.",
            {"kind": "request_sent", "api": "LeaderAndIsr"},
        ),
        Step(
            "Brokers take their roles",
            "Each broker creates its logs and starts to lead or to follow. Watch the strips below the lanes.",
            {"kind": "role_changed", "topic": "orders", "partition": 0, "role": "leader"},
        ),
        Step(
            "Clients find the topic",
            "UpdateMetadata follows behind LeaderAndIsr, to every broker. "
            "From now on each broker can name the leaders to its clients.",
            {"kind": "metadata_applied", "partition_count": 3},
        ),
    ),
)

ONE_QUEUE: Final = Scenario(
    "queue",
    "One queue, one event at a time",
    EVENTS,
    plan(
        1_400, "300.create.orders.2", "300.create.payments.2", "301.create.clicks.2", "302.elect", "303.create.users.1"
    ),
    "orders-0",
    (
        Step(
            "Five requests at once",
            "Five requests arrive within three milliseconds. The first one starts.",
            {"kind": "event_started", "event": "CreateTopics"},
        ),
        Step(
            "The others wait",
            "The controller processes one event to its end before it starts the next one. "
            "There are no locks, because there is nothing to protect. The price is this queue.",
            {"kind": "event_queued", "event": "ReplicaLeaderElection"},
        ),
        Step(
            "ZooKeeper's answer takes most of the time",
            "The bar of an event is mostly the wait for ZooKeeper, so klamm writes many partitions in one transaction.",
            {"kind": "znodes_written", "event": "CreateTopics", "error": "NONE"},
        ),
        Step(
            "The wait is measured",
            "The next event starts, and its record has queue_ms. "
            "EventQueueTimeMs and EventQueueSize show the same for a live cluster: look there first in an outage.",
            {"kind": "event_started", "event": "CreateTopics"},
        ),
        Step(
            "The queue is empty again",
            "The last event of the burst ends. Notifications that arrived meanwhile were handled with one read.",
            {"kind": "event_done", "event": "ReplicaLeaderElection"},
        ),
    ),
)

DEATH: Final = Scenario(
    "death",
    "A broker dies",
    EVENTS,
    plan(1_800, "250.create.orders.3", "700.kill.1", seed=1),
    "orders-0",
    (
        Step(
            "Broker 1 leads orders-0",
            "Broker 1 leads orders-0, and brokers 2 and 3 copy its records.",
            {"kind": "role_changed", "broker_id": 1, "topic": "orders", "partition": 0, "role": "leader"},
        ),
        Step(
            "The process is killed",
            "Nobody notices yet. The session still lives, and clients of orders-0 get no answer.",
            {"kind": "fault", "name": "crash"},
        ),
        Step(
            "The session ends",
            "ZooKeeper has received no heartbeat for the session timeout. It deletes the ephemeral /brokers/ids/1.",
            {"kind": "session", "state": "ended", "broker_id": 1},
        ),
        Step(
            "The controller is notified",
            "The watch of /brokers/ids fires. It becomes a BrokerChange event in the controller's queue.",
            {"kind": "event_queued", "event": "BrokerChange"},
        ),
        Step(
            "New leaders are elected",
            "The first live member of the ISR leads, in the next leader epoch. Broker 1 leaves the ISR.",
            {"kind": "election", "topic": "orders", "partition": 0, "strategy": "offline"},
        ),
        Step(
            "A follower becomes the leader",
            "LeaderAndIsr reaches the new leader. It stops fetching and accepts records.",
            {"kind": "role_changed", "topic": "orders", "partition": 0, "role": "leader", "leader_epoch": 1},
        ),
        Step(
            "Clients find the new leader",
            "UpdateMetadata reaches the survivors. Click the election to see the whole chain with its times.",
            {"kind": "metadata_applied"},
        ),
    ),
)

SLOW: Final = Scenario(
    "slow",
    "A slow broker and its queue",
    CHANNEL,
    plan(
        2_200,
        "250.create.orders.1",
        "500.slow.3.900",
        *(f"{560 + 90 * i}.create.topic{i}.1" for i in range(8)),
    ),
    "topic1-0",
    (
        Step(
            "Broker 3 stops answering",
            "Its session lives, so the controller treats it as alive. Control requests to it get no answer.",
            {"kind": "fault", "name": "cut"},
        ),
        Step(
            "One request is in flight",
            "The sender for broker 3 repeats its request until it is answered. Everything else must wait behind it: "
            "the order of requests matters.",
            {"kind": "request_sent", "target": 3, "attempt": 1},
        ),
        Step(
            "The queue of broker 3 grows",
            "Every new topic adds requests. The queues of the other brokers stay empty: each has its own sender.",
            {"kind": "request_queued", "target": 3, "queue_size": 2},
        ),
        Step(
            "Waiting requests are merged",
            "In Kafka this queue grows without a limit. klamm merges a new state into the waiting request: "
            "the newest state of each partition is all that broker 3 needs.",
            {"kind": "request_coalesced", "target": 3},
        ),
        Step(
            "Its cache is stale",
            "Brokers 1 and 2 know the new topics. Clients that ask broker 3 do not find them.",
            {"kind": "metadata_applied", "broker_id": 2},
        ),
        Step(
            "Broker 3 answers again",
            "The request in flight finally arrives.",
            {"kind": "request_delivered", "broker_id": 3, "error": "NONE"},
        ),
        Step(
            "One request for all",
            "One LeaderAndIsr carries the partitions of all topics, and one UpdateMetadata follows. "
            "Broker 3 has caught up with two requests.",
            {"kind": "role_changed", "broker_id": 3, "topic": "topic7"},
        ),
    ),
)

ZOMBIE: Final = Scenario(
    "zombie",
    "A zombie controller is fenced",
    EVENTS,
    plan(1_500, "250.create.orders.2", "590.create.payments.1", "600.pause.c.350", late_messages=True),
    "orders-0",
    (
        Step(
            "A controller at work",
            "The controller has just received a request and writes to ZooKeeper.",
            {"kind": "event_started", "event": "CreateTopics", "number": 14},
        ),
        Step(
            "The process is paused",
            "A long garbage collection, or a stopped virtual machine: the process does nothing, and does not know it.",
            {"kind": "fault", "name": "pause"},
        ),
        Step(
            "Its session expires",
            "ZooKeeper ends the session after the timeout, and deletes /controller.",
            {"kind": "session", "state": "ended"},
        ),
        Step(
            "Another broker takes over",
            "It creates /controller and raises the epoch, in one transaction. All its requests carry the new epoch.",
            {"kind": "controller_changed", "controller_epoch": 2},
        ),
        Step(
            "The zombie wakes",
            "The old controller continues where it was, and believes that it still has the role. "
            "A broker refuses its request: STALE_CONTROLLER_EPOCH.",
            {"kind": "request_delivered", "error": "STALE_CONTROLLER_EPOCH"},
        ),
        Step(
            "It learns that it was deposed",
            "The old controller learns that its session has expired. It drops its queue and opens a new session.",
            {"kind": "event_started", "event": "Expire"},
        ),
        Step(
            "It is an ordinary broker again",
            "It registers with a new broker epoch, and accepts the controller of epoch 2.",
            {"kind": "event_done", "event": "RegisterBrokerAndReelect"},
        ),
    ),
)
