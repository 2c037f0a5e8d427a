"""KIP-392: consumers are sent to a follower in their rack, and followers answer them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.apis import fetch, produce
from klamm.config import KafkaConfig
from klamm.errors import ConfigError, ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.record_batch import Record, build_batch
from klamm.replica.partition import Partition
from klamm.replica.replica_selector import SELECTORS, ClientMetadata, ReplicaView, select_in_rack
from tests.support.one_broker import START_MS, OneBroker, batch
from tests.unit.apis.test_fetch import ID, only, request, values
from tests.unit.apis.test_produce import request as produce_request

TP = TopicPartition("t", 0)
IDS = (1, 2, 3, 4)
RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}


def from_rack(rack: str, offset: int = 0, **fields: Any) -> FetchRequest:
    return request({0: offset}, rack_id=rack, **fields)


def write(one: OneBroker, *records: bytes) -> None:
    one.ask(produce.API, produce_request(batch(*records), acks=1), 9)


def follow(one: OneBroker, replica_id: int, offset: int, **fields: Any) -> Any:
    """A follower's fetch. It waits where the leader lets it wait."""
    return one.dispatch(fetch.API, request({0: offset}, replica_id=replica_id, log_start_offset=0, **fields), 12)


def partition(one: OneBroker) -> Partition:
    return one.broker.replicas.partitions[TP]


@pytest.fixture
def leader(one: OneBroker) -> OneBroker:
    """Broker 1 in rack a leads; 2 and 3 in rack b are in sync, 4 in rack c is not; all have both records."""
    one.leader_and_isr({"t": [0]}, topic_id=ID, replicas=IDS, isr=(1, 2, 3))
    one.update_metadata({"t": [0]}, topic_id=ID, replicas=IDS, isr=(1, 2, 3), brokers=IDS, racks=RACKS)
    one.broker.replicas.replica_selector = select_in_rack
    write(one, b"a", b"b")
    for replica_id in (2, 3, 4):
        follow(one, replica_id, 2)
    return one


class TestWhomTheLeaderNames:
    @pytest.mark.parametrize(("rack", "preferred"), [("", -1), ("a", -1), ("b", 3), ("c", -1), ("nowhere", -1)])
    def test_a_follower_in_sync_in_the_clients_rack(self, leader: OneBroker, rack: str, preferred: int) -> None:
        data = only(leader.ask(fetch.API, from_rack(rack), 11))
        assert (data.error_code, data.preferred_read_replica, data.high_watermark) == (0, preferred, 2)
        assert values(data) == ([] if preferred >= 0 else [b"a", b"b"])

    def test_only_one_that_has_the_offset(self, leader: OneBroker) -> None:
        write(leader, b"c")
        follow(leader, 2, 3)
        assert only(leader.ask(fetch.API, from_rack("b", 3), 11)).preferred_read_replica == 2
        partition(leader).remotes[2].log_start_offset = partition(leader).remotes[3].log_start_offset = 1
        assert only(leader.ask(fetch.API, from_rack("b", 0), 11)).preferred_read_replica == -1

    def test_only_one_that_the_client_can_reach(self, leader: OneBroker) -> None:
        leader.update_metadata({}, brokers=(1, 4), racks=RACKS)
        assert only(leader.ask(fetch.API, from_rack("b"), 11)).preferred_read_replica == -1
        leader.update_metadata({}, brokers=IDS, racks=RACKS, listeners=("INTERNAL",))
        assert only(leader.ask(fetch.API, from_rack("b"), 11)).preferred_read_replica == -1

    def test_the_preferred_replica_is_reported_at_once_and_again_within_a_session(self, leader: OneBroker) -> None:
        first = leader.dispatch(fetch.API, from_rack("b", 2, max_wait_ms=30_000, session_epoch=0), 12)
        assert not isinstance(first, asyncio.Future) and only(first).preferred_read_replica == 3
        again = request({}, rack_id="b", session_id=first.session_id, session_epoch=1)
        assert only(leader.ask(fetch.API, again, 12)).preferred_read_replica == 3

    def test_an_old_leader_epoch_comes_first(self, leader: OneBroker) -> None:
        data = only(leader.ask(fetch.API, from_rack("b", current_leader_epoch=7), 11))
        assert (data.error_code, data.preferred_read_replica) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)

    def test_no_preferred_replica_without_a_selector_in_old_versions_or_for_followers(self, leader: OneBroker) -> None:
        assert values(only(leader.ask(fetch.API, from_rack("b"), 10))) == [b"a", b"b"]
        assert only(leader.ask(fetch.API, from_rack("b", replica_id=2), 12)).preferred_read_replica == -1
        leader.broker.replicas.replica_selector = None
        assert values(only(leader.ask(fetch.API, from_rack("b"), 11))) == [b"a", b"b"]

    def test_most_caught_up_first(self) -> None:
        client, leader = ClientMetadata("b", "PLAINTEXT"), ReplicaView(1, "a", 9)
        views = [ReplicaView(2, "b", 7, 0), ReplicaView(3, "b", 8, 50), ReplicaView(4, "b", 8, 5)]
        assert select_in_rack(client, leader, views).broker_id == 4
        assert select_in_rack(client, leader, []) is leader


class TestFollowers:
    @pytest.fixture
    def follower(self, one: OneBroker) -> OneBroker:
        """Broker 1 follows broker 2 and has three records, two of which it knows to be committed."""
        one.leader_and_isr({"t": [0]}, topic_id=ID, leader=2, leader_epoch=3, replicas=(1, 2), isr=(1, 2))
        one.update_metadata({"t": [0]}, topic_id=ID, leader=2, leader_epoch=3, replicas=(1, 2), brokers=(1, 2))
        for high_watermark, value in enumerate((b"a", b"b", b"c")):
            self.copy(one, value, high_watermark)
        return one

    def copy(self, one: OneBroker, value: bytes, high_watermark: int) -> None:
        log = partition(one).log
        assert log is not None
        end = log.log_end_offset
        records = build_batch([Record(end, START_MS, None, value)], base_offset=end, partition_leader_epoch=3)
        assert partition(one).append_records_to_follower(records, high_watermark, 0).error == 0

    def test_consumers_see_what_the_follower_knows_to_be_committed(self, follower: OneBroker) -> None:
        data = only(follower.ask(fetch.API, from_rack("b"), 11))
        assert (data.error_code, data.high_watermark, values(data)) == (0, 2, [b"a", b"b"])

    @pytest.mark.parametrize("offset", [2, 3])
    def test_a_follower_waits_for_records_that_are_not_committed_to_its_knowledge(
        self, follower: OneBroker, offset: int
    ) -> None:
        waiting = follower.dispatch(fetch.API, from_rack("b", offset, max_wait_ms=30_000), 11)
        assert isinstance(waiting, asyncio.Future)
        self.copy(follower, b"d", 4)
        follower.broker.replicas.complete_woken_fetches()
        assert values(only(follower.run(waiting))) == [b"c", b"d"][offset - 2 :]

    def test_beyond_the_end_of_its_log_the_client_has_to_ask_the_leader(self, follower: OneBroker) -> None:
        assert only(follower.ask(fetch.API, from_rack("b", 4), 11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_a_client_without_preferred_replicas_is_sent_to_the_leader(self, follower: OneBroker) -> None:
        for asked in (request(), request(replica_id=2)):
            assert only(follower.ask(fetch.API, asked, 10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert only(follower.ask(fetch.API, request(replica_id=2), 12)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.parametrize(
        ("epoch", "error"),
        [(2, ErrorCode.FENCED_LEADER_EPOCH), (3, ErrorCode.NONE), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)],
    )
    def test_epochs_are_compared_with_those_of_the_follower(
        self, follower: OneBroker, epoch: int, error: ErrorCode
    ) -> None:
        asked = from_rack("b", current_leader_epoch=epoch)
        assert only(follower.ask(fetch.API, asked, 11)).error_code == error

    def test_a_broker_without_a_replica_refuses_the_fetch(self, one: OneBroker) -> None:
        one.update_metadata({"t": [0]}, topic_id=ID, leader=2, replicas=(2, 3), brokers=(1, 2, 3))
        assert only(one.ask(fetch.API, from_rack("b"), 12)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert only(one.ask(fetch.API, request(topic="u"), 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TestHighWatermark:
    """Followers that consumers read from receive a new high watermark at once, not with the next records."""

    def settle(self, leader: OneBroker, replica_id: int, offset: int) -> Any:
        """Fetches until the follower knows all there is; the fetch that then waits."""
        for _ in range(2):
            waiting = follow(leader, replica_id, offset, max_wait_ms=30_000)
            if isinstance(waiting, asyncio.Future):
                return waiting
        raise AssertionError("the leader always has something to report")

    def test_a_follower_that_waits_is_answered(self, leader: OneBroker) -> None:
        write(leader, b"c")
        follow(leader, 4, 3)
        waiting = self.settle(leader, 2, 3)
        leader.spin()
        assert not waiting.done()
        reported = only(follow(leader, 3, 3, max_wait_ms=30_000))
        assert reported.high_watermark == 3, "its own fetch moved the high watermark"
        assert only(leader.run(waiting)).high_watermark == 3

    def test_a_follower_that_starts_again_receives_the_high_watermark_again(self, leader: OneBroker) -> None:
        self.settle(leader, 2, 2)
        assert values(only(follow(leader, 2, 0, max_wait_ms=30_000))) == [b"a", b"b"]
        self.settle(leader, 2, 2)
        partition(leader).remotes[2].broker_epoch = 5  # its next fetch is of another life
        assert only(follow(leader, 2, 2, max_wait_ms=30_000)).high_watermark == 2

    def test_without_a_selector_it_waits_for_records(self, leader: OneBroker) -> None:
        leader.broker.replicas.replica_selector = None
        write(leader, b"c")
        waiting = follow(leader, 2, 3, max_wait_ms=30_000)
        for replica_id in (3, 4):
            follow(leader, replica_id, 3)
        leader.spin()
        assert not waiting.done()
        write(leader, b"d")
        assert values(only(leader.run(waiting))) == [b"d"]


def test_selectors_that_klamm_does_not_have_are_refused_with_a_sentence() -> None:
    for name in SELECTORS:
        assert KafkaConfig({"replica.selector.class": name}).replica_selector_class == name
    with pytest.raises(ConfigError, match=r"replica\.selector\.class cannot be 'com\.example\.Mine': expected one of"):
        KafkaConfig({"replica.selector.class": "com.example.Mine"})
