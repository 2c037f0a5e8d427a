"""A log that was damaged while the broker was down: rebuilt from the leader, or served as far as it can be read."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID

import pytest

from klamm.apis import offset_for_leader_epoch
from klamm.cli.replica_problems import replica_problems
from klamm.errors import ErrorCode
from klamm.log import Log, LogConfig
from klamm.model import TopicPartition
from klamm.protocol.messages.offset_for_leader_epoch import (
    DEBUGGING_CONSUMER,
    LATEST_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from klamm.zk.model.znodes import LostRecords
from tests.support.one_broker import OneBroker
from tests.unit.log.harness import append, batch

TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=77)


def stopped_with_records(tmp_path: Path) -> None:
    """A replica with 20 records in several segments, cleanly stopped."""
    one = OneBroker(tmp_path)
    one.topic_configs["t"] = LogConfig(segment_bytes=500)
    one.lead("t", topic_id=TOPIC_ID)
    log = one.broker.logs.logs[TP]
    for i in range(20):
        append(log, batch(b"%d" % i), epoch=0)
    one.broker.logs.shutdown({TP: 20})
    one.close()


def write_high_watermark(tmp_path: Path) -> None:
    (tmp_path / "logs" / "replication-offset-checkpoint").write_text("0\n1\nt 0 20\n")


def damaged(tmp_path: Path) -> tuple[OneBroker, Log]:
    stopped_with_records(tmp_path)
    path = sorted((tmp_path / "logs" / "t-0").glob("*.log"))[1]
    path.write_bytes(path.read_bytes()[:-30])
    one = OneBroker(tmp_path)
    return one, one.broker.logs.logs[TP]


def metrics_of(one: OneBroker) -> list[str]:
    return one.broker.metrics.exposition().splitlines()


def errors(response: object) -> list[int]:
    return [p.error_code for t in response.topics for p in t.partition_errors]  # type: ignore[attr-defined]


def test_a_follower_fetches_a_damaged_log_again(tmp_path: Path) -> None:
    one, log = damaged(tmp_path)
    (gap,) = log.damages
    response = one.leader_and_isr({"t": [0]}, topic_id=TOPIC_ID, leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
    assert errors(response) == [0]
    assert log.log_end_offset == gap.start_offset and not log.damages
    assert one.broker.replicas.partitions[TP].leader == 2
    one.close()


def test_a_damaged_log_does_not_lead_while_another_replica_is_in_sync(tmp_path: Path) -> None:
    one, log = damaged(tmp_path)
    asked: list[bool] = []
    one.broker.replicas.damaged_logs.ask_again = lambda: asked.append(True)
    one.update_metadata({"t": [0]}, topic_id=TOPIC_ID, isr=(1, 2), replicas=(1, 2), brokers=(1, 2), leader_epoch=1)
    response = one.leader_and_isr({"t": [0]}, topic_id=TOPIC_ID, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
    assert errors(response) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert TP not in one.broker.replicas.partitions and not asked
    state = {"topic_id": TOPIC_ID, "leader": 2, "leader_epoch": 2, "isr": (2,), "replicas": (1, 2)}
    one.update_metadata({"t": [0]}, brokers=(1, 2), **state)  # type: ignore[arg-type]
    assert asked == [True]
    assert errors(one.leader_and_isr({"t": [0]}, **state)) == [0]  # type: ignore[arg-type]
    assert not log.damages
    one.update_metadata({"t": [0]}, brokers=(1, 2), **state)  # type: ignore[arg-type]
    assert asked == [True]
    one.close()


def test_a_damaged_log_is_compared_with_others_up_to_its_gap(tmp_path: Path) -> None:
    one, log = damaged(tmp_path)
    (gap,) = log.damages
    one.leader_and_isr({"t": [0]}, topic_id=TOPIC_ID, leader=-1, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=LATEST_EPOCH, current_leader_epoch=1)
    topics = [OffsetForLeaderTopic(topic="t", partitions=[asked])]
    request = OffsetForLeaderEpochRequest(replica_id=DEBUGGING_CONSUMER, topics=topics)
    found = one.ask(offset_for_leader_epoch.API, request, 4).topics[0].partitions[0]
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, gap.start_offset)
    assert log.damages, "nothing is cut before another replica leads"
    one.close()


def test_the_only_replica_serves_readable_records_and_reports_the_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, log = damaged(tmp_path)
    (gap,) = log.damages
    with caplog.at_level(logging.ERROR):
        one.lead("t", topic_id=TOPIC_ID, leader_epoch=1, partition_epoch=1)
    assert f"offsets {gap.start_offset} to {gap.end_offset - 1} of {gap.path} are missing" in caplog.text
    lines = [line.rsplit(" ", 1) for line in metrics_of(one) if "replicaproblem{" in line]
    (problem,) = replica_problems({1: {name: float(value) for name, value in lines}})
    assert (problem.broker_id, problem.topic, problem.partition, problem.problem) == (1, "t", 0, "damaged log")
    assert append(log, batch(b"new"), epoch=1).base_offset == 20
    assert log.read(gap.start_offset, 100, max_offset=20) == ErrorCode.CORRUPT_MESSAGE
    one.close()


def test_a_leader_reports_the_records_that_a_damage_took(tmp_path: Path) -> None:
    one, log = damaged(tmp_path)
    (gap,) = log.damages
    reported: list[LostRecords] = []
    one.broker.replicas.damaged_logs.report = reported.append
    one.lead("t", topic_id=TOPIC_ID, leader_epoch=1, partition_epoch=1)
    assert reported == [LostRecords(TP, TOPIC_ID, gap.start_offset, gap.end_offset, 1)]
    one.close()


@pytest.mark.parametrize(
    ("leaders", "is_loss"), [((1, 1), True), ((2, 2), False), ((-1, 1), True), ((-1, 2, 1), False)]
)
def test_a_leader_reports_the_acknowledged_records_that_a_power_failure_took(
    tmp_path: Path, leaders: tuple[int, ...], is_loss: bool
) -> None:
    """A follower fetches them again, and a record above the high watermark was not acknowledged.

    After a power failure of all replicas, a partition has no leader until the controller has compared them.
    """
    stopped_with_records(tmp_path)
    (tmp_path / "logs" / ".kafka_cleanshutdown").unlink()
    write_high_watermark(tmp_path)
    last = sorted((tmp_path / "logs" / "t-0").glob("*.log"))[-1]
    last.write_bytes(b"")
    one = OneBroker(tmp_path)
    end = one.broker.logs.logs[TP].log_end_offset
    assert end < 20
    reported: list[LostRecords] = []
    one.broker.replicas.damaged_logs.report = reported.append
    for epoch, leader in enumerate(leaders, 1):
        one.leader_and_isr(
            {"t": [0]}, topic_id=TOPIC_ID, leader=leader, leader_epoch=epoch, replicas=(1, 2), is_new=False
        )
    assert reported == ([LostRecords(TP, TOPIC_ID, end, 20, 1)] if is_loss else [])
    one.close()


def test_a_topic_that_is_created_again_has_lost_nothing(tmp_path: Path) -> None:
    """After a failover of the controller, the first LeaderAndIsr of a new topic does not say that it is new."""
    stopped_with_records(tmp_path)
    write_high_watermark(tmp_path)
    one = OneBroker(tmp_path)
    reported: list[LostRecords] = []
    one.broker.replicas.damaged_logs.report = reported.append
    one.lead("t", topic_id=TOPIC_ID, leader_epoch=1, partition_epoch=1)
    one.stop_replica("t", 0)
    response = one.leader_and_isr({"t": [0]}, topic_id=UUID(int=78), is_new=False)
    assert errors(response) == [ErrorCode.NONE] and one.broker.logs.logs[TP].log_end_offset == 0
    assert reported == []
    one.close()


def test_a_wrong_topic_id_is_named_with_its_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped_with_records(tmp_path)
    one = OneBroker(tmp_path)
    for epoch in (1, 2):
        with caplog.at_level(logging.ERROR):
            response = one.leader_and_isr({"t": [0]}, topic_id=UUID(int=5), leader_epoch=epoch)
        assert errors(response) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    said = [r.getMessage() for r in caplog.records if "partition.metadata" in r.getMessage()]
    assert len(said) == 1 and str(tmp_path / "logs" / "t-0") in said[0] and "stop broker 1" in said[0]
    lines = [line.rsplit(" ", 1) for line in metrics_of(one) if "replicaproblem{" in line]
    (problem,) = replica_problems({1: {name: float(value) for name, value in lines}})
    assert problem.problem == "inconsistent topic id" and "move the partition's directory away" in problem.remedy
    one.close()
