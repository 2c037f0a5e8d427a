"""What a change of the log manager's logs costs follows the change: counts and topics are kept, not computed."""

from __future__ import annotations

from dataclasses import replace

from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from tests.unit.log.harness import Bench

DIRS = ("/a", "/b")


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, i) for i in range(count)]


def test_directories_stay_even_over_deletions_and_restarts() -> None:
    bench = Bench()
    manager = bench.manager(DIRS)
    for tp in partitions("t", 10):
        manager.get_or_create_log(tp, is_new=True)
    in_a = [log.topic_partition for log in manager.logs_in("/a")]
    assert len(in_a) == 5
    manager.async_delete_all(in_a[:4])
    manager.shutdown()
    again = bench.manager(DIRS)
    for tp in partitions("u", 4):
        assert again.get_or_create_log(tp, is_new=True).log_dir == "/a"
    assert len(list(again.logs_in("/a"))) == len(list(again.logs_in("/b"))) == 5


def test_a_deletion_of_many_writes_the_checkpoints_once() -> None:
    bench = Bench()
    manager = bench.manager()
    for tp in partitions("t", 20):
        manager.get_or_create_log(tp, is_new=True)
    written: list[str] = []

    def count(operation: str, path: str) -> None:
        if operation == "write" and path.endswith("-checkpoint"):
            written.append(path)

    bench.files.fault = count
    outcome = manager.async_delete_all(partitions("t", 21))
    assert set(outcome.values()) == {ErrorCode.NONE} and len(outcome) == 21
    assert not manager.logs
    assert len(written) == 2, "recovery points and log starts"
    assert manager.async_delete_all([]) == {}


def test_a_topic_config_reaches_the_logs_of_its_topic() -> None:
    bench = Bench()
    manager = bench.manager()
    for topic in ("t", "u"):
        for tp in partitions(topic, 2):
            manager.get_or_create_log(tp, is_new=True)
    small = replace(bench.config, segment_bytes=100)
    manager.update_config("t", small)
    assert [tp for tp, log in manager.logs.items() if log.config is small] == partitions("t", 2)
    manager.async_delete_all(partitions("t", 2))
    manager.update_config("t", small)
    assert not any(log.config is small for log in manager.logs.values())
