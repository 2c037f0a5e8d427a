"""A broker that was killed, and whose files were damaged while it was down, has everything before the damage."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from klamm.errors import ErrorCode
from klamm.protocol.record_batch import RecordBatch, batches
from klamm.testing import LocalCluster
from tests.support.chaos_clients import commit
from tests.support.long_form import short_for
from tests.support.raw_client import EARLIEST, RawClient, batch_of, eventually

BATCHES = 40
RECORDS = 5
CONFIG = {"segment.bytes": 4096, "index.interval.bytes": 512, "segment.index.bytes": 1024}
"""A batch has some 450 bytes: four or five segments, each with index entries."""


class LogFiles:
    """The files of one partition, while no broker has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = sorted(folder.glob("*.log"))
        assert len(self.logs) > 2, "the test wants several segments"
        self.active = self.logs[-1]

    def batches(self) -> list[RecordBatch]:
        return list(batches(memoryview(self.active.read_bytes())))

    def cut(self, size: int) -> None:
        with self.active.open("r+b") as file:
            file.truncate(size)

    def overwrite(self, position: int, data: bytes) -> None:
        with self.active.open("r+b") as file:
            file.seek(position)
            file.write(data)

    def append(self, data: bytes) -> None:
        with self.active.open("ab") as file:
            file.write(data)

    def last_batch(self) -> tuple[int, int]:
        """(where it begins, how long it is)."""
        found = self.batches()
        return sum(b.size_bytes for b in found[:-1]), found[-1].size_bytes


# Each damage returns how many batches at the end of the log it costs.


def cut_one_byte(files: LogFiles) -> int:
    files.cut(files.active.stat().st_size - 1)
    return 1


def cut_in_a_header(files: LogFiles) -> int:
    files.cut(files.last_batch()[0] + 7)
    return 1


def cut_anywhere(files: LogFiles) -> int:
    sizes = [b.size_bytes for b in files.batches()]
    at = random.Random(str(files.folder.name)).randrange(1, sum(sizes))
    files.cut(at)
    return sum(1 for i in range(len(sizes)) if sum(sizes[: i + 1]) > at)


def cut_to_nothing(files: LogFiles) -> int:
    lost = len(files.batches())
    files.cut(0)
    return lost


def flip_a_value(files: LogFiles) -> int:
    start, size = files.last_batch()
    files.overwrite(start + size - 10, b"\xff\x00\xff")
    return 1


def flip_a_length(files: LogFiles) -> int:
    files.overwrite(files.last_batch()[0] + 8, b"\x7f\xff\xff\xff")
    return 1


def zero_the_last_batch(files: LogFiles) -> int:
    start, size = files.last_batch()
    files.overwrite(start, bytes(size))
    return 1


def append_zeros(files: LogFiles) -> int:
    files.append(bytes(3000))
    return 0


def append_garbage(files: LogFiles) -> int:
    files.append(random.Random(1).randbytes(3000))
    return 0


def append_half_a_batch(files: LogFiles) -> int:
    start, size = files.last_batch()
    files.append(files.active.read_bytes()[start : start + size // 2])
    return 0


def append_an_old_batch(files: LogFiles) -> int:
    """Whole and with a right checksum, but with offsets that the log has passed."""
    start, size = files.last_batch()
    files.append(files.active.read_bytes()[start : start + size])
    return 0


def remove_all(ending: str) -> Callable[[LogFiles], int]:
    def remove(files: LogFiles) -> int:
        for path in files.folder.glob(f"*{ending}"):
            path.unlink()
        return 0

    remove.__name__ = f"remove_{ending.strip('.')}"
    return remove


def garbage_in(ending: str) -> Callable[[LogFiles], int]:
    def damage(files: LogFiles) -> int:
        for path in files.folder.glob(f"*{ending}"):
            path.write_bytes(random.Random(path.name).randbytes(52))
        return 0

    damage.__name__ = f"garbage_in_{ending.strip('.')}"
    return damage


def nothing(files: LogFiles) -> int:
    return 0


ENDINGS = [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"]
DAMAGES = {
    damage.__name__.replace("_", "-"): damage
    for damage in [
        nothing,
        cut_one_byte,
        cut_in_a_header,
        cut_anywhere,
        cut_to_nothing,
        flip_a_value,
        flip_a_length,
        zero_the_last_batch,
        append_zeros,
        append_garbage,
        append_half_a_batch,
        append_an_old_batch,
        *map(remove_all, ENDINGS),
        *map(garbage_in, ENDINGS),
    ]
}


@dataclass
class Damaged:
    """A cluster that came back after a kill, with one topic for every damage."""

    cluster: LocalCluster
    client: RawClient
    producer: tuple[int, int]
    lost: dict[str, int]
    active: dict[str, int]
    """The first batch of the last segment, by topic."""
    started_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    """Of the first batch; each has one time for all its records."""

    def batch(self, number: int) -> bytes:
        producer_id, epoch = self.producer
        return batch_of(
            values(number),
            producer_id=producer_id,
            producer_epoch=epoch,
            sequence=number * RECORDS,
            timestamp=self.started_ms + number,
        )


def values(number: int) -> list[bytes]:
    return [f"{number}-{i}-".encode().ljust(75, b".") for i in range(RECORDS)]


def expected(count: int) -> list[tuple[int, bytes | None]]:
    return [(n * RECORDS + i, value) for n in range(count) for i, value in enumerate(values(n))]


@pytest.fixture(
    scope="module",
    params=short_for(["checkpoints-removed"], ["checkpoints-kept", "checkpoints-removed", "checkpoints-garbage"]),
)
def damaged(request: pytest.FixtureRequest) -> Iterator[Damaged]:
    with LocalCluster(broker_configs={"log.flush.offset.checkpoint.interval.ms": 50}) as cluster:
        client = RawClient(cluster.port(1))
        state = Damaged(cluster, client, client.new_producer(), {}, {})
        for topic in DAMAGES:
            cluster.create_topic(topic, config=CONFIG)
            for number in range(BATCHES):
                answer = client.produce(topic, state.batch(number))
                assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number * RECORDS)
        checkpoint = cluster.data_dir / "broker-1" / "recovery-point-offset-checkpoint"
        eventually(lambda: _recovery_points_are_past_zero(checkpoint), "no recovery point was written")
        cluster.kill(1)
        for topic, damage in DAMAGES.items():
            files = LogFiles(cluster.data_dir / "broker-1" / f"{topic}-0")
            state.active[topic] = int(files.active.stem) // RECORDS
            state.lost[topic] = damage(files)
        for path in (cluster.data_dir / "broker-1").glob("*-checkpoint"):
            if request.param == "checkpoints-removed":
                path.unlink()
            elif request.param == "checkpoints-garbage":
                path.write_bytes(b"0\n7\n\xff no checkpoint")
        cluster.start(1)
        yield state


def _recovery_points_are_past_zero(checkpoint: Path) -> bool:
    if not checkpoint.exists():
        return False
    points = {line.split()[0]: int(line.split()[2]) for line in checkpoint.read_text().splitlines()[2:]}
    return all(points.get(topic, 0) > 0 for topic in DAMAGES)


@pytest.mark.parametrize("topic", DAMAGES)
def test_damaged_tail(damaged: Damaged, topic: str) -> None:
    client, kept = damaged.client, BATCHES - damaged.lost[topic]
    assert client.offset(topic, EARLIEST) == 0
    assert client.read_all(topic) == expected(kept)
    # The producer's state is that of the log: what survived is known again, what was lost can be sent again. Of what
    # was before the last segment a snapshot may know the last batch only, as Kafka's do.
    for number in range(min(max(kept - 5, damaged.active[topic]), kept - 1), kept):
        answer = client.produce(topic, damaged.batch(number))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number * RECORDS)
    assert client.produce(topic, damaged.batch(kept + 1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for number in range(kept, BATCHES + 3):
        answer = client.produce(topic, damaged.batch(number))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number * RECORDS)
    assert client.read_all(topic) == expected(BATCHES + 3)


def test_damaged_logs_are_found_by_time_and_survive_a_clean_restart(damaged: Damaged) -> None:
    damaged.cluster.stop(1)
    damaged.cluster.start(1)
    for topic in DAMAGES:
        end = damaged.client.offset(topic, -1)
        assert damaged.client.read_all(topic) == expected(end // RECORDS)
        assert damaged.client.offset(topic, damaged.started_ms + BATCHES // 2) == BATCHES // 2 * RECORDS
        assert damaged.client.offset(topic, damaged.started_ms + 10 * BATCHES) == -1


def test_kill_under_load() -> None:
    """An idempotent producer with acks=all meets two kills; every record is there once and in order."""
    total = 6000
    outcomes: list[int] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        outcomes.append(message.offset() or 0)

    with LocalCluster() as cluster:
        cluster.create_topic("load", config={"segment.bytes": 65536})
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        for number in range(total):
            producer.produce("load", b"%d" % number, on_delivery=on_delivery)
            producer.poll(0)
            if number in (total // 3, 2 * total // 3):
                already = min(len(outcomes), number)  # maybe all records are acknowledged before this one was looked at
                while len(outcomes) <= already:
                    producer.poll(0.1)
                cluster.kill(1)
                cluster.start(1)
        assert producer.flush(240) == 0
        assert outcomes == list(range(total))
        assert RawClient(cluster.port(1)).read_all("load") == [(n, b"%d" % n) for n in range(total)]


def test_committed_offsets_survive_kills() -> None:
    partitions = [TopicPartition("t", 0, 11), TopicPartition("t", 1, 22)]
    with LocalCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        for group in ("a", "b", "c"):
            _commit(cluster, group, partitions)
        cluster.kill(1)
        cluster.start(1)
        _commit(cluster, "b", [TopicPartition("t", 0, 12)])
        cluster.kill(1)
        offsets_topic = cluster.data_dir / "broker-1"
        for path in offsets_topic.glob("__consumer_offsets-*/*.log"):
            with path.open("ab") as file:
                file.write(b"\x00\x01garbage")
        cluster.start(1)
        assert _committed(cluster, "a") == [11, 22]
        assert _committed(cluster, "b") == [12, 22]
        assert _committed(cluster, "c") == [11, 22]


def _consumer(cluster: LocalCluster, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0})


def _commit(cluster: LocalCluster, group: str, offsets: list[TopicPartition]) -> None:
    client = _consumer(cluster, group)
    commit(client, offsets)
    client.close()


def _committed(cluster: LocalCluster, group: str) -> list[int]:
    client = _consumer(cluster, group)
    try:
        return [found.offset for found in client.committed([TopicPartition("t", 0), TopicPartition("t", 1)], 60)]
    finally:
        client.close()
