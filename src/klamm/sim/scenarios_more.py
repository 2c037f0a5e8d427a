"""Guided scenarios: restarts, stale caches, shutdown, ISR and deletion."""

from __future__ import annotations

from typing import Final

from klamm.sim.scenario import BATCH, CACHE, CHANNEL, EVENTS, Scenario, Step, plan

BOUNCE: Final = Scenario(
    "bounce",
    "A bounced broker",
    CHANNEL,
    plan(1_700, "250.create.orders.3", "600.create.payments.1", "606.bounce.3.4", late_messages=True),
    "orders-2",
    (
        Step(
            "Broker 3 restarts",
            "The controller is about to send it a LeaderAndIsr. The process ends and comes back within milliseconds. "
            "Its memory is empty, its disk is not.",
            {"kind": "fault", "name": "restart"},
        ),
        Step(
            "A new incarnation registers",
            "The new process creates /brokers/ids/3 again, and so it has a new broker epoch.",
            {"kind": "event_done", "event": "Startup", "broker_id": 3},
        ),
        Step(
            "The controller compares epochs",
            "The list of broker ids is the same as before. Only the epoch shows that broker 3 is another process, "
            "which knows nothing. BrokerChange treats it as a death and a start.",
            {"kind": "event_started", "event": "BrokerChange"},
        ),
        Step(
            "The late request is refused",
            "The request carries the broker epoch that it is meant for: that of the former process. "
            "Broker 3 compares the epochs and refuses it: STALE_BROKER_EPOCH.",
            {"kind": "request_delivered", "broker_id": 3, "error": "STALE_BROKER_EPOCH"},
        ),
    ),
)

STALE_CACHE: Final = Scenario(
    "stale",
    "A stale metadata cache",
    CACHE,
    plan(2_000, "250.create.orders.1", "690.slow.3.800", "700.kill.1"),
    "orders-0",
    (
        Step(
            "All caches agree",
            "Every broker has applied the UpdateMetadata of topic orders. Each names broker 1 as the leader.",
            {"kind": "metadata_applied", "broker_id": 3, "partition_count": 1},
        ),
        Step(
            "Broker 3 cannot be reached",
            "Nothing from the controller reaches broker 3. Clients reach it as before.",
            {"kind": "fault", "name": "cut"},
        ),
        Step(
            "The leader dies",
            "Broker 1 is killed, and its session ends after the timeout.",
            {"kind": "session", "state": "ended", "broker_id": 1},
        ),
        Step(
            "Another replica leads",
            "The controller elects broker 2, in leader epoch 1.",
            {"kind": "election", "topic": "orders", "strategy": "offline"},
        ),
        Step(
            "Two answers to one question",
            "Broker 2 names itself as the leader. Broker 3 still names broker 1, which is dead. "
            "The strip of broker 3 shows the old epoch. A client that asks broker 3 must retry.",
            {"kind": "metadata_applied", "broker_id": 2},
        ),
        Step(
            "The cache catches up",
            "The link is back, and the waiting UpdateMetadata is applied. "
            "The controller's MetadataLag showed the delay the whole time.",
            {"kind": "metadata_applied", "broker_id": 3},
        ),
    ),
)

SHUTDOWN: Final = Scenario(
    "shutdown",
    "A controlled shutdown",
    EVENTS,
    plan(1_500, "250.create.orders.3", "700.stop.1"),
    "orders-0",
    (
        Step(
            "Broker 1 asks to leave",
            "The broker asks the controller to move its leaders away. It still serves its clients.",
            {"kind": "event_started", "event": "ControlledShutdown"},
        ),
        Step(
            "The next leader is elected first",
            "The strategy is controlled shutdown: another member of the ISR leads, although broker 1 lives.",
            {"kind": "election", "strategy": "controlled shutdown", "topic": "orders", "partition": 0},
        ),
        Step(
            "The new leader takes over",
            "The new leader is at work before the old one is gone. Compare this gap with that of a killed broker.",
            {"kind": "role_changed", "role": "leader", "topic": "orders", "partition": 0},
        ),
        Step(
            "Then the broker stops",
            "The process closes its session, so nobody waits for a timeout.",
            {"kind": "fault", "name": "stop"},
        ),
        Step(
            "The end of the session changes no leader",
            "BrokerChange finds no leader to elect for orders-0. It only reports that broker 1 is gone.",
            {"kind": "event_started", "event": "BrokerChange"},
        ),
    ),
)

ISR: Final = Scenario(
    "isr",
    "The ISR shrinks and grows",
    BATCH,
    plan(2_600, "250.create.orders.1", "700.kill.3", "1300.start.3"),
    "orders-0",
    (
        Step(
            "Three replicas in sync",
            "The leader and two followers are the ISR. A record is committed when all three have it.",
            {"kind": "role_changed", "topic": "orders", "role": "leader"},
        ),
        Step(
            "A follower dies",
            "Broker 3 is killed. "
            "The high watermark of the leader stops: one member of the ISR does not have the records.",
            {"kind": "fault", "name": "crash"},
        ),
        Step(
            "The ISR shrinks",
            "The dead member leaves the ISR. The high watermark moves again.",
            {"kind": "isr_change", "topic": "orders"},
        ),
        Step(
            "It comes back",
            "Broker 3 registers with a new broker epoch, gets its roles and fetches what it missed.",
            {"kind": "role_changed", "broker_id": 3, "topic": "orders", "role": "follower"},
        ),
        Step(
            "The leader proposes a larger ISR",
            "Broker 3 has caught up. The leader sends AlterPartition to the controller, with the leader epoch and "
            "the version of the state that it knows.",
            {"kind": "event_queued", "event": "AlterPartition"},
        ),
        Step(
            "The controller decides",
            "The controller writes the state with the version as a condition, and answers the leader. "
            "Only then does the larger ISR count.",
            {"kind": "isr_change", "topic": "orders"},
        ),
    ),
)

DELETION: Final = Scenario(
    "delete",
    "A deletion waits for a broker",
    CHANNEL,
    plan(2_400, "250.create.orders.2", "600.kill.3", "800.delete.orders", "1300.start.3"),
    "orders-0",
    (
        Step(
            "Broker 3 is down",
            "It has a replica of every partition of topic orders on its disk.",
            {"kind": "session", "state": "ended", "broker_id": 3},
        ),
        Step(
            "The topic is deleted",
            "The controller marks the topic for deletion in /admin/delete_topics.",
            {"kind": "event_started", "event": "DeleteTopics"},
        ),
        Step(
            "Live brokers delete their logs",
            "StopReplica with the delete flag reaches the live brokers. The topic stays marked: one replica is left.",
            {"kind": "request_delivered", "api": "StopReplica"},
        ),
        Step(
            "Broker 3 returns",
            "The new process registers. The controller remembers the deletion and resumes it.",
            {"kind": "fault", "name": "restart"},
        ),
        Step(
            "The last replica is deleted",
            "Broker 3 receives its StopReplica.",
            {"kind": "request_delivered", "api": "StopReplica", "broker_id": 3},
        ),
        Step(
            "The znodes are removed",
            "All replicas have confirmed. The controller removes the topic from ZooKeeper.",
            {"kind": "znodes_written", "event": "TopicDeletionStopReplicaResponseReceived", "error": "NONE"},
        ),
    ),
)
