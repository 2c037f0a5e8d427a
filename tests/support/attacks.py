"""Attacks on running brokers and on the embedded ZooKeeper, as a program of its own: bounded, on loopback, by a seed.

    python -m tests.support.attacks --brokers 9092 9093 --zookeeper 2181 --seconds 20 --seed 7

An attack is right when the broker refuses it or answers it: an attack never judges. The program prints, as JSON, how
often each attack was carried out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from klamm.errors import KlammError
from klamm.protocol.frames import RequestHeader, encode_request_frame
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message

LOOPBACK: Final = "127.0.0.1"
TIMEOUT_S: Final = 30.0
MIB: Final = 1 << 20
BROKER: Final = 4
"""The resource type of a broker in AlterConfigs."""


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster under attack. `size` scales every attack; 1 is the size that once froze a broker."""

    ports: Sequence[int]
    zookeeper: int
    topic: str
    partitions: int
    rng: Random
    size: float = 1.0

    def count(self, full: int) -> int:
        return max(1, int(full * self.size))

    def connect(self) -> socket.socket:
        return self.connect_to(self.rng.choice(self.ports))

    def connect_to(self, port: int) -> socket.socket:
        return socket.create_connection((LOOPBACK, port), TIMEOUT_S)

    def connect_zookeeper(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self.zookeeper), TIMEOUT_S)


def frame(request: Message, version: int, correlation_id: int = 1) -> bytes:
    return b"".join(encode_request_frame(RequestHeader(request.KEY, version, correlation_id, "attacker"), request))


def read_answers(connection: socket.socket, count: int = 1) -> None:
    """Reads `count` responses without keeping them."""
    for _ in range(count):
        head = _read(connection, 4)
        if head is None or _read(connection, struct.unpack(">i", head)[0]) is None:
            return


def _read(connection: socket.socket, size: int) -> bytes | None:
    last = b""
    while size > 0:
        part = connection.recv(min(size, MIB))
        if not part:
            return None
        size -= len(part)
        last = part
    return last


@contextlib.contextmanager
def many(target: Target, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(target.connect()) for _ in range(count)]


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
    for _ in range(target.count(500)):
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
    request = UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1_000_000,
        broker_epoch=1 << 60,
        live_brokers=[UpdateMetadataBroker(id_=1, endpoints=[endpoint])],
    )
    _send_each_version(target, request, (5, 6, 7))


def forged_stop(target: Target) -> None:
    """A StopReplica of a controller that does not exist deletes the topic."""
    states = [StopReplicaPartitionState(partition_index=n, delete_partition=True) for n in range(target.partitions)]
    topics = [StopReplicaTopicState(topic_name=target.topic, partition_states=states)]
    request = StopReplicaRequest(controller_id=1, controller_epoch=1_000_000, broker_epoch=1 << 60, topic_states=topics)
    _send_each_version(target, request, (3,))


def forged_shutdown(target: Target) -> None:
    """A ControlledShutdown in the name of a broker that is well."""
    for broker_id in range(1, len(target.ports) + 1):
        _send_each_version(target, ControlledShutdownRequest(broker_id=broker_id, broker_epoch=1 << 60), (0, 1, 2, 3))


def lock_out(target: Target) -> None:
    """No connections for anybody."""
    for key in ("max.connections", "max.connections.per.ip"):
        configs = [AlterableConfig(name=key, config_operation=0, value="0")]
        resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=configs)
        _send_each_version(target, IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), (0,))


def damaged_batches(target: Target) -> None:
    """Batches with flipped bytes, reserved bits and odd times."""
    whole = build_batch([Record(timestamp=-5, value=target.rng.randbytes(200)) for _ in range(5)])
    for _ in range(target.count(20)):
        data = bytearray(whole)
        for _ in range(target.rng.randrange(1, 4)):
            data[target.rng.randrange(len(data))] ^= 1 << target.rng.randrange(8)
        parts = [PartitionProduceData(index=0, records=bytes(data))]
        request = ProduceRequest(
            acks=1, timeout_ms=1_000, topic_data=[TopicProduceData(name="nothing", partition_data=parts)]
        )
        with target.connect() as connection:
            connection.sendall(frame(request, 9))
            read_answers(connection)


def _send_each_version(target: Target, request: Message, versions: Sequence[int]) -> None:
    for version in versions:
        for port in target.ports:
            with target.connect_to(port) as connection:
                connection.sendall(frame(request, version))
                read_answers(connection)


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
        for _ in range(target.count(200)):
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
    forged_stop,
    forged_shutdown,
    lock_out,
    damaged_batches,
    zookeeper_auth,
    zookeeper_silence,
    zookeeper_paths,
)


def run(target: Target, seconds: float) -> Counter[str]:
    """Every attack once, in a random order, then all again, until the time is over and each had its turn."""
    done: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while True:
        for attack in target.rng.sample(ATTACKS, len(ATTACKS)):
            if time.monotonic() > end and len(done) == len(ATTACKS):
                return done
            done[attack.__name__] += 1
            print(f"{time.time():.3f} {attack.__name__}", file=sys.stderr, flush=True)
            # A closed connection or a missing answer is one of the right responses to an attack.
            with contextlib.suppress(OSError, KlammError):
                attack(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, nargs="+", required=True, help="ports of the brokers, by broker id")
    parser.add_argument("--zookeeper", type=int, required=True, help="port of the embedded ZooKeeper")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=float, default=1.0, help="of the attacks; 1 is their full size")
    args = parser.parse_args()
    rng = Random(args.seed)
    target = Target(args.brokers, args.zookeeper, args.topic, args.partitions, rng, args.size)
    print(json.dumps(run(target, args.seconds)))


if __name__ == "__main__":
    main()
