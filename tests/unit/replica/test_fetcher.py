"""A follower and its leader: copying, truncation by leader epoch (KIP-101, KIP-279), and what goes wrong between."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.wire import Message
from klamm.replica.delete_records import delete_records
from klamm.replica.fetch_session_handler import FetchSessionHandler
from klamm.replica.fetch_state import PartitionFetchState
from klamm.replica.fetcher import BYTES_PER_SLICE
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.partition import Partition
from tests.support.followers import TOPIC_ID, TP, Brokers
from tests.support.one_broker import batch

MODERN = {"fetch_version": 17}
OLD = {"fetch_version": 11, "list_offsets_version": 5, "offset_for_leader_epoch_version": 3}
BOTH = pytest.mark.parametrize("cluster", [MODERN, OLD], ids=["3.9", "2.6"], indirect=True)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path, **getattr(request, "param", MODERN))
    yield brokers
    brokers.close()


@BOTH
def test_a_follower_copies_records_and_learns_the_high_watermark(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a", b"b")
    cluster.append(b"c")
    cluster.catch_up(2)
    assert cluster.contents(2) == cluster.contents(1) == [(0, 0, b"a"), (1, 0, b"b"), (2, 0, b"c")]
    assert cluster.log(1).high_watermark == 3
    cluster.round(2)
    assert cluster.log(2).high_watermark == 3
    stats = cluster.brokers[2].broker.replicas.topic_stats
    assert stats.replication_bytes_in.count == cluster.log(2).size_bytes


def test_few_bytes_are_appended_between_two_turns(cluster: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.elect(1)
    sizes = (400_000,) * 8  # one response has no more than `fetch.max.bytes`
    state: dict[str, Any] = {"leader": 1, "replicas": (1, 2), "isr": (1, 2), "topic_id": UUID(int=5)}
    leader, follower = cluster.brokers[1], cluster.brokers[2]
    leader.lead("large", len(sizes), **state)
    follower.lead("large", len(sizes), **state)
    partitions = [TopicPartition("large", index) for index in range(len(sizes))]
    for tp, size in zip(partitions, sizes, strict=True):
        leader.broker.replicas.partitions[tp].append_records_to_leader(batch(bytes(size)), 1, 0)
    logs = [follower.broker.replicas.partitions[tp] for tp in partitions]
    fetcher, loop = cluster.fetchers[2], follower.loop
    fetcher.add([PartitionFetchState(partition, truncates_on_fetch=True) for partition in logs])

    appended: list[int] = []
    append = Partition.append_records_to_follower

    def count(partition: Partition, records: Any, *args: Any) -> Any:
        appended[-1] += len(records)
        return append(partition, records, *args)

    monkeypatch.setattr(Partition, "append_records_to_follower", count)
    work = loop.create_task(fetcher.do_work())
    while not work.done():
        appended.append(0)
        loop.call_soon(loop.stop)
        loop.run_forever()
    work.result()
    assert sum(appended) > sum(sizes) > BYTES_PER_SLICE >= max(appended)


@contextmanager
def no_descriptors(directory: str) -> Iterator[None]:
    """No file of a directory can be opened."""
    opened = os.open

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if os.fspath(path).startswith(directory):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opened(path, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", refuse)
        yield


@pytest.mark.parametrize("segment_bytes", [100, 150], ids=["none of both", "one of both"])
def test_a_follower_without_file_descriptors_continues_when_there_are_some(
    cluster: Brokers, segment_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    cluster.log(2).config = LogConfig(segment_bytes=segment_bytes)  # one of the next batches needs a new file
    cluster.append(b"b")
    cluster.append(b"c")
    with no_descriptors(cluster.log(2).log_dir):
        while "the broker has too many open files" not in caplog.text:
            cluster.round(2)
    assert TP in cluster.fetchers[2].states, "it does not wait for another leader epoch"
    assert cluster.log(2).log_end_offset == (1 if segment_bytes == 100 else 2)
    cluster.catch_up(2)
    assert cluster.contents(2) == cluster.contents(1)


@pytest.mark.parametrize("is_added", [True, False])
def test_bytes_of_a_replica_that_is_added_are_those_of_a_reassignment(cluster: Brokers, is_added: bool) -> None:
    cluster.elect(1)
    for broker_id in (1, 2):
        cluster.partition(broker_id).adding_replicas = (2,) if is_added else (3,)
    cluster.append(b"a", b"b")
    cluster.catch_up(2)
    copied = cluster.log(2).size_bytes
    leader, follower = (cluster.brokers[broker_id].broker.replicas.topic_stats for broker_id in (1, 2))
    assert leader.replication_bytes_out.count == follower.replication_bytes_in.count == copied > 0
    wanted = copied if is_added else 0
    assert leader.reassignment_bytes_out.count == follower.reassignment_bytes_in.count == wanted


@BOTH
def test_records_above_the_high_watermark_survive_the_followers_restart(cluster: Brokers) -> None:
    """KIP-101, first scenario: a follower with an older high watermark keeps records that may be committed."""
    cluster.elect(1)
    cluster.append(b"a")
    cluster.append(b"b")
    cluster.round(2)
    if not cluster.log(2).log_end_offset:
        cluster.round(2)
    assert (cluster.log(2).log_end_offset, cluster.log(2).high_watermark) == (2, 0)
    cluster.elect(1)
    cluster.round(2)
    assert cluster.values(2) == [b"a", b"b"]
    cluster.elect(2, notify=[2])
    assert cluster.values(2) == [b"a", b"b"]


@BOTH
def test_records_of_the_old_leader_alone_are_truncated(cluster: Brokers) -> None:
    """KIP-101, second scenario: two records at one offset, and the later epoch wins."""
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    cluster.append(b"lost")
    cluster.elect(2, isr=(2,))
    cluster.append(b"b")
    cluster.catch_up(1)
    assert cluster.contents(1) == cluster.contents(2) == [(0, 0, b"a"), (1, 1, b"b")]


@BOTH
def test_a_truncation_without_file_descriptors_is_repeated_when_there_are_some(
    cluster: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    cluster.append(b"lost")
    cluster.log(1).segments.active.release()
    with no_descriptors(cluster.log(1).log_dir):
        cluster.elect(2, isr=(2,))
        cluster.append(b"b")
        while "too many open files while truncating" not in caplog.text:
            cluster.round(1)
        assert TP in cluster.fetchers[1].states, "it does not wait for another leader epoch"
    cluster.catch_up(1)
    assert cluster.contents(1) == cluster.contents(2) == [(0, 0, b"a"), (1, 1, b"b")]


@BOTH
def test_fast_elections_leave_epochs_that_the_leader_never_saw(cluster: Brokers) -> None:
    """KIP-279: the leader's answer names an epoch that the follower has not got, so it is asked again."""
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    cluster.elect(2, notify=[2], isr=(2,))
    cluster.append(b"b1", b"b2")
    cluster.elect(1, notify=[1], isr=(1,))
    cluster.append(b"c1")
    cluster.elect(2, notify=[2], isr=(2,))
    cluster.append(b"d1")
    cluster.elect(1, isr=(1,))
    cluster.append(b"e1")
    cluster.catch_up(2)
    assert cluster.contents(2) == cluster.contents(1)
    assert cluster.values(1) == [b"a", b"c1", b"e1"]
    assert cluster.log(2).leader_epochs.entries == cluster.log(1).leader_epochs.entries


@BOTH
def test_an_epoch_without_records_is_forgotten(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    cluster.elect(2, notify=[2])
    cluster.elect(1)
    cluster.append(b"b")
    cluster.catch_up(2)
    assert [entry.epoch for entry in cluster.log(2).leader_epochs.entries] == [0, 2]


class TestEpochsBeyondTheLeaders:
    """`leader-epoch-checkpoint` of a follower names an epoch that no leader has had."""

    def test_batches_show_the_epoch(self, cluster: Brokers) -> None:
        self.three_epochs(cluster)
        follower = cluster.log(2)
        right = list(follower.leader_epochs.entries)
        follower.leader_epochs.entries[-1] = right[-1]._replace(epoch=99)
        self.restart(cluster)
        cluster.append(b"d")
        cluster.catch_up(2)
        assert cluster.contents(2) == cluster.contents(1)
        assert follower.leader_epochs.entries[: len(right)] == right
        assert follower.truncation_count == 0, "no record was removed"

    def test_records_of_several_epochs_are_fetched_again(self, cluster: Brokers) -> None:
        self.three_epochs(cluster)
        follower = cluster.log(2)
        follower.leader_epochs.entries[:] = [follower.leader_epochs.entries[0]._replace(epoch=99)]
        self.restart(cluster)
        cluster.append(b"d")
        cluster.catch_up(2)
        assert cluster.contents(2) == cluster.contents(1)
        assert follower.leader_epochs.entries == cluster.log(1).leader_epochs.entries
        assert follower.truncation_count == 1

    def test_an_epoch_without_records(self, cluster: Brokers) -> None:
        self.three_epochs(cluster)
        follower = cluster.log(2)
        follower.leader_epochs.assign(99, follower.log_end_offset)
        self.restart(cluster)
        cluster.append(b"d")
        cluster.catch_up(2)
        assert cluster.contents(2) == cluster.contents(1) and follower.truncation_count == 0

    def three_epochs(self, cluster: Brokers) -> None:
        for value in (b"a", b"b", b"c"):
            cluster.elect(1)
            cluster.append(value)
            cluster.catch_up(2)

    def restart(self, cluster: Brokers) -> None:
        """The follower begins again in another epoch, with the epochs that it has now."""
        cluster.elect(1)


@BOTH
def test_a_leader_elected_out_of_sync_shortens_its_followers(cluster: Brokers) -> None:
    cluster.elect(1, isr=(1,))
    for value in (b"a", b"b", b"c"):
        cluster.append(value)
    cluster.elect(2, isr=(2,))
    cluster.catch_up(1)
    assert cluster.values(1) == [] and cluster.log(1).log_end_offset == 0


@BOTH
def test_a_follower_from_before_the_leaders_first_record_starts_over(cluster: Brokers) -> None:
    cluster.elect(1, isr=(1,))
    for value in (b"a", b"b", b"c", b"d"):
        cluster.append(value)
    assert cluster.partition(1).delete_records(3) == 3
    cluster.catch_up(2)
    assert cluster.contents(2) == [(3, 0, b"d")] and cluster.log(2).log_start_offset == 3


@BOTH
@pytest.mark.parametrize("own_start", [0, 2, 3], ids=["none deleted", "as many", "more"])
def test_deleting_records_of_an_idle_partition_ends_when_the_followers_have_done_it(
    cluster: Brokers, own_start: int
) -> None:
    """The follower reports its log start also where it has nothing else to report."""
    cluster.elect(1)
    cluster.brokers[1].update_metadata({}, brokers=(1, 2))
    for value in (b"a", b"b", b"c"):
        cluster.append(value)
    cluster.catch_up(2)
    cluster.round(2)
    cluster.round(2)
    assert cluster.log(2).high_watermark == 3
    cluster.log(2).increment_log_start_offset(own_start)  # its own retention, which no request has named
    waiting = delete_records(cluster.brokers[1].broker.replicas, {TP: 2}, 60_000)
    assert isinstance(waiting, asyncio.Future)
    for _ in range(3):
        cluster.round(2)
    assert waiting.done() and waiting.result() == {TP: (ErrorCode.NONE, 2)}


@BOTH
def test_a_log_start_within_a_batch_is_taken_over(cluster: Brokers) -> None:
    cluster.elect(1, isr=(1,))
    cluster.append(b"a", b"b", b"c")
    assert cluster.partition(1).delete_records(2) == 2
    cluster.catch_up(2)
    assert cluster.log(2).log_start_offset == 2 and cluster.log(2).log_end_offset == 3
    cluster.append(b"d")
    assert cluster.partition(1).delete_records(3) == 3
    cluster.catch_up(2)
    cluster.round(2)
    assert cluster.log(2).log_start_offset == 3


def test_a_fenced_follower_waits_for_the_controller(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.elect(1, notify=[1])
    cluster.round(2)
    fetcher = cluster.fetchers[2]
    assert fetcher.failed == {TP: ErrorCode.FENCED_LEADER_EPOCH} and not fetcher.states
    cluster.notify(2)
    cluster.catch_up(2)
    assert cluster.values(2) == [b"a"]


@pytest.mark.parametrize("cluster", [{"backoff_ms": 1000}], indirect=True)
def test_a_follower_that_is_ahead_of_its_leader_is_patient(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.elect(1, notify=[2])
    state = cluster.fetchers[2].states[TP]
    cluster.round(2)
    assert state.failures == 1
    while state.failures < 2:
        cluster.round(2)
    cluster.notify(1)
    while state.failures:
        cluster.round(2)
    assert cluster.values(2) == [b"a"]


def test_an_answer_for_an_epoch_that_is_over_changes_nothing(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    fetcher = cluster.fetchers[2]
    connection = cluster.connections[2]
    ask = connection.send

    def send(request: Message, version: int) -> asyncio.Future[Any]:
        answer = ask(request, version)
        cluster.brokers[2].leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
        return answer

    connection.send = send  # type: ignore[method-assign]
    cluster.brokers[2].loop.run_until_complete(fetcher.do_work())
    assert cluster.values(2) == [] and cluster.partition(2).is_leader


@pytest.mark.parametrize("cluster", [OLD], indirect=True)
def test_a_partition_given_back_while_its_epoch_is_asked_for_is_not_forgotten(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    cluster.elect(1)
    cluster.append(b"b")
    fetcher, connection = cluster.fetchers[2], cluster.connections[2]
    ask = connection.send

    def send(request: Message, version: int) -> asyncio.Future[Any]:
        connection.send = ask  # type: ignore[method-assign]
        fetcher.add([PartitionFetchState(cluster.partition(2), truncates_on_fetch=False)])
        return ask(request, version)

    connection.send = send  # type: ignore[method-assign]
    cluster.catch_up(2)
    assert cluster.values(2) == [b"a", b"b"]


def test_after_a_lost_connection_everything_is_asked_for_again(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    connection = cluster.connections[2]
    connection.is_cut = True
    with pytest.raises(ConnectionError):
        cluster.round(2)
    cluster.fetchers[2]._disconnect()
    connection.is_cut = False
    cluster.append(b"b")
    connection.sent.clear()
    cluster.round(2)
    first, _ = connection.sent[0]
    assert isinstance(first, FetchRequest) and first.session_epoch == 0 and len(first.topics) == 1
    assert cluster.values(2) == [b"a", b"b"]


def test_later_requests_of_a_session_name_only_what_changed(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    connection = cluster.connections[2]
    connection.sent.clear()
    for _ in range(3):
        cluster.round(2)
    requests = [request for request, _ in connection.sent if isinstance(request, FetchRequest)]
    assert [len(request.topics) for request in requests] == [0, 0, 0]
    assert len({request.session_id for request in requests}) == 1 and requests[0].session_epoch > 0
    state = requests[0].replica_state
    assert state is not None and (state.replica_id, state.replica_epoch) == (2, 7)
    cluster.append(b"b")
    cluster.round(2)
    cluster.round(2)
    last = connection.sent[-1][0]
    assert isinstance(last, FetchRequest) and last.topics[0].partitions[0].fetch_offset == 2


@pytest.mark.parametrize("cluster", [{"topic_id": ZERO_UUID}], indirect=True)
def test_topics_without_an_id_are_fetched_by_name(cluster: Brokers) -> None:
    cluster.elect(1)
    cluster.append(b"a")
    cluster.catch_up(2)
    assert {version for request, version in cluster.connections[2].sent} == {12}


@pytest.mark.parametrize("cluster", [{"topic_id": ZERO_UUID}], indirect=True)
def test_a_topic_that_gets_its_id_while_others_have_none_is_asked_for_and_not_forgotten(cluster: Brokers) -> None:
    """By name both are one partition of the session: asked for and forgotten in one request, it would be gone."""
    cluster.elect(1)
    session = FetchSessionHandler(FetcherConfig(broker_id=2, fetch_version=OLD["fetch_version"]))
    session.put(PartitionFetchState(cluster.partition(2), truncates_on_fetch=True))
    session.build(0)
    session.on_response(ErrorCode.NONE, 4711)
    with_id = PartitionFetchState(cluster.partition(2), truncates_on_fetch=True)
    with_id.topic_id = TOPIC_ID
    session.put(with_id)
    request, _ = session.build(0)
    assert [topic.topic for topic in request.topics] == [TP.topic] and not request.forgotten_topics_data
    session.on_response(ErrorCode.NONE, 4711)
    session.remove(TP)
    request, _ = session.build(0)
    assert not request.topics and [topic.topic for topic in request.forgotten_topics_data] == [TP.topic]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("elect"), st.integers(1, 3), st.sets(st.integers(1, 3))),
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("fetch"), st.integers(1, 3), st.integers(1, 3)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("config", [MODERN, OLD], ids=["3.9", "2.6"])
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, final_leader=st.integers(1, 3))
def test_after_any_history_every_follower_ends_with_its_leaders_log(
    config: dict[str, Any], steps: list[tuple[str, int, object]], final_leader: int
) -> None:
    """Leaders change at random, in sync or not, and not every broker learns of it: in the end all logs are the same."""
    with TemporaryDirectory() as directory:
        cluster = Brokers(Path(directory), ids=(1, 2, 3), **config)
        cluster.elect(1)
        for number, (kind, broker_id, detail) in enumerate(steps):
            if kind == "elect":
                assert isinstance(detail, set)
                cluster.elect(broker_id, isr=(broker_id,), notify=sorted({broker_id, *detail}))
            elif kind == "append" and broker_id == cluster.leader:
                assert isinstance(detail, int)
                cluster.append(*(f"{number}-{i}".encode() for i in range(detail)))
            elif kind == "fetch" and cluster.can_fetch(broker_id):
                cluster.round(broker_id)
        cluster.elect(final_leader, isr=(final_leader,))
        for follower in {1, 2, 3} - {final_leader}:
            cluster.catch_up(follower)
            assert cluster.contents(follower) == cluster.contents(final_leader)
        cluster.close()
