"""`log_dirs` of a reassignment file: the target directory of each replica."""

from __future__ import annotations

from klamm.cli.broker_requests import ask
from klamm.cli.controller import metadata, reason
from klamm.cli.output import note
from klamm.client.patience import LOG_DIR_CHANGE
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)

LogDirTargets = dict[tuple[TopicPartition, int], str]
"""By partition and broker; without replicas that may be in any directory."""


def place(servers: str, targets: LogDirTargets) -> list[TopicPartition]:
    """Send every broker the directories of its replicas; return the partitions that were rejected.

    A broker answers REPLICA_NOT_AVAILABLE for a future replica and remembers the directory.
    """
    _, view = metadata(servers, {tp.topic for tp, _ in targets})
    addresses = {broker.node_id: (broker.host, broker.port) for broker in view.brokers}
    refused = []
    for broker_id in sorted({broker_id for _, broker_id in targets}):
        wanted = {tp: path for (tp, broker), path in targets.items() if broker == broker_id}
        if broker_id not in addresses:
            note(f"Broker {broker_id} is not alive: its replicas cannot be moved between directories.")
            refused += list(wanted)
            continue
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path, topics=[AlterReplicaLogDirTopic(name=tp.topic, partitions=[tp.partition])]
                )
                for tp, path in wanted.items()
            ]
        )
        answer = ask(addresses[broker_id], request, 2, AlterReplicaLogDirsResponse, LOG_DIR_CHANGE.request_s)
        for topic in answer.results:
            for each in topic.partitions:
                tp = TopicPartition(topic.topic_name, each.partition_index)
                if each.error_code not in (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE):
                    note(f"{tp} on broker {broker_id} is not moved to {wanted[tp]}: {reason(each.error_code, None)}")
                    refused.append(tp)
    return refused
