"""Transactional appends: the coordinator is asked first, and the batches of a producer keep their order."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from klamm.errors import ErrorCode
from klamm.log.end_markers import marker_record_fields
from klamm.log.files import FileHandle, FileInfo, Files, OsFiles
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.producer_state import AppendOrigin
from klamm.model import TopicPartition, TransactionVersion
from klamm.protocol.compression import CompressionType
from klamm.protocol.record_batch import Record, batches, build_batch, records
from klamm.replica import transactional_producers
from klamm.replica.append_path import append_records
from klamm.replica.record_checks import AppendResults
from klamm.replica.transaction_verification import append_transactional
from klamm.replica.transactional_producers import ProducerConnections, VerificationConfig
from tests.support.one_broker import OneBroker
from tests.support.waiting import until

TV_1, TV_2 = TransactionVersion.TV_1, TransactionVersion.TV_2
T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR
Errors = dict[TopicPartition, ErrorCode]
Answer = AppendResults | asyncio.Future[AppendResults]


class Coordinator:
    """Notes the questions of a leader; the test answers them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.questions: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.waiting: list[asyncio.Future[Errors]] = []
        self.default: ErrorCode | None = None

    def __call__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> asyncio.Future[Errors]:
        self.questions.append((transactional_id, producer_id, producer_epoch, list(partitions), verify_only))
        answer: asyncio.Future[Errors] = self._loop.create_future()
        if self.default is None:
            self.waiting.append(answer)
        else:
            answer.set_result(dict.fromkeys(partitions, self.default))
        return answer

    def answer(self, error: ErrorCode = ErrorCode.NONE, index: int = 0) -> None:
        """Answer the oldest question that waits."""
        partitions = self.questions[len(self.questions) - len(self.waiting) + index][3]
        self.waiting.pop(index).set_result(dict.fromkeys(partitions, error))


class FewFiles(OsFiles):
    """Files of a process that may have no file descriptor left."""

    is_exhausted = False

    def open(self, path: str, *, create: bool = False) -> FileHandle:
        self._check(path)
        return super().open(path, create=create)

    def list_dir(self, path: str) -> list[FileInfo]:
        self._check(path)
        return super().list_dir(path)

    def _check(self, path: str) -> None:
        if self.is_exhausted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


class Leader(OneBroker):
    def __init__(self, tmp_path: Path, files: Files | None = None) -> None:
        super().__init__(tmp_path, files=files)
        self.coordinator = Coordinator(self.loop)
        self.broker.replicas.transactional_producers.add_partitions = self.coordinator
        self.lead("t", 3)

    def send(
        self,
        *sent: tuple[TopicPartition, bytes],
        version: TransactionVersion = TV_1,
        connection: int | None = None,
        origin: AppendOrigin = CLIENT,
        renews_epoch: bool = False,
    ) -> Answer:
        return append_transactional(
            self.broker.replicas,
            1,
            False,
            origin,
            dict(sent),
            1000,
            transactional_id="tx",
            version=version,
            connection=connection,
            renews_epoch=renews_epoch,
        )

    def results(self, answer: Answer) -> AppendResults:
        return self.run(answer) if isinstance(answer, asyncio.Future) else answer

    def errors(self, answer: Answer) -> list[ErrorCode]:
        return [result.error for result in self.results(answer).values()]

    def log(self, tp: TopicPartition = T0) -> Log:
        log = self.broker.replicas.leader_log(tp)
        assert isinstance(log, Log)
        return log

    def values(self, tp: TopicPartition = T0) -> list[bytes | None]:
        log = self.log(tp)
        read = log.read(log.log_start_offset, 1 << 24, max_offset=log.log_end_offset)
        assert not isinstance(read, ErrorCode)
        found = (r for b in batches(bytes(read.records)) if not b.is_control for r in records(b))
        return [record.value for record in found]

    def end(self, tp: TopicPartition = T0, epoch: int = 0, *, abort: bool = True) -> None:
        key, value = marker_record_fields(abort, 0)
        rows = [Record(timestamp=self.clock.now_ms(), key=key, value=value)]
        data = build_batch(rows, producer_id=5, producer_epoch=epoch, is_control=True, is_transactional=True)
        results = append_records(self.broker.replicas, 1, True, COORDINATOR, {tp: data})
        assert isinstance(results, dict) and results[tp].error == 0


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Leader]:
    leader = Leader(tmp_path)
    yield leader
    leader.close()


def data(value: bytes, sequence: int = 0, epoch: int = 0, producer_id: int = 5, compression: int = 0) -> bytes:
    rows = [Record(timestamp=1_700_000_000_000, key=b"k", value=value)]
    return build_batch(
        rows,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
        compression=compression,
    )


def test_only_the_first_batch_of_a_transaction_is_verified(one: Leader) -> None:
    first = one.send((T0, data(b"a")))
    assert isinstance(first, asyncio.Future) and one.values() == []
    assert one.coordinator.questions == [("tx", 5, 0, [T0], True)]
    one.coordinator.answer()
    assert one.errors(first) == [0]
    second = one.send((T0, data(b"b", 1)))
    assert not isinstance(second, asyncio.Future), "nothing to wait for"
    third = one.send((T0, data(b"c", 2)), (T1, data(b"x")))
    assert one.coordinator.questions[1:] == [("tx", 5, 0, [T1], True)]
    one.coordinator.answer()
    assert one.errors(third) == [0, 0]
    assert (one.values(T0), one.values(T1)) == ([b"a", b"b", b"c"], [b"x"])
    one.end()
    one.send((T0, data(b"d", 3)))
    assert len(one.coordinator.questions) == 3, "another transaction"


def test_version_2_adds_the_partitions(one: Leader) -> None:
    one.send((T0, data(b"a")), (T2, data(b"b")), version=TV_2)
    assert one.coordinator.questions == [("tx", 5, 0, [T0, T2], False)]


@pytest.mark.parametrize(
    ("error", "reported", "notified_to_version_2"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_answers_of_the_coordinator_as_producers_know_them(
    one: Leader, error: ErrorCode, reported: ErrorCode, notified_to_version_2: ErrorCode
) -> None:
    one.broker.replicas.transactional_producers.config = lambda: VerificationConfig(concurrent_retry_max_ms=0)
    one.coordinator.default = error
    assert one.errors(one.send((T0, data(b"a")))) == [reported]
    assert one.errors(one.send((T0, data(b"a")), version=TV_2)) == [notified_to_version_2]
    assert one.values() == []


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (ErrorCode.INVALID_TXN_STATE, 0),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 0),
        (ErrorCode.NETWORK_EXCEPTION, 1),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 1),
    ],
)
def test_a_final_refusal_leaves_no_state(one: Leader, error: ErrorCode, left: int) -> None:
    """Batches with made-up producer ids must not fill the memory; batches that come again keep their order."""
    one.coordinator.default = error
    one.results(one.send((T0, data(b"a"))))
    assert len(one.log().producers.verifications) == left


def test_an_error_concerns_its_partition_only(one: Leader) -> None:
    plain = build_batch([Record(timestamp=1_700_000_000_000, key=b"k", value=b"plain")])
    missing = TopicPartition("missing", 0)
    answer = one.send((missing, data(b"m")), (T1, data(b"a")), (T2, plain), (T0, data(b"b")))
    assert one.coordinator.questions == [("tx", 5, 0, [T1, T0], True)]
    one.coordinator.waiting[0].set_result({T1: ErrorCode.INVALID_TXN_STATE, T0: ErrorCode.NONE})
    results = one.results(answer)
    assert list(results) == [missing, T1, T2, T0], "in the order of the request"
    codes = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TXN_STATE, 0, 0]
    assert [result.error for result in results.values()] == codes


def test_a_coordinator_that_fails_is_asked_again_by_the_producer(one: Leader) -> None:
    answer = one.send((T0, data(b"a")))
    one.coordinator.waiting.pop().set_exception(ConnectionError("gone"))
    assert one.errors(answer) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    again = one.send((T0, data(b"a")))
    one.coordinator.answer()
    assert one.errors(again) == [0]


def test_without_a_coordinator_producers_try_again(tmp_path: Path) -> None:
    one = OneBroker(tmp_path)
    one.update_metadata({})
    one.lead("t")
    answer = append_transactional(
        one.broker.replicas, 1, False, CLIENT, {T0: data(b"a")}, 1000, transactional_id="tx", version=TV_1, connection=1
    )
    assert isinstance(answer, asyncio.Future)
    assert [result.error for result in one.run(answer).values()] == [ErrorCode.NOT_ENOUGH_REPLICAS]
    one.close()


def test_pipelined_batches_wait_for_the_first_one(one: Leader) -> None:
    """Five in flight, as clients have them: those behind the first wait, and need no question of their own."""
    answers = [one.send((T0, data(b"%d" % i, i))) for i in range(5)]
    one.spin()
    assert len(one.coordinator.questions) == 1 and one.values() == []
    one.coordinator.answer()
    assert [one.errors(answer) for answer in answers] == [[0]] * 5
    assert one.values() == [b"0", b"1", b"2", b"3", b"4"]
    assert len(one.coordinator.questions) == 1
    assert one.broker.replicas.transactional_producers.waiting_bytes == 0


def test_other_partitions_and_producers_do_not_wait(one: Leader) -> None:
    one.send((T0, data(b"a")))
    other = one.send((T1, data(b"b")))
    stranger = one.send((T0, data(b"c", producer_id=6)))
    assert [question[1] for question in one.coordinator.questions] == [5, 5, 6]
    one.coordinator.answer(index=2)
    assert one.errors(stranger) == [0] and one.values() == [b"c"]
    one.coordinator.answer(index=1)
    assert one.errors(other) == [0]


def test_a_request_waits_for_all_its_partitions(one: Leader) -> None:
    first, second = one.send((T0, data(b"a"))), one.send((T1, data(b"x")))
    both = one.send((T0, data(b"b", 1)), (T1, data(b"y", 1)))
    last = one.send((T1, data(b"z", 2)))
    one.coordinator.answer(index=1)
    assert one.errors(second) == [0]
    one.spin()
    assert one.values(T1) == [b"x"], "the third request still waits for the first one"
    one.coordinator.answer()
    assert [one.errors(answer) for answer in (first, both, last)] == [[0], [0, 0], [0]]
    assert (one.values(T0), one.values(T1)) == ([b"a", b"b"], [b"x", b"y", b"z"])


def test_a_refused_first_batch_holds_back_the_others(one: Leader) -> None:
    """They are not in order, so the producer sends all of them again, from the first on."""
    answers = [one.send((T0, data(b"%d" % i, i))) for i in range(3)]
    one.coordinator.answer(ErrorCode.NETWORK_EXCEPTION)
    assert one.errors(answers[0]) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    one.spin()
    one.coordinator.answer()
    assert one.errors(answers[1]) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    one.spin()
    one.coordinator.answer()
    assert one.errors(answers[2]) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    again = [one.send((T0, data(b"%d" % i, i))) for i in range(3)]
    one.coordinator.answer()
    assert [one.errors(answer) for answer in again] == [[0]] * 3
    assert one.values() == [b"0", b"1", b"2"]


def test_batches_that_are_checked_in_a_thread_keep_their_order(one: Leader) -> None:
    one.broker.replicas.record_checks.start(ThreadPoolExecutor(1))
    large = data(b"x" * (1 << 20), compression=CompressionType.GZIP)
    answers = [one.send((T0, large)), *(one.send((T0, data(b"%d" % i, i))) for i in range(1, 4))]
    one.coordinator.answer()
    one.coordinator.default = ErrorCode.NONE
    assert [one.errors(answer) for answer in answers] == [[0]] * 4
    assert one.values()[1:] == [b"1", b"2", b"3"]


def test_a_marker_that_arrives_first_invalidates_the_answer(one: Leader) -> None:
    answer = one.send((T0, data(b"late")))
    one.end()
    one.coordinator.answer()
    assert one.errors(answer) == [ErrorCode.INVALID_TXN_STATE]
    assert one.values() == []


def test_a_partition_that_moves_meanwhile(one: Leader) -> None:
    answer = one.send((T0, data(b"a")))
    one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    one.coordinator.answer()
    assert one.errors(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_partition_that_was_led_by_another_broker_when_the_request_came(one: Leader) -> None:
    """Nobody was asked about it, so it is not appended, even if this broker leads it in the end."""
    one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    answer = one.send((T0, data(b"a")), (T1, data(b"b")))
    one.leader_and_isr({"t": [0]}, leader=1, leader_epoch=2, replicas=(1, 2), isr=(1, 2))
    one.coordinator.answer()
    assert one.errors(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
    assert one.values() == []


def test_one_request_has_one_producer(one: Leader) -> None:
    answer = one.send((T0, data(b"a")), (T1, data(b"b", producer_id=6)))
    assert one.errors(answer) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert one.coordinator.questions == []


def test_verification_can_be_switched_off_for_old_clients(one: Leader) -> None:
    one.broker.replicas.transactional_producers.config = lambda: VerificationConfig(is_enabled=False)
    assert one.errors(one.send((T0, data(b"a")))) == [0]
    assert one.coordinator.questions == []
    one.send((T1, data(b"a")), version=TV_2)
    assert len(one.coordinator.questions) == 1, "without the question the partition would never be added"


def test_version_2_asks_again_while_the_previous_transaction_completes(one: Leader) -> None:
    one.broker.replicas.transactional_producers.config = lambda: VerificationConfig(True, 1, 60_000)
    first = one.send((T0, data(b"a")), version=TV_2)
    second = one.send((T0, data(b"b", 1)), version=TV_2)
    one.coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)

    asked_again = until(lambda: len(one.coordinator.questions) == 2)
    one.run(asyncio.ensure_future(asked_again, loop=one.loop))
    one.coordinator.answer()
    assert [one.errors(answer) for answer in (first, second)] == [[0], [0]]
    assert one.values() == [b"a", b"b"]


def test_version_2_asks_again_if_a_marker_of_the_previous_transaction_arrives_meanwhile(one: Leader) -> None:
    """The question is late: the coordinator receives it when the markers are written, and confirms."""
    one.broker.replicas.transactional_producers.config = lambda: VerificationConfig(True, 1, 60_000)
    first = one.send((T0, data(b"a", epoch=1)), version=TV_2)
    one.end(epoch=1)
    one.coordinator.answer()
    one.run(asyncio.ensure_future(until(lambda: len(one.coordinator.questions) == 2), loop=one.loop))
    one.coordinator.answer()
    assert one.errors(first) == [0] and one.values() == [b"a"]
    late = one.send((T1, data(b"late", epoch=1)), version=TV_2)
    one.end(T1, epoch=2)
    one.coordinator.answer()
    assert one.errors(late) == [ErrorCode.INVALID_PRODUCER_EPOCH] and one.values(T1) == []


def test_stale_epochs_are_refused_without_a_question(one: Leader) -> None:
    one.coordinator.default = ErrorCode.NONE
    assert one.errors(one.send((T0, data(b"a", epoch=3)))) == [0]
    assert one.errors(one.send((T0, data(b"b", epoch=2)))) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert len(one.coordinator.questions) == 1


def test_waiting_bytes_are_bounded(one: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = data(b"a")
    monkeypatch.setattr(transactional_producers, "MAX_WAITING_BYTES", len(sent) * 2)
    waiting = [one.send((tp, sent)) for tp in (T0, T1)]
    assert one.errors(one.send((T2, sent))) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    for _ in range(2):
        one.coordinator.answer()
    assert [one.errors(answer) for answer in waiting] == [[0], [0]]
    one.coordinator.default = ErrorCode.NONE
    assert one.errors(one.send((T2, sent))) == [0]


def test_nothing_is_appended_after_the_broker_stopped(tmp_path: Path) -> None:
    one = Leader(tmp_path)
    answer = one.send((T0, data(b"a")))
    one.broker.replicas.shutdown()
    one.coordinator.answer()
    assert one.errors(answer) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    one.broker.logs.shutdown()
    one.loop.close()


def test_batches_after_one_that_found_no_file_for_its_log_wait_for_it(tmp_path: Path) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER would make the client abort its transaction."""
    with closing(Leader(tmp_path)) as former:
        former.coordinator.default = ErrorCode.NONE
        assert former.errors(former.send((T0, data(b"a")))) == [0]
        former.end()
    files = FewFiles()
    with closing(Leader(tmp_path, files)) as one:
        one.coordinator.default = ErrorCode.NONE
        assert one.log().unopened is not None
        files.is_exhausted = True
        assert one.errors(one.send((T0, data(b"damaged", 8)[:-1]))) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert one.errors(one.send((T0, data(b"b", 1)))) == [ErrorCode.KAFKA_STORAGE_ERROR]
        files.is_exhausted = False
        following = one.results(one.send((T0, data(b"c", 2))))[T0]
        assert (following.error, following.error_message) == (
            ErrorCode.KAFKA_STORAGE_ERROR,
            "an earlier batch of the producer could not be written; send it again first",
        )
        assert [one.errors(one.send((T0, data(value, n)))) for n, value in ((1, b"b"), (2, b"c"))] == [[0], [0]]
        assert one.values() == [b"a", b"b", b"c"]


def test_batches_for_a_failed_disk_are_not_noted(one: Leader) -> None:
    one.log().disk.set_failed(True)
    assert one.errors(one.send((T0, data(b"a")))) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert not one.log().unwritten


def test_too_few_in_sync_replicas_before_the_first_batch(one: Leader) -> None:
    one.topic_configs["u"] = LogConfig(min_insync_replicas=2)
    one.lead("u", replicas=(1, 2), isr=(1,))
    one.coordinator.default = ErrorCode.NONE
    records = {TopicPartition("u", 0): data(b"a")}
    answer = append_transactional(
        one.broker.replicas, -1, False, CLIENT, records, 1000, transactional_id="tx", version=TV_1, connection=None
    )
    assert one.errors(answer) == [ErrorCode.NOT_ENOUGH_REPLICAS]


class TestConnections:
    def test_a_request_of_an_older_connection_is_late(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        assert one.errors(one.send((T0, data(b"a")), connection=4)) == [0]
        assert one.errors(one.send((T0, data(b"b", 1)), connection=9)) == [0]
        late = one.send((T1, data(b"late")), connection=4)
        assert one.errors(late) == [ErrorCode.NETWORK_EXCEPTION], "on any partition of this broker"
        assert one.errors(one.send((T0, data(b"c", 2)), connection=9)) == [0]
        assert (one.values(T0), one.values(T1)) == ([b"a", b"b", b"c"], [])

    def test_a_new_epoch_starts_over(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        assert one.errors(one.send((T0, data(b"a")), connection=9)) == [0]
        assert one.errors(one.send((T1, data(b"b", epoch=1)), connection=4)) == [0]

    def test_clients_of_version_2_are_fenced_by_their_epoch(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        for connection, tp in ((9, T0), (4, T1)):
            assert one.errors(one.send((tp, data(b"a")), connection=connection, version=TV_2)) == [0]

    def test_connections_from_before_an_abort_are_late(self, one: Leader) -> None:
        """The producer may have given up a batch on any of them, which arrives before those of its next transaction."""
        one.coordinator.default = ErrorCode.NONE
        one.broker.logs.number_connections(lambda: 9)
        assert one.errors(one.send((T0, data(b"a")), connection=4)) == [0]
        one.end(T0)
        one.end(T1)
        for connection in (4, 9):
            late = one.send((T0, data(b"late", 1)), connection=connection)
            assert one.errors(late) == [ErrorCode.NETWORK_EXCEPTION]
        late = one.send((T1, data(b"late")), connection=9)
        assert one.errors(late) == [ErrorCode.NETWORK_EXCEPTION], "the aborted transaction had no batch here yet"
        assert len(one.coordinator.questions) == 1
        assert one.errors(one.send((T0, data(b"b", 1)), connection=10)) == [0]
        assert one.values() == [b"a", b"b"]

    def test_positions_are_refused_in_the_same_way(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        one.broker.logs.number_connections(lambda: 9)
        one.end(T0)
        late = one.send((T0, data(b"late")), connection=9, origin=COORDINATOR)
        assert one.errors(late) == [ErrorCode.NETWORK_EXCEPTION]
        assert one.errors(one.send((T0, data(b"a")), connection=10, origin=COORDINATOR)) == [0]

    def test_a_commit_leaves_no_batch_without_an_answer(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        one.broker.logs.number_connections(lambda: 9)
        assert one.errors(one.send((T0, data(b"a")), connection=4)) == [0]
        one.end(T0, abort=False)
        assert one.errors(one.send((T0, data(b"b", 1)), connection=4)) == [0]

    def test_a_new_epoch_after_an_abort_may_use_any_connection(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        one.broker.logs.number_connections(lambda: 9)
        one.end(T0)
        assert one.errors(one.send((T0, data(b"a", epoch=1)), connection=4)) == [0]

    def test_clients_that_renew_their_epoch_keep_their_connections(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        one.broker.logs.number_connections(lambda: 9)
        one.end(T0)
        assert one.errors(one.send((T0, data(b"a")), connection=4, renews_epoch=True)) == [0]

    def test_a_truncated_log_has_forgotten_its_aborts(self, one: Leader) -> None:
        one.coordinator.default = ErrorCode.NONE
        one.broker.logs.number_connections(lambda: 9)
        assert one.errors(one.send((T0, data(b"a")), connection=4)) == [0]
        one.end(T0)
        append_records(one.broker.replicas, 1, True, CLIENT, {T0: build_batch([Record(timestamp=1, value=b"x")])})
        one.log().truncate_to(2)
        assert one.errors(one.send((T0, data(b"late", 1)), connection=9)) == [ErrorCode.NETWORK_EXCEPTION]
        assert one.errors(one.send((T0, data(b"b", 1)), connection=10)) == [0]

    def test_requests_of_coordinators_and_produce_are_apart(self) -> None:
        connections = ProducerConnections()
        assert connections.admit(COORDINATOR, 5, 0, 9)
        assert connections.admit(CLIENT, 5, 0, 4), "clients use another connection for their coordinator"
        assert not connections.admit(COORDINATOR, 5, 0, 8)

    def test_older_epochs_are_left_to_the_log(self) -> None:
        connections = ProducerConnections()
        assert connections.admit(CLIENT, 5, 3, 9)
        assert connections.admit(CLIENT, 5, 2, 4)
        assert not connections.admit(CLIENT, 5, 3, 8)

    def test_the_memory_is_bounded(self) -> None:
        connections = ProducerConnections(most=3)
        for producer_id in (1, 2, 3, 1, 4):
            assert connections.admit(CLIENT, producer_id, 0, 9)
        assert len(connections) == 3
        assert not connections.admit(CLIENT, 1, 0, 8)
        assert connections.admit(CLIENT, 2, 0, 8), "the one that was silent longest is forgotten"
