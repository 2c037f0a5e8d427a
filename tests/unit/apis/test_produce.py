from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from klamm.apis import produce
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.log_config import LogConfig
from klamm.metrics import Histogram
from klamm.model import TopicPartition
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from klamm.protocol.record_batch import batches, records
from klamm.replica.partition import Partition
from tests.support.one_broker import OneBroker, batch
from tests.unit.protocol.test_message_set import ROWS, message_set


def request(
    records: bytes | None,
    *,
    topic: str = "t",
    index: int = 0,
    acks: int = -1,
    timeout_ms: int = 1000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=records)])],
    )


def only(response: ProduceResponse) -> PartitionProduceResponse:
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
def test_records_get_offsets(one: OneBroker, version: int, acks: int) -> None:
    one.lead("t")
    for expected in (0, 2):
        answer = only(one.ask(produce.API, request(batch(b"a", b"b"), acks=acks), version))
        assert (answer.error_code, answer.base_offset) == (0, expected)
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode)
    assert log.log_end_offset == log.high_watermark == 4


def test_acks_0_gets_no_response_and_an_error_closes_the_connection(one: OneBroker) -> None:
    one.lead("t")
    assert one.dispatch(produce.API, request(batch(b"a"), acks=0), 9) is None
    assert not one.last_context.closes_connection
    assert one.dispatch(produce.API, request(batch(b"a"), acks=0, topic="missing"), 9) is None
    assert one.last_context.closes_connection


@pytest.mark.parametrize("acks", [2, -2, 7])
def test_other_acks_are_refused(one: OneBroker, acks: int) -> None:
    one.lead("t")
    answer = only(one.ask(produce.API, request(batch(b"a"), acks=acks), 9))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)


def test_each_partition_has_its_own_error(one: OneBroker) -> None:
    one.lead("t", 2)
    asked = request(batch(b"a"))
    asked.topic_data = [
        TopicProduceData(
            name="t",
            partition_data=[
                PartitionProduceData(index=0, records=batch(b"a")),
                PartitionProduceData(index=1, records=None),
                PartitionProduceData(index=2, records=batch(b"a")),
            ],
        ),
        TopicProduceData(name="u", partition_data=[PartitionProduceData(index=0, records=batch(b"a"))]),
    ]
    response = one.ask(produce.API, asked, 9)
    codes = [[p.error_code for p in topic.partition_responses] for topic in response.responses]
    assert codes[0][0] == 0 and codes[0][1] != 0
    assert codes[0][2] == codes[1][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broken_checksum_is_corrupt_and_stores_nothing(one: OneBroker) -> None:
    one.lead("t")
    broken = bytearray(batch(b"value"))
    broken[-1] ^= 1
    assert only(one.ask(produce.API, request(bytes(broken)), 9)).error_code == ErrorCode.CORRUPT_MESSAGE
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode) and log.log_end_offset == 0
    assert one.broker.replicas.topic_stats.all_topics.produce_message_conversions.count == 0
    assert conversion_histograms(one, "Produce") == [0, 0]


def test_too_large_is_reported_and_metered(one: OneBroker) -> None:
    one.topic_configs["t"] = LogConfig(max_message_bytes=100)
    one.lead("t")
    answer = only(one.ask(produce.API, request(batch(b"x" * 200)), 9))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert one.broker.replicas.topic_stats.all_topics.bytes_rejected.count > 200


def test_keyless_records_on_a_compacted_topic_name_themselves(one: OneBroker) -> None:
    one.topic_configs["t"] = LogConfig(cleanup_policy=frozenset({"compact"}))
    one.lead("t")
    answer = only(one.ask(produce.API, request(batch(b"a", b"b", key=None)), 9))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert answer.error_message


def test_old_message_formats_are_refused_by_record_format(one: OneBroker) -> None:
    one.lead("t")
    old = (0).to_bytes(8, "big") + (14).to_bytes(4, "big") + b"\0" * 4 + b"\x01" + b"\0" * 9
    for version in (0, 1, 2):
        answer = only(one.ask(produce.API, request(old, acks=1), version))
        assert answer.error_code != 0


def test_internal_topics_are_for_the_broker_and_the_admin_client(one: OneBroker) -> None:
    one.lead("__consumer_offsets")
    asked = request(batch(b"a"), topic="__consumer_offsets")
    assert only(one.ask(produce.API, asked, 9)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert only(one.ask(produce.API, asked, 9, client_id="__admin_client")).error_code == 0


def transactional(value: bytes, sequence: int = 0, compression: int = 0) -> bytes:
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
    return batch(value, key=b"k", **producer, compression=compression, is_transactional=True)


def answer_for_coordinator(one: OneBroker, error: ErrorCode) -> list[bool]:
    """The coordinator answers every question with `error`; returns whether each question was only to verify."""
    asked: list[bool] = []

    def add_partitions(
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> asyncio.Future[dict[TopicPartition, ErrorCode]]:
        asked.append(verify_only)
        answer: asyncio.Future[dict[TopicPartition, ErrorCode]] = one.loop.create_future()
        answer.set_result(dict.fromkeys(partitions, error))
        return answer

    one.broker.replicas.transactional_producers.add_partitions = add_partitions
    return asked


@pytest.mark.parametrize("version", range(3, 13))
def test_transactional_records_are_verified_or_added(one: OneBroker, version: int) -> None:
    one.lead("t")
    asked = answer_for_coordinator(one, ErrorCode.NONE)
    for sequence in (0, 1):
        answer = only(one.ask(produce.API, request(transactional(b"a", sequence), transactional_id="tx"), version))
        assert (answer.error_code, answer.base_offset) == (0, sequence)
    assert asked == [version < 12], "once, before the first batch"
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode) and (log.high_watermark, log.last_stable_offset) == (2, 0)


@pytest.mark.parametrize("version", [3, 10, 11, 12])
def test_transaction_abortable_is_for_clients_that_know_it(one: OneBroker, version: int) -> None:
    one.lead("t")
    answer_for_coordinator(one, ErrorCode.TRANSACTION_ABORTABLE)
    answer = only(one.ask(produce.API, request(transactional(b"a"), transactional_id="tx"), version))
    known = version >= 11
    assert answer.error_code == (ErrorCode.TRANSACTION_ABORTABLE if known else ErrorCode.INVALID_TXN_STATE)


def test_a_coordinator_that_cannot_be_asked_is_retriable(one: OneBroker) -> None:
    one.lead("t")
    answer_for_coordinator(one, ErrorCode.NOT_COORDINATOR)
    answer = only(one.ask(produce.API, request(transactional(b"a"), transactional_id="tx"), 9))
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS and "NOT_COORDINATOR" in (answer.error_message or "")


def test_a_transactional_id_alone_makes_no_transaction(one: OneBroker) -> None:
    one.lead("t")
    asked = answer_for_coordinator(one, ErrorCode.INVALID_TXN_STATE)
    assert only(one.ask(produce.API, request(batch(b"a"), transactional_id="tx"), 9)).error_code == 0
    assert asked == []


def test_a_late_transactional_request_closes_its_connection_without_an_answer(one: OneBroker) -> None:
    one.lead("t")
    answer_for_coordinator(one, ErrorCode.NONE)
    for sequence, order in enumerate((3, 8)):
        asked = request(transactional(b"a", sequence), transactional_id="tx")
        assert only(one.ask(produce.API, asked, 9, order=order)).error_code == 0
    late = request(transactional(b"late", 2), transactional_id="tx")
    assert one.ask_for_anything(produce.API, late, 9, order=3) is None
    assert one.last_context.closes_connection


class ClosableContext(RequestContext):
    """A request whose client closes its connection when the test says so."""

    is_closed = False

    def has_ended(self) -> bool:
        return self.is_closed


@pytest.mark.parametrize(("version", "is_appended"), [(9, False), (11, False), (12, True)])
def test_a_client_that_closed_its_connection_has_given_up_its_batch(
    one: OneBroker, version: int, is_appended: bool
) -> None:
    """Late batches of clients whose epoch does not change arrive together with the end of their connection."""
    one.lead("t")
    waiting: asyncio.Future[dict[TopicPartition, ErrorCode]] = one.loop.create_future()
    one.broker.replicas.transactional_producers.add_partitions = lambda *_, verify_only: waiting
    context = ClosableContext(0, version, channel=ChannelContext(order=1), now_ms=one.clock.now_ms())
    answer = produce.API.handle(one.broker, context, request(transactional(b"a"), transactional_id="tx"))
    assert isinstance(answer, asyncio.Future)
    context.is_closed = True
    waiting.set_result({TopicPartition("t", 0): ErrorCode.NONE})
    assert (one.run(answer) is None) != is_appended
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode) and log.log_end_offset == is_appended


def test_zstd_in_an_old_transactional_request(one: OneBroker) -> None:
    one.lead("t", 2)
    answer_for_coordinator(one, ErrorCode.NONE)
    asked = request(b"", transactional_id="tx")
    asked.topic_data[0].partition_data = [
        PartitionProduceData(index=0, records=transactional(b"a", compression=CompressionType.ZSTD)),
        PartitionProduceData(index=1, records=transactional(b"b")),
    ]
    response = one.ask(produce.API, asked, 6)
    codes = [answer.error_code for answer in response.responses[0].partition_responses]
    assert codes == [ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0]


def test_transactional_records_need_a_transactional_id(one: OneBroker) -> None:
    """Appended they would hold back the last stable offset for ever: no marker ever ends them."""
    one.lead("t", 2)
    open_transaction = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    asked = request(open_transaction)
    asked.topic_data[0].partition_data = [
        PartitionProduceData(index=0, records=open_transaction),
        PartitionProduceData(index=1, records=batch(b"plain")),
    ]
    for version in (3, 9, 11, 12):
        response = one.ask(produce.API, asked, version)
        codes = [answer.error_code for answer in response.responses[0].partition_responses]
        assert codes == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    for index in (0, 1):
        log = one.broker.replicas.leader_log(TopicPartition("t", index))
        assert not isinstance(log, ErrorCode) and log.log_end_offset == 0
    asked.acks = 0
    assert one.dispatch(produce.API, asked, 9) is None and one.last_context.closes_connection


def test_zstd_needs_a_version_that_knows_it(one: OneBroker) -> None:
    one.lead("t", 2)
    one.lead("u")
    asked = request(b"")
    asked.topic_data = [
        TopicProduceData(
            name="t",
            partition_data=[
                PartitionProduceData(index=0, records=batch(b"a")),
                PartitionProduceData(index=1, records=batch(b"b", compression=CompressionType.ZSTD)),
            ],
        ),
        TopicProduceData(name="u", partition_data=[PartitionProduceData(index=0, records=batch(b"c"))]),
    ]
    refused = int(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    for version, expected in ((3, refused), (6, refused), (7, 0)):
        response = one.ask(produce.API, asked, version)
        codes = {topic.name: [p.error_code for p in topic.partition_responses] for topic in response.responses}
        assert codes == {"t": [0, expected], "u": [0]}


def test_a_failed_disk_is_reported_to_old_clients_as_a_lost_leader(one: OneBroker) -> None:
    one.lead("t")
    partition = one.broker.replicas.partitions[TopicPartition("t", 0)]
    assert partition.log is not None
    one.fail_log_dir(str(one.tmp_path / "logs"))
    for version, code in ((3, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.KAFKA_STORAGE_ERROR)):
        assert only(one.ask(produce.API, request(batch(b"a"), acks=1), version)).error_code == code


def test_a_broker_that_does_not_lead_names_the_leader(one: OneBroker) -> None:
    one.leader_and_isr({"t": [0]}, leader=2, replicas=(1, 2), isr=(1, 2), topic_id=UUID(int=5))
    one.update_metadata({"t": [0]}, leader=2, leader_epoch=3, replicas=(1, 2), brokers=(1, 2), topic_id=UUID(int=5))
    response = one.ask(produce.API, request(batch(b"a")), 10)
    answer = only(response)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader is not None
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 3)
    assert [(node.node_id, node.host) for node in response.node_endpoints] == [(2, "host-2")]
    assert only(one.ask(produce.API, request(batch(b"a")), 9)).current_leader is None


def test_a_duplicate_is_answered_with_the_original_offset(one: OneBroker) -> None:
    one.lead("t")
    first = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    second = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    gap = batch(b"c", producer_id=7, producer_epoch=0, base_sequence=9)
    answers = [only(one.ask(produce.API, request(records), 9)) for records in (first, second, first, gap)]
    assert [answer.base_offset for answer in answers[:3]] == [0, 1, 0]
    assert answers[3].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class TestReplicated:
    """Two replicas: this broker leads, broker 2 fetches when the test says so."""

    def follow(self, one: OneBroker, offset: int) -> None:
        partition = one.broker.replicas.partitions[TopicPartition("t", 0)]
        if partition.on_follower_fetch(2, offset, 0, elapsed_ms(one.clock), -1):
            one.broker.replicas.complete_after_high_watermark(partition.topic_partition)

    def test_acks_all_waits_for_the_in_sync_replicas(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        waiting = one.dispatch(produce.API, request(batch(b"a", b"b")), 9)
        assert isinstance(waiting, asyncio.Future) and not waiting.done()
        assert one.broker.replicas.produce_purgatory.size == 1
        self.follow(one, 1)
        one.spin()
        assert not waiting.done()
        self.follow(one, 2)
        assert only(one.run(waiting)).error_code == 0
        assert one.broker.replicas.produce_purgatory.size == 0

    def test_producers_that_wait_are_not_checked_by_every_append(self, one: OneBroker) -> None:
        """Behind a follower that does not fetch, appends would become slower and slower."""
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        checks = 0
        original = Partition.check_enough_replicas

        def counted(partition: Partition, required_offset: int) -> ErrorCode | None:
            nonlocal checks
            checks += 1
            return original(partition, required_offset)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Partition, "check_enough_replicas", counted)
            waiting = [one.dispatch(produce.API, request(batch(b"a")), 9) for _ in range(50)]
        assert checks <= 2 * len(waiting)
        self.follow(one, 50)
        assert {only(one.run(each)).error_code for each in waiting} == {0}

    def test_acks_1_does_not_wait(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        assert only(one.ask(produce.API, request(batch(b"a"), acks=1), 9)).error_code == 0
        log = one.broker.replicas.leader_log(TopicPartition("t", 0))
        assert not isinstance(log, ErrorCode) and (log.log_end_offset, log.high_watermark) == (1, 0)

    def test_the_time_runs_out(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        answer = only(one.ask(produce.API, request(batch(b"a"), timeout_ms=1), 9))
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT

    def test_leadership_that_is_lost_ends_the_wait(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        waiting = one.dispatch(produce.API, request(batch(b"a")), 9)
        one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
        assert only(one.run(waiting)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_too_few_in_sync_replicas(self, one: OneBroker) -> None:
        one.topic_configs["t"] = LogConfig(min_insync_replicas=2)
        one.lead("t", replicas=(1, 2), isr=(1,))
        assert only(one.ask(produce.API, request(batch(b"a")), 9)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert only(one.ask(produce.API, request(batch(b"a"), acks=1), 9)).error_code == 0

    def test_in_sync_replicas_lost_after_the_append(self, one: OneBroker) -> None:
        one.topic_configs["t"] = LogConfig(min_insync_replicas=2)
        one.lead("t", replicas=(1, 2, 3), isr=(1, 2, 3))
        waiting = one.dispatch(produce.API, request(batch(b"a")), 9)
        partition = one.broker.replicas.partitions[TopicPartition("t", 0)]
        for replica in (2, 3):
            partition.on_follower_fetch(replica, 1, 0, elapsed_ms(one.clock), -1)
        partition.commit_isr((1,), 0, 1, elapsed_ms(one.clock))
        one.broker.replicas.complete_after_high_watermark(TopicPartition("t", 0))
        assert only(one.run(waiting)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def test_min_insync_replicas_above_the_replicas_counts_as_all(self, one: OneBroker) -> None:
        one.topic_configs["t"] = LogConfig(min_insync_replicas=3)
        one.lead("t")
        assert only(one.ask(produce.API, request(batch(b"a")), 9)).error_code == 0


def test_flush_messages_delays_the_answer_until_the_disk_has_it(tmp_path: Path) -> None:
    one = OneBroker(tmp_path)
    one.topic_configs["t"] = LogConfig(flush_messages=1)
    one.lead("t")
    one.broker.logs.start_background(one.loop)
    waiting = one.dispatch(produce.API, request(batch(b"a"), acks=1, timeout_ms=30_000), 9)
    assert isinstance(waiting, asyncio.Future)
    assert only(one.run(waiting)).error_code == 0
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode) and log.recovery_point == 1
    one.close()


def test_made_up_topic_names_leave_no_trace(one: OneBroker) -> None:
    before = one.broker.metrics.size
    for i in range(10):
        one.ask(produce.API, request(batch(b"a"), topic=f"made-up-{i}"), 9)
    assert one.broker.metrics.size == before
    assert one.broker.replicas.topic_stats.all_topics.total_produce_requests.count == 10


def test_incoming_records_are_metered(one: OneBroker) -> None:
    one.lead("t")
    records = batch(b"a", b"b")
    one.ask(produce.API, request(records), 9)
    for stats in (one.broker.replicas.topic_stats.topic("t"), one.broker.replicas.topic_stats.all_topics):
        assert stats.messages_in.count == 2
        assert stats.bytes_in.count == len(records)
        assert stats.total_produce_requests.count == 1


@pytest.mark.parametrize("has_worker", [False, True])
@pytest.mark.parametrize("version", range(0, 3))
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_messages_of_old_formats_become_batches(
    one: OneBroker, version: int, magic: int, codec: int, has_worker: bool
) -> None:
    if has_worker:
        one.broker.replicas.record_checks.start(ThreadPoolExecutor(1))
    one.lead("t")
    answer = only(one.ask(produce.API, request(message_set(magic, codec)), version))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode)
    read = log.read(0, 1 << 20, max_offset=log.log_end_offset)
    assert not isinstance(read, ErrorCode)
    [stored] = batches(memoryview(read.records))
    assert (stored.magic, stored.compression, stored.is_valid()) == (2, codec, True)
    assert [(r.offset, r.key, r.value) for r in records(stored)] == [(i, *row) for i, row in enumerate(ROWS)]
    for stats in (one.broker.replicas.topic_stats.topic("t"), one.broker.replicas.topic_stats.all_topics):
        assert (stats.produce_message_conversions.count, stats.fetch_message_conversions.count) == (len(ROWS), 0)
    assert conversion_histograms(one, "Produce") == [1, 1]


def conversion_histograms(one: OneBroker, request: str) -> list[int]:
    """How often time and memory of conversions were recorded."""
    names = ("MessageConversionsTimeMs", "TemporaryMemoryBytes")
    found = [one.broker.metrics.find("kafka.network", "RequestMetrics", name, {"request": request}) for name in names]
    return [histogram.count for histogram in found if isinstance(histogram, Histogram)]


@pytest.mark.parametrize("version", [2, 3, 9])
def test_messages_of_old_formats_that_are_refused(one: OneBroker, version: int) -> None:
    one.lead("t")
    broken = bytearray(message_set(1))
    broken[-1] ^= 1
    answers = [only(one.ask(produce.API, request(data), version)) for data in (bytes(broken), message_set(1)[:-1])]
    expected = [ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD] if version < 3 else [ErrorCode.INVALID_RECORD] * 2
    assert [a.error_code for a in answers] == expected
    if version >= 3:
        assert only(one.ask(produce.API, request(message_set(1)), version)).error_code == ErrorCode.INVALID_RECORD
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode) and log.log_end_offset == 0
