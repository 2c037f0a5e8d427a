"""The control APIs at all their versions: what the controller sends changes replicas and metadata, zombies do not."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID

import pytest

from klamm.apis import leader_and_isr, stop_replica, update_metadata
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log import append_as_leader
from klamm.metadata.update import MAX_PARTITIONS, SLICING_CLIENT
from klamm.model import NO_CONTROLLER, EndPoint, TopicPartition
from klamm.protocol.messages.stop_replica import StopReplicaPartitionV0, StopReplicaRequest, StopReplicaTopicV1
from klamm.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.replica.controller_guard import ControlState
from tests.support.control_requests import to_update
from tests.support.one_broker import OneBroker, batch

TP = TopicPartition("t", 0)
ID = UUID(int=5)


class TestLeaderAndIsr:
    @pytest.mark.parametrize("version", range(0, 8))
    def test_it_makes_leaders_in_every_version(self, one: OneBroker, version: int) -> None:
        response = one.leader_and_isr({"t": [0, 1]}, topic_id=ID, version=version)
        assert response.error_code == 0
        if version < 5:
            assert [(e.topic_name, e.partition_index, e.error_code) for e in response.partition_errors] == [
                ("t", 0, 0),
                ("t", 1, 0),
            ]
        else:
            assert [topic.topic_id for topic in response.topics] == [ID]
            assert [e.error_code for e in response.topics[0].partition_errors] == [0, 0]
        assert one.broker.replicas.partitions[TP].is_leader
        assert one.broker.replicas.counters.leader_count == 2

    def codes(self, one: OneBroker, **fields: object) -> list[int]:
        response = one.leader_and_isr({"t": [0]}, version=4, **fields)  # type: ignore[arg-type]
        return [error.error_code for error in response.partition_errors]

    def test_only_a_newer_leader_epoch_changes_anything(self, one: OneBroker) -> None:
        assert self.codes(one, leader_epoch=3) == [0]
        assert self.codes(one, leader_epoch=2) == [ErrorCode.STALE_CONTROLLER_EPOCH]
        assert self.codes(one, leader_epoch=3, leader=2) == [ErrorCode.STALE_CONTROLLER_EPOCH]
        assert one.broker.replicas.partitions[TP].is_leader
        assert self.codes(one, leader_epoch=4, leader=2, replicas=(1, 2)) == [0]
        assert not one.broker.replicas.partitions[TP].is_leader

    def test_a_partition_that_is_not_ours_is_refused_and_not_hosted(self, one: OneBroker) -> None:
        assert self.codes(one, replicas=(2, 3), leader=2) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert TP not in one.broker.replicas.partitions and one.broker.logs.get_log(TP) is None

    @pytest.mark.parametrize("name", ["../t", "a/b", "", ".", "x" * 250])
    def test_a_name_that_cannot_be_a_directory_never_reaches_the_disk(self, one: OneBroker, name: str) -> None:
        response = one.leader_and_isr({name: [0]}, version=4)
        assert [e.error_code for e in response.partition_errors] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert list((one.tmp_path / "logs").glob("*-0")) == []

    def test_an_earlier_life_of_the_broker(self, one: OneBroker) -> None:
        one.broker.registration.epoch = 100
        response = one.leader_and_isr({"t": [0]}, broker_epoch=99, version=4)
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert [e.error_code for e in response.partition_errors] == [ErrorCode.STALE_BROKER_EPOCH]
        assert one.leader_and_isr({"t": [0]}, broker_epoch=-1).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert one.leader_and_isr({"t": [0]}, broker_epoch=100).error_code == 0
        assert one.leader_and_isr({"t": [0]}, broker_epoch=-1, version=1).error_code == 0  # it carries no epoch

    def test_a_later_life_of_the_broker_is_confirmed_first(self, one: OneBroker) -> None:
        """The controller may know of a registration before the broker does."""
        one.broker.registration.epoch = 100
        one.control_state = ControlState(1, 1, 101)
        assert one.leader_and_isr({"t": [0]}, broker_epoch=101).error_code == 0
        assert one.leader_and_isr({"t": [0]}, broker_epoch=102).error_code == ErrorCode.STALE_BROKER_EPOCH

    def test_a_controller_that_was_succeeded(self, one: OneBroker) -> None:
        one.controller_epoch = 5
        one.lead("t", topic_id=ID)
        one.controller_epoch = 4
        response = one.leader_and_isr({"t": [0]}, topic_id=ID, leader_epoch=9)
        assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert response.topics[0].partition_errors[0].error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert one.update_metadata({"u": [0]}).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert one.stop_replica("t").error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert one.broker.replicas.partitions[TP].leader_epoch == 0 and not one.broker.metadata.contains("u")

    def test_topic_ids_must_agree_and_may_come_later(self, one: OneBroker) -> None:
        assert self.codes(one) == [0]
        first = one.leader_and_isr({"t": [0]}, topic_id=ID)
        assert first.topics[0].partition_errors[0].error_code == 0
        assert one.broker.replicas.partitions[TP].topic_id == ID
        log = one.broker.logs.get_log(TP)
        assert log is not None and log.topic_id == ID
        other = one.leader_and_isr({"t": [0]}, topic_id=UUID(int=6), leader_epoch=1)
        assert other.topics[0].partition_errors[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID

    def test_leadership_is_reported_to_listeners(self, one: OneBroker) -> None:
        reported: list[tuple[list[object], list[object]]] = []
        one.broker.replicas.leadership_listeners.append(lambda up, down: reported.append((list(up), list(down))))
        one.leader_and_isr({"t": [0]})
        one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2))
        one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2))
        one.stop_replica("t", leader_epoch=1)
        assert reported == [([(TP, 0)], []), ([], [(TP, 1)]), ([], [(TP, 1)])]

    def test_a_partition_that_fails_unexpectedly_leaves_the_others_complete(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create, replicas = one.broker.logs.get_or_create_log, one.broker.replicas
        copied: list[str] = []
        state = {"leader": 2, "replicas": (1, 2), "version": 4}

        def create_or_fail(tp: TopicPartition, *, is_new: bool) -> object:
            if tp == TP:
                raise RuntimeError("nobody thought of this")
            return create(tp, is_new=is_new)

        monkeypatch.setattr(replicas.fetchers, "add", lambda added: copied.extend(p.topic_partition[0] for p in added))
        with monkeypatch.context() as broken:
            broken.setattr(one.broker.logs, "get_or_create_log", create_or_fail)
            response = one.leader_and_isr({"a": [0], "t": [0], "u": [0]}, **state)  # type: ignore[arg-type]
        assert [e.error_code for e in response.partition_errors] == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]
        assert copied == ["a", "u"] and TP not in replicas.partitions

    @pytest.mark.parametrize("later", [False, True])
    def test_a_failure_of_the_whole_request_is_answered(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch, later: bool
    ) -> None:
        """The controller would repeat it for ever, and send nothing else meanwhile."""

        def fail(*_: object) -> object:
            if not later:
                raise RuntimeError("nobody thought of this")
            failed = one.loop.create_future()
            failed.set_exception(RuntimeError("nobody thought of this"))
            return failed

        monkeypatch.setattr(leader_and_isr, "become_leader_or_follower", fail)
        answer = one.leader_and_isr({"t": [0, 1]}, version=4)
        unknown = ErrorCode.UNKNOWN_SERVER_ERROR
        assert [answer.error_code, *(e.error_code for e in answer.partition_errors)] == [unknown] * 3

    def test_the_high_watermark_survives_a_restart(self, tmp_path: Path) -> None:
        one = OneBroker(tmp_path)
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        partition = one.broker.replicas.partitions[TP]
        assert partition.log is not None
        append_as_leader(partition.log, batch(b"a", b"b", b"c"), 0)
        partition.on_follower_fetch(2, 2, 0, elapsed_ms(one.clock), -1)
        one.close()
        again = OneBroker(tmp_path)
        again.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
        log = again.broker.replicas.partitions[TP].log
        assert log is not None and (log.high_watermark, log.log_end_offset) == (2, 3)
        again.close()


class TestForgedControllers:
    """ZooKeeper says that broker 1 is the controller with epoch 3."""

    @pytest.fixture(autouse=True)
    def elect(self, one: OneBroker) -> None:
        one.controller_epoch = 3
        one.lead("t", topic_id=ID)
        one.control_state = ControlState(1, 3, -1)

    def attempts(self, one: OneBroker) -> list[int]:
        foreign = one.update_metadata({"u": [0]}, brokers=(9,))
        return [
            foreign.error_code,
            one.leader_and_isr({"t": [0]}, topic_id=ID, leader=9, leader_epoch=9, replicas=(1, 9)).error_code,
            one.stop_replica("t", leader_epoch=-2).error_code,
        ]

    def test_a_higher_epoch_is_not_believed(self, one: OneBroker) -> None:
        one.controller_epoch = 99
        assert self.attempts(one) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3
        assert sorted(one.broker.metadata.snapshot.brokers) == [1]
        assert one.broker.replicas.partitions[TP].is_leader
        one.controller_epoch = 3
        assert one.leader_and_isr({"t": [0]}, topic_id=ID, leader_epoch=1).error_code == 0, "the real one is obeyed"

    def test_another_controller_with_the_same_epoch_is_not_obeyed(self, one: OneBroker) -> None:
        request = UpdateMetadataRequest(controller_id=2, controller_epoch=3, live_brokers=())
        assert one.ask(update_metadata.API, request, 8).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        assert one.broker.metadata.alive_brokers()

    def test_a_successor_is_believed_once_zookeeper_names_it(self, one: OneBroker) -> None:
        one.controller_epoch, one.control_state = 4, ControlState(1, 4, -1)
        assert one.leader_and_isr({"t": [0]}, topic_id=ID, leader_epoch=1).error_code == 0
        one.controller_epoch = 3
        assert self.attempts(one) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3

    def test_a_controller_that_has_lost_its_znode_is_not_believed(self, one: OneBroker) -> None:
        one.controller_epoch, one.control_state = 4, ControlState(NO_CONTROLLER, 4, -1)
        assert self.attempts(one) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3


class TestStopReplica:
    @pytest.mark.parametrize("delete", [False, True])
    @pytest.mark.parametrize("version", range(0, 5))
    def test_it_stops_in_every_version(self, one: OneBroker, version: int, delete: bool) -> None:
        one.lead("t")
        request = StopReplicaRequest(
            controller_id=1,
            controller_epoch=1,
            delete_partitions=delete,
            ungrouped_partitions=[StopReplicaPartitionV0(topic_name="t", partition_index=0)],
            topics=[StopReplicaTopicV1(name="t", partition_indexes=[0])],
        )
        if version < 3:
            response = one.ask(stop_replica.API, request, version)
        else:
            response = one.stop_replica("t", delete=delete, version=version)
        assert response.error_code == 0
        assert [(e.topic_name, e.error_code) for e in response.partition_errors] == [("t", 0)]
        assert (TP in one.broker.replicas.partitions) is not delete
        assert (one.broker.logs.get_log(TP) is None) is delete

    def test_an_overtaken_stop_is_fenced_and_the_sentinels_are_not(self, one: OneBroker) -> None:
        one.lead("t", leader_epoch=5)
        fenced = one.stop_replica("t", leader_epoch=4)
        assert fenced.partition_errors[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert TP in one.broker.replicas.partitions
        assert one.stop_replica("t", leader_epoch=-2).partition_errors[0].error_code == 0
        assert TP not in one.broker.replicas.partitions
        assert one.stop_replica("t", leader_epoch=7).partition_errors[0].error_code == 0

    def test_counts_meters_and_gauges_go_with_the_partition(self, one: OneBroker) -> None:
        one.lead("t", 2)
        one.broker.replicas.topic_stats.topic("t").bytes_in.mark(5)
        assert 'topic="t"' in one.broker.metrics.exposition()
        one.stop_replica("t", 0)
        assert one.broker.replicas.counters.leader_count == 1
        one.stop_replica("t", 1)
        assert one.broker.replicas.counters.leader_count == 0
        assert 'topic="t"' not in one.broker.metrics.exposition()

    def test_a_stale_broker_epoch(self, one: OneBroker) -> None:
        one.broker.registration.epoch = 100
        request = StopReplicaRequest(controller_id=1, controller_epoch=1, broker_epoch=99)
        response = one.ask(stop_replica.API, request, 3)
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH and list(response.partition_errors) == []


class TestUpdateMetadata:
    @pytest.mark.parametrize("version", range(0, 9))
    def test_it_reaches_the_cache_in_every_version(self, one: OneBroker, version: int) -> None:
        response = one.update_metadata({"t": [0, 1]}, topic_id=ID, brokers=(1, 2), version=version)
        assert response.error_code == 0
        snapshot = one.broker.metadata.snapshot
        assert sorted(snapshot.brokers) == [1, 2] and snapshot.controller_id == 1
        assert snapshot.endpoint(2, "PLAINTEXT") == EndPoint("PLAINTEXT", "host-2", 9092)
        assert one.broker.metadata.partition_count("t") == 2
        assert (snapshot.topic_name(ID) == "t") is (version >= 7)

    def test_the_log_counts_added_and_deleted_partitions(
        self, one: OneBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "klamm.state_change")
        one.update_metadata({"t": [0, 1]})
        one.update_metadata({})
        one.update_metadata({"t": [1]}, leader=-2)
        sender = "(UpdateMetadata of controller 1, epoch 1, correlation id 1)"
        assert caplog.messages == [
            f"metadata cache: 2 partitions added or changed, 0 deleted {sender}",
            f"metadata cache: 0 partitions added or changed, 1 deleted {sender}",
        ]

    def test_deleted_partitions_are_reported_to_the_groups(self, one: OneBroker) -> None:
        one.update_metadata({"t": [0, 1]})
        one.update_metadata({"t": [1]}, leader=-2)
        assert one.groups.deleted == [TopicPartition("t", 1)]
        assert one.broker.metadata.partition_count("t") == 1

    def test_a_stale_broker_epoch(self, one: OneBroker) -> None:
        one.broker.registration.epoch = 100
        request = UpdateMetadataRequest(controller_id=1, controller_epoch=1, broker_epoch=99, live_brokers=())
        assert one.ask(update_metadata.API, request, 8).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert one.broker.metadata.alive_brokers()

    @pytest.mark.parametrize(("client_id", "is_last"), [("1", True), (None, True), (f"{SLICING_CLIENT}1", False)])
    def test_a_full_slice_is_followed_by_another_where_the_controller_is_one_of_klamm(
        self, client_id: str | None, is_last: bool
    ) -> None:
        state = UpdateMetadataPartitionState(
            topic_name="t",
            partition_index=0,
            controller_epoch=1,
            leader=1,
            leader_epoch=0,
            isr=(1,),
            zk_version=0,
            replicas=(1,),
        )
        topic = UpdateMetadataTopicState(topic_name="t", topic_id=ID, partition_states=[state] * MAX_PARTITIONS)
        request = UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[topic], live_brokers=())
        assert to_update(8, request, client_id).is_last_slice is is_last


def test_a_failed_directory_takes_its_partitions_offline(one: OneBroker) -> None:
    one.lead("t")
    log_dir = str(one.tmp_path / "logs")
    one.broker.logs.failed(log_dir, OSError(28, "No space left on device"), "a test")
    one.spin()
    assert one.broker.replicas.partition_or_error(TP) == ErrorCode.KAFKA_STORAGE_ERROR
    response = one.leader_and_isr({"t": [0]}, leader_epoch=5, version=4)
    assert response.partition_errors[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert one.stop_replica("t").partition_errors[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert one.broker.replicas.counters.leader_count == 0
    new = one.leader_and_isr({"u": [0]}, version=4)
    assert new.partition_errors[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
