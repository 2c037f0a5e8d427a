"""Attacks on running brokers and on the embedded ZooKeeper, as a program of its own: bounded, on loopback, by a seed.

    python -m tests.support.attacks --brokers 9092 9093 --zookeeper 2181 --seconds 20 --seed 7

An attack is right when the broker refuses it or answers it: an attack never judges. The program prints at its
end, as JSON, when each attack began and ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from klamm.errors import KlammError
from klamm.model import ZERO_UUID
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.zk.model.ops import ZkError
from tests.support.attack_target import MIB, Target, frame, many, read_answers, send_each_version
from tests.support.record_attacks import broken_inside, damaged_batches, odd_headers
from tests.support.znode_attacks import damaged_controller_epoch, deleted_registration, multi_reads

BROKER: Final = 4
"""The resource type of a broker in AlterConfigs."""
FORGED_EPOCH: Final = 1_000_000


# --- brokers: size and number ---


def tagged_fields(target: Target) -> None:
    """A request header with millions of tagged fields."""
    count = target.count(20_000_000)
    number = bytearray()
    left = count
    while left >= 0x80:
        number.append(left & 0x7F | 0x80)
        left >>= 7
    number.append(left)
    head = struct.pack(">hhih", 18, 3, 1, -1) + bytes(number)
    fields = b"\x80\x08\x00" * count
    with target.connect() as connection:
        connection.sendall(struct.pack(">i", len(head) + len(fields)) + head + fields)
        read_answers(connection)


def giant_fetch(target: Target) -> None:
    """A Fetch of half a million partitions, most of which do not exist."""
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1024)
        for number in range(target.count(500_000))
    ]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=target.topic, partitions=wanted)])
    with target.connect() as connection:
        connection.sendall(frame(request, 11))
        read_answers(connection)


def fetches_of_the_dead(target: Target) -> None:
    """Clients that pipeline large fetches and disconnect."""
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=50 * MIB)
        for number in range(target.partitions)
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=[FetchTopic(topic=target.topic, partitions=wanted)]
    )
    with many(target, target.count(50)) as connections:
        for connection in connections:
            connection.sendall(frame(request, 11) * 10)


def slow_readers(target: Target) -> None:
    """Clients that ask for much and read little of it."""
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=50 * MIB)
        for number in range(target.partitions)
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=[FetchTopic(topic=target.topic, partitions=wanted)]
    )
    with many(target, target.count(20)) as connections:
        for connection in connections:
            connection.sendall(frame(request, 11) * 5)
        for connection in connections:
            connection.recv(4096)


def metadata_flood(target: Target) -> None:
    """Large Metadata requests on many connections at once."""
    names = [MetadataRequestTopic(name=f"nothing-{number}") for number in range(2_000)]
    request = frame(MetadataRequest(topics=names, allow_auto_topic_creation=False), 7)
    each = target.count(10)
    with many(target, target.count(60)) as connections:
        for connection in connections:
            connection.sendall(request * each)
        for connection in connections:
            read_answers(connection, each)


def fetch_sessions(target: Target) -> None:
    """Full fetches that each open a session of many partitions and are never used again."""
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1024)
        for number in range(target.count(20_000))
    ]
    topics = [FetchTopic(topic=target.topic, partitions=wanted)]
    request = frame(FetchRequest(max_wait_ms=0, min_bytes=0, session_id=0, session_epoch=0, topics=topics), 11)
    with target.connect() as connection:
        for _ in range(20):
            connection.sendall(request)
            read_answers(connection)


def churn(target: Target) -> None:
    """Connections that come and go."""
    for _ in range(target.count(5_000)):
        target.connect().close()


def half_frames(target: Target) -> None:
    """Frames that claim 90 MB and never end."""
    with many(target, target.count(20)) as connections:
        for connection in connections:
            connection.sendall(struct.pack(">i", 90 * MIB) + bytes(target.rng.randrange(2 * MIB)))


def garbage(target: Target) -> None:
    """Bytes that are not Kafka's protocol."""
    for _ in range(target.count(50)):
        with target.connect() as connection:
            size = target.rng.randrange(1, 2_000)
            claimed = target.rng.choice([size, target.rng.randrange(-5, 1 << 31)])
            connection.sendall(struct.pack(">i", claimed) + target.rng.randbytes(size))


def giant_group_metadata(target: Target) -> None:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(target.count(8 * MIB)))]
    for number in range(4):
        request = JoinGroupRequest(
            group_id=f"giant-{target.rng.randrange(1 << 30)}-{number}",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        with target.connect() as connection:
            connection.sendall(frame(request, 3))
            read_answers(connection)


def giant_offset_metadata(target: Target) -> None:
    committed = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="x" * 32_000)
    topics = [OffsetCommitRequestTopic(name=target.topic, partitions=[committed])]
    with target.connect() as connection:
        for number in range(target.count(100)):
            request = OffsetCommitRequest(group_id=f"commits-{number}", topics=topics)
            connection.sendall(frame(request, 3))
            read_answers(connection)


# --- brokers: lies ---


def forged_update(target: Target) -> None:
    """An UpdateMetadata of a controller that does not exist sends clients elsewhere."""
    endpoint = UpdateMetadataEndpoint(port=1, host="nowhere.invalid", listener="PLAINTEXT", security_protocol=0)
    states = [
        UpdateMetadataPartitionState(
            topic_name=target.topic,
            partition_index=partition,
            controller_epoch=FORGED_EPOCH,
            leader=1,
            leader_epoch=FORGED_EPOCH,
            isr=(1,),
            zk_version=FORGED_EPOCH,
            replicas=(1,),
        )
        for partition in range(target.partitions)
    ]
    request = UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=FORGED_EPOCH,
        broker_epoch=1 << 60,
        ungrouped_partition_states=states,
        topic_states=[UpdateMetadataTopicState(topic_name=target.topic, topic_id=ZERO_UUID, partition_states=states)],
        live_brokers=[UpdateMetadataBroker(id_=1, endpoints=[endpoint])],
    )
    send_each_version(target, request, (4, 5, 6, 7))


def forged_leader(target: Target) -> None:
    """A LeaderAndIsr of a controller that does not exist makes another broker the leader of everything."""
    leader = len(target.ports) + 1
    states = [
        LeaderAndIsrPartitionState(
            topic_name=target.topic,
            partition_index=partition,
            controller_epoch=FORGED_EPOCH,
            leader=leader,
            leader_epoch=FORGED_EPOCH,
            isr=(leader,),
            partition_epoch=FORGED_EPOCH,
            replicas=(leader,),
        )
        for partition in range(target.partitions)
    ]
    request = LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=FORGED_EPOCH,
        broker_epoch=1 << 60,
        live_leaders=(),
        ungrouped_partition_states=states,
        topic_states=[LeaderAndIsrTopicState(topic_name=target.topic, topic_id=ZERO_UUID, partition_states=states)],
    )
    send_each_version(target, request, (1, 2, 4, 7))


def forged_stop(target: Target) -> None:
    """A StopReplica of a controller that does not exist deletes the topic."""
    states = [StopReplicaPartitionState(partition_index=n, delete_partition=True) for n in range(target.partitions)]
    topics = [StopReplicaTopicState(topic_name=target.topic, partition_states=states)]
    request = StopReplicaRequest(
        controller_id=1, controller_epoch=FORGED_EPOCH, broker_epoch=1 << 60, topic_states=topics
    )
    send_each_version(target, request, (3,))


def forged_shutdown(target: Target) -> None:
    """A ControlledShutdown in the name of a broker that is well."""
    for broker_id in range(1, len(target.ports) + 1):
        send_each_version(target, ControlledShutdownRequest(broker_id=broker_id, broker_epoch=1 << 60), (0, 1, 2, 3))


def lock_out(target: Target) -> None:
    """No connections for anybody."""
    for key in ("max.connections", "max.connections.per.ip"):
        configs = [AlterableConfig(name=key, config_operation=0, value="0")]
        resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
        send_each_version(target, IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), (0,))


# --- the embedded ZooKeeper ---


def _zookeeper_handshake(connection: socket.socket) -> None:
    body = struct.pack(">iqiq", 0, 0, 10_000, 0) + struct.pack(">i", 16) + bytes(16) + b"\x00"
    connection.sendall(struct.pack(">i", len(body)) + body)
    read_answers(connection)


def zookeeper_auth(target: Target) -> None:
    """More credentials than a log record has room for."""
    with target.connect_zookeeper() as connection:
        _zookeeper_handshake(connection)
        for number in range(300):
            secret = b"user-%d:secret" % number
            body = struct.pack(">iii", -4, 100, 0) + struct.pack(">i", 6) + b"digest"
            body += struct.pack(">i", len(secret)) + secret
            connection.sendall(struct.pack(">i", len(body)) + body)
            read_answers(connection)


def zookeeper_silence(target: Target) -> None:
    """Connections that never send a handshake."""
    with contextlib.ExitStack() as stack:
        for _ in range(target.count(1_000)):
            stack.enter_context(target.connect_zookeeper())


def zookeeper_paths(target: Target) -> None:
    """Watches on paths of a megabyte."""
    with target.connect_zookeeper() as connection:
        _zookeeper_handshake(connection)
        path = b"/" + b"x" * target.count(MIB - 100)
        for number in range(1, 20):
            body = struct.pack(">ii", number, 3) + struct.pack(">i", len(path)) + path + b"\x01"
            connection.sendall(struct.pack(">i", len(body)) + body)
            read_answers(connection)


ATTACKS: Final[tuple[Callable[[Target], None], ...]] = (
    tagged_fields,
    giant_fetch,
    fetches_of_the_dead,
    slow_readers,
    metadata_flood,
    fetch_sessions,
    churn,
    half_frames,
    garbage,
    giant_group_metadata,
    giant_offset_metadata,
    forged_update,
    forged_leader,
    forged_stop,
    forged_shutdown,
    lock_out,
    damaged_batches,
    odd_headers,
    broken_inside,
    zookeeper_auth,
    zookeeper_silence,
    zookeeper_paths,
    multi_reads,
    deleted_registration,
    damaged_controller_epoch,
)


def run(target: Target, seconds: float, only: Sequence[str] = ()) -> list[tuple[float, float, str]]:
    """Every attack once, in a random order, then all again, until the time is over and each had its turn.

    `only`: the names of the attacks that take part. Returns begin, end and name of each attack.
    """
    attacks = [attack for attack in ATTACKS if not only or attack.__name__ in only]
    done: list[tuple[float, float, str]] = []
    end = time.monotonic() + seconds
    while True:
        for attack in target.rng.sample(attacks, len(attacks)):
            if time.monotonic() > end and len(done) >= len(attacks):
                return done
            began = time.time()
            # A closed connection or a missing answer is one of the right responses to an attack.
            with contextlib.suppress(OSError, EOFError, KlammError, ZkError):
                attack(target)
            done.append((began, time.time(), attack.__name__))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, nargs="+", required=True, help="ports of the brokers, by broker id")
    parser.add_argument("--zookeeper", type=int, required=True, help="port of the embedded ZooKeeper")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--damaged-topic", default="damaged", help="takes the records of the attacks")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=float, default=1.0, help="of the attacks; 1 is their full size")
    names = [attack.__name__ for attack in ATTACKS]
    parser.add_argument("--only", nargs="+", default=[], choices=names, metavar="ATTACK", help=", ".join(names))
    args = parser.parse_args()
    rng = Random(args.seed)
    target = Target(args.brokers, args.zookeeper, args.topic, args.partitions, rng, args.size, args.damaged_topic)
    print(json.dumps(run(target, args.seconds, args.only)))


if __name__ == "__main__":
    main()
